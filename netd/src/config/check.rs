//! From text to values: every setting is judged, and every problem is noted before any is told.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::{Ipv4Net, Ipv6Net};

use super::egress::egress;
use super::file::{self, File, Words};
use super::ports::{PortSpec, Ports, Reserved};
use super::value::{Problems, is_domain, is_hostname};
use super::{Config, ControlSocket, Guest, Limits, Loopback, Masquerade, SocketRole, Timeouts, VhostUser};
use super::{SandboxMode, SpinMode};
use crate::limits::{MAX_ASKED, MAX_QUEUE_PAIRS};
use crate::net::{DhcpOption, Mode};
use crate::port::Proto;
use crate::wire::MacAddr;

/// The least MTU of an IPv4 link (RFC 791, section 3.2).
pub(crate) const MIN_MTU: u16 = 68;
/// The largest MTU that virtio-net can tell its driver.
pub(crate) const MAX_MTU: u16 = 65535;
/// Room in `sockaddr_un` for a path and its final zero.
const SOCKET_PATH_BYTES: usize = 107;
/// Option codes that netd fills itself, or that have no value: pad, mask, router, resolvers, names, MTU, the
/// protocol's own 50 to 61, FQDN, relay agent, search list, classless routes in both numbers, end.
const OWN_DHCP_OPTIONS: &[u8] =
    &[0, 1, 3, 6, 12, 15, 26, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 61, 81, 82, 119, 121, 249, 255];

