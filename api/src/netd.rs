//! What one netd is told of its machine: the contract between the program that knows the machine and netd's launcher.
//!
//! ```text
//!  VirtualMachineInstance ── NetdSpec::of ──> NetdSpec ── JSON in the sidecar's environment ──> virt-launcher run-netd
//!                                                │             (ENVIRONMENT)                          │ + resolv.conf
//!                                                └── virt-launcher standalone ────────────────────────┤ + sockets
//!                                                                                                     v
//!                                                                                        netd's own configuration
//! ```
//!
//! [`NetdSpec::of`] is the only place that reads a machine for netd. virt-controller adds what the KubeVirt object says for machines
//! that do not say it, and the launcher what is known inside the pod, which is the pod's `resolv.conf` and the paths of sockets.
//! Both sides take the value apart field by field, so that a field which one side does not use is an error of the compiler's. Nothing in it is
//! secret: a pod's environment is readable to every client that may read the pod.
//!
//! **Versions.** The environment of a pod never changes, but the image of a running sidecar may be exchanged. A later
//! release therefore reads what this release wrote: fields are only added, and an absent one has a default that means what
//! netd did before the field existed. An earlier release that meets a field which it does not know refuses the whole
//! and names the field: netd would otherwise serve something else than what the machine asks for.

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::guest_network;
use crate::names::{annotation, pod};
use crate::problem::Problems;
use crate::vmi::{self, DnsPolicy, Interface, VirtualMachineInstance};

/// The variable of the sidecar's environment that holds a [`NetdSpec`] as JSON.
pub const ENVIRONMENT: &str = "NETD_SPEC";

/// The most queue pairs that netd offers (netd's `vhost_user.queue_pairs`).
pub const MAX_QUEUE_PAIRS: u64 = 8;

/// The most flows that a machine may have a netd of its carry: a live update hands over no more.
pub const MAX_FLOWS: u32 = 131_072;

/// The most TCP ports about which netd asks the guest (netd's `ports.ask_guest`).
const MAX_ASKED_PORTS: usize = 256;

/// The most ports that are told one by one: a variable of the environment has at most 128 KiB (`MAX_ARG_STRLEN` of Linux).
const MAX_LISTED_PORTS: usize = 256;
/// The most that a [`NetdSpec`] may have as JSON, bytes, to be one variable of the environment.
pub const MAX_SPEC_BYTES: usize = 120_000;

/// DHCPv4 options by number (RFC 2132).
const OPTION_NTP_SERVERS: u8 = 42;
const OPTION_TFTP_SERVER_NAME: u8 = 66;
const OPTION_BOOT_FILE_NAME: u8 = 67;

/// What one netd is told: one interface of one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetdSpec {
    /// Namespace of the machine.
    pub namespace: String,
    /// Name of the machine.
    pub machine: String,
    /// Name of the interface.
    pub interface: String,
    /// Place of the interface among the machine's, from 0: netd's sockets are named by it.
    pub index: usize,
    /// The pod's interface that netd keeps to; none where netd has the whole pod, which is what a machine's only
    /// interface on the pod's first network has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_interface: Option<String>,
    /// Whose addresses the guest has.
    #[serde(default, skip_serializing_if = "crate::object::unset")]
    pub addresses: Addresses,
    /// The guest's own IPv4 address in its network; none where netd chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_ipv4: Option<Ipv4Net>,
    /// The guest's own IPv6 address in its network; none where netd chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_ipv6: Option<Ipv6Net>,
    /// The guest's Ethernet address, six pairs of hexadecimal digits separated by `:`.
    pub mac_address: String,
    /// Queue pairs that netd offers; none where the manifest asks for no more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_pairs: Option<u64>,
    /// Port of the pod at which this netd serves metrics; none where it serves none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<u16>,
    /// How many flows this netd carries at the same time; none where netd's own number stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<u32>,
    /// The guest's host name.
    pub hostname: String,
    /// Domain of the guest's fully qualified name, below the namespace's; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subdomain: String,
    /// Resolvers of the guest; none where the pod's are all that it is told of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<Dns>,
    /// Ports that are forwarded to the guest; none listed means all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// The same of a long list, in place of `ports`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_ranges: Vec<PortRanges>,
    /// Whether the guest is asked on which of the TCP ports it listens, so that connections to the others are refused.
    #[serde(default, skip_serializing_if = "crate::object::unset")]
    pub ask_guest: bool,
    /// DHCPv4 options beside those that netd fills itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dhcp_options: Vec<DhcpOption>,
}

