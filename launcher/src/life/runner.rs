//! Carries out what [`super::machine`] decides.
//!
//! One task owns the machine. Calls to the hypervisor block, so each runs on a thread for such calls and answers
//! through the same channel as the hypervisor's events; the task never waits for one, and a hypervisor that hangs
//! cannot keep the grace period from ending. Every connection has a number, and what a replaced connection still
//! has to say is passed over.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::machine::{Action, Ending, Input, Machine, Word};
use crate::hypervisor::{Connector, DomainState, Event, EventSink, Hypervisor, HypervisorError};

/// What is wished of a life, each stronger than the one before; a wish is never taken back.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Wish {
    /// To go on.
    #[default]
    Run,
    /// Not to wait any more for a domain that has not come yet; one that runs goes on.
    Leave,
    /// To shut the guest down.
    ShutDown,
    /// To end it at once.
    Kill,
}

/// What can be seen of a life from outside. Every change of the domain that the hypervisor tells changes it.
#[derive(Clone, Default)]
pub struct View {
    /// Whether the hypervisor is starting the domain.
    pub starting: bool,
    /// Whether the domain runs and its end was not asked for.
    pub running: bool,
    /// Whether all of a machine is here that does not run before the source has given its word.
    pub held: bool,
    /// The present connection; none while there is none.
    pub hypervisor: Option<Arc<dyn Hypervisor>>,
    /// Number of events.
    pub events: u64,
    /// Whether the guest told that it crashed.
    pub panicked: bool,
    /// How often the guest was reset or rebooted.
    pub reboots: u64,
}

/// A domain that is to live.
pub struct Life {
    /// Opens connections.
    pub connector: Arc<dyn Connector>,
    /// The domain's name.
    pub name: String,
    /// The domain's XML; none for one that comes from another hypervisor.
    pub xml: Option<String>,
    /// Whether its processors are to stand still at first.
    pub paused: bool,
    /// What the guest has to shut down.
    pub grace: Duration,
    /// What is known of a source's word.
    pub word: watch::Receiver<Word>,
}

/// What comes back from other threads.
enum Message {
    Event(u64, Event),
    Connected(u64, Result<(Box<dyn Hypervisor>, DomainState), HypervisorError>),
    Started(u64, Result<(), HypervisorError>),
    State(u64, DomainState),
}

struct Runner {
    life: Life,
    sender: mpsc::UnboundedSender<Message>,
    connection: Option<Arc<dyn Hypervisor>>,
    /// Number of the latest connection or attempt.
    number: u64,
    events: u64,
    panicked: bool,
    reboots: u64,
    starting: bool,
    running: bool,
    held: bool,
    view: watch::Sender<View>,
}

/// Lives until the domain ends. `wish` asks for the end; `view` shows what can be seen meanwhile.
pub async fn run(life: Life, mut wish: watch::Receiver<Wish>, view: watch::Sender<View>) -> Ending {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let mut machine =
        if life.xml.is_some() { Machine::new(life.grace) } else { Machine::incoming(life.grace) };
    let mut word = life.word.clone();
    if *word.borrow() != Word::None {
        word.mark_changed();
    }
    let mut runner = Runner {
        life,
        sender,
        connection: None,
        number: 0,
        events: 0,
        panicked: false,
        reboots: 0,
        starting: false,
        running: false,
        held: false,
        view,
    };
    let start = Instant::now();
    let mut wished = Wish::Run;
    let mut input = Input::Tick;
    loop {
        let before = machine.state();
        let actions = machine.handle(start.elapsed(), input);
        if machine.state() != before {
            info!(state = machine.state(), "the machine is");
        }
        runner.starting = machine.state() == "starting";
        runner.running = machine.state() == "running";
        runner.held = machine.is_held();
        runner.show();
        for action in actions {
            if let Action::Finish(ending) = action {
                runner.forget().await;
                return ending;
            }
            runner.carry_out(action);
        }
        let wake = machine.wake_at();
        input = tokio::select! {
            message = receiver.recv() => match message {
                Some(message) => runner.take(message),
                // The runner holds a sender itself.
                None => Input::Tick,
            },
            stronger = asked(&mut wish, wished), if wished < Wish::Kill => {
                wished = stronger;
                info!(wish = ?stronger, "asked to end");
                match stronger {
                    Wish::Run => Input::Tick,
                    Wish::Leave => Input::Leave,
                    Wish::ShutDown => Input::Stop,
                    Wish::Kill => Input::Kill,
                }
            }
            Ok(()) = word.changed() => Input::Word(*word.borrow_and_update()),
            () = sleep_until(start + wake.unwrap_or_default()), if wake.is_some() => Input::Tick,
        };
    }
}

/// Until more is wished than `wished`; for ever when no sender of wishes is left.
async fn asked(wish: &mut watch::Receiver<Wish>, wished: Wish) -> Wish {
    let stronger = wish.wait_for(|wish| *wish > wished).await.map(|wish| *wish);
    match stronger {
        Ok(stronger) => stronger,
        Err(_) => std::future::pending().await,
    }
}