impl File {
    /// Judges every setting.
    ///
    /// # Errors
    ///
    /// All settings that cannot be used.
    pub fn check(&self) -> Result<Config, Problems> {
        let p = &mut Problems::default();
        let config = Config {
            name: p.read(
                "name",
                self.name.as_deref(),
                "1 to 320 printable ASCII characters without spaces and quotes are",
                |t| {
                    let fits = t.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\');
                    (fits && (1..=320).contains(&t.len())).then(|| t.to_owned())
                },
            ),
            vhost_user: VhostUser {
                socket: socket_path(p, "vhost_user.socket", self.vhost_user.socket.as_deref())
                    .unwrap_or_else(|| {
                        if self.vhost_user.socket.is_none() {
                            p.missing("vhost_user.socket", "the path of a UNIX socket is needed");
                        }
                        PathBuf::new()
                    }),
                mode: p
                    .read(
                        "vhost_user.mode",
                        self.vhost_user.mode.as_deref(),
                        "'server' or 'client' is",
                        |t| match t {
                            "server" => Some(SocketRole::Server),
                            "client" => Some(SocketRole::Client),
                            _ => None,
                        },
                    )
                    .unwrap_or(SocketRole::Server),
                queue_pairs: p
                    .integer(
                        "vhost_user.queue_pairs",
                        self.vhost_user.queue_pairs.as_deref(),
                        1,
                        MAX_QUEUE_PAIRS as u64,
                    )
                    .and_then(|n| usize::try_from(n).ok())
                    .unwrap_or(1),
            },
            control: control(p, &self.control),
            metrics_listen: p.from_str::<SocketAddr>(
                "metrics.listen",
                self.metrics.listen.as_deref(),
                "an address and a port are, such as '0.0.0.0:9090' or '[::]:9090'",
            ),
            interface: p.read(
                "interface",
                self.interface.as_deref(),
                "an interface's name of 1 to 15 bytes is",
                |t| ((1..=15).contains(&t.len()) && !t.contains(['/', ' '])).then(|| t.to_owned()),
            ),
            bind_interface: p
                .from_str("bind_interface", self.bind_interface.as_deref(), "'true' or 'false' is")
                .unwrap_or(false),
            mode: p
                .read("mode", self.mode.as_deref(), "'passthrough' or 'masquerade' is", |t| match t {
                    "passthrough" => Some(Mode::Passthrough),
                    "masquerade" => Some(Mode::Masquerade),
                    _ => None,
                })
                .unwrap_or(Mode::Passthrough),
            mac: mac(p, "mac", self.mac.as_deref()),
            mtu: p
                .integer("mtu", self.mtu.as_deref(), MIN_MTU.into(), MAX_MTU.into())
                .and_then(|n| u16::try_from(n).ok()),
            guest: guest(p, &self.guest),
            loopback: Loopback {
                v4: loopback_v4(p, self.loopback.ipv4.as_deref()),
                v6: loopback_v6(p, self.loopback.ipv6.as_deref()),
            },
            masquerade: masquerade(p, &self.masquerade),
            ports: ports(p, &self.ports),
            egress: egress(p, &self.egress).into(),
            limits: limits(p, &self.limits),
            timeouts: timeouts(p, &self.timeouts),
            hold: socket_path(p, "hold.socket", self.hold.socket.as_deref()),
            spin: p
                .read("spin", self.spin.as_deref(), "'auto' or 'never' is", |t| match t {
                    "auto" => Some(SpinMode::Auto),
                    "never" => Some(SpinMode::Never),
                    _ => None,
                })
                .unwrap_or_default(),
            sandbox: p
                .read("sandbox", self.sandbox.as_deref(), "'enforce', 'log' or 'off' is", |t| match t {
                    "enforce" => Some(SandboxMode::Enforce),
                    "log" => Some(SandboxMode::Log),
                    "off" => Some(SandboxMode::Off),
                    _ => None,
                })
                .unwrap_or_default(),
            log: p
                .read(
                    "log",
                    self.log.as_deref(),
                    "a level or a filter is, such as 'info' or 'netd=debug'",
                    |t| tracing_subscriber::EnvFilter::try_new(t).ok().map(|_| t.to_owned()),
                )
                .unwrap_or_else(|| "info".to_owned()),
        };
        if config.mac.is_some() && config.mac == config.guest.mac {
            let mac = config.mac.map(|m| m.to_string()).unwrap_or_default();
            p.wrong("mac", &mac, "netd's address differs from the guest's");
        }
        if config.bind_interface && config.interface.is_none() {
            p.wrong("bind_interface", "true", "it is where 'interface' names one");
        }
        if config.bind_interface && (config.loopback.v4.is_some() || config.loopback.v6.is_some()) {
            p.wrong("bind_interface", "true", "it is without 'loopback', which is another interface");
        }
        if config.control.as_ref().is_some_and(|c| c.path == config.vhost_user.socket) {
            let path = config.vhost_user.socket.display().to_string();
            p.wrong("control.socket", &path, "the control socket differs from the vhost-user socket");
        }
        if p.0.is_empty() { Ok(config) } else { Err(std::mem::take(p)) }
    }
}

fn socket_path(p: &mut Problems, field: &str, text: Option<&str>) -> Option<PathBuf> {
    let allowed = format!("the path of a UNIX socket, 1 to {SOCKET_PATH_BYTES} bytes, is");
    p.read(field, text, &allowed, |t| {
        ((1..=SOCKET_PATH_BYTES).contains(&t.len()) && !t.contains('\0')).then(|| PathBuf::from(t))
    })
}

fn control(p: &mut Problems, file: &file::Control) -> Option<ControlSocket> {
    let group = p.from_str("control.group", file.group.as_deref(), "'true' or 'false' is").unwrap_or(false);
    let path = socket_path(p, "control.socket", file.socket.as_deref())?;
    Some(ControlSocket { path, group })
}

fn mac(p: &mut Problems, field: &str, text: Option<&str>) -> Option<MacAddr> {
    let allowed = "six hexadecimal bytes joined by ':' are, not a group address, not all zero";
    p.read(field, text, allowed, |t| {
        t.parse::<MacAddr>().ok().filter(|m| !m.is_group() && *m != MacAddr([0; 6]))
    })
}

