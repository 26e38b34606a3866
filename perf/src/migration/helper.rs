//! The helper, which repairs the connections of the pods that a guest moves between, and makes the target heard.
//!
//! For netd it is virt-handler's own service, in this process: it serves netd's sockets in a pod's volume, checks every
//! socket's network namespace, and makes the target's address speak before it releases the first connection. For passt it
//! is Debian's passt-repair, which knows nothing of addresses: there the address speaks when the guest runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use podvirt_api::names::pod::volume;
use podvirt_e2e::{Backend, Net, Pod, Process, RunningBackend, until};
use podvirt_proto::repair::{PASST_SUFFIX, SUFFIX};
use tokio::runtime::Runtime;
use virt_handler::activate;
use virt_handler::migration::network::{Armed, Network, PodNetwork};
use virt_handler::ports::Namespace;
use virt_handler::repair::Repairs;
use virt_handler::sockets::PodVolumes;

use crate::plan::Peer;

/// For a socket that a program is about to open.
const SOON: Duration = Duration::from_secs(10);
/// Stands for the pod in the paths of its volumes.
const UID: &str = "22222222-2222-4222-8222-222222222222";

/// Repair that is offered to one pod until this is dropped.
#[derive(Debug)]
pub(crate) enum Helper {
    /// virt-handler's.
    Handler { _armed: Box<dyn Armed> },
    /// passt-repair.
    Passt { _process: Process },
}

/// Makes the pod's addresses speak; nothing happens when they do.
pub(crate) fn activate(runtime: &Runtime, pod: &Pod) -> Result<()> {
    let namespace = Namespace::open(&Path::new("/run/netns").join(pod.net.pod.name()))?;
    runtime.block_on(activate::activate(&namespace, &BTreeMap::new()))?;
    Ok(())
}

impl Helper {
    /// For a pod with this backend, which its guest leaves or comes to.
    ///
    /// # Errors
    /// Its socket is not there, or cannot be served.
    pub(crate) fn new(
        peer: Peer,
        runtime: &Runtime,
        pod: &Pod,
        backend: &RunningBackend,
        incoming: bool,
    ) -> Result<Helper> {
        if peer == Peer::Netd { handler(runtime, pod, backend, incoming) } else { passt(pod) }
    }
}

fn handler(runtime: &Runtime, pod: &Pod, backend: &RunningBackend, incoming: bool) -> Result<Helper> {
    // The socket where a volume of the pod would have it, by another name of the same file.
    let pods = pod.path("pods");
    let volumes = PodVolumes::new(&pods);
    let sockets = volumes.path(UID, volume::NETD);
    fs::create_dir_all(&sockets)?;
    let (from, to) =
        (pod.path(&format!("{}{SUFFIX}", Backend::SOCKET)), sockets.join(format!("n0.sock{SUFFIX}")));
    link(&from, &to)?;
    let network = PodNetwork {
        bridged: Vec::new(),
        pod_uid: UID.into(),
        launcher: virt_handler::process::Process::of(backend.process.init_pid()?.as_raw())?,
        sockets,
        interfaces: vec![(0, "default".into())],
        incoming,
        // The other pod has the same.
        to: (!incoming).then(|| Net::pod_addresses(0).map(|at| at.ip()).to_vec()),
    };
    let _inside = runtime.enter();
    Ok(Helper::Handler { _armed: Repairs::new(volumes).arm(&network)? })
}

/// Gives a socket that is about to be there another name.
pub(crate) fn link(from: &Path, to: &Path) -> Result<()> {
    remove(to)?;
    let what = from.display().to_string();
    until(&what, SOON, || Ok(fs::hard_link(from, to).ok())).context("a socket's other name")
}

/// Removes a file that may not be there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

fn passt(pod: &Pod) -> Result<Helper> {
    let socket = format!("/w/{}{PASST_SUFFIX}", Backend::SOCKET);
    Ok(Helper::Passt { _process: pod.peer("passt-repair").spawn(&["passt-repair", &socket])? })
}
