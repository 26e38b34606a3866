//! netd's configuration: a YAML file, overridden by the command line, checked as a whole.
//!
//! The way of a setting is [`file::File`] (text, as the operator wrote it) ← [`cli::Args`] (text again) →
//! [`File::check`](file::File::check) → [`Config`] (values that are known to work together). Text is kept
//! until the last step so that one place judges every setting, whichever way it came, and all problems are
//! told at once. `docs/netd-configuration.md` is the operator's description.

pub mod cli;
pub mod file;
pub mod passt;
pub mod ports;
pub mod value;

mod check;
mod egress;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use check::{MAX_MTU, MIN_MTU};
pub use ports::Ports;
pub use value::{Problem, Problems};

use crate::egress::Egress;
use crate::limits::{Limits, Timeouts};
use crate::net::{DhcpOption, Mode};
use crate::wire::MacAddr;

/// The configuration of one netd, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the guest, told in the log, the status and the metrics; default none.
    pub name: Option<String>,
    /// The vhost-user side.
    pub vhost_user: VhostUser,
    /// The control socket, if there is one.
    pub control: Option<ControlSocket>,
    /// Address of the metrics' HTTP listener; default none.
    pub metrics_listen: Option<SocketAddr>,
    /// The pod's interface; default the one that has the default route.
    pub interface: Option<String>,
    /// Whether what netd opens is of that interface alone; default no. It is named then.
    pub bind_interface: bool,
    /// Addressing mode; default [`Mode::Passthrough`].
    pub mode: Mode,
    /// netd's own Ethernet address; default one that is derived from the guest's or the pod's.
    pub mac: Option<MacAddr>,
    /// MTU of the guest in bytes; default the pod's.
    pub mtu: Option<u16>,
    /// What the guest is told.
    pub guest: Guest,
    /// Addresses that lead the guest to the pod's loopback; default none, closed.
    pub loopback: Loopback,
    /// The guest's addresses in masquerade mode.
    pub masquerade: Masquerade,
    /// Forwarded ports.
    pub ports: Ports,
    /// Which peers the guest may speak to; default all but the cloud's metadata services.
    pub egress: Arc<Egress>,
    /// Bounds of what one guest can use.
    pub limits: Limits,
    /// When idle flows end.
    pub timeouts: Timeouts,
    /// Socket of the hold, which keeps everything between two netds; default none.
    pub hold: Option<PathBuf>,
    /// Whether workers may look for answers before they sleep; default [`SpinMode::Auto`].
    pub spin: SpinMode,
    /// How much netd confines itself; default [`SandboxMode::Enforce`].
    pub sandbox: SandboxMode,
    /// Log filter in the syntax of `tracing`; default `info`.
    pub log: String,
}

/// The vhost-user socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUser {
    /// Path of the UNIX socket; there is no default.
    pub socket: PathBuf,
    /// Which side listens; default [`SocketRole::Server`].
    pub mode: SocketRole,
    /// Queue pairs that are offered to the frontend, with a worker each; default 1.
    pub queue_pairs: usize,
}

/// Which end of the vhost-user socket netd is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketRole {
    /// netd listens and the frontend connects.
    Server,
    /// netd connects to the listening frontend, and tries again when it is not there.
    Client,
}

/// The control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSocket {
    /// Path of the UNIX socket.
    pub path: PathBuf,
    /// Whether netd's group may use it (permissions 0660 in place of 0600); default no.
    pub group: bool,
}

/// Whether workers may look for what comes next before they sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpinMode {
    /// Where no limit of processor time is set for netd.
    #[default]
    Auto,
    /// They sleep at once.
    Never,
}

/// How much of the sandbox is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SandboxMode {
    /// All of it.
    #[default]
    Enforce,
    /// System calls that would be refused are carried out and stand in the audit log; files are not confined. The rest
    /// is in force.
    Log,
    /// None of it.
    Off,
}

/// What the guest is told about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// Its Ethernet address; default: learned from its frames.
    pub mac: Option<MacAddr>,
    /// Its host name; default the pod's.
    pub hostname: Option<String>,
    /// Its fully qualified name; default none.
    pub fqdn: Option<String>,
    /// Its resolvers; default those of the pod's resolv.conf.
    pub dns: Option<Vec<IpAddr>>,
    /// Its search domains; default those of the pod's resolv.conf.
    pub search: Option<Vec<String>>,
    /// Further DHCPv4 options; default none.
    pub dhcp_options: Vec<DhcpOption>,
}

/// Addresses that lead the guest to the pod's loopback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loopback {
    /// Leads to 127.0.0.1.
    pub v4: Option<Ipv4Addr>,
    /// Leads to ::1.
    pub v6: Option<Ipv6Addr>,
}

/// The guest's addresses in masquerade mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masquerade {
    /// The guest's IPv4 address; default 10.0.2.2.
    pub guest_v4: Ipv4Addr,
    /// The guest's IPv4 gateway; default 10.0.2.1.
    pub gateway_v4: Ipv4Addr,
    /// Prefix length of both; default 24.
    pub prefix_v4: u8,
    /// The guest's IPv6 address; default fd10:0:2::2.
    pub guest_v6: Ipv6Addr,
    /// Prefix length of the guest's IPv6 address; default 120.
    pub prefix_v6: u8,
}

impl Default for Masquerade {
    fn default() -> Self {
        Masquerade {
            guest_v4: Ipv4Addr::new(10, 0, 2, 2),
            gateway_v4: Ipv4Addr::new(10, 0, 2, 1),
            prefix_v4: 24,
            guest_v6: Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 2),
            prefix_v6: 120,
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not YAML, or not of the configuration's shape.
    #[error("the configuration file {path} is not understood")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<serde_saphyr::Error>,
    },
    /// Some settings are wrong.
    #[error(transparent)]
    Invalid(#[from] Problems),
}

impl Config {
    /// Reads the file that the command line names, overrides it by the command line and checks the result.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]; when the settings themselves are wrong it lists all that are.
    pub fn load(args: &cli::Args) -> Result<Config, ConfigError> {
        let mut file = match &args.config {
            Some(path) => Self::read(path)?,
            None => file::File::default(),
        };
        args.apply(&mut file);
        Ok(file.check()?)
    }

    fn read(path: &Path) -> Result<file::File, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        file::File::parse(&text)
            .map_err(|source| ConfigError::Syntax { path: path.to_owned(), source: Box::new(source) })
    }
}