fn guest(p: &mut Problems, file: &file::Guest) -> Guest {
    let dns = file.dns.as_ref().map(|words| {
        let address = |p: &mut Problems, i: usize, w: &str| {
            let allowed = "the address of a resolver is; not a loopback, multicast or unspecified one";
            p.read(&format!("guest.dns[{i}]"), Some(w), allowed, |t| {
                let a: IpAddr = t.parse().ok()?;
                (!a.is_loopback() && !a.is_multicast() && !a.is_unspecified()).then_some(a)
            })
        };
        each(p, words, address)
    });
    let search = file.search.as_ref().map(|words| {
        each(p, words, |p, i, w| {
            // The root adds nothing to a name. Files that say "search ." are common on nodes, and pods have what their nodes have.
            if w.trim() == "." {
                return None;
            }
            let allowed = "a domain is: labels of letters, digits, '-' and '_', at most 253 bytes (in a pod it may come from \
                           its dnsConfig.searches or from the node's resolv.conf)";
            p.read(&format!("guest.search[{i}]"), Some(w), allowed, |t| is_domain(t).then(|| t.to_owned()))
        })
    });
    let name = |p: &mut Problems, field: &str, text: Option<&str>| {
        let allowed = "a host name is: labels of letters, digits and '-', at most 253 bytes";
        p.read(field, text, allowed, |t| is_hostname(t).then(|| t.to_owned()))
    };
    Guest {
        mac: mac(p, "guest.mac", file.mac.as_deref()),
        hostname: name(p, "guest.hostname", file.hostname.as_deref()),
        fqdn: name(p, "guest.fqdn", file.fqdn.as_deref()),
        dns,
        search,
        dhcp_options: dhcp_options(p, &file.dhcp_options),
    }
}

fn each<T>(
    p: &mut Problems,
    words: &Words,
    mut read: impl FnMut(&mut Problems, usize, &str) -> Option<T>,
) -> Vec<T> {
    words.0.iter().enumerate().filter_map(|(i, w)| read(p, i, w)).collect()
}

fn dhcp_options(p: &mut Problems, options: &[file::DhcpOption]) -> Vec<DhcpOption> {
    let mut out: Vec<DhcpOption> = Vec::new();
    for (i, option) in options.iter().enumerate() {
        let at = |name: &str| format!("guest.dhcp_options[{i}].{name}");
        let allowed = "the number of an option that netd does not fill itself is, each at most once";
        if option.code.is_none() {
            p.missing(at("code"), "the option's number is needed");
        }
        let code = p.read(&at("code"), option.code.as_deref(), allowed, |t| {
            let code: u8 = t.parse().ok()?;
            (!OWN_DHCP_OPTIONS.contains(&code) && !out.iter().any(|o| o.code == code)).then_some(code)
        });
        let text = p.read(&at("text"), option.text.as_deref(), "a text of 1 to 255 bytes is", |t| {
            (1..=255).contains(&t.len()).then(|| t.as_bytes().to_vec())
        });
        let addresses = option.addresses.as_ref().map(|words| {
            if !(1..=63).contains(&words.0.len()) {
                p.wrong(at("addresses"), &words.0.join(","), "1 to 63 IPv4 addresses are");
            }
            each(p, words, |p, j, w| {
                p.from_str::<Ipv4Addr>(&format!("{}[{j}]", at("addresses")), Some(w), "an IPv4 address is")
            })
            .iter()
            .flat_map(Ipv4Addr::octets)
            .collect()
        });
        let hex =
            p.read(&at("hex"), option.hex.as_deref(), "1 to 255 bytes of two hexadecimal digits are", hex);
        let given = [option.text.is_some(), option.addresses.is_some(), option.hex.is_some()];
        if given.iter().filter(|g| **g).count() != 1 {
            p.missing(at("text"), "exactly one of 'text', 'addresses' and 'hex' is needed");
        }
        if let (Some(code), Some(value)) = (code, text.or(addresses).or(hex)) {
            out.push(DhcpOption { code, value });
        }
    }
    out
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> =
        text.chars().filter(|c| *c != ':').map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let fits = rest.is_empty() && (1..=255).contains(&pairs.len());
    fits.then(|| pairs.iter().map(|[high, low]| u8::try_from(high << 4 | low).ok()).collect())?
}

