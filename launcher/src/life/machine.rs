//! The state machine of a virtual machine's life.
//!
//! ```text
//!                 stop                            start fails
//!   Preparing ───────────> Ended(NeverStarted)   ┌───────────> Ended(FailedToStart)
//!       │ connected                              │
//!       └────────────> Starting ─────────────────┘
//!                          │ started                    guest off, crash, destroyed by others
//!                          v                      ┌──────────────────────────────────────────> Ended(…)
//!                       Running ──────────────────┤
//!                          │ stop                 │
//!                          v                      │
//!                    ShuttingDown ────────────────┤   the power button is pressed again every 5 s
//!                          │ grace period over    │
//!                          v                      │
//!                      Destroying ────────────────┘   again every 5 s; 20 s later Ended(Killed) regardless
//! ```
//!
//! Beside the state stands the link to the hypervisor, which is up or down. A link that goes down takes nothing
//! with it: the domain lives in QEMU, and the launcher connects again, every 200 ms, and asks what became of the
//! domain meanwhile. Before the domain runs the link must come up within 60 s; afterwards there is no limit,
//! since giving up would end a healthy machine. The grace period runs on while the link is down, and what could
//! not be said (power button, destroy) is said when it is up again.
//!
//! Events tell nearly everything at once, but not all: a libvirtd that starts finds out only by and by which of its
//! machines died while it was away, calls them active until then, and reports nothing afterwards. Therefore the
//! state is asked for 1 s after a link came up and then every 10 s.
//!
//! A machine that comes from another node is never started here:
//!
//! ```text
//!              connected             it runs here
//!   Preparing ──────────> Awaiting ───────────────> Running
//!                            │ leave, stop: asked first whether it has come meanwhile
//!                            └──────────────────> Ended(NeverCame)
//! ```
//!
//! While it is on its way the hypervisor has a domain that stands still ([`DomainState::Moving`]): it is not here yet,
//! and may go again without a trace when the move fails; another one may come then. When the source has promised to say
//! so ([`Word::Awaited`]) a domain that is complete ([`DomainState::Held`]) is not here either before the source has
//! given its word: until then it may run there again. And a machine whose word was given ([`Word::Given`]) has left,
//! whatever the hypervisor calls its end.
//!
//! A kill goes to Destroying without a grace period, from wherever the machine is.
//!
//! A start has 60 s. A QEMU that waits for something which does not come (a netd that refuses it again and again) would
//! otherwise start for ever, and the hypervisor's call with it. The domain is destroyed then, by which the call fails with
//! the last words of QEMU; those are the reason that is told. Should even that not end the call, the start has failed 20 s
//! later.
//!
//! A stop that comes while the domain starts is remembered. A guest whose firmware or kernel does not listen yet
//! misses the power button, therefore it is pressed again. A reboot changes nothing: QEMU resets the machine and
//! goes on. A later stop request changes nothing either: the grace period of the first one counts.
//!
//! All calls carry `now`, the time since the launcher's start; [`Machine::wake_at`] says when the next call is
//! due if nothing happens before.

use std::time::Duration;

pub use super::messages::{Action, Ending, Input, Word};
use crate::hypervisor::{DomainState, Event, Stopped};

/// Time since the launcher's start.
pub type Time = Duration;

/// Between two presses of the power button, and between two attempts to destroy.
pub const REPEAT: Duration = Duration::from_secs(5);
/// Between two attempts to connect.
pub const RECONNECT: Duration = Duration::from_millis(200);
/// How long the hypervisor may take to answer for the first time; probing QEMU's abilities takes seconds.
pub const FIRST_LINK: Duration = Duration::from_secs(60);
/// From a new link to the first question for the domain's state.
pub const FIRST_CHECK: Duration = Duration::from_secs(1);
/// Between two questions for the domain's state; they cost the hypervisor little, and no caller waits for the answer.
pub const CHECK: Duration = Duration::from_secs(10);
/// How long a start may take: QEMU opens its devices before it answers for the first time, on a node that is out of
/// breath in tens of seconds.
pub const START: Duration = Duration::from_secs(60);
/// How long a domain that is destroyed may still be seen.
pub const DESTROY: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Preparing,
    /// `given_up`: the domain is being destroyed, and the answer to the start is waited for.
    Starting {
        until: Time,
        given_up: bool,
    },
    /// `asked` whether it has come, since it is waited for no longer.
    Awaiting {
        asked: bool,
    },
    Running,
    ShuttingDown {
        until: Time,
        repeat: Time,
    },
    Destroying {
        until: Time,
        repeat: Time,
        ours: bool,
    },
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    /// An attempt is on its way.
    Connecting,
    /// The next attempt is due then.
    Down(Time),
}

