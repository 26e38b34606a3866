//! What machines ask of the network of a pod: that it is there, that connections can be repaired, that addresses speak.

use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use futures::future::BoxFuture;
use podvirt_api::bridge::Bridged;

use crate::podnet::{self, Unplugged, Wanted};
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
    /// The machine's interfaces that a netd serves: place in `spec.domain.devices.interfaces` and name.
    pub interfaces: Vec<(usize, String)>,
    /// Those that are bound by a bridge.
    pub bridged: Vec<Bridged>,
    /// Whether the machine comes to this pod.
    pub incoming: bool,
    /// Addresses of the pod that the machine goes to; at the source alone. A connection whose address is none of them ends.
    pub to: Option<Vec<IpAddr>>,
}

/// Repair that is armed; it ends when this is dropped.
pub trait Armed: Debug + Send + Sync {}

/// The network's part of a machine's start and of its migration.
pub trait Network: Debug + Send + Sync {
    /// Makes what a machine with these interfaces needs in the network namespace of its launcher; doing it again changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// The machine cannot start, or gets no further interface; it is tried again.
    fn make<'a>(&'a self, launcher: &'a Process, wanted: Wanted) -> BoxFuture<'a, Result<(), podnet::Error>>;

    /// Takes away what was made there for interfaces that are unplugged and that the guest has let go of.
    ///
    /// # Errors
    ///
    /// It stays.
    fn clear<'a>(
        &'a self,
        launcher: &'a Process,
        unplugged: Vec<Unplugged>,
    ) -> BoxFuture<'a, Result<(), podnet::Error>>;

    /// Serves the backends that want the pod's connections repaired, until the result is dropped.
    ///
    /// # Errors
    ///
    /// It cannot be served; the migration goes on, and its connections end.
    fn arm(&self, pod: &PodNetwork) -> io::Result<Box<dyn Armed>>;

    /// Tells the networks, where the guest is a host of its own, that the machine is in this pod still.
    ///
    /// # Errors
    ///
    /// They are not told.
    fn announce<'a>(&'a self, pod: &'a PodNetwork) -> BoxFuture<'a, io::Result<()>>;

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
    fn make<'a>(&'a self, _: &'a Process, _: Wanted) -> BoxFuture<'a, Result<(), podnet::Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn clear<'a>(&'a self, _: &'a Process, _: Vec<Unplugged>) -> BoxFuture<'a, Result<(), podnet::Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn arm(&self, _: &PodNetwork) -> io::Result<Box<dyn Armed>> {
        Ok(Box::new(Nothing))
    }

    fn announce<'a>(&'a self, _: &'a PodNetwork) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn activate<'a>(&'a self, _: &'a PodNetwork) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