fn loopback_v4(p: &mut Problems, text: Option<&str>) -> Option<Ipv4Addr> {
    let allowed = "an IPv4 unicast address is that nothing else has, such as '192.0.2.1'";
    p.read("loopback.ipv4", text, allowed, |t| t.parse().ok().filter(|a| is_unicast_v4(*a)))
}

fn loopback_v6(p: &mut Problems, text: Option<&str>) -> Option<Ipv6Addr> {
    let allowed = "a global IPv6 unicast address is that nothing else has, such as '2001:db8::1'";
    p.read("loopback.ipv6", text, allowed, |t| t.parse().ok().filter(|a| is_global_v6(*a)))
}

fn is_unicast_v4(a: Ipv4Addr) -> bool {
    !a.is_unspecified() && !a.is_loopback() && !a.is_multicast() && !a.is_broadcast() && a.octets()[0] < 240
}

fn is_global_v6(a: Ipv6Addr) -> bool {
    !a.is_unspecified()
        && !a.is_loopback()
        && !a.is_multicast()
        && !a.is_unicast_link_local()
        && a.to_ipv4_mapped().is_none()
}

fn masquerade(p: &mut Problems, file: &file::Masquerade) -> Masquerade {
    let default = Masquerade::default();
    let allowed = "the guest's address with its prefix length, 8 to 30, is, such as '10.0.2.2/24'";
    let v4 = p.read("masquerade.ipv4", file.ipv4.as_deref(), allowed, |t| {
        let net: Ipv4Net = t.parse().ok()?;
        let host = net.addr() != net.network() && net.addr() != net.broadcast();
        ((8..=30).contains(&net.prefix_len()) && host && is_unicast_v4(net.addr())).then_some(net)
    });
    // Without a gateway of its own the first address of the guest's network is it, or the second when the
    // guest has the first.
    let given = p.from_str("masquerade.ipv4_gateway", file.ipv4_gateway.as_deref(), "an IPv4 address is");
    let net = v4.unwrap_or_else(|| Ipv4Net::new_assert(default.guest_v4, default.prefix_v4));
    let gateway_v4 = given.or_else(|| net.hosts().find(|a| *a != net.addr())).unwrap_or(default.gateway_v4);
    let inside = net.contains(&gateway_v4) && gateway_v4 != net.network() && gateway_v4 != net.broadcast();
    if !inside || gateway_v4 == net.addr() {
        let allowed = format!("another address of {}, but its first and last, is", net.trunc());
        p.wrong("masquerade.ipv4_gateway", &gateway_v4.to_string(), allowed);
    }
    let allowed = "the guest's address with its prefix length, 8 to 127, is, such as 'fd10:0:2::2/120'";
    let v6 = p.read("masquerade.ipv6", file.ipv6.as_deref(), allowed, |t| {
        let net: Ipv6Net = t.parse().ok()?;
        ((8..=127).contains(&net.prefix_len()) && is_global_v6(net.addr())).then_some(net)
    });
    Masquerade {
        guest_v4: net.addr(),
        gateway_v4,
        prefix_v4: net.prefix_len(),
        guest_v6: v6.map_or(default.guest_v6, |n| n.addr()),
        prefix_v6: v6.map_or(default.prefix_v6, |n| n.prefix_len()),
    }
}

