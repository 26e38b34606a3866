//! In virtual time: questions go out, and a guest answers or does not.

use super::*;

/// A guest that listens on some ports, and the sockets as the changes leave them.
struct Scene {
    inquiry: Inquiry,
    now: Time,
    listening: Vec<u16>,
    /// By which of the two families the guest answers.
    families: [bool; 2],
    /// In which families it listens.
    serves: [bool; 2],
    shut: Vec<u16>,
    asked: usize,
}

impl Scene {
    fn new(ports: &[u16]) -> Scene {
        let mut inquiry = Inquiry::default();
        inquiry.set_ports(ports.iter().copied(), Time::ZERO);
        let (families, serves) = ([true; 2], [true; 2]);
        Scene { inquiry, now: Time::ZERO, listening: vec![], families, serves, shut: vec![], asked: 0 }
    }

    fn started(ports: &[u16]) -> Scene {
        let mut scene = Scene::new(ports);
        scene.inquiry.start(Time::ZERO);
        scene
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Open(port) => {
                assert!(self.shut.contains(&port), "{port} was open");
                self.shut.retain(|p| *p != port);
            }
            Change::Shut(port) => {
                assert!(!self.shut.contains(&port), "{port} was shut");
                self.shut.push(port);
            }
        }
    }

    /// Lets `span` pass; the guest answers at once, by IPv4 first.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.inquiry.poll_at().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let turn = self.inquiry.poll(self.now, |port| u32::MAX - u32::from(port) % 2);
            self.asked += turn.questions.len();
            turn.changes.into_iter().for_each(|c| self.apply(c));
            let families = self.families;
            for Question { port, seq } in turn.questions {
                for family in [0, 1].into_iter().filter(|f| families[*f]) {
                    let listens = self.listening.contains(&port) && self.serves[family];
                    let change = self.inquiry.on_answer(port, seq.wrapping_add(1), listens, self.now);
                    change.into_iter().for_each(|c| self.apply(c));
                }
            }
        }
        self.now = end;
    }
}

#[test]
fn ports_on_which_the_guest_does_not_listen_are_shut_and_open_again_within_a_round() {
    let mut s = Scene::started(&[22, 80, 443]);
    s.listening = vec![22];
    s.pass(SECOND_ANSWER);
    assert_eq!(s.shut, [80, 443]);
    s.listening.push(443);
    s.pass(ROUND);
    assert_eq!(s.shut, [80]);
    // The open ones are not asked again.
    s.asked = 0;
    s.pass(ROUND * 10);
    assert_eq!(s.asked, 10);
    assert_eq!(s.shut, [80]);
}

#[test]
fn a_guest_that_listens_on_all_is_left_in_peace() {
    let mut s = Scene::started(&[22, 80]);
    s.listening = vec![22, 80];
    s.pass(ROUND);
    assert_eq!((s.asked, s.inquiry.poll_at()), (2, None));
}

#[test]
fn nothing_is_asked_while_there_is_no_driver() {
    let mut s = Scene::new(&[22]);
    s.pass(ROUND * 5);
    assert_eq!(s.asked, 0);
    s.inquiry.start(s.now);
    s.pass(ROUND);
    assert!(s.asked > 0);
    s.inquiry.stop();
    assert_eq!(s.inquiry.poll_at(), None);
}

#[test]
fn silence_shuts_nothing_and_is_asked_rarely_after_a_while() {
    let mut s = Scene::started(&[22]);
    s.families = [false; 2];
    s.pass(ROUND * OFTEN);
    assert!(s.shut.is_empty(), "{:?}", s.shut);
    s.asked = 0;
    s.pass(RARE * 4);
    assert!((3..=5).contains(&s.asked), "{}", s.asked);
    // The guest has booted, and its service has not: the next question finds that out.
    s.families = [true, false];
    s.pass(RARE + SECOND_ANSWER);
    assert_eq!(s.shut, [22]);
}

#[test]
fn one_family_that_answers_is_enough() {
    let mut s = Scene::started(&[22]);
    s.families = [false, true];
    s.pass(SECOND_ANSWER);
    assert_eq!(s.shut, [22]);
    s.listening = vec![22];
    s.pass(ROUND);
    assert!(s.shut.is_empty(), "{:?}", s.shut);
}

#[test]
fn a_port_that_is_served_by_the_family_which_answers_last_is_never_shut() {
    let mut s = Scene::started(&[22]);
    s.listening = vec![22];
    s.serves = [false, true];
    s.pass(ROUND * 3);
    assert_eq!((s.shut.as_slice(), s.asked), (&[][..], 1));
}

#[test]
fn a_shut_port_opens_by_the_family_which_answers_last() {
    let mut s = Scene::started(&[22]);
    s.serves = [false, true];
    s.pass(ROUND);
    assert_eq!(s.shut, [22]);
    s.listening = vec![22];
    s.pass(ROUND);
    assert!(s.shut.is_empty(), "{:?}", s.shut);
}

#[test]
fn a_client_that_is_refused_makes_a_question_and_shuts_nothing_by_itself() {
    let mut s = Scene::started(&[22]);
    s.listening = vec![22];
    s.pass(ROUND);
    // A guest that refuses some clients and listens to others, however often they come.
    for _ in 0..100 {
        s.inquiry.on_refusal(22, s.now);
        s.pass(ROUND / 10);
        assert!(s.shut.is_empty(), "{:?}", s.shut);
    }
    assert!(s.asked <= 12, "{}", s.asked);
    s.pass(ROUND);
    s.listening.clear();
    s.inquiry.on_refusal(22, s.now);
    s.pass(SECOND_ANSWER);
    assert_eq!(s.shut, [22]);
    // Of a port that is not asked about nothing is known.
    s.inquiry.on_refusal(23, s.now);
}

