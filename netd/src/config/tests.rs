use std::time::Duration;

use clap::{CommandFactory, Parser};

use super::cli::Args;
use super::file::{File, Words};
use super::ports::{PortSpec, Reserved};
use super::*;
use crate::egress::{Action, Egress};
use crate::port::{PortMap, Proto};

const FULL: &str = r#"
vhost_user: { socket: /run/netd/vm.sock, mode: client, queue_pairs: 4 }
control: { socket: /run/netd/control.sock, group: true }
metrics: { listen: "[::]:9090" }
interface: eth1
mode: masquerade
mac: 02:00:00:00:00:99
mtu: 9000
guest:
  mac: 52:54:00:11:22:33
  hostname: vm1
  fqdn: vm1.example.org
  dns: [10.96.0.10, "fd00:96::a"]
  search: [default.svc.cluster.local, "."]
  dhcp_options:
    - { code: 66, text: tftp.example.org }
    - { code: 42, addresses: [192.0.2.1, 192.0.2.2] }
    - { code: 224, hex: "01:ab" }
loopback: { ipv4: 192.0.2.9, ipv6: "2001:db8::9" }
masquerade: { ipv4: 172.20.0.9/16, ipv4_gateway: 172.20.0.1, ipv6: "fd20::9/64" }
ports:
  tcp: [80, 8000-8099, 2222:22, ~8050]
  udp: none
  reserved: [linkerd, 9000]
  all_ports_budget: 100
egress:
  default: deny
  metadata: allow
  rules:
    - { action: deny, to: [10.0.0.0/8, "fd00::/8"], protocol: tcp, ports: [22, 8000-8099] }
    - { action: allow, to: 192.0.2.1, protocol: icmp }
    - { action: allow, protocol: any }
limits:
  flows: 1000
  new_flows_per_second: 10
  new_flows_burst: 20
  fragment_bytes: 1MiB
  fragment_datagrams: 8
timeouts:
  udp_unreplied: 5s
  udp_replied: 3m
  udp_exchange: 2s
  echo: 10
  tcp_handshake: 2500ms
  tcp_time_wait: 30s
  tcp_idle: 3h
spin: never
sandbox: log
log: netd=debug,info
name: default/vm1
"#;

fn check(yaml: &str) -> Result<Config, Problems> {
    File::parse(yaml).unwrap().check()
}

#[test]
fn what_is_written_is_read_as_the_same_file() {
    let full = File::parse(FULL).unwrap();
    let told_nothing =
        File { guest: file::Guest { dns: Some(Words(vec![])), ..Default::default() }, ..File::default() };
    for file in [full, told_nothing, File::default()] {
        let text = file.to_yaml().unwrap();
        assert_eq!(File::parse(&text).unwrap(), file, "{text}");
        assert!(!text.contains("null"), "{text}");
    }
}

