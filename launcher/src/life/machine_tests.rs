use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(30);

fn at(seconds: u64) -> Time {
    Duration::from_secs(seconds)
}

/// A machine that runs since second 1, linked.
fn running() -> Machine {
    let mut machine = Machine::new(GRACE);
    assert_eq!(orders(&mut machine, at(0), Input::Tick), [Action::Connect]);
    assert_eq!(orders(&mut machine, at(0), Input::Connected(DomainState::Absent)), [Action::Start]);
    assert_eq!(orders(&mut machine, at(1), Input::Event(Event::Started)), []);
    assert_eq!(orders(&mut machine, at(1), Input::Started), []);
    assert_eq!(machine.state(), "running");
    machine
}

/// As `machine.handle`, without the questions for the domain's state.
fn orders(machine: &mut Machine, now: Time, input: Input) -> Vec<Action> {
    let mut actions = machine.handle(now, input);
    actions.retain(|a| *a != Action::Check);
    actions
}

fn finish(ending: Ending) -> Vec<Action> {
    vec![Action::Finish(ending)]
}

#[test]
fn a_guest_that_switches_itself_off_ends_with_zero() {
    let mut machine = running();
    assert_eq!(orders(&mut machine, at(9), Input::Event(Event::ShutDown)), []);
    assert_eq!(
        orders(&mut machine, at(9), Input::Event(Event::Stopped(Stopped::Shutdown))),
        finish(Ending::ShutDown)
    );
    assert_eq!(Ending::ShutDown.exit_code(), 0);
    assert_eq!(machine.wake_at(), None);
    assert_eq!(orders(&mut machine, at(10), Input::Stop), [], "nothing after the end");
}

#[test]
fn a_stop_presses_the_power_button_until_the_guest_is_off() {
    let mut machine = running();
    assert_eq!(orders(&mut machine, at(10), Input::Stop), [Action::Shutdown]);
    assert_eq!(orders(&mut machine, at(12), Input::Stop), [], "a second request changes nothing");
    assert_eq!(orders(&mut machine, at(15), Input::Tick), [Action::Shutdown]);
    assert_eq!(
        orders(&mut machine, at(17), Input::Event(Event::Stopped(Stopped::Shutdown))),
        finish(Ending::ShutDown)
    );
}

#[test]
fn a_start_without_an_end_is_ended_and_the_hypervisors_reason_is_told() {
    let starting = || {
        let mut machine = Machine::new(GRACE);
        orders(&mut machine, at(0), Input::Tick);
        assert_eq!(orders(&mut machine, at(3), Input::Connected(DomainState::Absent)), [Action::Start]);
        assert_eq!(machine.wake_at(), Some(at(63)));
        assert_eq!(orders(&mut machine, at(62), Input::Tick), []);
        assert_eq!(orders(&mut machine, at(63), Input::Tick), [Action::Destroy]);
        assert_eq!((machine.state(), machine.wake_at()), ("starting", Some(at(83))));
        machine
    };
    let mut machine = starting();
    let reason = "QEMU: you are asking more queues than supported: 1".to_owned();
    assert_eq!(
        orders(&mut machine, at(64), Input::StartFailed(reason.clone())),
        finish(Ending::FailedToStart(format!("no guest 60 s after the start: {reason}")))
    );
    // The hypervisor hangs itself.
    let mut machine = starting();
    let ended = orders(&mut machine, at(83), Input::Tick);
    assert!(matches!(&ended[..], [Action::Finish(Ending::FailedToStart(reason))] if reason.contains("80 s")));
    // The hypervisor died and was started anew, again and again: the time of the first start counts.
    let mut machine = Machine::new(GRACE);
    orders(&mut machine, at(0), Input::Tick);
    orders(&mut machine, at(3), Input::Connected(DomainState::Absent));
    orders(&mut machine, at(50), Input::Event(Event::Closed));
    assert_eq!(orders(&mut machine, at(51), Input::Connected(DomainState::Absent)), [Action::Start]);
    assert_eq!(orders(&mut machine, at(63), Input::Tick), [Action::Destroy]);
    orders(&mut machine, at(64), Input::Event(Event::Closed));
    let ended = orders(&mut machine, at(65), Input::Connected(DomainState::Absent));
    assert!(matches!(&ended[..], [Action::Finish(Ending::FailedToStart(_))]), "{ended:?}");
    // It was on the point of running.
    let mut machine = starting();
    assert_eq!(orders(&mut machine, at(64), Input::Started), []);
    assert_eq!(machine.state(), "running");
    assert_eq!(
        orders(&mut machine, at(65), Input::Event(Event::Stopped(Stopped::Destroyed))),
        finish(Ending::Destroyed)
    );
}

