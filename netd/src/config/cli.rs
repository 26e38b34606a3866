//! The command line of netd. Each option overrides the field of the configuration file that its help names.

use std::path::PathBuf;

use super::file::{File, Words};

/// Connects a guest's virtio-net device to ordinary sockets of its pod, without privilege.
#[derive(Clone, Debug, Default, clap::Parser)]
#[command(name = "netd", version)]
pub struct Args {
    /// Configuration file in YAML; every field has a default but vhost_user.socket
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the configuration, tell every problem, and end
    #[arg(long)]
    pub check: bool,
    /// UNIX socket of the vhost-user frontend (vhost_user.socket)
    #[arg(short, long, value_name = "PATH")]
    pub socket: Option<String>,
    /// Which side listens on it: server (netd) or client (the frontend) (vhost_user.mode)
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<String>,
    /// Queue pairs to offer, each with a thread; default 1 (vhost_user.queue_pairs)
    #[arg(long, value_name = "PAIRS")]
    pub queue_pairs: Option<String>,
    /// UNIX socket of the control interface (control.socket)
    #[arg(long, value_name = "PATH")]
    pub control: Option<String>,
    /// Address and port of the metrics' HTTP listener (metrics.listen)
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<String>,
    /// The pod's interface; default the one with the default route (interface)
    #[arg(short, long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Open sockets of that interface alone: true or false (bind_interface)
    #[arg(long, value_name = "BOOL")]
    pub bind_interface: Option<String>,
    /// Addressing: passthrough or masquerade (mode)
    #[arg(short, long, value_name = "MODE")]
    pub mode: Option<String>,
    /// netd's own Ethernet address (mac)
    #[arg(long, value_name = "MAC")]
    pub mac: Option<String>,
    /// MTU of the guest in bytes; default the pod's (mtu)
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<String>,
    /// The guest's Ethernet address; default learned (guest.mac)
    #[arg(long, value_name = "MAC")]
    pub guest_mac: Option<String>,
    /// The guest's host name; default the pod's (guest.hostname)
    #[arg(long, value_name = "NAME")]
    pub hostname: Option<String>,
    /// The guest's fully qualified name (guest.fqdn)
    #[arg(long, value_name = "NAME")]
    pub fqdn: Option<String>,
    /// Resolvers for the guest, with commas; default the pod's (guest.dns)
    #[arg(long, value_name = "ADDRESSES")]
    pub dns: Option<String>,
    /// Search domains for the guest, with commas; default the pod's (guest.search)
    #[arg(long, value_name = "DOMAINS")]
    pub search: Option<String>,
    /// TCP ports that lead to the guest: all, none, or e.g. 80,8000-8099,2222:22,~8050 (ports.tcp)
    #[arg(short, long, value_name = "PORTS")]
    pub tcp_ports: Option<String>,
    /// UDP ports that lead to the guest (ports.udp)
    #[arg(short, long, value_name = "PORTS")]
    pub udp_ports: Option<String>,
    /// Presets and ports that are never forwarded: istio, linkerd, 9000-9010; or none (ports.reserved)
    #[arg(long, value_name = "PORTS")]
    pub reserved: Option<String>,
    /// A mesh's proxy may be in the pod, default true; false: ports of the presets are forwarded (ports.mesh)
    #[arg(long, value_name = "BOOL")]
    pub mesh: Option<String>,
    /// Where the sockets of 'all' ports are lent to the helper that can steer every port to them (ports.steering)
    #[arg(long, value_name = "PATH")]
    pub steering: Option<String>,
    /// Refuse connections to listed TCP ports on which the guest does not listen: true or false (ports.ask_guest)
    #[arg(long, value_name = "BOOL")]
    pub ask_guest: Option<String>,
    /// Where everything is left for the next netd at SIGTERM, and collected at the start (hold.socket)
    #[arg(long, value_name = "PATH")]
    pub hold: Option<String>,
    /// Take everything over from the netd that offers it there; netctl upgrade fills this in
    #[arg(long, value_name = "PATH")]
    pub takeover: Option<PathBuf>,
    /// Log level or filter, e.g. info or netd=debug (log)
    #[arg(short, long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Write the manual pages into this directory and end
    #[arg(long, value_name = "DIR", hide = true)]
    pub man: Option<PathBuf>,
}

impl Args {
    /// Overrides the fields of `file` whose options were given.
    pub fn apply(&self, file: &mut File) {
        let text = |to: &mut Option<String>, from: &Option<String>| {
            if from.is_some() {
                to.clone_from(from);
            }
        };
        let words = |to: &mut Option<Words>, from: &Option<String>| {
            if let Some(from) = from {
                *to = Some(Words::split(from));
            }
        };
        text(&mut file.vhost_user.socket, &self.socket);
        text(&mut file.vhost_user.mode, &self.socket_mode);
        text(&mut file.vhost_user.queue_pairs, &self.queue_pairs);
        text(&mut file.control.socket, &self.control);
        text(&mut file.metrics.listen, &self.metrics);
        text(&mut file.interface, &self.interface);
        text(&mut file.bind_interface, &self.bind_interface);
        text(&mut file.mode, &self.mode);
        text(&mut file.mac, &self.mac);
        text(&mut file.mtu, &self.mtu);
        text(&mut file.guest.mac, &self.guest_mac);
        text(&mut file.guest.hostname, &self.hostname);
        text(&mut file.guest.fqdn, &self.fqdn);
        words(&mut file.guest.dns, &self.dns);
        words(&mut file.guest.search, &self.search);
        words(&mut file.ports.tcp, &self.tcp_ports);
        words(&mut file.ports.udp, &self.udp_ports);
        words(&mut file.ports.reserved, &self.reserved);
        text(&mut file.ports.mesh, &self.mesh);
        text(&mut file.ports.steering, &self.steering);
        text(&mut file.ports.ask_guest, &self.ask_guest);
        text(&mut file.hold.socket, &self.hold);
        text(&mut file.log, &self.log);
    }
}