/// Whose addresses the guest has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Addresses {
    /// The pod's.
    #[default]
    Passthrough,
    /// Its own, behind the pod's.
    Masquerade,
}

/// Resolvers and search domains of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Dns {
    /// Whether they stand in the place of the pod's, rather than behind them.
    #[serde(default, skip_serializing_if = "crate::object::unset")]
    pub alone: bool,
    /// Addresses of resolvers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
    /// Search domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searches: Vec<String>,
}

/// A port that is forwarded to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Port {
    /// Its protocol.
    pub protocol: vmi::PortProtocol,
    /// Its number.
    pub port: i32,
}

/// Ports of a protocol that are forwarded to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortRanges {
    /// Their protocol.
    pub protocol: vmi::PortProtocol,
    /// Ports and ranges of ports in ascending order, separated by commas: `80,8000-8099`.
    pub ranges: String,
}

/// A DHCPv4 option with its value as a text or as a list of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DhcpOption {
    /// Its number.
    pub code: u8,
    /// Its value as a text; empty where it has addresses.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Its value as IPv4 addresses; empty where it has a text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

impl NetdSpec {
    /// What the netd of the interface at `index` is told; `vmi` has its defaults.
    ///
    /// # Errors
    ///
    /// There is no such interface, or the machine says something that netd could not be told.
    pub fn of(vmi: &VirtualMachineInstance, index: usize) -> Result<NetdSpec, Problems> {
        let mut problems = Problems::default();
        let metrics = metrics_port(vmi, &mut problems);
        let flows = flows(vmi, &mut problems);
        problems.into_result()?;
        let spec = &vmi.spec;
        let Some(interface) = spec.domain.devices.interfaces.get(index) else {
            let mut problems = Problems::default();
            let count = spec.domain.devices.interfaces.len();
            problems
                .required("spec.domain.devices.interfaces", format!("{count} are there, none at {index}"));
            return Err(problems);
        };
        // Every field is named: one that is added has to be judged here.
        let Interface {
            name,
            // The driver's side, which the domain's definition has.
            model: _,
            boot_order: _,
            pci_address: _,
            acpi_index: _,
            state: _,
            // What is not masquerade is served by the pod's own addresses.
            passt_binding: _,
            binding: _,
            masquerade,
            // Not netd's.
            bridge: _,
            sriov: _,
            ports,
            mac_address,
            dhcp_options,
        } = interface;
        let protocol = |port: &vmi::Port| port.protocol.unwrap_or(vmi::PortProtocol::Tcp);
        let listed: Vec<Port> =
            ports.iter().map(|port| Port { protocol: protocol(port), port: port.port }).collect();
        let is_long = listed.len() > MAX_LISTED_PORTS;
        let network = masquerade.as_ref().and_then(|_| vmi.network_of(interface)?.pod.as_ref());
        Ok(NetdSpec {
            namespace: vmi.namespace().to_owned(),
            machine: vmi.metadata.name.clone(),
            interface: name.clone(),
            index,
            pod_interface: own_interface(vmi, interface),
            addresses: match masquerade {
                Some(_) => Addresses::Masquerade,
                None => Addresses::Passthrough,
            },
            guest_ipv4: network.and_then(|network| guest_network::v4(&network.vm_network_cidr)),
            guest_ipv6: network.and_then(|network| guest_network::v6(&network.vm_ipv6_network_cidr)),
            mac_address: mac_address.replace('-', ":"),
            queue_pairs: queue_pairs(vmi),
            // There is one netd for each interface that it serves and one port: the first one's netd has it.
            metrics_port: metrics.filter(|_| first_by_netd(vmi) == Some(index)),
            flows,
            hostname: spec.hostname.clone(),
            subdomain: spec.subdomain.clone(),
            dns: spec.dns_config.as_ref().map(|config| Dns {
                alone: spec.dns_policy == Some(DnsPolicy::None),
                servers: crate::ip::plain(&config.nameservers),
                searches: config.searches.clone(),
            }),
            ports: if is_long { Vec::new() } else { listed.clone() },
            port_ranges: if is_long { ranges(&listed) } else { Vec::new() },
            ask_guest: refuses_closed(vmi) && is_asked(ports),
            dhcp_options: dhcp_options.as_ref().map(options).unwrap_or_default(),
        })
    }
}