impl Runner {
    /// Shows what changed, if anything did.
    fn show(&self) {
        self.view.send_if_modified(|shown| {
            let same_link = match (&shown.hypervisor, &self.connection) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => true,
                _ => false,
            };
            let same = (shown.running, shown.held, shown.events) == (self.running, self.held, self.events);
            if same_link && same && shown.starting == self.starting {
                return false;
            }
            *shown = View {
                starting: self.starting,
                running: self.running,
                held: self.held,
                hypervisor: self.connection.clone(),
                events: self.events,
                panicked: self.panicked,
                reboots: self.reboots,
            };
            true
        });
    }

    fn carry_out(&mut self, action: Action) {
        let sender = self.sender.clone();
        match action {
            Action::Connect => {
                self.number += 1;
                let number = self.number;
                let (connector, name) = (self.life.connector.clone(), self.life.name.clone());
                let old = self.connection.take();
                // What is shown must not be the last one to hold it: closing may block.
                self.show();
                spawn_blocking(move || {
                    drop(old);
                    let events = sender.clone();
                    let sink: EventSink = Arc::new(move |event| {
                        // No receiver is left after the end.
                        let _ = events.send(Message::Event(number, event));
                    });
                    let result = connector
                        .connect(&name, sink)
                        .and_then(|connection| connection.state().map(|state| (connection, state)));
                    let _ = sender.send(Message::Connected(number, result));
                });
            }
            Action::Check => self.call(move |connection, number| {
                if let Ok(state) = connection.state() {
                    let _ = sender.send(Message::State(number, state));
                }
            }),
            Action::Start => {
                let (xml, paused) = (self.life.xml.clone().unwrap_or_default(), self.life.paused);
                self.call(move |connection, number| {
                    let _ = sender.send(Message::Started(number, connection.start(&xml, paused)));
                });
            }
            Action::Shutdown => {
                info!("the power button is pressed");
                self.call(move |connection, number| {
                    order(&sender, number, connection, "shut down", connection.shutdown());
                });
            }
            Action::Destroy => {
                warn!("the domain is ended by force");
                self.call(move |connection, number| {
                    order(&sender, number, connection, "destroy", connection.destroy());
                });
            }
            Action::Finish(_) => {}
        }
    }

    /// Runs `call` with the connection where it may block.
    fn call(&self, call: impl FnOnce(&dyn Hypervisor, u64) + Send + 'static) {
        let number = self.number;
        if let Some(connection) = self.connection.clone() {
            spawn_blocking(move || call(connection.as_ref(), number));
        }
    }

    fn take(&mut self, message: Message) -> Input {
        let number = match &message {
            Message::Event(n, _)
            | Message::Connected(n, _)
            | Message::Started(n, _)
            | Message::State(n, _) => *n,
        };
        if number != self.number {
            return Input::Tick;
        }
        match message {
            Message::Event(_, event) => {
                info!(?event, "the hypervisor reports");
                self.events += 1;
                self.panicked |= event == Event::GuestCrashed;
                self.reboots += u64::from(event == Event::Rebooted);
                Input::Event(event)
            }
            Message::Connected(_, Ok((connection, state))) => {
                info!(?state, "connected to the hypervisor");
                self.connection = Some(Arc::from(connection));
                Input::Connected(state)
            }
            Message::Connected(_, Err(error)) => {
                debug!(%error, "no connection to the hypervisor");
                Input::NotConnected(error.to_string())
            }
            Message::Started(_, Ok(())) => Input::Started,
            Message::Started(_, Err(error)) => Input::StartFailed(error.to_string()),
            Message::State(_, state) => Input::State(state),
        }
    }

    /// Takes the definition of a domain that ended out of the hypervisor again, if there is a hypervisor.
    async fn forget(&mut self) {
        let connection = self.connection.take();
        self.show();
        let Some(connection) = connection else { return };
        let done = spawn_blocking(move || connection.undefine());
        match tokio::time::timeout(Duration::from_secs(5), done).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => debug!(%error, "the definition stays"),
            Ok(Err(_)) | Err(_) => debug!("the definition stays: no answer"),
        }
    }
}

/// Looks at what came of an order. A domain that does not run any more ended without an event that reached us.
fn order(
    sender: &mpsc::UnboundedSender<Message>,
    number: u64,
    connection: &dyn Hypervisor,
    what: &'static str,
    result: Result<(), HypervisorError>,
) {
    match result {
        Ok(()) => {}
        Err(HypervisorError::NotRunning(_)) => {
            if let Ok(state) = connection.state() {
                let _ = sender.send(Message::State(number, state));
            }
        }
        Err(error) => warn!(%error, "cannot {what} the domain"),
    }
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