#[test]
fn every_field_reaches_the_configuration() {
    let c = check(FULL).unwrap();
    assert_eq!(
        c.vhost_user,
        VhostUser { socket: "/run/netd/vm.sock".into(), mode: SocketRole::Client, queue_pairs: 4 }
    );
    assert_eq!(c.control, Some(ControlSocket { path: "/run/netd/control.sock".into(), group: true }));
    assert_eq!(c.metrics_listen, Some("[::]:9090".parse().unwrap()));
    assert_eq!((c.interface.as_deref(), c.mode, c.mtu), (Some("eth1"), Mode::Masquerade, Some(9000)));
    assert_eq!(c.mac.unwrap().to_string(), "02:00:00:00:00:99");
    assert_eq!(c.guest.mac.unwrap().to_string(), "52:54:00:11:22:33");
    assert_eq!(c.guest.dns.unwrap().len(), 2);
    assert_eq!(c.guest.search.unwrap(), ["default.svc.cluster.local"]);
    let options: Vec<(u8, &[u8])> =
        c.guest.dhcp_options.iter().map(|o| (o.code, o.value.as_slice())).collect();
    assert_eq!(
        options,
        [(66, b"tftp.example.org".as_slice()), (42, &[192, 0, 2, 1, 192, 0, 2, 2]), (224, &[0x01, 0xab]),]
    );
    assert_eq!(c.loopback.v4.unwrap().to_string(), "192.0.2.9");
    assert_eq!(c.loopback.v6.unwrap().to_string(), "2001:db8::9");
    let m = c.masquerade;
    assert_eq!((m.guest_v4.to_string().as_str(), m.prefix_v4), ("172.20.0.9", 16));
    assert_eq!((m.gateway_v4.to_string().as_str(), m.prefix_v6), ("172.20.0.1", 64));
    let maps: Vec<String> = c.ports.tcp.maps.iter().map(PortMap::to_string).collect();
    assert_eq!(maps, ["80", "8000-8099", "2222:22"]);
    assert_eq!(
        (c.ports.tcp.except.len(), c.ports.udp, c.ports.all_ports_budget),
        (1, PortSpec::default(), 100)
    );
    assert_eq!((c.egress.default, c.egress.metadata), (Action::Deny, Action::Allow));
    let rules: Vec<String> = c.egress.rules.iter().map(ToString::to_string).collect();
    assert_eq!(
        rules,
        ["deny tcp ports 22,8000-8099 to 10.0.0.0/8,fd00::/8", "allow icmp to 192.0.2.1/32", "allow"]
    );
    assert_eq!((c.limits.flows, c.limits.fragment_bytes), (1000, 1 << 20));
    assert_eq!((c.limits.new_flows_per_second, c.limits.new_flows_burst), (10, 20));
    assert_eq!(c.limits.fragment_datagrams, 8);
    let t = c.timeouts;
    assert_eq!((t.udp_unreplied, t.udp_replied), (Duration::from_secs(5), Duration::from_secs(180)));
    assert_eq!(t.udp_exchange, Duration::from_secs(2));
    assert_eq!((t.echo, t.tcp_handshake), (Duration::from_secs(10), Duration::from_millis(2500)));
    assert_eq!((t.tcp_time_wait, t.tcp_idle), (Duration::from_secs(30), Duration::from_secs(10800)));
    assert_eq!((c.spin, c.sandbox), (SpinMode::Never, SandboxMode::Log));
    assert_eq!(c.log, "netd=debug,info");
    assert_eq!(c.name.as_deref(), Some("default/vm1"));
}

#[test]
fn only_the_socket_is_needed() {
    let c = check("vhost_user: { socket: /run/vm.sock }").unwrap();
    assert_eq!(c.mode, Mode::Passthrough);
    assert_eq!((c.limits, c.timeouts, c.masquerade), Default::default());
    assert_eq!((c.ports.tcp, c.ports.udp), (PortSpec::all(), PortSpec::all()));
    assert_eq!(c.ports.reserved, Reserved::presets());
    assert_eq!(c.loopback, Loopback::default());
    assert_eq!((c.egress.as_ref(), c.sandbox), (&Egress::default(), SandboxMode::Enforce));
    assert_eq!(c.spin, SpinMode::Auto);
    let missing = check("").unwrap_err();
    assert_eq!(missing.0.len(), 1);
    assert_eq!((missing.0[0].field.as_str(), &missing.0[0].value), ("vhost_user.socket", &None));
}