fn first_by_netd(vmi: &VirtualMachineInstance) -> Option<usize> {
    vmi.spec.domain.devices.interfaces.iter().position(|interface| vmi.by_netd(interface))
}

/// Queue pairs of each interface: as many as the machine has processors, as far as netd goes. None where the
/// manifest does not ask for several. The domain's definition has the same number.
pub fn queue_pairs(vmi: &VirtualMachineInstance) -> Option<u64> {
    let domain = &vmi.spec.domain;
    let wanted = domain.devices.network_interface_multiqueue.unwrap_or(false);
    let processors = domain.cpu.as_ref().map_or(1, vmi::Cpu::count);
    wanted.then(|| processors.min(MAX_QUEUE_PAIRS))
}

/// The pod's interface that `interface` of the guest stands for.
pub fn pod_interface(vmi: &VirtualMachineInstance, interface: &Interface) -> String {
    match vmi.network_of(interface) {
        Some(network) if !network.is_primary() => pod::interface(&network.name),
        _ => pod::PRIMARY_INTERFACE.to_owned(),
    }
}

fn own_interface(vmi: &VirtualMachineInstance, interface: &Interface) -> Option<String> {
    let is_primary = vmi.network_of(interface).is_none_or(vmi::Network::is_primary);
    let alone = is_primary && vmi.spec.domain.devices.interfaces.len() == 1;
    (!alone).then(|| pod_interface(vmi, interface))
}

/// Whether the machine's annotation lets connections to ports on which the guest does not listen be refused, as is so
/// where there is none.
fn refuses_closed(vmi: &VirtualMachineInstance) -> bool {
    vmi.metadata.annotations.get(annotation::CLOSED_PORTS).is_none_or(|value| value != "accept")
}

/// Whether the guest can be asked about each of its listed ports.
fn is_asked(ports: &[vmi::Port]) -> bool {
    let tcp = ports.iter().filter(|p| p.protocol.unwrap_or(vmi::PortProtocol::Tcp) == vmi::PortProtocol::Tcp);
    (1..=MAX_ASKED_PORTS).contains(&tcp.count())
}

/// The port at which the machine's annotation asks for netd's metrics; what is no port is noted.
fn metrics_port(vmi: &VirtualMachineInstance, problems: &mut Problems) -> Option<u16> {
    let text = vmi.metadata.annotations.get(annotation::NETD_METRICS_PORT)?;
    let port = text.parse::<u16>().ok().filter(|port| *port != 0);
    if port.is_none() {
        let field = format!("metadata.annotations[{}]", annotation::NETD_METRICS_PORT);
        problems.invalid(field, text, "a port from 1 to 65535 is allowed");
    }
    port
}

/// The number of flows that a value of [`annotation::NETD_FLOWS`] asks for; none where it is no number from 1 to [`MAX_FLOWS`].
pub fn parse_flows(text: &str) -> Option<u32> {
    text.parse::<u32>().ok().filter(|flows| (1..=MAX_FLOWS).contains(flows))
}

/// The number of flows that the machine's annotation asks for; what is no such number is noted.
fn flows(vmi: &VirtualMachineInstance, problems: &mut Problems) -> Option<u32> {
    let text = vmi.metadata.annotations.get(annotation::NETD_FLOWS)?;
    let flows = parse_flows(text);
    if flows.is_none() {
        let field = format!("metadata.annotations[{}]", annotation::NETD_FLOWS);
        problems.invalid(field, text, &format!("a whole number from 1 to {MAX_FLOWS} is allowed"));
    }
    flows
}

/// Ports as ranges, by protocol.
fn ranges(ports: &[Port]) -> Vec<PortRanges> {
    let of = |protocol: vmi::PortProtocol| {
        let listed = ports.iter().filter(|port| port.protocol == protocol).map(|port| port.port);
        let mut ranges: Vec<(i32, i32)> = Vec::new();
        for port in listed.collect::<std::collections::BTreeSet<_>>() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == port => *last = port,
                _ => ranges.push((port, port)),
            }
        }
        let word = |(first, last): (i32, i32)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        let words: Vec<String> = ranges.into_iter().map(word).collect();
        (!words.is_empty()).then(|| PortRanges { protocol, ranges: words.join(",") })
    };
    [vmi::PortProtocol::Tcp, vmi::PortProtocol::Udp].into_iter().filter_map(of).collect()
}

