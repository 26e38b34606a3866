//! The network backend of a pod: netd, or passt as the oracle that says whether a test's expectation is sound.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use podvirt_bed_tools::wait;

use crate::artefacts::program_dir;
use crate::pod::Pod;
use crate::process::Process;

/// The Unix sockets of a network namespace (proc(5)).
const SOCKETS: &str = "/proc/thread-self/net/unix";
/// The flag of a Unix socket that listens.
const ACCEPTS: u32 = 1 << 16;
/// A backend's start: reading the pod's addresses and opening its listeners.
const START: Duration = Duration::from_secs(20);

/// Which backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// This project's netd, under RuntimeDefault.
    Netd,
    /// passt in vhost-user mode; it makes a user namespace for itself.
    Passt,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Netd => "netd",
            Backend::Passt => "passt",
        })
    }
}

/// How it is set up. Both backends give the guest the pod's own addresses.
#[derive(Clone, Debug, Default)]
pub struct BackendOptions {
    /// TCP ports of the pod that lead to the guest.
    pub tcp: Vec<u16>,
    /// UDP ports of the pod that lead to the guest.
    pub udp: Vec<u16>,
    /// The guest's MTU in bytes; the pod's if not given.
    pub mtu: Option<u16>,
    /// The frontend listens on the vhost-user socket and the backend connects (netd only).
    pub connects: bool,
    /// Further lines for netd's configuration file, YAML.
    pub config: String,
    /// Further arguments of netd's command line; they win over all of these.
    pub arguments: Vec<String>,
    /// The pod's name server.
    pub dns: Option<String>,
}

/// A backend at work; dropping it ends it.
#[derive(Debug)]
pub struct RunningBackend {
    /// The container.
    pub process: Process,
    /// Its vhost-user socket, as the test sees it; the pod's containers see it in `/w`.
    pub socket: PathBuf,
    /// netd's control socket, as the test sees it.
    pub control: PathBuf,
}

/// Ports as both backends read them.
fn list(ports: &[u16]) -> String {
    if ports.is_empty() {
        return "none".into();
    }
    ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

impl Backend {
    /// Name of the vhost-user socket in the pod's directory.
    pub const SOCKET: &str = "vu.sock";
    /// Name of netd's control socket in the pod's directory.
    pub const CONTROL: &str = "netd.sock";

    /// Starts it in the pod and waits until a frontend can connect.
    ///
    /// # Errors
    /// It did not start; its log is part of the error.
    pub fn start(self, pod: &Pod, options: &BackendOptions) -> Result<RunningBackend> {
        let socket = pod.path(Backend::SOCKET);
        let control = pod.path(Backend::CONTROL);
        let before = identity(&socket);
        let mut container = pod.container(&self.to_string())?;
        if let Some(dns) = &options.dns {
            container = container.dns(dns);
        }
        let mut process = match self {
            Backend::Netd => {
                fs::write(pod.path("netd.yaml"), netd_config(options))?;
                let container = container.ro(&program_dir("netd")?, "/podvirt");
                let mut command = ["netd", "--config", "/w/netd.yaml"].map(str::to_owned).to_vec();
                command.extend_from_slice(&options.arguments);
                container.spawn(&command)?
            }
            Backend::Passt => container.userns().spawn(&passt_arguments(options))?,
        };
        let started = wait::until("start", START, || {
            if let Some(status) = process.ended()? {
                bail!("it ended: {status}");
            }
            // Files of a predecessor that was killed stand until they are replaced.
            let bound = options.connects || identity(&socket).is_some_and(|i| Some(i) != before);
            // passt sets up much between bind() and listen(). To try would take the place of the frontend.
            let listens = match self {
                Backend::Netd => UnixStream::connect(&control).is_ok(),
                Backend::Passt => {
                    pod.net.pod.enter(|| Ok(fs::read_to_string(SOCKETS)?)).map(|s| listening(&s))?
                }
            };
            Ok((bound && listens).then_some(()))
        });
        if let Err(error) = started {
            bail!("{self}: {error}\n{}", process.log());
        }
        Ok(RunningBackend { process, socket, control })
    }
}

/// Tells a file from another that came in its place; the inode's number alone may be used again.
fn identity(file: &Path) -> Option<(u64, i64, i64)> {
    fs::metadata(file).ok().map(|m| (m.ino(), m.ctime(), m.ctime_nsec()))
}

/// Whether a backend listens on the vhost-user socket, from the pod's list of Unix sockets. Those of a killed predecessor
/// are not in it.
fn listening(sockets: &str) -> bool {
    let path = format!("/w/{}", Backend::SOCKET);
    sockets.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let flags = fields.get(3).and_then(|f| u32::from_str_radix(f, 16).ok());
        fields.get(7) == Some(&path.as_str()) && flags.is_some_and(|f| f & ACCEPTS != 0)
    })
}

fn netd_config(options: &BackendOptions) -> String {
    let mode = if options.connects { "client" } else { "server" };
    let mut text = format!(
        "vhost_user: {{socket: /w/{}, mode: {mode}}}\ncontrol: {{socket: /w/{}}}\nports: {{tcp: \"{}\", udp: \"{}\"}}\n",
        Backend::SOCKET,
        Backend::CONTROL,
        list(&options.tcp),
        list(&options.udp),
    );
    if let Some(mtu) = options.mtu {
        text.push_str(&format!("mtu: {mtu}\n"));
    }
    text + &options.config
}

fn passt_arguments(options: &BackendOptions) -> Vec<String> {
    // Without --no-map-gw the gateway's address, which is the peer here, would mean the pod's own loopback.
    let mut arguments = vec!["passt", "--foreground", "--vhost-user", "--no-map-gw", "--socket"];
    let socket = format!("/w/{}", Backend::SOCKET);
    let (tcp, udp) = (list(&options.tcp), list(&options.udp));
    let mtu = options.mtu.unwrap_or(1500).to_string();
    arguments.extend([socket.as_str(), "--tcp-ports", &tcp, "--udp-ports", &udp, "--mtu", &mtu]);
    arguments.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_only_bound_does_not_listen() {
        let of = |flags: &str, path: &str| {
            format!(
                "Num       RefCount Protocol Flags    Type St Inode Path\n\
                 ffff8881: 00000002 00000000 {flags} 0001 01 4711 {path}\n\
                 ffff8882: 00000003 00000000 00000000 0001 03 4712\n"
            )
        };
        assert!(listening(&of("00010000", "/w/vu.sock")));
        assert!(!listening(&of("00000000", "/w/vu.sock")));
        assert!(!listening(&of("00010000", "/w/other.sock")));
        assert!(!listening(""));
    }
}
