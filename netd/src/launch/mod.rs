//! How netd was started, where that is not the ordinary way: by the name `passt`, in the background, for one frontend.
//!
//! # Theory of operation
//!
//! libvirt starts a program of its guests and waits for its end: exit code 0 means that the program is at work, in
//! another process by then, whose number stands in a file; otherwise what was printed is the reason. So the first
//! process forks before it has a second thread (`background`) and waits at a pipe for a word of the child:
//!
//! ```text
//!   libvirt ── passt ──fork── netd: sandbox, workers, listening ──▶ frontend
//!                │  ◀── "+", or why not ──────┘
//!                └─▶ exit code, message
//! ```
//!
//! The child says it when the socket listens and every port that was asked for by its number is open
//! ([`Launch::watch`], a [`RingSink`] in front of the worker's). A child that ends without a word has failed as well.
//! All of this needs the file system and new descriptors before the sandbox only.

mod background;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::config::passt::Passt;
use crate::config::ports::Ports;
use crate::control::{Control, PortInfo};
use crate::port::{PortRule, Proto};
use crate::ring::Ring;
use crate::state::StateError;
use crate::vhost::RingSink;
use background::{Parent, Role};

/// How often, and how far apart, ports are tried again that another process has.
const LAST_TRIES: u32 = 10;
/// See [`LAST_TRIES`].
const TRY_EVERY: Duration = Duration::from_millis(50);

/// Why netd ends without a signal and without a failure of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The frontend has gone, and there was to be no other.
    FrontendGone,
    /// These ports cannot be had, as `TCP 80: address already in use`.
    Ports(Vec<String>),
}

impl End {
    /// A reason of netd's ordinary end, or of its failure.
    ///
    /// # Errors
    ///
    /// When it is a failure.
    pub fn result(self) -> Result<&'static str, PortsError> {
        match self {
            End::FrontendGone => Ok("the frontend has gone (--one-off)"),
            End::Ports(ports) => Err(PortsError(ports.join("; "))),
        }
    }
}

/// Ports that were asked for and cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ports cannot be opened: {0}")]
pub struct PortsError(String);