#[test]
fn all_problems_are_told_at_once_with_field_value_and_what_is_allowed() {
    let wrong = check(
        r#"
vhost_user: { mode: both, queue_pairs: 9 }
control: { group: maybe }
metrics: { listen: ":9090" }
mode: bridge
mac: ff:ff:ff:ff:ff:ff
mtu: 67
guest:
  mac: 1
  hostname: "a b"
  dns: [127.0.0.1, x]
  search: ["a..b"]
  dhcp_options: [{ code: 3, hex: "0" }, { text: a, hex: "00" }]
loopback: { ipv4: 127.0.0.1, ipv6: "fe80::1" }
masquerade: { ipv4: 10.0.2.0/24, ipv4_gateway: 10.0.3.1, ipv6: "fe80::1/64" }
ports: { tcp: "80,x", all_ports_budget: -1 }
limits: { flows: 0, fragment_bytes: 1 }
timeouts: { echo: 0 }
log: "netd=loud"
name: "two words"
"#,
    )
    .unwrap_err();
    let fields: Vec<&str> = wrong.0.iter().map(|p| p.field.as_str()).collect();
    for expected in [
        "vhost_user.socket",
        "vhost_user.mode",
        "vhost_user.queue_pairs",
        "control.group",
        "metrics.listen",
        "mode",
        "mac",
        "mtu",
        "guest.mac",
        "guest.hostname",
        "guest.dns[0]",
        "guest.dns[1]",
        "guest.search[0]",
        "guest.dhcp_options[0].code",
        "guest.dhcp_options[0].hex",
        "guest.dhcp_options[1].code",
        "guest.dhcp_options[1].text",
        "loopback.ipv4",
        "loopback.ipv6",
        "masquerade.ipv4",
        "masquerade.ipv4_gateway",
        "masquerade.ipv6",
        "ports.tcp[1]",
        "ports.all_ports_budget",
        "limits.flows",
        "limits.fragment_bytes",
        "timeouts.echo",
        "log",
        "name",
    ] {
        assert!(fields.contains(&expected), "{expected} is not among {fields:?}");
    }
    let text = wrong.to_string();
    assert!(text.contains("mtu: '67' is not allowed; an integer from 68 to 65535 is"), "{text}");
    assert!(text.contains("vhost_user.socket: missing; "), "{text}");
}

#[test]
fn the_guest_is_asked_about_a_short_list_of_ports_alone() {
    let ports =
        |ports: &str| check(&format!("vhost_user: {{ socket: /a }}\nports: {{ {ports}, ask_guest: true }}"));
    assert!(ports("tcp: [80, 8000-8254]").unwrap().ports.ask_guest);
    assert!(ports("tcp: none").unwrap().ports.ask_guest);
    for (given, allowed) in [
        ("tcp: [80, 8000-8255]", "it is for at most 256 TCP ports; 257 are listed"),
        ("tcp: [80, ~22, all]", "it is where 'ports.tcp' is a list of ports without 'all'"),
        ("udp: none", "it is where 'ports.tcp' is a list of ports without 'all'"),
    ] {
        let wrong = ports(given).unwrap_err().to_string();
        assert!(wrong.contains(&format!("ports.ask_guest: 'true' is not allowed; {allowed}")), "{wrong}");
    }
}

#[test]
fn a_rule_that_cannot_be_meant_is_refused() {
    let wrong = check(
        r#"
vhost_user: { socket: /a }
egress:
  default: drop
  metadata: maybe
  rules:
    - { to: [10.0.0.1/8, "::ffff:10.0.0.0/104", example.org] }
    - { action: deny, protocol: sctp, ports: [0, 9-8] }
    - { action: deny, protocol: icmp, ports: 8 }
"#,
    )
    .unwrap_err();
    let fields: Vec<&str> = wrong.0.iter().map(|p| p.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "egress.default",
            "egress.metadata",
            "egress.rules[0].action",
            "egress.rules[0].to[0]",
            "egress.rules[0].to[1]",
            "egress.rules[0].to[2]",
            "egress.rules[1].protocol",
            "egress.rules[1].ports[0]",
            "egress.rules[1].ports[1]",
            "egress.rules[2].ports",
        ]
    );
    let many = "    - { action: deny }\n".repeat(257);
    let wrong = check(&format!("vhost_user: {{ socket: /a }}\negress:\n  rules:\n{many}")).unwrap_err();
    assert_eq!(wrong.0[0].field, "egress.rules");
}

#[test]
fn an_unknown_field_is_refused_with_its_place() {
    let error = File::parse("limits:\n  flow: 3\n").unwrap_err().to_string();
    assert!(error.contains("flow") && error.contains("new_flows_burst") && error.contains('2'), "{error}");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let mac = "52:54:00:00:00:01";
    let same = format!(
        "mac: {mac}\nguest: {{ mac: {mac} }}\nvhost_user: {{ socket: /a }}\ncontrol: {{ socket: /a }}"
    );
    let fields: Vec<String> = check(&same).unwrap_err().0.into_iter().map(|p| p.field).collect();
    assert_eq!(fields, ["mac", "control.socket"]);
}

