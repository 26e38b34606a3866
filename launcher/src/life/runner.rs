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

use super::machine::{Action, Ending, Input, Machine};
use crate::hypervisor::{Connector, DomainState, Event, EventSink, Hypervisor, HypervisorError};

/// A domain that is to live.
pub struct Life {
    /// Opens connections.
    pub connector: Arc<dyn Connector>,
    /// The domain's name.
    pub name: String,
    /// The domain's XML.
    pub xml: String,
    /// What the guest has to shut down.
    pub grace: Duration,
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
}

/// Lives until the domain ends. `stop` asks for the end; `running` becomes true once the domain runs.
pub async fn run(life: Life, mut stop: watch::Receiver<bool>, running: watch::Sender<bool>) -> Ending {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let mut machine = Machine::new(life.grace);
    let mut runner = Runner { life, sender, connection: None, number: 0 };
    let start = Instant::now();
    let mut stop_seen = false;
    let mut input = Input::Tick;
    loop {
        let before = machine.state();
        let actions = machine.handle(start.elapsed(), input);
        if machine.state() != before {
            info!(state = machine.state(), "the machine is");
        }
        running.send_replace(machine.state() == "running");
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
            () = asked(&mut stop), if !stop_seen => {
                stop_seen = true;
                info!("asked to stop");
                Input::Stop
            }
            () = sleep_until(start + wake.unwrap_or_default()), if wake.is_some() => Input::Tick,
        };
    }
}

/// Until somebody asks for the end, or nobody can any more.
async fn asked(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

impl Runner {
    fn carry_out(&mut self, action: Action) {
        let sender = self.sender.clone();
        match action {
            Action::Connect => {
                self.number += 1;
                let number = self.number;
                let (connector, name) = (self.life.connector.clone(), self.life.name.clone());
                let old = self.connection.take();
                spawn_blocking(move || {
                    drop(old);
                    let events = sender.clone();
                    let sink: EventSink = Arc::new(move |event| {
                        // Nobody listens after the end.
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
                let xml = self.life.xml.clone();
                self.call(move |connection, number| {
                    let _ = sender.send(Message::Started(number, connection.start(&xml)));
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
        let Some(connection) = self.connection.take() else { return };
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