fn options(options: &vmi::DhcpOptions) -> Vec<DhcpOption> {
    let vmi::DhcpOptions { boot_file_name, tftp_server_name, ntp_servers, private_options } = options;
    let text = |code: u8, text: &str| {
        (!text.is_empty()).then(|| DhcpOption { code, text: text.into(), ..DhcpOption::default() })
    };
    let ntp = (!ntp_servers.is_empty()).then(|| DhcpOption {
        code: OPTION_NTP_SERVERS,
        addresses: crate::ip::plain(ntp_servers),
        ..DhcpOption::default()
    });
    let private = private_options.iter().filter_map(|o| text(u8::try_from(o.option).ok()?, &o.value));
    [ntp, text(OPTION_TFTP_SERVER_NAME, tftp_server_name), text(OPTION_BOOT_FILE_NAME, boot_file_name)]
        .into_iter()
        .flatten()
        .chain(private)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(metadata: &Value, spec: Value) -> VirtualMachineInstance {
        let mut vmi = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "vm", "namespace": "shop"},
            "spec": spec,
        });
        for (key, value) in metadata.as_object().unwrap() {
            vmi["metadata"][key] = value.clone();
        }
        let mut vmi = VirtualMachineInstance::from_value(vmi).unwrap();
        crate::defaults::set_defaults(&mut vmi);
        vmi
    }

    #[test]
    fn a_long_list_of_ports_is_told_as_ranges_and_fits_into_one_variable() {
        let spec = |ports: Vec<Value>| {
            let devices = json!({"interfaces": [{"name": "a", "ports": ports}]});
            NetdSpec::of(&machine(&json!({}), json!({"domain": {"devices": devices}})), 0).unwrap()
        };
        let short = spec((1..=256).map(|port| json!({"port": port})).collect());
        assert_eq!((short.ports.len(), short.port_ranges.len()), (256, 0));
        let tcp = (1..=65535).filter(|port| ![80, 90, 91].contains(port)).map(|port| json!({"port": port}));
        let udp = [53, 5000, 4999, 7].map(|port| json!({"port": port, "protocol": "UDP"}));
        let long = spec(tcp.chain(udp).collect());
        let told: Vec<_> = long.port_ranges.iter().map(|one| one.ranges.as_str()).collect();
        assert_eq!((long.ports.len(), told), (0, vec!["1-79,81-89,92-65535", "7,53,4999-5000"]));
        let json = serde_json::to_string(&long).unwrap();
        assert_eq!(serde_json::from_str::<NetdSpec>(&json).unwrap(), long);
        // Thousands of ports of which no two are neighbours.
        let sparse = spec((0..15_000).map(|n| json!({"port": 10_000 + 2 * n})).collect());
        assert!(serde_json::to_string(&sparse).unwrap().len() <= MAX_SPEC_BYTES);
    }

    #[test]
    fn a_machine_that_wants_it_has_a_queue_pair_for_each_processor_up_to_eight() {
        let pairs = |multiqueue: bool, domain: Value| {
            let mut domain = domain;
            domain["devices"] =
                json!({"networkInterfaceMultiqueue": multiqueue, "interfaces": [{"name": "a"}]});
            NetdSpec::of(&machine(&json!({}), json!({"domain": domain})), 0).unwrap().queue_pairs
        };
        assert_eq!(pairs(true, json!({"cpu": {"sockets": 2, "cores": 2}})), Some(4));
        assert_eq!(pairs(true, json!({"cpu": {"sockets": 32}})), Some(8));
        assert_eq!(pairs(true, json!({"resources": {"requests": {"cpu": "3"}}})), Some(3));
        assert_eq!(pairs(false, json!({"cpu": {"sockets": 2}})), None);
    }

    #[test]
    fn an_annotation_opens_the_metrics_of_the_first_interface_and_what_is_no_port_is_refused() {
        let annotated = |port: &str| {
            machine(
                &json!({"annotations": {"podvirt.io/netd-metrics-port": port}}),
                json!({"domain": {"devices": {"interfaces": [{"name": "a"}, {"name": "b"}]}}}),
            )
        };
        let port = |index| NetdSpec::of(&annotated("9100"), index).unwrap().metrics_port;
        assert_eq!((port(0), port(1)), (Some(9100), None));
        for wrong in ["", "0", "65536", "metrics", "[::]:9100"] {
            let error = NetdSpec::of(&annotated(wrong), 0).unwrap_err().to_string();
            let expected = format!(
                "metadata.annotations[podvirt.io/netd-metrics-port]: '{wrong}' is not allowed; \
                 a port from 1 to 65535 is allowed"
            );
            assert_eq!(error, expected);
        }
        assert!(NetdSpec::of(&annotated("9100"), 2).is_err());
    }

    #[test]
    fn an_annotation_says_how_many_flows_each_netd_carries() {
        let told = |flows: &str, index| {
            let metadata = json!({"annotations": {"podvirt.io/netd-flows": flows}});
            let devices = json!({"interfaces": [{"name": "a"}, {"name": "b"}]});
            NetdSpec::of(&machine(&metadata, json!({"domain": {"devices": devices}})), index)
        };
        for index in 0..2 {
            assert_eq!(told("131072", index).unwrap().flows, Some(131_072));
        }
        for wrong in ["", "0", "131073", "-1", "many"] {
            let error = told(wrong, 0).unwrap_err().to_string();
            assert!(error.contains("metadata.annotations[podvirt.io/netd-flows]"), "{error}");
        }
    }

    #[test]
    fn the_guest_is_asked_about_listed_tcp_ports_unless_the_machine_says_no() {
        let asked = |ports: Value, annotations: Value| {
            let devices = json!({"interfaces": [{"name": "a", "ports": ports}]});
            let machine =
                machine(&json!({"annotations": annotations}), json!({"domain": {"devices": devices}}));
            NetdSpec::of(&machine, 0).unwrap().ask_guest
        };
        let many = |n: usize| (1..=n).map(|port| json!({"port": port})).collect::<Vec<_>>();
        assert!(asked(json!([{"port": 80}, {"port": 53, "protocol": "UDP"}]), json!({})));
        assert!(asked(json!(many(256)), json!({"podvirt.io/closed-ports": "refuse"})));
        assert!(!asked(json!(many(257)), json!({})));
        assert!(!asked(json!([]), json!({})), "all ports");
        assert!(!asked(json!([{"port": 53, "protocol": "UDP"}]), json!({})), "no TCP port");
        assert!(!asked(json!([{"port": 80}]), json!({"podvirt.io/closed-ports": "accept"})));
    }

    #[test]
    fn what_a_reader_does_not_know_is_refused_with_its_name() {
        let whole = NetdSpec::of(
            &machine(
                &json!({}),
                json!({
                    "domain": {"devices": {"interfaces": [{
                        "name": "a", "ports": [{"port": 80}],
                        "dhcpOptions": {"bootFileName": "b.efi"},
                    }]}},
                    "dnsConfig": {"nameservers": ["192.0.2.53"]},
                }),
            ),
            0,
        );
        let value = serde_json::to_value(whole.unwrap()).unwrap();
        for place in ["", "/dns", "/ports/0", "/dhcpOptions/0"] {
            let mut newer = value.clone();
            newer.pointer_mut(place).unwrap()["later"] = json!(1);
            let error = serde_json::from_value::<NetdSpec>(newer).unwrap_err().to_string();
            assert!(error.contains("unknown field `later`"), "{place}: {error}");
        }
    }

    /// What the first release with this contract wrote. It stays readable, and means what it meant.
    #[test]
    fn the_first_releases_text_is_read_for_ever() {
        let text = r#"{"namespace":"shop","machine":"vm","interface":"default","index":0,
            "macAddress":"02:00:00:00:00:01","hostname":"vm"}"#;
        let spec: NetdSpec = serde_json::from_str(text).unwrap();
        assert_eq!(spec.addresses, Addresses::Passthrough);
        assert_eq!((spec.queue_pairs, spec.metrics_port, spec.pod_interface), (None, None, None));
        assert!(spec.dns.is_none() && spec.ports.is_empty() && spec.dhcp_options.is_empty());
    }
}