#[test]
fn the_masquerade_gateway_is_the_first_address_that_is_free() {
    let base = "vhost_user: { socket: /a }\nmasquerade: { ipv4: ";
    let gateway = |net: &str| check(&format!("{base}{net} }}")).unwrap().masquerade.gateway_v4.to_string();
    assert_eq!(gateway("10.1.0.5/24"), "10.1.0.1");
    assert_eq!(gateway("10.1.0.1/30"), "10.1.0.2");
}

#[test]
fn the_command_line_overrides_the_file() {
    Args::command().debug_assert();
    let mut file = File::parse(FULL).unwrap();
    let args = Args::parse_from(
        "netd --socket /x --mode passthrough -t all,~22 -u 53 --mtu 1400 --dns 192.0.2.3 --log debug --queue-pairs 2"
            .split(' '),
    );
    args.apply(&mut file);
    let c = file.check().unwrap();
    assert_eq!((c.vhost_user.socket.to_str(), c.vhost_user.mode), (Some("/x"), SocketRole::Client));
    assert_eq!(c.vhost_user.queue_pairs, 2);
    assert_eq!((c.mode, c.mtu, c.log.as_str()), (Mode::Passthrough, Some(1400), "debug"));
    assert!(c.ports.tcp.all && c.ports.tcp.maps.is_empty());
    assert_eq!(c.ports.udp.maps.len(), 1);
    assert_eq!(c.guest.dns.unwrap().len(), 1);
    assert_eq!(c.guest.hostname.as_deref(), Some("vm1"));
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("netd.yaml");
    let args = Args { config: Some(path.clone()), ..Args::default() };
    assert!(matches!(Config::load(&args), Err(ConfigError::Read { .. })));
    std::fs::write(&path, "vhost_user: [").unwrap();
    let error = Config::load(&args).unwrap_err();
    assert!(error.to_string().contains("netd.yaml"), "{error}");
    std::fs::write(&path, "vhost_user: { socket: /run/vm.sock }").unwrap();
    assert!(Config::load(&args).is_ok());
}

#[test]
fn where_no_mesh_can_be_listed_ports_of_its_presets_are_forwarded() {
    let ports = |more: &str| {
        check(&format!("vhost_user: {{ socket: /a }}\nports: {{ tcp: [4190, 15090], udp: none{more} }}"))
    };
    let reserved = |more: &str| {
        let reserved = ports(more).unwrap().ports.reserved;
        [4190, 15090, 15001].map(|port| reserved.contains(Proto::Tcp, port))
    };
    assert_eq!(reserved(""), [true; 3]);
    assert_eq!(reserved(", mesh: true"), [true; 3]);
    assert_eq!(reserved(", mesh: false"), [false, false, true]);
    assert!(ports(", mesh: perhaps").is_err());
}

#[test]
fn the_documented_file_is_right_and_shows_the_defaults() {
    let page = include_str!("../../../docs/netd-configuration.md");
    let (_, from) = page.split_once("```yaml\n").unwrap();
    let c = check(from.split_once("```").unwrap().0).unwrap();
    assert_eq!((c.limits, c.timeouts, c.masquerade), Default::default());
    assert_eq!(*c.egress, Egress::default());
    let steering = Some("/run/netd/ports.sock".into());
    assert_eq!(c.ports, Ports { steering, ..Ports::default() }, "all but the one that has no default");
    assert_eq!((c.mode, c.vhost_user.mode, c.log.as_str()), (Mode::Passthrough, SocketRole::Server, "info"));
    assert_eq!(c.vhost_user.queue_pairs, 1);
    assert_eq!(c.guest.dhcp_options.len(), 3);
    let (_, rules) = from.split_once("```yaml\negress:").unwrap();
    let rules = rules.split_once("```").unwrap().0;
    let c = check(&format!("vhost_user: {{ socket: /a }}\negress:{rules}")).unwrap();
    assert_eq!((c.egress.default, c.egress.rules.len()), (Action::Deny, 4));
}

#[test]
fn the_packages_example_is_right() {
    let file = File::parse(include_str!("../../packaging/netd.yaml")).unwrap();
    let config = file.check().unwrap();
    assert_eq!(config.name.as_deref(), Some("NAME"));
    assert_eq!(config.vhost_user.socket, Path::new("/run/netd/NAME/vm.sock"));
}
