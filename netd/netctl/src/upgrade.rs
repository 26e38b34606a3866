//! `netctl upgrade`: another netd in the place of the one that runs, and neither the guest nor a peer notices.
//!
//! The running netd offers what it has; the new program is started with the same arguments and goes and takes it
//! (netd's live update). Whatever goes wrong before the new one is ready leaves the running one as it is: the new
//! process is ended then, and the reason told.
//!
//! A new one that is late may take over at any moment, and would be the only netd then. So its offer is withdrawn before
//! it is ended: the old netd answers that only when it has given nothing, and cannot give anything any more. If there
//! is no such answer the new one is left alone.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::client::{Client, ConnectError};

/// Between two looks whether the new one has taken over.
const INTERVAL: Duration = Duration::from_millis(10);

/// How long the old one may take to withdraw its offer: longer than any handover.
const WITHDRAWN: Duration = Duration::from_secs(15);

/// What is to run from now on.
#[derive(Clone, Debug)]
pub struct Upgrade {
    /// The program.
    pub binary: PathBuf,
    /// Its arguments; none: those of the running one.
    pub arguments: Option<Vec<OsString>>,
    /// How long it may take.
    pub timeout: Duration,
}

/// Why the running netd goes on.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// It cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It does not offer anything.
    #[error("netd offers nothing: {}", .0.message())]
    Offer(tonic::Status),
    /// The program cannot be started.
    #[error("cannot run {program}; the running netd goes on")]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The program has ended.
    #[error("{program} has ended before it took over ({status}); the running netd goes on")]
    Ended {
        /// The program.
        program: PathBuf,
        /// How.
        status: ExitStatus,
    },
    /// The program takes too long.
    #[error("{program} did not take over within {timeout:?} and was ended; the running netd goes on")]
    Late {
        /// The program.
        program: PathBuf,
        /// How long it had.
        timeout: Duration,
    },
}

/// The netd that runs now.
#[derive(Debug)]
pub struct Upgraded {
    /// Its process, a child of the calling process.
    pub child: Child,
    /// How many netds had its connections before.
    pub generation: u32,
    /// It has answered at the control socket. If not, the old netd has not answered either when it was asked to
    /// withdraw its offer, so the new netd was left alone.
    pub answers: bool,
}

impl Upgrade {
    /// Starts the program and waits until it has taken over from the netd whose control socket is at `socket`.
    ///
    /// # Errors
    ///
    /// [`UpgradeError`].
    pub async fn run(&self, socket: &Path) -> Result<Upgraded, UpgradeError> {
        let offer = Client::connect(socket).await?.offer().await.map_err(UpgradeError::Offer)?;
        let wanted = offer.generation.saturating_add(1);
        let arguments = self.arguments.clone();
        let arguments =
            arguments.unwrap_or_else(|| offer.arguments.into_iter().map(OsString::from_vec).collect());
        let mut command = Command::new(&self.binary);
        command.args(arguments).arg("--takeover").arg(&offer.takeover).stdin(Stdio::null());
        // A path of the command line means what it means to the running one.
        command.current_dir(OsString::from_vec(offer.directory));
        // What ends this command, a key at the terminal, is not meant for netd.
        command.process_group(0);
        let program = self.binary.clone();
        let mut child = command.spawn().map_err(|source| UpgradeError::Start { program, source })?;
        match self.wait(&mut child, socket, wanted).await {
            Ok(()) => Ok(Upgraded { child, generation: wanted, answers: true }),
            Err(error @ UpgradeError::Late { .. }) => {
                if !withdrawn(socket, wanted).await {
                    let answers = generation(socket).await == Some(wanted);
                    return Ok(Upgraded { child, generation: wanted, answers });
                }
                // It may have ended by itself, and then there is no process to wait for.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    async fn wait(&self, child: &mut Child, socket: &Path, wanted: u32) -> Result<(), UpgradeError> {
        let program = || self.binary.clone();
        let until = Instant::now() + self.timeout;
        loop {
            // Each time anew: a connection to the old one ends with it.
            if let Ok(Some(have)) = timeout_at(until, generation(socket)).await
                && have == wanted
            {
                return Ok(());
            }
            match child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return Err(UpgradeError::Ended { program: program(), status }),
                Err(source) => return Err(UpgradeError::Start { program: program(), source }),
            }
            if Instant::now() >= until {
                return Err(UpgradeError::Late { program: program(), timeout: self.timeout });
            }
            sleep(INTERVAL).await;
        }
    }
}

/// The generation of the netd that answers at `socket`.
async fn generation(socket: &Path) -> Option<u32> {
    let status = async { Client::connect(socket).await.ok()?.status().await.ok() };
    Some(timeout(WITHDRAWN, status).await.ok()??.generation)
}

/// Withdraws the offer of the netd before `wanted`, by asking it for another one; false when that netd did not answer.
async fn withdrawn(socket: &Path, wanted: u32) -> bool {
    let offer = async { Client::connect(socket).await.ok()?.offer().await.ok() };
    timeout(WITHDRAWN, offer).await.ok().flatten().is_some_and(|o| o.generation.saturating_add(1) == wanted)
}
