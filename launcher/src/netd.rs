//! netd's configuration for one interface: what netd is told of its machine, in netd's own file.
//!
//! netd knows nothing of Kubernetes. It reads the pod's addresses, routes and resolvers itself; the launcher
//! tells it only what the manifest adds, which is a [`NetdSpec`] wherever it comes from. The file is netd's own type ([`File`]).

use std::net::IpAddr;
use std::path::Path;

use netd::config::file::{
    Control, DhcpOption, File, Guest, Hold, Limits, Masquerade, Metrics, Ports, VhostUser, Words,
};
use netd::pod::ResolvConf;
use podvirt_api::netd::{self as spec, Addresses, Dns, NetdSpec, Port, PortRanges};
use podvirt_api::vmi::PortProtocol;

/// Where netd's sockets are to be.
#[derive(Clone, Copy, Debug)]
pub struct NetdSockets<'a> {
    /// The one that QEMU connects to.
    pub vhost_user: &'a Path,
    /// The control interface.
    pub control: &'a Path,
    /// Where netd lends the sockets of all ports to the helper that steers ports to them; none: netd listens itself.
    pub steering: Option<&'a Path>,
    /// The hold, which keeps its connections between two netds.
    pub hold: Option<&'a Path>,
}

/// The configuration of the netd that is told `spec`.
///
/// `resolv_conf` is the pod's: the manifest's resolvers are added to it. `mesh`: a mesh's proxy may be in the pod, and has its ports.
pub fn netd_file(spec: NetdSpec, sockets: &NetdSockets<'_>, resolv_conf: &str, mesh: bool) -> File {
    let pod = Resolvers::parse(resolv_conf);
    let fqdn = fqdn(&spec, &pod);
    // Every field is named: one that is added has to find its place in netd's file.
    let NetdSpec {
        namespace,
        machine,
        interface: _,
        index: _,
        pod_interface,
        addresses,
        guest_ipv4,
        guest_ipv6,
        mac_address,
        queue_pairs,
        metrics_port,
        flows,
        hostname,
        subdomain: _,
        dns,
        ports,
        port_ranges,
        ask_guest,
        dhcp_options,
    } = spec;
    let resolvers = resolvers(dns, pod);
    let all = ports.is_empty() && port_ranges.is_empty();
    let path = |path: &Path| Some(path.display().to_string());
    File {
        name: Some(format!("{namespace}/{machine}")),
        bind_interface: pod_interface.is_some().then(|| "true".into()),
        interface: pod_interface,
        mode: match addresses {
            // It is netd's own default.
            Addresses::Passthrough => None,
            Addresses::Masquerade => Some("masquerade".into()),
        },
        masquerade: Masquerade {
            ipv4: guest_ipv4.map(|net| net.to_string()),
            ipv6: guest_ipv6.map(|net| net.to_string()),
            ..Masquerade::default()
        },
        vhost_user: VhostUser {
            socket: path(sockets.vhost_user),
            mode: Some("server".into()),
            queue_pairs: queue_pairs.map(|pairs| pairs.to_string()),
        },
        control: Control { socket: path(sockets.control), group: None },
        metrics: Metrics { listen: metrics_port.map(|port| format!("[::]:{port}")) },
        guest: Guest {
            mac: Some(mac_address),
            hostname: Some(hostname),
            fqdn,
            dns: some(resolvers.servers),
            search: some(resolvers.search),
            dhcp_options: dhcp_options.into_iter().map(dhcp_option).collect(),
        },
        ports: Ports {
            tcp: Some(words(&ports, &port_ranges, PortProtocol::Tcp)),
            udp: Some(words(&ports, &port_ranges, PortProtocol::Udp)),
            // A list of ports is served by listeners: there is nothing to steer.
            steering: sockets.steering.filter(|_| all).and_then(path),
            mesh: (!mesh).then(|| "false".into()),
            ask_guest: ask_guest.then(|| "true".into()),
            ..Ports::default()
        },
        limits: Limits { flows: flows.map(|flows| flows.to_string()), ..Limits::default() },
        hold: Hold { socket: sockets.hold.and_then(path) },
        ..File::default()
    }
}

/// A list that is told, where there is something in it.
fn some(words: Vec<String>) -> Option<Words> {
    (!words.is_empty()).then_some(Words(words))
}

