//! The hold: what netd leaves when its container is restarted, until the next netd collects it.
//!
//! netd is a sidecar of its own, so that its image can be replaced while the machine runs; this process is there before
//! it and lives longer. The connections that lie here go on when the next netd has come in time, and end with the machine
//! in any case: they are closed when this process ends. [`podvirt_proto::hold`] has the protocol.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use podvirt_api::names::path;
use podvirt_proto::{descriptors, hold};
use tracing::{Span, error, info, warn};

/// A hold that serves until this is dropped.
#[derive(Debug)]
pub(super) struct Hold {
    /// Its end is the thread's.
    _stop: UnixStream,
}

impl Hold {
    /// Serves the netd of `spec.domain.devices.interfaces[index]`, beside its sockets, on a thread of its own.
    ///
    /// # Errors
    ///
    /// Its socket cannot be listened on.
    pub(super) fn start(index: usize) -> Result<Hold> {
        let socket = path::netd_hold(index);
        let at = || format!("cannot serve the hold at {}", socket.display());
        let hold = hold::Hold::listen(&socket, hold::KEEP).with_context(at)?;
        let (stop, stopped) = UnixStream::pair().with_context(at)?;
        // A deposit has a descriptor for each flow.
        if let Err(error) = descriptors::raise_limit() {
            warn!(%error, "the limit of descriptors cannot be raised: the hold keeps fewer connections");
        }
        let span = Span::current();
        let serve = move || {
            let _named = span.enter();
            if let Err(error) = hold.serve(stopped.as_fd(), |said| info!("hold: {said}")) {
                error!(%error, "the hold has ended: a restart of netd will end the guest's connections");
            }
        };
        std::thread::Builder::new().name("hold".into()).spawn(serve).with_context(at)?;
        Ok(Hold { _stop: stop })
    }
}
