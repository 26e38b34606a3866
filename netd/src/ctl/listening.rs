//! The listeners of the control plane: opened before netd is said to serve, and handed on when it ends.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::config::Config;
use crate::device::Backend;
use crate::sockets::unix::{self, SocketFile};
use crate::steer::Steering;
use crate::update::{Giver, Heir};
use crate::vhost;

/// What the control plane listens on.
#[derive(Debug)]
pub struct Listening {
    /// The control socket with its path and its file.
    pub control: Option<(PathBuf, UnixListener, SocketFile)>,
    /// The metrics with their address.
    pub metrics: Option<(SocketAddr, TcpListener)>,
}

impl Listening {
    /// Opens what is configured, or goes on with what another netd has had there.
    ///
    /// # Errors
    ///
    /// What cannot be listened on.
    pub fn open(config: &Config, heir: &mut Heir) -> Result<Listening> {
        let mut listening = Listening { control: None, metrics: None };
        if let Some(at) = &config.control {
            let opened = match heir.control.take() {
                Some(taken) => SocketFile::taken(&at.path).map(|file| (taken.into(), file)),
                None => unix::listen(&at.path, at.group),
            };
            let (listener, file) =
                opened.with_context(|| format!("control.socket: {}", at.path.display()))?;
            listening.control = Some((at.path.clone(), listener, file));
        }
        if let Some(address) = config.metrics_listen {
            let opened = match heir.metrics.take() {
                Some(taken) => Ok(taken.into()),
                None => TcpListener::bind(address).and_then(|l| l.set_nonblocking(true).map(|()| l)),
            };
            let listener = opened.with_context(|| format!("metrics.listen: {address}"))?;
            listening.metrics = Some((address, listener));
        }
        Ok(listening)
    }

    /// What hands these and everything else on.
    ///
    /// # Errors
    ///
    /// There are no descriptors for it.
    pub fn giver(
        &self,
        backend: &Backend,
        vhost: vhost::Mover,
        steering: Option<&Steering>,
        generation: u32,
    ) -> Result<Giver> {
        let control = match &self.control {
            Some((path, listener, _)) => Some((path.clone(), OwnedFd::from(listener.try_clone()?))),
            None => None,
        };
        let metrics = match &self.metrics {
            Some((address, listener)) => Some((*address, OwnedFd::from(listener.try_clone()?))),
            None => None,
        };
        let steering = steering.map(Steering::mover);
        Ok(Giver { backend: backend.clone(), vhost, steering, control, metrics, generation })
    }
}