fn dhcp_option(option: spec::DhcpOption) -> DhcpOption {
    let spec::DhcpOption { code, text, addresses } = option;
    DhcpOption {
        code: Some(code.to_string()),
        text: (!text.is_empty()).then_some(text),
        addresses: some(addresses),
        hex: None,
    }
}

/// The listed ports of a protocol. No list at all means all ports, but a list of the other protocol means none.
fn words(ports: &[Port], ranges: &[PortRanges], protocol: PortProtocol) -> Words {
    if ports.is_empty() && ranges.is_empty() {
        return Words(vec!["all".into()]);
    }
    let ranges = ranges.iter().filter(|listed| listed.protocol == protocol);
    let ranges = ranges.flat_map(|listed| listed.ranges.split(',').map(str::to_owned));
    let listed = ports.iter().filter(|p| p.protocol == protocol).map(|p| p.port.to_string());
    let listed: Vec<String> = listed.chain(ranges).collect();
    Words(if listed.is_empty() { vec!["none".into()] } else { listed })
}

/// Resolvers and search domains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Resolvers {
    servers: Vec<String>,
    search: Vec<String>,
}

impl Resolvers {
    /// Reads a resolv.conf (resolv.conf(5)). What netd would refuse in its file is passed over: the file is the node's, and no setting of
    /// the machine's.
    fn parse(text: &str) -> Self {
        let ResolvConf { nameservers, search } = ResolvConf::parse(text);
        let of_guest = |ip: &IpAddr| !ip.is_loopback() && !ip.is_multicast() && !ip.is_unspecified();
        let servers = nameservers.into_iter().filter(of_guest).map(|ip| ip.to_string()).collect();
        Resolvers { servers, search }
    }
}

/// What the guest is to be told; nothing when the pod's resolv.conf is all, since netd watches that itself.
fn resolvers(dns: Option<Dns>, pod: Resolvers) -> Resolvers {
    let Some(Dns { alone, servers, searches }) = dns else { return Resolvers::default() };
    // The kubelet adds in this order, too.
    let base = if alone { Resolvers::default() } else { pod };
    let merge = |mut base: Vec<String>, added: Vec<String>| {
        if added.is_empty() {
            return Vec::new();
        }
        for word in added {
            if !base.contains(&word) {
                base.push(word);
            }
        }
        base
    };
    Resolvers { servers: merge(base.servers, servers), search: merge(base.search, searches) }
}

/// The guest's full name: below the subdomain, in the domain that the pod's search list has for the namespace. None where
/// the list has none, as with a `dnsPolicy: None` of other domains: no such name would be found.
fn fqdn(spec: &NetdSpec, pod: &Resolvers) -> Option<String> {
    let NetdSpec { namespace, hostname, subdomain, .. } = spec;
    if subdomain.is_empty() {
        return None;
    }
    let prefix = format!("{namespace}.svc.");
    let domain = pod.search.iter().find(|s| s.starts_with(&prefix))?;
    Some(format!("{hostname}.{subdomain}.{domain}"))
}

