//! Who repairs the connections of the pods that a guest moves between, and makes the target heard.
//!
//! For netd it is virt-handler's own service, in this process: it serves netd's sockets in a pod's volume, checks every
//! socket's network namespace, and makes the target's address speak before it releases the first connection. For passt it
//! is Debian's passt-repair. That knows nothing of addresses; so that passt's connections speak to nobody who does not
//! hear them, which would cost each a retransmission, what it asks at the target goes through this process, which makes
//! the address speak at the same moment as for netd.

use std::collections::BTreeMap;
use std::fs;
use std::io::{IoSlice, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use podvirt_api::names::pod::volume;
use podvirt_e2e::{Backend, Pod, Process, RunningBackend, until};
use podvirt_proto::repair::{PASST_SUFFIX, SUFFIX, passt};
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
/// Where passt-repair connects to at the target.
const RELAY: &str = "relay.sock";

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
        runtime: &Arc<Runtime>,
        pod: &Arc<Pod>,
        backend: &RunningBackend,
        incoming: bool,
    ) -> Result<Helper> {
        if peer == Peer::Netd {
            handler(runtime, pod, backend, incoming)
        } else {
            passt(runtime, pod, incoming)
        }
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
        pod_uid: UID.into(),
        launcher: backend.process.init_pid()?.as_raw(),
        sockets,
        interfaces: vec![(0, "default".into())],
        incoming,
        to: None,
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

fn passt(runtime: &Arc<Runtime>, pod: &Arc<Pod>, incoming: bool) -> Result<Helper> {
    let socket = format!("{}{PASST_SUFFIX}", Backend::SOCKET);
    let start = |socket: &str| pod.peer("passt-repair").spawn(&["passt-repair", &format!("/w/{socket}")]);
    if !incoming {
        return Ok(Helper::Passt { _process: start(&socket)? });
    }
    remove(&pod.path(RELAY))?;
    let listener = UnixListener::bind(pod.path(RELAY))?;
    let process = start(RELAY)?;
    let helper = listener.accept()?.0;
    let backend = until("passt's repair socket", SOON, || Ok(UnixStream::connect(pod.path(&socket)).ok()))?;
    let (runtime, pod) = (Arc::clone(runtime), Arc::clone(pod));
    // It ends when either side does.
    thread::spawn(move || relay(&backend, helper, || activate(&runtime, &pod)));
    Ok(Helper::Passt { _process: process })
}

/// Hands on what passt asks for, and the answers; `arrive` comes before the first sockets that are to speak.
fn relay(backend: &UnixStream, mut helper: UnixStream, arrive: impl Fn() -> Result<()>) -> Result<()> {
    while let Some((value, sockets)) = passt::recv_request(backend)? {
        if value == 0 {
            arrive()?;
        }
        let numbers: Vec<i32> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        let byte = [value.cast_unsigned()];
        let rights = [ControlMessage::ScmRights(&numbers)];
        sendmsg::<()>(helper.as_raw_fd(), &[IoSlice::new(&byte)], &rights, MsgFlags::MSG_NOSIGNAL, None)?;
        let mut answer = [0];
        helper.read_exact(&mut answer)?;
        passt::send_reply(backend, answer[0].cast_signed())?;
    }
    Ok(())
}
