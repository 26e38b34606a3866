//! The switch-over of a migration: the target's addresses begin to be heard.
//!
//! podvirt-cni makes the interfaces of a migration's target *silent*: they have the addresses and the routes, so that
//! sockets can be restored on them, and no frame goes in or out ([`podvirt_cni::net`]). Once the guest runs here,
//! [`activate`] lifts that and announces each address, at once and some more times: a switch may lose a frame, and may
//! still hear the source for a moment. The state is in the pod's network namespace, in the interfaces themselves:
//! activation may be begun anew at any time, by a virtual machine's second agent, too.
//!
//! The order is the one that keeps connections: sockets are restored before the address points to them, and the
//! source's stay open until it does. So: restore, activate, let the restored sockets speak, end the source.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use podvirt_api::mac::MacAddr;
use podvirt_cni::net::{self, Activated, NetError};
use tracing::{info, warn};

use crate::ports::Namespace;

/// Pauses before the further announcements: half a second in all, growing, as hypervisors do it.
const AGAIN: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(150),
    Duration::from_millis(250),
];

/// Activation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An interface.
    #[error(transparent)]
    Interface(#[from] NetError),
    /// Files or threads.
    #[error("the pod's network namespace cannot be entered")]
    Io(#[from] io::Error),
}

/// Makes every silent interface of the pod of `namespace` heard; answers them by their names. `guests` has the MAC
/// addresses of guests by interface, where they are not the interfaces' own. With nothing silent it does nothing, so
/// it may be called for every target and again.
///
/// It returns after the first announcement; the others follow by themselves.
///
/// # Errors
/// The kernel refuses. What was activated stays so; calling again does the rest.
pub async fn activate(
    namespace: &Namespace,
    guests: &BTreeMap<String, MacAddr>,
) -> Result<BTreeMap<String, Activated>, Error> {
    let pod = Arc::new(namespace.file()?);
    let activated = {
        let (pod, guests) = (pod.clone(), guests.clone());
        // Threads that enter the namespace are waited for there.
        tokio::task::spawn_blocking(move || activate_all(&pod, &guests)).await.map_err(io::Error::other)??
    };
    for (interface, one) in &activated {
        info!(interface, mac = %one.mac, addresses = ?one.addresses, "the machine is heard here");
        tokio::spawn(announce_again(pod.clone(), interface.clone(), one.clone()));
    }
    Ok(activated)
}

fn activate_all(
    pod: &File,
    guests: &BTreeMap<String, MacAddr>,
) -> Result<BTreeMap<String, Activated>, NetError> {
    let mut activated = BTreeMap::new();
    for interface in net::silent_interfaces(pod)? {
        let one = net::activate(pod, &interface, guests.get(&interface).copied())?;
        activated.insert(interface, one);
    }
    Ok(activated)
}

async fn announce_again(pod: Arc<File>, interface: String, activated: Activated) {
    for pause in AGAIN {
        tokio::time::sleep(pause).await;
        let (pod, name, activated) = (pod.clone(), interface.clone(), activated.clone());
        let sent = tokio::task::spawn_blocking(move || net::announce_again(&pod, &name, &activated)).await;
        match sent {
            Ok(Ok(())) => {}
            // The pod may be gone already, with its interfaces.
            Ok(Err(error)) => {
                warn!(interface, error = &error as &dyn std::error::Error, "not announced again");
                return;
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nix::sched::{CloneFlags, unshare};
    use podvirt_cni::net::silence;
    use rtnetlink::LinkUnspec;

    use super::*;

    #[test]
    fn silent_interfaces_are_heard_and_others_left_alone() {
        // A pod: a thread with a network namespace of its own, whose loopback stands for any interface.
        let (ready, wait) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let pod = std::thread::spawn(move || {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
                eprintln!("SKIPPED: cannot make a network namespace: {error}");
                return;
            }
            silence::silence("lo").unwrap();
            podvirt_cni::net::netns::inside(None, |handle| async move {
                let up = LinkUnspec::new_with_name("lo").up().build();
                handle.link().set(up).execute().await.unwrap();
                Ok(())
            })
            .unwrap();
            ready.send(nix::unistd::gettid()).unwrap();
            let _ = ended.recv();
        });
        if let Ok(thread) = wait.recv() {
            let path = format!("/proc/self/task/{thread}/ns/net");
            let namespace = Namespace::open(Path::new(&path)).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let guest = MacAddr([2, 0, 0, 0, 0, 9]);
            let guests = BTreeMap::from([("lo".to_owned(), guest)]);
            let activated = runtime.block_on(activate(&namespace, &guests)).unwrap();
            assert!(activated["lo"].was_silent && activated["lo"].mac == guest);
            assert!(runtime.block_on(activate(&namespace, &guests)).unwrap().is_empty());
        }
        drop(end);
        pod.join().unwrap();
    }
}