fn ports(p: &mut Problems, file: &file::Ports) -> Ports {
    let default = Ports::default();
    let mut spec = |words: &Option<Words>, field: &str, default: PortSpec| {
        words.as_ref().map_or(default, |w| PortSpec::read(&w.0, field, p))
    };
    let tcp = spec(&file.tcp, "ports.tcp", default.tcp);
    let udp = spec(&file.udp, "ports.udp", default.udp);
    let mut reserved = match &file.reserved {
        Some(words) => Reserved::read(&words.0, "ports.reserved", p),
        None => default.reserved,
    };
    let mesh = p.from_str("ports.mesh", file.mesh.as_deref(), "'true' or 'false' is").unwrap_or(true);
    if !mesh {
        reserved.give_way(Proto::Tcp, &tcp);
        reserved.give_way(Proto::Udp, &udp);
    }
    let budget = p.integer("ports.all_ports_budget", file.all_ports_budget.as_deref(), 0, 131_070);
    let all_ports_budget = budget.and_then(|n| u32::try_from(n).ok()).unwrap_or(default.all_ports_budget);
    let steering = socket_path(p, "ports.steering", file.steering.as_deref());
    let ask_guest =
        p.from_str("ports.ask_guest", file.ask_guest.as_deref(), "'true' or 'false' is").unwrap_or(false);
    if ask_guest && tcp.all {
        p.wrong("ports.ask_guest", "true", "it is where 'ports.tcp' is a list of ports without 'all'");
    }
    let listed: usize = tcp.maps.iter().map(|m| m.guest.ports().len()).sum();
    if ask_guest && listed > MAX_ASKED {
        let allowed = format!("it is for at most {MAX_ASKED} TCP ports; {listed} are listed");
        p.wrong("ports.ask_guest", "true", allowed);
    }
    Ports { tcp, udp, reserved, all_ports_budget, steering, ask_guest }
}

fn limits(p: &mut Problems, file: &file::Limits) -> Limits {
    let default = Limits::default();
    let mut count = |name: &str, text: &Option<String>, max: u32, default: u32| {
        p.integer(&format!("limits.{name}"), text.as_deref(), 1, max.into())
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(default)
    };
    let flows = count("flows", &file.flows, 1 << 20, default.flows);
    let rate = &file.new_flows_per_second;
    let rate = count("new_flows_per_second", rate, 10_000_000, default.new_flows_per_second);
    let burst = count("new_flows_burst", &file.new_flows_burst, 10_000_000, default.new_flows_burst);
    let datagrams = &file.fragment_datagrams;
    let default_datagrams = u32::try_from(default.fragment_datagrams).unwrap_or(u32::MAX);
    let datagrams = count("fragment_datagrams", datagrams, 65_536, default_datagrams);
    // One datagram of the largest size has to fit, or nothing large could ever be put together.
    let bytes = p.bytes("limits.fragment_bytes", file.fragment_bytes.as_deref(), 65_535, 1 << 30);
    Limits {
        flows,
        new_flows_per_second: rate,
        new_flows_burst: burst,
        fragment_bytes: bytes.and_then(|n| usize::try_from(n).ok()).unwrap_or(default.fragment_bytes),
        fragment_datagrams: usize::try_from(datagrams).unwrap_or(default.fragment_datagrams),
    }
}

fn timeouts(p: &mut Problems, file: &file::Timeouts) -> Timeouts {
    const DAY: u64 = 86_400;
    let default = Timeouts::default();
    let mut time = |name: &str, text: &Option<String>, default| {
        p.duration(&format!("timeouts.{name}"), text.as_deref(), 1, 7 * DAY).unwrap_or(default)
    };
    Timeouts {
        udp_unreplied: time("udp_unreplied", &file.udp_unreplied, default.udp_unreplied),
        udp_replied: time("udp_replied", &file.udp_replied, default.udp_replied),
        udp_exchange: time("udp_exchange", &file.udp_exchange, default.udp_exchange),
        echo: time("echo", &file.echo, default.echo),
        tcp_handshake: time("tcp_handshake", &file.tcp_handshake, default.tcp_handshake),
        tcp_time_wait: time("tcp_time_wait", &file.tcp_time_wait, default.tcp_time_wait),
        tcp_idle: time("tcp_idle", &file.tcp_idle, default.tcp_idle),
    }
}
