//! `/dev/kvm` and `/dev/net/tun` for pods that may not open anything of the node: device plugins of the kubelet.
//!
//! A pod that asks for `devices.kubevirt.io/kvm` is scheduled only where this process offers it, and gets the
//! device's node and the control group's permission for it. The device can be shared at will; the number of
//! copies ([`COPIES`]) is there because the kubelet counts. `devices.kubevirt.io/tun` likewise: by it QEMU opens the tap
//! devices that are its user's ([`crate::podnet`]), and can do no more with it without a capability.
//!
//! A device is offered only where it is of use: `/dev/kvm` exists on machines whose processor cannot run guests, and a
//! QEMU that trusts it fails late. Elsewhere its copies are registered as unhealthy ones: the node says 0 of them, as with
//! upstream, and pods that need one do not come here.
//!
//! The kubelet forgets all plugins when it restarts and says so by making a new `kubelet.sock`; so its directory is
//! watched, and the plugin registers anew. A plugin that lost its socket (the directory was emptied) serves
//! on a new one.

mod kvm;
mod plugin;
mod tun;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use podvirt_daemon::shutdown::Shutdown;
use tokio::sync::watch;

pub use kvm::{KVM, Verdict, probe};
use plugin::Plugin;
pub use tun::{TUN, probe as probe_tun};

use crate::launcher::watch::Watch;

/// A device of the node that pods can ask for.
#[derive(Debug)]
pub struct Device {
    /// Its name for people.
    pub name: &'static str,
    /// The resource that pods ask for.
    pub resource: &'static str,
    /// Its file, on the node and in pods.
    pub path: &'static str,
    /// Name of the plugin's socket.
    pub socket: &'static str,
    /// What the names of its copies begin with.
    pub copy: &'static str,
}

/// Copies of the device that are offered, as many as upstream offers.
pub const COPIES: usize = 1000;
/// The kubelet's directory of device plugins.
pub const DIRECTORY: &str = "/var/lib/kubelet/device-plugins";
/// Time between two looks at whether the device is of use still.
const PROBE: Duration = Duration::from_secs(30);
/// Times between two attempts to register.
const RETRIES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(10)];

/// The kubelet's interface.
#[doc(hidden)]
pub mod proto {
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
    #![allow(clippy::large_futures, clippy::uninlined_format_args, rust_2018_idioms)]
    tonic::include_proto!("v1beta1");
}

/// Offers `device` to the kubelet until `shutdown`, with how it is: of use or not. `settled` becomes true once the node's
/// pods can be told what this node has: the kubelet knows, or there is nothing to offer. `tell` hears each time whether it
/// is of use.
pub async fn offer(
    device: &'static Device,
    directory: PathBuf,
    probe: impl Fn() -> Verdict,
    tell: impl Fn(bool),
    settled: &watch::Sender<bool>,
    shutdown: &Shutdown,
) {
    let told = Mutex::new(None);
    let look = || {
        let verdict = probe();
        let usable = verdict.usable;
        tell(usable);
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.as_ref() != Some(&verdict) {
            tracing::info!(usable, why = verdict.why, "{}", device.name);
            *told = Some(verdict);
        }
        usable
    };
    let mut failures = 0;
    loop {
        if !look() {
            settled.send_replace(true);
        }
        let pause = match shutdown.or(serve(device, &directory, &look, settled)).await {
            None => return,
            // The kubelet has restarted, or the plugin's socket is gone.
            Some(Ok(())) => {
                failures = 0;
                Duration::ZERO
            }
            Some(Err(error)) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "{} cannot be offered to the kubelet yet", device.name);
                failures += 1;
                RETRIES[RETRIES.len().min(failures) - 1]
            }
        };
        if shutdown.or(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Serves and registers once; returns when that is to be done again.
async fn serve(
    device: &'static Device,
    directory: &Path,
    look: &impl Fn() -> bool,
    settled: &watch::Sender<bool>,
) -> anyhow::Result<()> {
    // First of all: a kubelet that starts from here on is noticed.
    let changes = Watch::on(directory)?;
    let identity = identity_of_kubelet(directory)?;
    let usable = look();
    let plugin = Plugin::serve(device, directory, usable)?;
    plugin.register(directory).await?;
    tracing::info!(copies = COPIES, usable, "{} is registered with the kubelet", device.name);
    settled.send_replace(true);
    loop {
        tokio::select! {
            changed = changes.changed() => changed?,
            () = tokio::time::sleep(PROBE) => {}
        }
        plugin.healthy(look());
        if identity_of_kubelet(directory).ok() != Some(identity) || !plugin.is_reachable(directory) {
            return Ok(());
        }
    }
}

/// Which kubelet listens: its socket's inode. `NotFound`: none does yet.
fn identity_of_kubelet(directory: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::symlink_metadata(directory.join(plugin::KUBELET_SOCKET))?.ino())
}

#[cfg(test)]
mod tests;