#[test]
fn a_guest_that_is_silent_about_a_shut_port_has_it_open_after_some_questions() {
    let mut s = Scene::started(&[22]);
    s.pass(SECOND_ANSWER);
    assert_eq!(s.shut, [22]);
    s.families = [false; 2];
    s.pass(ROUND * (FORGOTTEN - 1));
    assert_eq!(s.shut, [22]);
    s.pass(ROUND * 3);
    assert!(s.shut.is_empty(), "{:?}", s.shut);
}

#[test]
fn a_driver_that_starts_anew_has_every_port_asked_and_none_changed_by_that_alone() {
    let mut s = Scene::started(&[22, 80]);
    s.listening = vec![22];
    s.pass(ROUND);
    s.listening = vec![80];
    s.families = [false; 2];
    s.inquiry.start(s.now);
    s.pass(ROUND * 5);
    assert_eq!(s.shut, [80]);
    // Left in peace while the guest was silent: a refused client has it asked.
    s.families = [true; 2];
    s.pass(ROUND);
    assert!(s.shut.is_empty(), "{:?}", s.shut);
    s.inquiry.on_refusal(22, s.now);
    s.pass(SECOND_ANSWER);
    assert_eq!(s.shut, [22]);
}

#[test]
fn a_driver_that_starts_twice_in_a_row_has_each_port_asked_once() {
    let mut s = Scene::started(&[22]);
    assert_eq!(s.inquiry.poll(s.now, |_| 7).questions, [Question { port: 22, seq: 7 }]);
    s.inquiry.start(s.now + ROUND / 2);
    assert_eq!(s.inquiry.poll_at(), Some(s.now + ROUND));
    assert_eq!(s.inquiry.on_answer(22, 8, true, s.now), None);
    s.inquiry.start(s.now + ROUND / 2);
    assert_eq!(s.inquiry.poll_at(), Some(s.now + ROUND / 2), "it was answered");
    // The question before it went to a driver that has gone.
    s.inquiry.poll(s.now + ROUND / 2, |_| 8);
    s.inquiry.start(s.now + ROUND * 2);
    assert_eq!(s.inquiry.poll_at(), Some(s.now + ROUND * 2));
}

#[test]
fn an_answer_that_is_late_opens_the_port_that_the_other_family_has_shut() {
    let mut s = Scene::started(&[22]);
    let seq = s.inquiry.poll(s.now, |_| 7).questions[0].seq;
    assert_eq!(s.inquiry.on_answer(22, seq + 1, false, s.now), None);
    assert_eq!(s.inquiry.poll(s.now + SECOND_ANSWER, |_| 8).changes, [Change::Shut(22)]);
    assert_eq!(s.inquiry.on_answer(22, seq + 1, true, s.now + SECOND_ANSWER), Some(Change::Open(22)));
}

#[test]
fn what_is_no_answer_to_the_last_question_changes_nothing() {
    let mut s = Scene::started(&[22]);
    let turn = s.inquiry.poll(Time::ZERO, |_| 7);
    assert_eq!(turn.questions, [Question { port: 22, seq: 7 }]);
    for (port, ack) in [(22, 7), (22, 9), (23, 8)] {
        assert_eq!(s.inquiry.on_answer(port, ack, false, Time::ZERO), None);
    }
    assert_eq!(s.inquiry.poll_at(), Some(Time::ZERO + ROUND));
    assert_eq!(s.inquiry.on_answer(22, 8, true, Time::ZERO), None);
    // The question has been answered.
    assert_eq!(s.inquiry.on_answer(22, 8, false, Time::ZERO), None);
    assert_eq!(s.inquiry.poll_at(), None);
}

#[test]
fn another_guest_finds_every_port_open() {
    let mut s = Scene::started(&[22, 80]);
    s.pass(ROUND);
    assert_eq!(s.inquiry.shut().collect::<Vec<_>>(), [22, 80]);
    let open = s.inquiry.forget(s.now);
    open.into_iter().for_each(|c| s.apply(c));
    assert_eq!((s.shut.as_slice(), s.inquiry.shut().count()), (&[][..], 0));
}

#[test]
fn ports_come_and_go_and_the_others_stay_as_they_are() {
    let mut s = Scene::started(&[22, 80]);
    s.pass(ROUND);
    s.inquiry.set_ports([80, 443], s.now);
    assert_eq!(s.inquiry.shut().collect::<Vec<_>>(), [80]);
    s.inquiry.assume_shut(443, s.now);
    assert_eq!(s.inquiry.shut().collect::<Vec<_>>(), [80, 443]);
    s.inquiry.assume_shut(1, s.now);
    s.inquiry.set_ports(1..=u16::MAX, s.now);
    assert_eq!(s.inquiry.ports.len(), MAX_ASKED);
}

#[test]
fn many_ports_are_asked_a_bounded_number_at_a_time() {
    let mut inquiry = Inquiry::default();
    inquiry.set_ports(1..=100, Time::ZERO);
    inquiry.start(Time::ZERO);
    let mut turns = Vec::new();
    while inquiry.poll_at() == Some(Time::ZERO) {
        turns.push(inquiry.poll(Time::ZERO, |_| 0).questions.len());
    }
    assert_eq!(turns, [PER_TURN, PER_TURN, PER_TURN, 100 - 3 * PER_TURN]);
}