#[test]
fn a_kill_needs_no_grace_period_and_waits_for_a_start_under_way() {
    let killed = |machine: &mut Machine, now| {
        assert_eq!(machine.state(), "destroying");
        let ended = orders(machine, now, Input::Event(Event::Stopped(Stopped::Destroyed)));
        assert_eq!(ended, finish(Ending::Killed));
    };
    let mut machine = running();
    assert_eq!(orders(&mut machine, at(10), Input::Kill), [Action::Destroy]);
    killed(&mut machine, at(11));

    let mut machine = running();
    orders(&mut machine, at(10), Input::Stop);
    assert_eq!(orders(&mut machine, at(11), Input::Kill), [Action::Destroy]);
    killed(&mut machine, at(12));

    let mut machine = Machine::new(GRACE);
    orders(&mut machine, at(0), Input::Tick);
    orders(&mut machine, at(0), Input::Connected(DomainState::Absent));
    assert_eq!(orders(&mut machine, at(1), Input::Kill), []);
    assert_eq!(orders(&mut machine, at(2), Input::Started), [Action::Destroy]);
    killed(&mut machine, at(3));
}

#[test]
fn a_guest_that_does_not_listen_is_destroyed_when_its_grace_period_is_over() {
    let mut machine = running();
    orders(&mut machine, at(10), Input::Stop);
    let mut presses = 1;
    while let Some(wake) = machine.wake_at() {
        match orders(&mut machine, wake, Input::Tick).as_slice() {
            [Action::Shutdown] => presses += 1,
            [Action::Destroy] => {
                assert_eq!(wake, at(40), "grace counts from the request");
                break;
            }
            [] => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(presses, 6);
    assert_eq!(
        orders(&mut machine, at(41), Input::Event(Event::Stopped(Stopped::Destroyed))),
        finish(Ending::Killed)
    );
    assert_ne!(Ending::Killed.exit_code(), 0);
}

#[test]
fn without_a_grace_period_the_guest_is_destroyed_at_once() {
    let mut machine = Machine::new(Duration::ZERO);
    orders(&mut machine, at(0), Input::Tick);
    orders(&mut machine, at(0), Input::Connected(DomainState::Absent));
    orders(&mut machine, at(1), Input::Started);
    assert_eq!(orders(&mut machine, at(5), Input::Stop), [Action::Destroy]);
}

#[test]
fn a_guest_that_makes_it_at_the_last_moment_has_shut_down() {
    let mut machine = running();
    orders(&mut machine, at(10), Input::Stop);
    assert!(orders(&mut machine, at(40), Input::Tick).contains(&Action::Destroy));
    assert_eq!(
        orders(&mut machine, at(40), Input::Event(Event::Stopped(Stopped::Shutdown))),
        finish(Ending::ShutDown)
    );
}

#[test]
fn a_domain_that_cannot_be_destroyed_is_given_up() {
    let mut machine = running();
    orders(&mut machine, at(0), Input::Stop);
    orders(&mut machine, at(30), Input::Tick);
    assert_eq!(orders(&mut machine, at(35), Input::Tick), [Action::Destroy], "tried again");
    assert_eq!(orders(&mut machine, at(50), Input::Tick), finish(Ending::Killed));
}

#[test]
fn a_guest_that_others_end_is_told_apart_from_one_that_crashed() {
    for (how, ending, code) in [
        (Stopped::Destroyed, Ending::Destroyed, 5),
        (Stopped::Crashed, Ending::Crashed, 3),
        (Stopped::Failed, Ending::Crashed, 3),
        (Stopped::Migrated, Ending::Migrated, 0),
        (Stopped::Saved, Ending::ShutDown, 0),
        (Stopped::Unknown, Ending::Lost, 6),
    ] {
        assert_eq!(ending.exit_code(), code);
        assert_eq!(orders(&mut running(), at(9), Input::Event(Event::Stopped(how))), finish(ending));
    }
}

#[test]
fn a_reboot_changes_nothing() {
    let mut machine = running();
    for event in [Event::Rebooted, Event::Suspended, Event::Resumed] {
        assert_eq!(orders(&mut machine, at(9), Input::Event(event)), []);
    }
    assert_eq!(machine.state(), "running");
    orders(&mut machine, at(10), Input::Stop);
    assert_eq!(orders(&mut machine, at(11), Input::Event(Event::Rebooted)), []);
    assert_eq!(
        orders(&mut machine, at(15), Input::Tick),
        [Action::Shutdown],
        "pressed again after the reboot"
    );
}

#[test]
fn a_domain_that_does_not_start_tells_the_hypervisors_reason() {
    let mut machine = Machine::new(GRACE);
    orders(&mut machine, at(0), Input::Tick);
    orders(&mut machine, at(0), Input::Connected(DomainState::Absent));
    assert_eq!(
        orders(&mut machine, at(1), Input::Event(Event::Stopped(Stopped::Failed))),
        [],
        "the answer has the reason"
    );
    let reason = "no such machine".to_owned();
    assert_eq!(
        orders(&mut machine, at(1), Input::StartFailed(reason.clone())),
        finish(Ending::FailedToStart(reason.clone()))
    );
    assert_eq!(Ending::FailedToStart(reason).exit_code(), 1);
}

#[test]
fn connecting_is_tried_again_and_given_up_only_before_the_first_link() {
    let mut machine = Machine::new(GRACE);
    assert_eq!(orders(&mut machine, at(0), Input::Tick), [Action::Connect]);
    assert_eq!(machine.wake_at(), Some(FIRST_LINK), "one attempt at a time");
    assert_eq!(orders(&mut machine, at(0), Input::NotConnected("no socket".into())), []);
    assert_eq!(machine.wake_at(), Some(RECONNECT));
    assert_eq!(orders(&mut machine, RECONNECT, Input::Tick), [Action::Connect]);
    orders(&mut machine, at(59), Input::NotConnected("no socket".into()));
    assert_eq!(
        orders(&mut machine, at(60), Input::Tick),
        [
            Action::Connect,
            Action::Finish(Ending::FailedToStart("no connection after 60 s: no socket".into()))
        ]
    );
}

#[test]
fn a_link_that_is_lost_takes_no_running_domain_with_it() {
    let mut machine = running();
    assert_eq!(orders(&mut machine, at(5), Input::Event(Event::Closed)), [Action::Connect]);
    for minute in 1..10 {
        orders(&mut machine, at(minute * 60), Input::NotConnected("refused".into()));
        assert_eq!(orders(&mut machine, at(minute * 60 + 1), Input::Tick), [Action::Connect]);
    }
    assert_eq!(orders(&mut machine, at(999), Input::Connected(DomainState::Active)), []);
    assert_eq!(machine.state(), "running");
}

#[test]
fn what_became_of_the_domain_while_the_link_was_down_counts() {
    for (state, ending) in [
        (DomainState::Off(Stopped::Shutdown), Ending::ShutDown),
        (DomainState::Off(Stopped::Failed), Ending::Crashed),
        (DomainState::Absent, Ending::Lost),
    ] {
        let mut machine = running();
        orders(&mut machine, at(5), Input::Event(Event::Closed));
        assert_eq!(orders(&mut machine, at(6), Input::Connected(state)), finish(ending));
    }
}

#[test]
fn the_grace_period_runs_while_the_link_is_down_and_orders_are_made_good() {
    let mut machine = running();
    orders(&mut machine, at(5), Input::Event(Event::Closed));
    assert_eq!(orders(&mut machine, at(6), Input::Stop), [], "libvirt cannot be told");
    assert_eq!(orders(&mut machine, at(8), Input::Connected(DomainState::Active)), [Action::Shutdown]);
    orders(&mut machine, at(9), Input::Event(Event::Closed));
    assert_eq!(orders(&mut machine, at(36), Input::Tick), [], "grace is over and libvirt cannot be told");
    assert_eq!(machine.state(), "destroying");
    assert_eq!(orders(&mut machine, at(37), Input::Connected(DomainState::Active)), [Action::Destroy]);
}

#[test]
fn a_domain_that_died_with_the_link_after_destroy_was_never_said_is_not_ours() {
    let mut machine = running();
    orders(&mut machine, at(5), Input::Event(Event::Closed));
    orders(&mut machine, at(6), Input::Stop);
    orders(&mut machine, at(36), Input::Tick);
    assert_eq!(
        orders(&mut machine, at(37), Input::Connected(DomainState::Off(Stopped::Shutdown))),
        finish(Ending::ShutDown)
    );
}

#[test]
fn a_link_that_is_lost_while_starting_starts_again_or_finds_it_running() {
    let starting = || {
        let mut machine = Machine::new(GRACE);
        orders(&mut machine, at(0), Input::Tick);
        orders(&mut machine, at(0), Input::Connected(DomainState::Absent));
        orders(&mut machine, at(1), Input::Event(Event::Closed));
        assert_eq!(orders(&mut machine, at(1), Input::StartFailed("connection reset".into())), []);
        machine
    };
    assert_eq!(
        starting().handle(at(2), Input::Connected(DomainState::Off(Stopped::Unknown))),
        [Action::Start]
    );
    let mut machine = starting();
    assert_eq!(orders(&mut machine, at(2), Input::Connected(DomainState::Active)), []);
    assert_eq!(machine.state(), "running");
}

#[test]
fn a_domain_that_died_unnoticed_is_found_by_asking() {
    let mut machine = running();
    machine.handle(at(5), Input::Event(Event::Closed));
    assert_eq!(machine.handle(at(6), Input::Connected(DomainState::Active)), []);
    assert_eq!(machine.wake_at(), Some(at(7)));
    assert_eq!(machine.handle(at(7), Input::Tick), [Action::Check]);
    assert_eq!(machine.handle(at(7), Input::State(DomainState::Active)), []);
    assert_eq!(machine.wake_at(), Some(at(17)));
    assert_eq!(machine.handle(at(17), Input::Tick), [Action::Check]);
    assert_eq!(
        machine.handle(at(17), Input::State(DomainState::Off(Stopped::Failed))),
        finish(Ending::Crashed)
    );
}

#[test]
fn libvirt_is_not_asked_while_the_link_is_down_or_the_domain_does_not_run() {
    let mut machine = running();
    machine.handle(at(5), Input::Event(Event::Closed));
    assert_eq!(machine.handle(at(100), Input::Tick), []);
    let mut machine = Machine::new(GRACE);
    machine.handle(at(0), Input::Tick);
    machine.handle(at(0), Input::Connected(DomainState::Absent));
    assert_eq!(machine.handle(at(50), Input::Tick), []);
    assert_eq!(machine.handle(at(50), Input::State(DomainState::Absent)), [], "it is yet to start");
}

#[test]
fn a_stop_before_the_start_needs_no_domain() {
    let mut machine = Machine::new(GRACE);
    orders(&mut machine, at(0), Input::Tick);
    assert_eq!(orders(&mut machine, at(0), Input::Stop), finish(Ending::NeverStarted));
    assert_eq!(Ending::NeverStarted.exit_code(), 0);
}

#[test]
fn a_stop_during_the_start_is_remembered() {
    let mut machine = Machine::new(GRACE);
    orders(&mut machine, at(0), Input::Tick);
    orders(&mut machine, at(0), Input::Connected(DomainState::Absent));
    assert_eq!(orders(&mut machine, at(1), Input::Stop), []);
    assert_eq!(orders(&mut machine, at(2), Input::Started), [Action::Shutdown]);
}

#[test]
fn a_machine_that_runs_already_is_taken_over() {
    let mut machine = Machine::new(GRACE);
    orders(&mut machine, at(0), Input::Tick);
    assert_eq!(orders(&mut machine, at(0), Input::Connected(DomainState::Active)), []);
    assert_eq!(machine.state(), "running");
}

fn how_or_active() -> impl Strategy<Value = DomainState> {
    prop_oneof![Just(DomainState::Active), Just(DomainState::Absent), Just(DomainState::Off(Stopped::Failed))]
}

fn any_input() -> impl Strategy<Value = Input> {
    let how = prop_oneof![
        Just(Stopped::Unknown),
        Just(Stopped::Shutdown),
        Just(Stopped::Destroyed),
        Just(Stopped::Crashed),
        Just(Stopped::Failed)
    ];
    let state = prop_oneof![
        Just(DomainState::Absent),
        Just(DomainState::Active),
        how.clone().prop_map(DomainState::Off)
    ];
    prop_oneof![
        8 => Just(Input::Tick),
        4 => state.prop_map(Input::Connected),
        4 => Just(Input::NotConnected("no".into())),
        4 => Just(Input::Started),
        1 => Just(Input::StartFailed("no".into())),
        4 => Just(Input::Event(Event::Closed)),
        2 => Just(Input::Event(Event::Started)),
        2 => Just(Input::Event(Event::Rebooted)),
        1 => how.prop_map(|h| Input::Event(Event::Stopped(h))),
        2 => how_or_active().prop_map(Input::State),
        1 => Just(Input::Stop),
        1 => Just(Input::Kill),
    ]
}

proptest! {
    /// Whatever happens: the end comes once, nothing is wanted after it, and a stop leads to it in bounded time.
    #[test]
    fn a_stop_always_ends(inputs in proptest::collection::vec((any_input(), 0u64..20_000), 0..60)) {
        let mut machine = Machine::new(GRACE);
        let mut now = Time::ZERO;
        let mut ends = 0;
        let mut count = |actions: &[Action]| {
            ends += actions.iter().filter(|a| matches!(a, Action::Finish(_))).count();
            ends
        };
        for (input, pause) in inputs {
            now += Duration::from_millis(pause);
            count(&orders(&mut machine, now, input));
        }
        count(&orders(&mut machine, now, Input::Stop));
        // The answer to a start comes some time, also when the machine waits for it no more.
        count(&orders(&mut machine, now, Input::NotConnected("no".into())));
        count(&orders(&mut machine, now, Input::Connected(DomainState::Active)));
        let limit = now + GRACE + DESTROY + REPEAT;
        while let Some(wake) = machine.wake_at() {
            now = now.max(wake);
            prop_assert!(now <= limit, "{} at {now:?}", machine.state());
            for action in orders(&mut machine, now, Input::Tick) {
                if action == Action::Connect {
                    machine.handle(now, Input::NotConnected("no".into()));
                }
                count(&[action]);
            }
        }
        prop_assert_eq!(count(&[]), 1);
        prop_assert_eq!(machine.state(), "ended");
    }
}

/// A machine that is waited for, with a connection.
fn awaited() -> Machine {
    let mut machine = Machine::incoming(GRACE);
    orders(&mut machine, at(0), Input::Tick);
    assert_eq!(orders(&mut machine, at(0), Input::Connected(DomainState::Absent)), []);
    assert_eq!(machine.state(), "awaited");
    machine
}

#[test]
fn a_machine_that_comes_is_never_started_and_lives_once_it_runs_here() {
    let mut machine = awaited();
    // It is on its way; the move fails, another one comes.
    for event in [Event::Started, Event::Stopped(Stopped::Failed), Event::Started] {
        assert_eq!(orders(&mut machine, at(1), Input::Event(event)), []);
    }
    assert_eq!(orders(&mut machine, at(2), Input::State(DomainState::Moving)), []);
    assert_eq!(machine.state(), "awaited");
    assert_eq!(machine.handle(at(3), Input::Event(Event::Resumed)), [Action::Check]);
    assert_eq!(orders(&mut machine, at(3), Input::State(DomainState::Active)), []);
    assert_eq!(machine.state(), "running");
    assert_eq!(orders(&mut machine, at(4), Input::Leave), [], "it has come");
    assert_eq!(orders(&mut machine, at(5), Input::Stop), [Action::Shutdown]);
}

#[test]
fn a_machine_is_not_awaited_for_ever_but_one_that_has_come_meanwhile_stays() {
    let mut machine = awaited();
    assert_eq!(machine.handle(at(1), Input::Leave), [Action::Check]);
    let ended = orders(&mut machine, at(1), Input::State(DomainState::Absent));
    assert_eq!(ended, [Action::Finish(Ending::NeverCame)]);

    let mut machine = awaited();
    assert_eq!(machine.handle(at(1), Input::Leave), [Action::Check]);
    let ended = orders(&mut machine, at(1), Input::State(DomainState::Moving));
    assert_eq!(ended, [Action::Destroy, Action::Finish(Ending::NeverCame)]);

    let mut machine = awaited();
    assert_eq!(machine.handle(at(1), Input::Leave), [Action::Check]);
    assert_eq!(orders(&mut machine, at(1), Input::State(DomainState::Active)), []);
    assert_eq!(machine.state(), "running");
}

#[test]
fn a_machine_that_has_left_is_not_looked_for() {
    let mut machine = Machine::new(GRACE);
    orders(&mut machine, at(0), Input::Tick);
    orders(&mut machine, at(0), Input::Connected(DomainState::Active));
    assert_eq!(orders(&mut machine, at(1), Input::Event(Event::Suspended)), []);
    assert_eq!(orders(&mut machine, at(1), Input::State(DomainState::Moving)), []);
    let ended = orders(&mut machine, at(2), Input::Event(Event::Stopped(Stopped::Migrated)));
    assert_eq!(ended, [Action::Finish(Ending::Migrated)]);
}

#[test]
fn a_machine_that_has_come_is_not_here_before_the_source_has_given_its_word() {
    let held = || {
        let mut machine = awaited();
        assert_eq!(machine.handle(at(1), Input::Word(Word::Awaited)), [Action::Check]);
        assert_eq!(orders(&mut machine, at(2), Input::State(DomainState::Moving)), []);
        assert!(!machine.is_held());
        assert_eq!(machine.handle(at(3), Input::Event(Event::Suspended)), [Action::Check]);
        assert_eq!(orders(&mut machine, at(3), Input::State(DomainState::Held)), []);
        assert!(machine.is_held());
        assert_eq!(machine.state(), "awaited");
        machine
    };
    // It runs, or is let stand still.
    for state in [DomainState::Active, DomainState::Held] {
        let mut machine = held();
        assert_eq!(machine.handle(at(4), Input::Word(Word::Taken)), [Action::Check]);
        orders(&mut machine, at(4), Input::State(state));
        assert_eq!((machine.state(), machine.is_held()), ("running", false));
    }
    // The source goes on with it.
    let mut machine = held();
    orders(&mut machine, at(4), Input::Leave);
    let ended = orders(&mut machine, at(4), Input::State(DomainState::Held));
    assert_eq!(ended, [Action::Destroy, Action::Finish(Ending::NeverCame)]);
    let mut machine = held();
    orders(&mut machine, at(4), Input::State(DomainState::Absent));
    assert!(!machine.is_held());

    // A machine whose source promised no word is here, and is not held for it: a client has paused its domain.
    let mut machine = awaited();
    orders(&mut machine, at(1), Input::State(DomainState::Held));
    assert_eq!(machine.state(), "running");
}

#[test]
fn a_machine_whose_word_was_given_has_left_whatever_its_end_is_called() {
    for how in [Stopped::Failed, Stopped::Crashed, Stopped::Migrated, Stopped::Unknown] {
        let mut machine = running();
        orders(&mut machine, at(2), Input::Word(Word::Given));
        assert_eq!(orders(&mut machine, at(3), Input::Event(Event::Stopped(how))), finish(Ending::Migrated));
    }
    for state in [DomainState::Absent, DomainState::Off(Stopped::Failed)] {
        let mut machine = running();
        orders(&mut machine, at(2), Input::Word(Word::Given));
        assert_eq!(orders(&mut machine, at(3), Input::State(state)), finish(Ending::Migrated));
    }
    // One that came is this launcher's like any other.
    let mut machine = running();
    orders(&mut machine, at(2), Input::Word(Word::Taken));
    let crashed = orders(&mut machine, at(3), Input::Event(Event::Stopped(Stopped::Crashed)));
    assert_eq!(crashed, finish(Ending::Crashed));
}
