//! In virtual time: the driver starts and stops, and a pass sets a listener in each step.

use super::*;

/// Listeners, and whether each is silent.
struct Scene {
    silence: Silence,
    now: Time,
    listeners: Vec<bool>,
}

impl Scene {
    /// A new netd, whose listeners are opened as it wants.
    fn new(listeners: usize) -> Scene {
        let silence = Silence::default();
        let silent = silence.is_silent();
        Scene { silence, now: Time::ZERO, listeners: vec![silent; listeners] }
    }

    fn running(listeners: usize) -> Scene {
        let mut scene = Scene::new(listeners);
        scene.silence.start();
        scene.settle();
        scene
    }

    /// One step of the pass; false when it is over.
    fn step(&mut self) -> bool {
        let Some(silent) = self.silence.wanted() else { return false };
        let at = self.silence.step(self.listeners.len());
        if let Some(at) = at {
            self.listeners[at] = silent;
        }
        at.is_some()
    }

    fn settle(&mut self) {
        while self.step() {}
    }

    /// Lets `span` pass, with what falls due in it.
    fn pass(&mut self, span: Duration) {
        self.now = self.now + span;
        self.silence.poll(self.now);
        self.settle();
    }

    fn stop(&mut self) {
        self.silence.stop(self.now);
        self.settle();
    }

    fn is(&self, silent: bool) {
        assert!(self.listeners.iter().all(|s| *s == silent), "{:?}", self.listeners);
    }
}

/// Just before the end of the grace.
const SHORT: Duration = Duration::from_millis(1999);
const REST: Duration = Duration::from_millis(1);

#[test]
fn a_guest_that_never_ran_is_silent_from_the_start_and_answers_when_it_runs() {
    let mut scene = Scene::new(3);
    scene.is(true);
    scene.pass(Duration::from_secs(3600));
    scene.is(true);
    assert_eq!(scene.silence.poll_at(), None);
    scene.silence.start();
    scene.settle();
    scene.is(false);
    assert!(!scene.silence.is_silent());
    assert_eq!(scene.silence.wanted(), None, "the pass is over");
}

#[test]
fn a_guest_that_ran_falls_silent_after_the_grace() {
    let mut scene = Scene::running(3);
    scene.stop();
    scene.is(false);
    scene.pass(SHORT);
    scene.is(false);
    scene.pass(REST);
    scene.is(true);
    assert_eq!(scene.silence.poll_at(), None);
    scene.silence.start();
    scene.settle();
    scene.is(false);
}

#[test]
fn a_short_stop_changes_nothing() {
    let mut scene = Scene::running(2);
    for _ in 0..3 {
        scene.stop();
        scene.pass(SHORT);
        scene.silence.start();
        assert_eq!(scene.silence.poll_at(), None);
        scene.settle();
        scene.is(false);
    }
    scene.pass(Duration::from_secs(60));
    scene.is(false);
}

#[test]
fn a_second_stop_does_not_lengthen_the_grace() {
    let mut scene = Scene::running(1);
    scene.stop();
    scene.pass(SHORT);
    scene.stop();
    scene.pass(REST);
    scene.is(true);
    // Nor does a stop end the silence.
    scene.stop();
    assert!(scene.silence.is_silent());
}

#[test]
fn who_stood_still_has_the_whole_grace_again() {
    let mut scene = Scene::running(1);
    scene.stop();
    // Frozen for longer than the grace: no deadline was looked at.
    scene.now = scene.now + Duration::from_secs(10);
    scene.silence.put_off(scene.now);
    scene.pass(SHORT);
    scene.is(false);
    scene.pass(REST);
    scene.is(true);
    scene.silence.put_off(scene.now);
    assert!(scene.silence.is_silent(), "silence is not put off");
}

#[test]
fn an_heir_leaves_listeners_as_they_are_until_it_knows_more() {
    for silent in [false, true] {
        for runs in [false, true] {
            let mut heir = Scene { silence: Silence::inherited(Time::ZERO), ..Scene::new(2) };
            heir.listeners = vec![silent; 2];
            heir.pass(SHORT);
            heir.is(silent);
            if runs {
                heir.silence.start();
            }
            heir.pass(REST);
            heir.is(!runs);
        }
    }
}

#[test]
fn a_change_in_the_middle_of_a_pass_begins_anew() {
    let mut scene = Scene::running(4);
    scene.stop();
    scene.now = scene.now + GRACE;
    scene.silence.poll(scene.now);
    assert!(scene.step() && scene.step());
    assert_eq!(scene.listeners, [true, true, false, false]);
    scene.silence.start();
    assert!(scene.step());
    // A stop leaves the rest of the pass undone, and the next start does all of it.
    scene.stop();
    assert_eq!(scene.listeners, [false, true, false, false]);
    scene.silence.start();
    scene.settle();
    scene.is(false);
}

#[test]
fn without_listeners_a_pass_ends_at_once() {
    let mut scene = Scene::running(0);
    scene.stop();
    scene.pass(GRACE);
    assert_eq!(scene.silence.wanted(), None);
}
