//! The command line of passt, as libvirt writes it for `<backend type='passt'/>`.
//!
//! A netd that is called by the name `passt` takes these options in place of its own. They become the same text fields
//! as a configuration file has, and are judged in the same place; what is wrong is told by the option's name. Options
//! of passt that are not here are refused: to be without what the operator asked for is worse than not to start.
//!
//! What differs from passt is in `docs/netd-standalone.md`.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use super::file::{File, Words};
use super::{Config, Problems};

/// Prefix length of an IPv6 address: that of a link (RFC 4291, section 2.5.1).
const PREFIX_V6: u8 = 64;

/// Serves one guest's vhost-user device, started as passt is.
#[derive(Clone, Debug, Default, clap::Parser)]
#[command(name = "passt", version = concat!("as netd ", env!("CARGO_PKG_VERSION")))]
pub struct Passt {
    /// Speak vhost-user: netd speaks nothing else, so it has to be given
    #[arg(long)]
    pub vhost_user: bool,
    /// End when the frontend goes
    #[arg(short = '1', long)]
    pub one_off: bool,
    /// Do not go into the background
    #[arg(short, long)]
    pub foreground: bool,
    /// UNIX socket on which the frontend is waited for
    #[arg(short, long, value_name = "PATH")]
    pub socket: String,
    /// Write the number of the process into this file
    #[arg(short = 'P', long, value_name = "PATH")]
    pub pid: Option<PathBuf>,
    /// Append the log to this file; in the background there is none without
    #[arg(short, long, value_name = "PATH")]
    pub log_file: Option<PathBuf>,
    /// MTU of the guest in bytes; default that of the interface
    #[arg(short, long, value_name = "BYTES")]
    pub mtu: Option<String>,
    /// Interface whose addresses the guest gets; default the one with the default route
    #[arg(short, long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Address of the guest, IPv4 or IPv6, in place of the interface's; at most one of each
    #[arg(short, long, value_name = "ADDRESS")]
    pub address: Vec<String>,
    /// Prefix length or mask of the IPv4 address; default that of its class
    #[arg(short, long, value_name = "MASK")]
    pub netmask: Option<String>,
    /// TCP ports that lead to the guest: all, none, or e.g. 80,8000-8099:9000-9099,~8050; default none
    #[arg(short, long, value_name = "PORTS")]
    pub tcp_ports: Vec<String>,
    /// UDP ports that lead to the guest; default none
    #[arg(short, long, value_name = "PORTS")]
    pub udp_ports: Vec<String>,
}

/// Whether a program that was called by this path is to be passt.
pub fn is_meant(argument: &OsStr) -> bool {
    Path::new(argument).file_name() == Some(OsStr::new("passt"))
}

impl Passt {
    /// The configuration that the options come to.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, by the names of the options.
    pub fn config(&self) -> Result<Config, Problems> {
        let problems = &mut Problems::default();
        let file = self.file(problems);
        let result = file.check();
        if let Err(found) = &result {
            for problem in &found.0 {
                let field = option(&problem.field).to_owned();
                problems.0.push(super::Problem { field, ..problem.clone() });
            }
        }
        match result {
            Ok(config) if problems.0.is_empty() => Ok(config),
            _ => Err(std::mem::take(problems)),
        }
    }

    fn file(&self, problems: &mut Problems) -> File {
        if !self.vhost_user {
            let allowed =
                "netd serves vhost-user only (in libvirt: <interface type='vhostuser'>, not 'user')";
            problems.missing("--vhost-user", allowed);
        }
        let mut file = File::default();
        file.vhost_user.socket = Some(self.socket.clone());
        file.mtu.clone_from(&self.mtu);
        file.interface.clone_from(&self.interface);
        file.ports.tcp = Some(ports("--tcp-ports", &self.tcp_ports, problems));
        file.ports.udp = Some(ports("--udp-ports", &self.udp_ports, problems));
        // There is no mesh's proxy beside it unless the operator takes its ports out.
        file.ports.reserved = Some(Words(vec!["none".into()]));
        self.addresses(&mut file, problems);
        file
    }

    fn addresses(&self, file: &mut File, problems: &mut Problems) {
        for text in &self.address {
            let (place, value) = match text.parse() {
                Ok(IpAddr::V4(a)) => {
                    let prefix = self.prefix_v4(a, problems);
                    (&mut file.masquerade.ipv4, format!("{a}/{prefix}"))
                }
                Ok(IpAddr::V6(a)) => (&mut file.masquerade.ipv6, format!("{a}/{PREFIX_V6}")),
                Err(_) => {
                    problems.wrong("--address", text, "an IPv4 or IPv6 address is");
                    continue;
                }
            };
            if place.is_some() {
                problems.wrong("--address", text, "one address of each family is");
            }
            *place = Some(value);
        }
        if !self.address.is_empty() {
            file.mode = Some("masquerade".into());
        }
        if let (Some(mask), None) = (&self.netmask, &file.masquerade.ipv4) {
            problems.wrong("--netmask", mask, "it goes with an IPv4 --address");
        }
    }

    fn prefix_v4(&self, address: Ipv4Addr, problems: &mut Problems) -> u8 {
        let by_class = match address.octets()[0] {
            0..=127 => 8,
            128..=191 => 16,
            _ => 24,
        };
        let allowed = "a prefix length from 8 to 30 or its mask is, such as '24' or '255.255.255.0'";
        let read = |text: &str| match text.parse::<Ipv4Addr>() {
            Ok(mask) => ipnet::ipv4_mask_to_prefix(mask).ok(),
            Err(_) => text.parse().ok(),
        };
        let fits = |prefix: &u8| (8..=30).contains(prefix);
        problems
            .read("--netmask", self.netmask.as_deref(), allowed, |t| read(t).filter(fits))
            .unwrap_or(by_class)
    }
}

/// The entries of all `specs`, each of them `[address][%interface]/entries` or `entries`.
fn ports(option: &str, specs: &[String], problems: &mut Problems) -> Words {
    let mut words = Vec::new();
    for spec in specs {
        if spec.contains('/') {
            let allowed =
                "netd listens on every address and interface: ports without '[address][%interface]/' are";
            problems.wrong(option, spec, allowed);
            continue;
        }
        let entries = Words::split(spec).0;
        match entries.as_slice() {
            [] => problems.wrong(option, spec, "'all', 'none' or ports are"),
            [only] if only == "none" => {}
            _ => {
                if entries.iter().all(|e| e.starts_with('~')) {
                    words.push("all".to_owned());
                }
                words.extend(entries);
            }
        }
    }
    if words.is_empty() {
        words.push("none".into());
    }
    Words(words)
}

/// The option that a field of the configuration comes from.
fn option(field: &str) -> &str {
    match field.split('[').next().unwrap_or(field) {
        "vhost_user.socket" => "--socket",
        "mtu" => "--mtu",
        "interface" => "--interface",
        "masquerade.ipv4" | "masquerade.ipv4_gateway" | "masquerade.ipv6" => "--address",
        "ports.tcp" => "--tcp-ports",
        "ports.udp" => "--udp-ports",
        _ => field,
    }
}

#[cfg(test)]
mod tests;
