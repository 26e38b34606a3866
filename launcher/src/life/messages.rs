//! What the state machine of a life is told, what it answers, and how it ends.

use crate::hypervisor::{DomainState, Event};

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The guest switched itself off, asked or on its own.
    ShutDown,
    /// It was asked to stop before it ran.
    NeverStarted,
    /// It runs elsewhere now.
    Migrated,
    /// It was to come from another node and did not, until it was waited for no longer.
    NeverCame,
    /// It did not start; the reason is the hypervisor's.
    FailedToStart(String),
    /// The guest or QEMU crashed.
    Crashed,
    /// The guest did not shut down in its grace period.
    Killed,
    /// It was ended by force from outside.
    Destroyed,
    /// It is gone, and how it ended is not known.
    Lost,
}

impl Ending {
    /// The launcher's exit code. Zero lets the pod succeed, anything else makes it fail.
    pub fn exit_code(&self) -> u8 {
        match self {
            Ending::ShutDown | Ending::NeverStarted | Ending::Migrated | Ending::NeverCame => 0,
            Ending::FailedToStart(_) => 1,
            // 2 is a wrong command line.
            Ending::Crashed => 3,
            Ending::Killed => 4,
            Ending::Destroyed => 5,
            Ending::Lost => 6,
        }
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::ShutDown => f.write_str("the guest shut down"),
            Ending::NeverStarted => f.write_str("stopped before it started"),
            Ending::Migrated => f.write_str("migrated away"),
            Ending::NeverCame => f.write_str("did not come from the other node"),
            Ending::FailedToStart(reason) => write!(f, "failed to start: {reason}"),
            Ending::Crashed => f.write_str("crashed"),
            Ending::Killed => f.write_str("killed: the guest did not shut down in its grace period"),
            Ending::Destroyed => f.write_str("destroyed from outside"),
            Ending::Lost => f.write_str("gone, and how is not known"),
        }
    }
}

/// The word that a source gives to the target of a move: the machine does not run there any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Word {
    /// None was spoken of.
    #[default]
    None,
    /// It was promised to this launcher.
    Awaited,
    /// It was given to this launcher.
    Taken,
    /// This launcher has given it.
    Given,
}

/// What the machine is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing happened; time went on.
    Tick,
    /// A connection is there, and this is what became of the domain.
    Connected(DomainState),
    /// There is no connection, for this reason.
    NotConnected(String),
    /// What the domain is doing, by the present connection.
    State(DomainState),
    /// The domain was started.
    Started,
    /// The domain could not be started.
    StartFailed(String),
    /// The hypervisor reports.
    Event(Event),
    /// What is known of the source's word.
    Word(Word),
    /// A machine that has not come yet is not waited for any more.
    Leave,
    /// The guest is to shut down.
    Stop,
    /// The domain is to be destroyed at once.
    Kill,
}

/// What the machine wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a connection; answer `Connected` or `NotConnected`.
    Connect,
    /// Ask for the domain's state; answer `State`, or nothing when there is no answer.
    Check,
    /// Start the domain; answer `Started` or `StartFailed`.
    Start,
    /// Press the power button. No answer is needed.
    Shutdown,
    /// Destroy the domain. No answer is needed.
    Destroy,
    /// The end.
    Finish(Ending),
}
