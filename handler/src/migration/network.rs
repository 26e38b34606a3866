//! What a migration asks of the network of a pod: that connections can be repaired, that addresses speak.

use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use futures::future::BoxFuture;

use crate::process::Process;

/// A pod whose machine moves.
#[derive(Clone, Debug)]
pub struct PodNetwork {
    /// UID of the pod.
    pub pod_uid: String,
    /// The launcher's process: the pod's network namespace is its.
    pub launcher: Process,
    /// Directory of the sockets of the pod's backends, on the node.
    pub sockets: PathBuf,
    /// The machine's interfaces: place in `spec.domain.devices.interfaces` and name.
    pub interfaces: Vec<(usize, String)>,
    /// Whether the machine comes to this pod.
    pub incoming: bool,
    /// Addresses of the pod that the machine goes to; at the source alone. A connection whose address is none of them ends.
    pub to: Option<Vec<IpAddr>>,
}

/// Repair that is armed; it ends when this is dropped.
pub trait Armed: Debug + Send + Sync {}

/// The network's part of a migration.
pub trait Network: Debug + Send + Sync {
    /// Serves whoever wants the pod's connections repaired, until the result is dropped.
    ///
    /// # Errors
    ///
    /// It cannot be served; the migration goes on, and its connections end.
    fn arm(&self, pod: &PodNetwork) -> io::Result<Box<dyn Armed>>;

    /// Makes the pod's addresses speak: the machine is here.
    ///
    /// # Errors
    ///
    /// They stay silent; it is tried again.
    fn activate<'a>(&'a self, pod: &'a PodNetwork) -> BoxFuture<'a, io::Result<()>>;
}

/// A network in which there is nothing to do: nothing is repaired, and every address speaks anyway.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

#[derive(Debug)]
struct Nothing;

impl Armed for Nothing {}

impl Network for Silent {
    fn arm(&self, _: &PodNetwork) -> io::Result<Box<dyn Armed>> {
        Ok(Box::new(Nothing))
    }

    fn activate<'a>(&'a self, _: &'a PodNetwork) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