#[cfg(test)]
mod tests {
    use podvirt_api::VirtualMachineInstance;
    use podvirt_api::names::pod;

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
        netd_file(NetdSpec::of(vmi, 0).unwrap(), &sockets, RESOLV_CONF, true).to_yaml().unwrap()
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
        assert!(all.contains("\nmode: masquerade\nname: default/vm\n"), "{all}");
        assert!(all.contains("  steering: /run/n.ports\n"), "{all}");
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
            let told = (0..vmi.spec.domain.devices.interfaces.len()).map(|i| {
                let config = netd_file(NetdSpec::of(&vmi, i).unwrap(), &sockets, "", true);
                (
                    config.interface.unwrap_or_default(),
                    config.bind_interface.is_some_and(|bind| bind == "true"),
                )
            });
            told.collect::<Vec<_>>()
        };
        let own = || ("eth0".to_owned(), true);
        let secondary = || (pod::interface("b"), true);
        let whole = || (String::new(), false);
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
    fn queue_pairs_flows_and_the_port_of_metrics_are_netds() {
        let mut spec: NetdSpec = serde_json::from_value(serde_json::json!({
            "namespace": "shop", "machine": "web", "interface": "default", "index": 0,
            "macAddress": "52:54:00:00:00:01", "hostname": "web",
        }))
        .unwrap();
        let sockets = NetdSockets {
            vhost_user: Path::new("/run/n.sock"),
            control: Path::new("/run/n.ctl"),
            steering: None,
            hold: None,
        };
        let text = |spec: &NetdSpec| netd_file(spec.clone(), &sockets, "", true).to_yaml().unwrap();
        assert!(!text(&spec).contains("queue_pairs") && !text(&spec).contains("metrics"));
        assert!(!text(&spec).contains("limits"));
        spec.flows = Some(50_000);
        assert!(text(&spec).contains("limits:\n  flows: \"50000\"\n"), "{}", text(&spec));
        (spec.queue_pairs, spec.metrics_port) = (Some(4), Some(9100));
        assert!(text(&spec).contains("queue_pairs: \"4\"\n"), "{}", text(&spec));
        assert!(text(&spec).contains("metrics:\n  listen: \"[::]:9100\"\n"), "{}", text(&spec));
    }

    #[test]
    fn without_ports_all_are_forwarded() {
        assert_eq!(
            yaml("", ""),
            "control:\n  socket: /run/n.ctl\nguest:\n  hostname: web\n  mac: \"52:54:00:00:00:01\"\nname: shop/web\n\
             ports:\n  tcp:\n  - all\n  udp:\n  - all\nvhost_user:\n  mode: server\n  socket: /run/n.sock\n"
        );
    }

    #[test]
    fn a_long_list_of_ports_is_one_of_ranges() {
        let ports: Vec<String> = (1000..1400).map(|port| format!("{{port: {port}}}")).collect();
        let text = yaml("", &format!(", ports: [{}, {{port: 53, protocol: UDP}}]", ports.join(", ")));
        assert!(text.contains("ports:\n  tcp:\n  - 1000-1399\n  udp:\n  - \"53\"\n"), "{text}");
    }

    #[test]
    fn listed_ports_go_by_protocol_and_a_protocol_without_any_is_closed() {
        let tcp = yaml("", ", ports: [{port: 80}, {port: 443, protocol: TCP}]");
        assert!(
            tcp.contains(
                "ports:\n  ask_guest: \"true\"\n  tcp:\n  - \"80\"\n  - \"443\"\n  udp:\n  - none\n"
            ),
            "{tcp}"
        );
        let udp = yaml("", ", ports: [{port: 53, protocol: UDP}]");
        assert!(udp.contains("ports:\n  tcp:\n  - none\n  udp:\n  - \"53\"\n"), "{udp}");
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
                {"code": "42", "addresses": ["192.0.2.1"]},
                {"code": "66", "text": "t.example"},
                {"code": "67", "text": "b.efi"},
                {"code": "240", "text": "x"},
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
    fn what_netd_would_refuse_of_the_nodes_resolvers_and_domains_keeps_no_machine_from_starting() {
        let vmi = VirtualMachineInstance::from_value(serde_json::json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {
                "domain": {"devices": {"interfaces": [{"name": "a", "macAddress": "52-54-00-00-00-01"}]}},
                "networks": [{"name": "a", "pod": {}}],
                "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["corp.example"]},
            },
        }));
        let mut vmi = vmi.unwrap();
        podvirt_api::defaults::set_defaults(&mut vmi);
        let sockets = NetdSockets {
            vhost_user: Path::new("/run/n.sock"),
            control: Path::new("/run/n.ctl"),
            steering: None,
            hold: None,
        };
        let node = "nameserver fe80::1%eth0\nnameserver 127.0.0.53\nnameserver nobody\n\
                    nameserver 10.96.0.10\nsearch . ~. a..b example.org. shop.svc.cluster.local\n";
        let file = netd_file(NetdSpec::of(&vmi, 0).unwrap(), &sockets, node, true);
        let guest = file.check().unwrap().guest;
        let told: Vec<String> = guest.dns.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(told, ["10.96.0.10", "192.0.2.53"]);
        assert_eq!(guest.search.unwrap(), ["example.org", "shop.svc.cluster.local", "corp.example"]);
    }

    #[test]
    fn a_subdomain_makes_the_full_name() {
        let text = yaml("  subdomain: db\n", "");
        assert!(text.contains("  fqdn: web.db.shop.svc.cluster.local\n"), "{text}");
        // The pod of a machine with `dnsPolicy: None` has the machine's own search domains alone.
        let vmi = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: web, namespace: shop}\n\
                   spec: {subdomain: db, domain: {memory: {guest: 64Mi}, devices: {}}}\n";
        let spec = NetdSpec::of(&VirtualMachineInstance::load(vmi).unwrap(), 0).unwrap();
        assert_eq!(fqdn(&spec, &Resolvers::parse("search example.org\n")), None);
    }
}