/// The life of one virtual machine.
#[derive(Clone, Debug)]
pub struct Machine {
    phase: Phase,
    link: Link,
    grace: Duration,
    check: Time,
    incoming: bool,
    word: Word,
    held: bool,
    leave: bool,
    stop: bool,
    kill: bool,
    connected_once: bool,
    link_error: String,
}

impl Machine {
    /// A machine that is not there yet; `grace` is what a guest has to shut down.
    pub fn new(grace: Duration) -> Self {
        Machine {
            phase: Phase::Preparing,
            link: Link::Down(Time::ZERO),
            grace,
            check: Time::ZERO,
            incoming: false,
            word: Word::None,
            held: false,
            leave: false,
            stop: false,
            kill: false,
            connected_once: false,
            link_error: "the hypervisor does not answer".into(),
        }
    }

    /// A machine that comes from another node: it is waited for, never started.
    pub fn incoming(grace: Duration) -> Self {
        Machine { incoming: true, ..Machine::new(grace) }
    }

    /// The state's name, for the log.
    pub fn state(&self) -> &'static str {
        match self.phase {
            Phase::Preparing => "preparing",
            Phase::Starting { .. } => "starting",
            Phase::Awaiting { .. } => "awaited",
            Phase::Running => "running",
            Phase::ShuttingDown { .. } => "shutting down",
            Phase::Destroying { .. } => "destroying",
            Phase::Ended => "ended",
        }
    }

    /// Takes what happened at `now` and says what to do.
    pub fn handle(&mut self, now: Time, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Tick => {}
            Input::Connected(state) => self.connected(now, state, &mut actions),
            Input::NotConnected(reason) => {
                self.link_error = reason;
                self.link = Link::Down(now + RECONNECT);
            }
            Input::State(state) => match self.phase {
                Phase::Awaiting { asked } => self.awaited(state, asked, &mut actions),
                _ => self.gone(state, &mut actions),
            },
            Input::Started => {
                if self.is_starting() {
                    self.phase = Phase::Running;
                }
            }
            Input::StartFailed(reason) => match self.phase {
                Phase::Starting { given_up: true, .. } => {
                    let reason = format!("no guest {} s after the start: {reason}", START.as_secs());
                    self.finish(Ending::FailedToStart(reason), &mut actions);
                }
                // A daemon that dies while it starts a domain makes the call fail: ask the next one first.
                Phase::Starting { .. } if self.link == Link::Up => {
                    self.finish(Ending::FailedToStart(reason), &mut actions);
                }
                _ => {}
            },
            Input::Event(event) => self.event(now, event, &mut actions),
            Input::Word(word) => {
                self.word = word;
                self.check = now;
            }
            Input::Leave => self.leave = true,
            Input::Stop => self.stop = true,
            Input::Kill => (self.stop, self.kill) = (true, true),
        }
        self.advance(now, &mut actions);
        actions
    }

    /// When [`Machine::handle`] is to be called with [`Input::Tick`]; none when only an input can change anything.
    pub fn wake_at(&self) -> Option<Time> {
        let link = match self.link {
            Link::Down(at) => Some(at),
            Link::Up | Link::Connecting => None,
        };
        let looks = self.is_alive() || matches!(self.phase, Phase::Awaiting { .. });
        let check = (self.link == Link::Up && looks).then_some(self.check);
        let phase = match self.phase {
            Phase::Preparing if !self.connected_once => Some(FIRST_LINK),
            Phase::Starting { until, .. } => Some(until),
            Phase::ShuttingDown { until, repeat } | Phase::Destroying { until, repeat, .. } => {
                Some(until.min(repeat))
            }
            Phase::Preparing | Phase::Awaiting { .. } | Phase::Running => None,
            Phase::Ended => return None,
        };
        link.into_iter().chain(phase).chain(check).min()
    }

    /// Whether all of a machine is here that does not run before the source has given its word.
    pub fn is_held(&self) -> bool {
        self.held && matches!(self.phase, Phase::Awaiting { .. })
    }

    fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Starting { .. })
    }

    /// Whether there is a domain whose end is awaited.
    fn is_alive(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::ShuttingDown { .. } | Phase::Destroying { .. })
    }

    /// A domain that does not run, by the hypervisor's answer. One that is yet to start is none that ended.
    fn gone(&mut self, state: DomainState, actions: &mut Vec<Action>) {
        match state {
            _ if !self.is_alive() => {}
            DomainState::Off(how) => self.stopped(how, actions),
            DomainState::Absent if self.word == Word::Given => self.finish(Ending::Migrated, actions),
            DomainState::Absent => self.finish(Ending::Lost, actions),
            DomainState::Active | DomainState::Held | DomainState::Moving => {}
        }
    }

    /// What is there of a domain that is to come; `asked` when it is waited for no longer.
    fn awaited(&mut self, state: DomainState, asked: bool, actions: &mut Vec<Action>) {
        self.held = state == DomainState::Held && self.word == Word::Awaited;
        match state {
            DomainState::Active => self.phase = Phase::Running,
            DomainState::Held if !self.held => self.phase = Phase::Running,
            DomainState::Held | DomainState::Moving if asked => {
                actions.push(Action::Destroy);
                self.finish(Ending::NeverCame, actions);
            }
            _ if asked => self.finish(Ending::NeverCame, actions),
            DomainState::Held | DomainState::Moving | DomainState::Off(_) | DomainState::Absent => {}
        }
    }

    fn finish(&mut self, ending: Ending, actions: &mut Vec<Action>) {
        if self.phase != Phase::Ended {
            self.phase = Phase::Ended;
            actions.push(Action::Finish(ending));
        }
    }

    fn connected(&mut self, now: Time, state: DomainState, actions: &mut Vec<Action>) {
        self.link = Link::Up;
        self.check = now + FIRST_CHECK;
        self.connected_once = true;
        match (self.phase, state) {
            (Phase::Ended, _) => {}
            (Phase::Preparing | Phase::Starting { .. }, DomainState::Active) => self.phase = Phase::Running,
            (Phase::Preparing, _) if self.incoming => self.phase = Phase::Awaiting { asked: false },
            (Phase::Awaiting { asked }, state) => self.awaited(state, asked, actions),
            (Phase::Preparing | Phase::Starting { .. }, DomainState::Held | DomainState::Moving) => {
                self.phase = Phase::Running;
            }
            // A stop that came before needs no domain at all.
            (Phase::Preparing, _) if self.stop => {}
            (Phase::Starting { given_up: true, .. }, _) => {
                let reason = format!("no guest {} s after the start: {}", START.as_secs(), self.link_error);
                self.finish(Ending::FailedToStart(reason), actions);
            }
            (Phase::Starting { .. }, _) => actions.push(Action::Start),
            (Phase::Preparing, _) => {
                self.phase = Phase::Starting { until: now + START, given_up: false };
                actions.push(Action::Start);
            }
            (_, DomainState::Off(_) | DomainState::Absent) => self.gone(state, actions),
            // What could not be said while the link was down is due now.
            (Phase::ShuttingDown { until, .. }, _) => {
                self.phase = Phase::ShuttingDown { until, repeat: now };
            }
            (Phase::Destroying { until, ours, .. }, _) => {
                self.phase = Phase::Destroying { until, repeat: now, ours };
            }
            (Phase::Running, _) => {}
        }
    }

    fn event(&mut self, now: Time, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Closed => {
                if self.link == Link::Up {
                    self.link = Link::Down(now);
                }
            }
            Event::Started => {
                if self.is_starting() {
                    self.phase = Phase::Running;
                }
            }
            Event::Stopped(how) => {
                // While it starts, libvirt answers the call with the reason as well, which is better. One that
                // was on its way here has ended where it came from, or goes on there.
                if self.is_alive() {
                    self.stopped(how, actions);
                }
            }
            // The end of a move, perhaps; the state tells.
            Event::Suspended | Event::Resumed => {
                if matches!(self.phase, Phase::Awaiting { .. }) {
                    self.check = now;
                }
            }
            Event::ShutDown | Event::GuestCrashed | Event::Rebooted | Event::Agent => {}
        }
    }

    fn stopped(&mut self, how: Stopped, actions: &mut Vec<Action>) {
        let by_us = matches!(self.phase, Phase::Destroying { ours: true, .. });
        let ending = match how {
            _ if self.word == Word::Given => Ending::Migrated,
            Stopped::Shutdown | Stopped::Saved => Ending::ShutDown,
            Stopped::Migrated => Ending::Migrated,
            Stopped::Crashed => Ending::Crashed,
            Stopped::Destroyed if by_us => Ending::Killed,
            Stopped::Destroyed => Ending::Destroyed,
            // QEMU ended on its own, or under a libvirtd that was not looking.
            Stopped::Failed | Stopped::Unknown if by_us => Ending::Killed,
            Stopped::Failed => Ending::Crashed,
            Stopped::Unknown => Ending::Lost,
        };
        self.finish(ending, actions);
    }

    /// What is due at `now`.
    fn advance(&mut self, now: Time, actions: &mut Vec<Action>) {
        if let (Link::Down(at), true) = (self.link, self.phase != Phase::Ended)
            && at <= now
        {
            self.link = Link::Connecting;
            actions.push(Action::Connect);
        }
        let up = self.link == Link::Up;
        if self.stop || self.leave {
            match &mut self.phase {
                Phase::Preparing if self.incoming => self.finish(Ending::NeverCame, actions),
                Phase::Awaiting { asked } if !*asked => {
                    *asked = true;
                    self.check = now;
                }
                _ => {}
            }
        }
        if self.stop {
            match self.phase {
                Phase::Preparing => self.finish(Ending::NeverStarted, actions),
                Phase::Running => {
                    self.phase = Phase::ShuttingDown { until: now + self.grace, repeat: now };
                }
                _ => {}
            }
        }
        if self.kill && matches!(self.phase, Phase::ShuttingDown { .. }) {
            self.phase = Phase::Destroying { until: now + DESTROY, repeat: now, ours: false };
        }
        if self.phase == Phase::Preparing && !self.connected_once && now >= FIRST_LINK {
            let reason = format!("no connection after {} s: {}", FIRST_LINK.as_secs(), self.link_error);
            self.finish(Ending::FailedToStart(reason), actions);
        }
        match self.phase {
            Phase::Starting { until, given_up: false } if now >= until => {
                self.phase = Phase::Starting { until: now + DESTROY, given_up: true };
                if up {
                    actions.push(Action::Destroy);
                }
            }
            Phase::Starting { until, .. } if now >= until => {
                let seconds = (START + DESTROY).as_secs();
                let reason =
                    format!("no guest {seconds} s after the start, and the hypervisor does not say why");
                self.finish(Ending::FailedToStart(reason), actions);
            }
            _ => {}
        }
        if self.phase == (Phase::Awaiting { asked: true }) && !up && self.kill {
            // libvirt cannot be asked, and the end is wanted whatever has come.
            self.finish(Ending::NeverCame, actions);
        }
        if let Phase::ShuttingDown { until, .. } = self.phase
            && now >= until
        {
            self.phase = Phase::Destroying { until: now + DESTROY, repeat: now, ours: false };
        }
        let looks = self.is_alive() || matches!(self.phase, Phase::Awaiting { .. });
        if up && looks && now >= self.check {
            self.check = now + CHECK;
            actions.push(Action::Check);
        }
        match &mut self.phase {
            Phase::ShuttingDown { repeat, .. } if now >= *repeat => {
                *repeat = now + REPEAT;
                if up {
                    actions.push(Action::Shutdown);
                }
            }
            Phase::Destroying { until, .. } if now >= *until => self.finish(Ending::Killed, actions),
            Phase::Destroying { repeat, ours, .. } if now >= *repeat => {
                *repeat = now + REPEAT;
                if up {
                    *ours = true;
                    actions.push(Action::Destroy);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
