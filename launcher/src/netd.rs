//! netd's configuration for one interface: what a manifest says about a network, in netd's own file.
//!
//! netd knows nothing of Kubernetes. It reads the pod's addresses, routes and resolvers itself; the launcher
//! tells it only what the manifest adds. Everything that depends on netd's file format stands in this module.

use std::path::Path;

use podvirt_api::VirtualMachineInstance;
use podvirt_api::names::pod;
use podvirt_api::vmi::{DhcpOptions, DnsPolicy, Interface, Port, PortProtocol};
use serde::Serialize;

/// The part of netd's configuration file that the launcher writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetdConfig {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bind_interface: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    vhost_user: VhostUser,
    control: Control,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<Metrics>,
    guest: Guest,
    ports: Ports,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<Hold>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Hold {
    socket: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct VhostUser {
    socket: String,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_pairs: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Control {
    socket: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Metrics {
    listen: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Guest {
    mac: String,
    hostname: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fqdn: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dns: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    search: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dhcp_options: Vec<DhcpOption>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct DhcpOption {
    code: u8,
    #[serde(skip_serializing_if = "String::is_empty")]
    text: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Ports {
    tcp: Vec<String>,
    udp: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steering: Option<String>,
}

/// Where netd's sockets are to be.
#[derive(Clone, Copy, Debug)]
pub struct NetdSockets<'a> {
    /// The one that QEMU connects to.
    pub vhost_user: &'a Path,
    /// The control interface.
    pub control: &'a Path,
    /// Where netd lends the sockets of all ports to whoever can steer ports to them; none: netd listens itself.
    pub steering: Option<&'a Path>,
    /// The hold, which keeps its connections between two netds.
    pub hold: Option<&'a Path>,
}

/// Annotation of a machine with the port of its pod at which its netd serves metrics.
const METRICS_PORT: &str = "podvirt.io/netd-metrics-port";
/// The most queue pairs that netd offers (`vhost_user.queue_pairs`).
const MAX_QUEUE_PAIRS: u64 = 8;

/// Queue pairs of each interface: as many as the machine has processors, as far as netd goes. None where the
/// manifest does not ask for several.
pub fn queue_pairs(vmi: &VirtualMachineInstance) -> Option<u64> {
    let domain = &vmi.spec.domain;
    let wanted = domain.devices.network_interface_multiqueue.unwrap_or(false);
    let processors = domain.cpu.as_ref().map_or(1, podvirt_api::vmi::Cpu::count);
    wanted.then(|| processors.min(MAX_QUEUE_PAIRS))
}

/// DHCPv4 options by number (RFC 2132).
const OPTION_NTP_SERVERS: u8 = 42;
const OPTION_TFTP_SERVER_NAME: u8 = 66;
const OPTION_BOOT_FILE_NAME: u8 = 67;

impl NetdConfig {
    /// The configuration for `interface` of `vmi`, which has its defaults and is valid.
    ///
    /// `resolv_conf` is the pod's: the manifest's resolvers are added to it.
    pub fn new(
        vmi: &VirtualMachineInstance,
        interface: &Interface,
        sockets: &NetdSockets<'_>,
        resolv_conf: &str,
    ) -> Self {
        let pod = Resolvers::parse(resolv_conf);
        let fqdn = fqdn(vmi, &pod);
        let resolvers = resolvers(vmi, pod);
        let all = interface.ports.is_empty();
        let of_pod = own_interface(vmi, interface);
        NetdConfig {
            // Passthrough is netd's own default.
            name: format!("{}/{}", vmi.namespace(), vmi.metadata.name),
            bind_interface: of_pod.is_some().then_some(true),
            interface: of_pod,
            mode: interface.masquerade.is_some().then_some("masquerade"),
            vhost_user: VhostUser {
                socket: sockets.vhost_user.display().to_string(),
                mode: "server",
                queue_pairs: queue_pairs(vmi),
            },
            control: Control { socket: sockets.control.display().to_string() },
            metrics: metrics(vmi, interface),
            guest: Guest {
                mac: interface.mac_address.replace('-', ":"),
                hostname: vmi.spec.hostname.clone(),
                fqdn,
                dns: resolvers.servers,
                search: resolvers.search,
                dhcp_options: interface.dhcp_options.as_ref().map(dhcp_options).unwrap_or_default(),
            },
            ports: Ports {
                tcp: ports(&interface.ports, PortProtocol::Tcp),
                udp: ports(&interface.ports, PortProtocol::Udp),
                // A list of ports is served by listeners: there is nothing to steer.
                steering: sockets.steering.filter(|_| all).map(|s| s.display().to_string()),
            },
            hold: sockets.hold.map(|s| Hold { socket: s.display().to_string() }),
        }
    }

    /// The file's text.
    ///
    /// # Errors
    ///
    /// Something cannot be written as YAML.
    pub fn to_yaml(&self) -> Result<String, serde_saphyr::ser::Error> {
        serde_saphyr::to_string(self)
    }
}

/// The pod's interface that `interface` of the guest stands for.
pub fn pod_interface(vmi: &VirtualMachineInstance, interface: &Interface) -> String {
    match vmi.network_of(interface) {
        Some(network) if !network.is_primary() => pod::interface(&network.name),
        _ => pod::PRIMARY_INTERFACE.to_owned(),
    }
}

/// The pod's interface that netd keeps to; none where it has the whole pod, which is what a machine's only interface
/// on the pod's first network has.
fn own_interface(vmi: &VirtualMachineInstance, interface: &Interface) -> Option<String> {
    let is_primary = vmi.network_of(interface).is_none_or(podvirt_api::vmi::Network::is_primary);
    let alone = is_primary && vmi.spec.domain.devices.interfaces.len() == 1;
    (!alone).then(|| pod_interface(vmi, interface))
}

/// Where metrics are served if the machine is annotated. There is one netd an interface and one port: the first has it.
/// What is no port is refused by netd, by its name.
fn metrics(vmi: &VirtualMachineInstance, interface: &Interface) -> Option<Metrics> {
    let port = vmi.metadata.annotations.get(METRICS_PORT)?;
    let first = vmi.spec.domain.devices.interfaces.first();
    let is_first = first.is_some_and(|first| first.name == interface.name);
    is_first.then(|| Metrics { listen: format!("[::]:{port}") })
}

/// The listed ports of a protocol. No list at all means all ports, but a list of the other protocol means none.
fn ports(ports: &[Port], protocol: PortProtocol) -> Vec<String> {
    if ports.is_empty() {
        return vec!["all".into()];
    }
    let listed: Vec<String> = ports
        .iter()
        .filter(|p| p.protocol.unwrap_or(PortProtocol::Tcp) == protocol)
        .map(|p| p.port.to_string())
        .collect();
    if listed.is_empty() { vec!["none".into()] } else { listed }
}

fn dhcp_options(options: &DhcpOptions) -> Vec<DhcpOption> {
    let text = |code: u8, text: &str| {
        (!text.is_empty()).then(|| DhcpOption { code, text: text.into(), ..DhcpOption::default() })
    };
    let ntp = (!options.ntp_servers.is_empty()).then(|| DhcpOption {
        code: OPTION_NTP_SERVERS,
        addresses: options.ntp_servers.clone(),
        ..DhcpOption::default()
    });
    let private = options.private_options.iter().filter_map(|o| text(u8::try_from(o.option).ok()?, &o.value));
    [
        ntp,
        text(OPTION_TFTP_SERVER_NAME, &options.tftp_server_name),
        text(OPTION_BOOT_FILE_NAME, &options.boot_file_name),
    ]
    .into_iter()
    .flatten()
    .chain(private)
    .collect()
}

/// Resolvers and search domains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Resolvers {
    servers: Vec<String>,
    search: Vec<String>,
}

impl Resolvers {
    /// Reads a resolv.conf (resolv.conf(5)): the last `search` or `domain` line counts.
    fn parse(text: &str) -> Self {
        let mut resolvers = Resolvers::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => resolvers.servers.extend(words.next().map(str::to_owned)),
                Some("search" | "domain") => resolvers.search = words.map(str::to_owned).collect(),
                _ => {}
            }
        }
        resolvers
    }
}

/// What the guest is to be told; nothing when the pod's resolv.conf is all, since netd watches that itself.
fn resolvers(vmi: &VirtualMachineInstance, pod: Resolvers) -> Resolvers {
    let Some(config) = &vmi.spec.dns_config else { return Resolvers::default() };
    // The kubelet adds in this order, too.
    let base = if vmi.spec.dns_policy == Some(DnsPolicy::None) { Resolvers::default() } else { pod };
    let merge = |mut base: Vec<String>, added: &[String]| {
        if added.is_empty() {
            return Vec::new();
        }
        for word in added {
            if !base.contains(word) {
                base.push(word.clone());
            }
        }
        base
    };
    Resolvers {
        servers: merge(base.servers, &config.nameservers),
        search: merge(base.search, &config.searches),
    }
}

/// The guest's full name: below the subdomain, in the domain that the pod's search list has for the namespace.
fn fqdn(vmi: &VirtualMachineInstance, pod: &Resolvers) -> Option<String> {
    let subdomain = &vmi.spec.subdomain;
    if subdomain.is_empty() {
        return None;
    }
    let prefix = format!("{}.svc.", vmi.namespace());
    let domain = pod.search.iter().find(|s| s.starts_with(&prefix));
    let name = format!("{}.{subdomain}", vmi.spec.hostname);
    Some(domain.map_or_else(|| name.clone(), |d| format!("{name}.{d}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESOLV_CONF: &str =
        "nameserver 10.96.0.10\nsearch shop.svc.cluster.local svc.cluster.local\noptions ndots:5\n";

    fn yaml(spec: &str, interface: &str) -> String {
        let vmi = VirtualMachineInstance::load(&format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: web, namespace: shop}}\n\
             spec:\n  domain:\n    memory: {{guest: 64Mi}}\n    devices:\n      interfaces:\n      \
             - {{name: default, macAddress: 52-54-00-00-00-01{interface}}}\n  \
             networks: [{{name: default, pod: {{}}}}]\n{spec}"
        ))
        .unwrap();
        config(&vmi, None)
    }

    fn config(vmi: &VirtualMachineInstance, steering: Option<&Path>) -> String {
        let sockets = NetdSockets {
            vhost_user: Path::new("/run/n.sock"),
            control: Path::new("/run/n.ctl"),
            steering,
            hold: None,
        };
        let interface = &vmi.spec.domain.devices.interfaces[0];
        NetdConfig::new(vmi, interface, &sockets, RESOLV_CONF).to_yaml().unwrap()
    }

    #[test]
    fn masquerade_and_steering_are_told() {
        let vmi = |interface: serde_json::Value| {
            VirtualMachineInstance::from_value(serde_json::json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
                "spec": {"domain": {"devices": {"interfaces": [interface]}}},
            }))
            .unwrap()
        };
        let socket = Some(Path::new("/run/n.ports"));
        let all = config(&vmi(serde_json::json!({"name": "a", "masquerade": {}})), socket);
        assert!(all.starts_with("name: default/vm\nmode: masquerade\n"), "{all}");
        assert!(all.ends_with("  steering: /run/n.ports\n"), "{all}");
        let listed = config(&vmi(serde_json::json!({"name": "a", "ports": [{"port": 80}]})), socket);
        assert!(!listed.contains("steering") && !listed.contains("mode: masq"), "{listed}");
    }

    #[test]
    fn a_netd_beside_others_or_on_a_secondary_network_keeps_to_its_interface() {
        let told = |networks: serde_json::Value| {
            let names = networks.as_array().unwrap().iter().map(|n| serde_json::json!({"name": n["name"]}));
            let vmi = VirtualMachineInstance::from_value(serde_json::json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
                "spec": {
                    "domain": {"devices": {"interfaces": names.collect::<Vec<_>>()}},
                    "networks": networks,
                },
            }))
            .unwrap();
            let sockets = NetdSockets {
                vhost_user: Path::new("/run/n.sock"),
                control: Path::new("/run/n.ctl"),
                steering: None,
                hold: None,
            };
            let interfaces = vmi.spec.domain.devices.interfaces.iter();
            let told = interfaces.map(|i| {
                let config = NetdConfig::new(&vmi, i, &sockets, "");
                (config.interface.unwrap_or_default(), config.bind_interface)
            });
            told.collect::<Vec<_>>()
        };
        let own = || ("eth0".to_owned(), Some(true));
        let secondary = || (pod::interface("b"), Some(true));
        let whole = || (String::new(), None);
        let (of_pod, beside) = (
            serde_json::json!({"name": "a", "pod": {}}),
            serde_json::json!({"name": "b", "multus": {"networkName": "flat"}}),
        );
        let instead = serde_json::json!({"name": "a", "multus": {"networkName": "flat", "default": true}});
        assert_eq!(told(serde_json::json!([of_pod])), [whole()]);
        assert_eq!(told(serde_json::json!([instead])), [whole()]);
        assert_eq!(told(serde_json::json!([beside])), [secondary()]);
        assert_eq!(told(serde_json::json!([of_pod, beside])), [own(), secondary()]);
    }

    #[test]
    fn an_annotation_opens_the_metrics_of_the_first_interface() {
        let vmi = VirtualMachineInstance::from_value(serde_json::json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "vm", "annotations": {"podvirt.io/netd-metrics-port": "9100"}},
            "spec": {"domain": {"devices": {"interfaces": [{"name": "a"}, {"name": "b"}]}}},
        }))
        .unwrap();
        assert!(config(&vmi, None).contains("metrics:\n  listen: \"[::]:9100\"\n"), "{}", config(&vmi, None));
        let second = &vmi.spec.domain.devices.interfaces[1];
        assert_eq!(metrics(&vmi, second), None);
    }

    #[test]
    fn a_machine_that_wants_it_has_a_queue_pair_for_each_processor_up_to_eight() {
        let pairs = |multiqueue: bool, sockets: u32| {
            let vmi = VirtualMachineInstance::from_value(serde_json::json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
                "spec": {"domain": {"cpu": {"sockets": sockets, "cores": 2}, "devices": {
                    "networkInterfaceMultiqueue": multiqueue,
                    "interfaces": [{"name": "a", "masquerade": {}}]}}},
            }))
            .unwrap();
            let value: serde_json::Value = serde_saphyr::from_str(&config(&vmi, None)).unwrap();
            value["vhost_user"]["queue_pairs"].clone()
        };
        assert_eq!(pairs(true, 2), 4);
        assert_eq!(pairs(true, 32), 8);
        assert!(pairs(false, 2).is_null());
    }

    #[test]
    fn without_ports_all_are_forwarded() {
        assert_eq!(
            yaml("", ""),
            "name: shop/web\nvhost_user:\n  socket: /run/n.sock\n  mode: server\ncontrol:\n  socket: /run/n.ctl\n\
             guest:\n  mac: \"52:54:00:00:00:01\"\n  hostname: web\nports:\n  tcp:\n  - all\n  udp:\n  - all\n"
        );
    }

    #[test]
    fn listed_ports_go_by_protocol_and_a_protocol_without_any_is_closed() {
        let tcp = yaml("", ", ports: [{port: 80}, {port: 443, protocol: TCP}]");
        assert!(tcp.ends_with("ports:\n  tcp:\n  - \"80\"\n  - \"443\"\n  udp:\n  - none\n"), "{tcp}");
        let udp = yaml("", ", ports: [{port: 53, protocol: UDP}]");
        assert!(udp.ends_with("ports:\n  tcp:\n  - none\n  udp:\n  - \"53\"\n"), "{udp}");
    }

    #[test]
    fn dhcp_options_get_their_numbers() {
        let text = yaml(
            "",
            ", dhcpOptions: {bootFileName: b.efi, tftpServerName: t.example, ntpServers: [192.0.2.1], \
             privateOptions: [{option: 240, value: x}]}",
        );
        let value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(
            value["guest"]["dhcp_options"],
            serde_json::json!([
                {"code": 42, "addresses": ["192.0.2.1"]},
                {"code": 66, "text": "t.example"},
                {"code": 67, "text": "b.efi"},
                {"code": 240, "text": "x"},
            ])
        );
    }

    #[test]
    fn resolvers_are_added_to_the_pods_or_stand_alone() {
        let guest = |spec: &str| {
            let value: serde_json::Value = serde_saphyr::from_str(&yaml(spec, "")).unwrap();
            (value["guest"]["dns"].clone(), value["guest"]["search"].clone())
        };
        let config = "dnsConfig: {nameservers: [192.0.2.53], searches: [example.org]}";
        assert_eq!(
            guest(&format!("  {config}\n")),
            (
                serde_json::json!(["10.96.0.10", "192.0.2.53"]),
                serde_json::json!(["shop.svc.cluster.local", "svc.cluster.local", "example.org"])
            )
        );
        assert_eq!(
            guest(&format!("  dnsPolicy: None\n  {config}\n")),
            (serde_json::json!(["192.0.2.53"]), serde_json::json!(["example.org"]))
        );
        let watched = (serde_json::Value::Null, serde_json::Value::Null);
        assert_eq!(guest(""), watched, "netd watches resolv.conf itself");
    }

    #[test]
    fn a_subdomain_makes_the_full_name() {
        let text = yaml("  subdomain: db\n", "");
        assert!(text.contains("  fqdn: web.db.shop.svc.cluster.local\n"), "{text}");
    }
}