/// Why netd cannot go into the background.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A file cannot be written.
    #[error("{option}: {}", path.display())]
    File {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The process cannot be copied, or cannot let go of its terminal.
    #[error("cannot go into the background")]
    Background(#[from] io::Error),
    /// The process in the background has ended; why, in its own words.
    #[error("{0}")]
    Child(String),
    /// It has ended without a word.
    #[error("netd ended before it was at work; --log-file may tell why")]
    Silent,
    /// What it says cannot be read.
    #[error("the background process cannot be heard")]
    Unheard(#[source] io::Error),
}

/// How netd was started. The default is the ordinary way.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    one_off: bool,
    all_or_nothing: bool,
    parent: Option<Arc<Parent>>,
}

impl Launch {
    /// As passt's options say. Returns twice unless netd stays in the foreground: in the process that is to do the
    /// work, whose standard error is the log file if there is one, and with none in the first process, once the other
    /// is at work.
    ///
    /// # Errors
    ///
    /// [`LaunchError`].
    pub fn passt(options: &Passt) -> Result<Option<Launch>, LaunchError> {
        let Role::Work(parent) = background::enter(options)? else { return Ok(None) };
        Ok(Some(Launch { one_off: options.one_off, all_or_nothing: true, parent: parent.map(Arc::new) }))
    }

    /// Tells the waiting process why netd ends before it was at work; nothing when there is none, or it has gone.
    pub fn failed(&self, why: &str) {
        if let Some(parent) = &self.parent {
            parent.failed(why);
        }
    }

    /// Puts itself between the vhost-user side and `sink`. What it then has to say comes out of the receiver.
    pub fn watch<S: RingSink, C: Control>(
        &self,
        sink: Arc<S>,
        control: Arc<C>,
        ports: &Ports,
    ) -> (Watch<S, C>, EndEvents) {
        let (sender, receiver) = unbounded_channel();
        let asked = if self.all_or_nothing { explicit(ports) } else { Vec::new() };
        let watch = Watch {
            sink,
            control,
            asked,
            launch: self.clone(),
            ends: sender.clone(),
            met: Mutex::new(false),
        };
        (watch, EndEvents { receiver, _sender: sender })
    }
}

/// The rules that were asked for by their numbers.
fn explicit(ports: &Ports) -> Vec<PortRule> {
    let rules = |proto: Proto| {
        let spec = if proto == Proto::Tcp { &ports.tcp } else { &ports.udp };
        spec.maps.iter().flat_map(move |m| m.rules(proto))
    };
    rules(Proto::Tcp).chain(rules(Proto::Udp)).collect()
}

/// What is wrong with a port, if something is.
fn told(port: PortInfo) -> Option<String> {
    let proto = if port.rule.proto == Proto::Tcp { "TCP" } else { "UDP" };
    Some(format!("{proto} {}: {}", port.rule.pod, port.error?))
}

/// What comes out of a [`Watch`].
#[derive(Debug)]
pub struct EndEvents {
    receiver: UnboundedReceiver<End>,
    // The channel never closes by itself.
    _sender: UnboundedSender<End>,
}

impl EndEvents {
    /// Waits for an end, for ever when there is none.
    pub async fn next(&mut self) -> End {
        match self.receiver.recv().await {
            Some(end) => end,
            None => std::future::pending().await,
        }
    }
}

/// A sink that looks at what passes through it.
#[derive(Debug)]
pub struct Watch<S, C> {
    sink: Arc<S>,
    control: Arc<C>,
    asked: Vec<PortRule>,
    launch: Launch,
    ends: UnboundedSender<End>,
    /// Whether there was a frontend.
    met: Mutex<bool>,
}

impl<S, C> Watch<S, C> {
    fn end(&self, end: End) {
        // It fails when netd ends already.
        let _ = self.ends.send(end);
    }
}

impl<S, C: Control> Watch<S, C> {
    /// The ports that were asked for and cannot be had. A process that has one is given a moment to end: a killed
    /// netd closes what it has file by file, and libvirt starts the next one when the frontend's connection has closed.
    fn missing(&self) -> Vec<PortInfo> {
        if self.asked.is_empty() {
            return Vec::new();
        }
        let mut missing = self.control.ports();
        missing.retain(|p| p.error.is_some() && self.asked.contains(&p.rule));
        for _ in 0..LAST_TRIES {
            if missing.is_empty() {
                break;
            }
            std::thread::sleep(TRY_EVERY);
            missing = self.control.add_ports(missing.iter().map(|p| p.rule).collect());
            missing.retain(|p| p.error.is_some());
        }
        missing
    }
}

impl<S: RingSink, C: Control> RingSink for Watch<S, C> {
    fn listening(&self) {
        self.sink.listening();
        let failed: Vec<String> = self.missing().into_iter().filter_map(told).collect();
        if !failed.is_empty() {
            self.end(End::Ports(failed));
        } else if let Some(parent) = &self.launch.parent {
            parent.ready();
        }
    }

    fn start(&self, index: usize, ring: Ring) {
        self.sink.start(index, ring);
    }

    fn stop(&self, index: usize) -> Option<Ring> {
        self.sink.stop(index)
    }

    fn set_features(&self, acked: u64) {
        self.sink.set_features(acked);
    }

    fn set_connected(&self, connected: bool) {
        self.sink.set_connected(connected);
        let met = std::mem::replace(&mut *self.met.lock().unwrap_or_else(PoisonError::into_inner), connected);
        if met && !connected && self.launch.one_off {
            self.end(End::FrontendGone);
        }
    }

    fn save(&self, to: File) -> Result<(), StateError> {
        self.sink.save(to)
    }

    fn load(&self, from: File) -> Result<(), StateError> {
        self.sink.load(from)
    }

    fn resume(&self) {
        self.sink.resume();
    }
}

#[cfg(test)]
mod tests;
