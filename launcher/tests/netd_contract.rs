//! What a machine says of its network reaches netd whole.
//!
//! A machine goes the way that it goes on a cluster: virt-controller makes its pod, `run-netd` reads the pod's
//! environment and writes netd's configuration, and netd's own parser reads that. Nothing on the way is made up here.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test fails it")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use netd::config::Config;
use netd::config::file::File;
use netd::net::Mode;
use netd::port::Proto;
use podvirt_api::mesh;
use podvirt_api::v1::VirtualMachineInstance;
use serde_json::{Value, json};
use virt_controller::template::{Images, launcher_pod};
use virt_launcher::domain::{Accelerator, Environment, Image, ImageFormat, Kernel, convert};
use virt_launcher::run_netd;

const RESOLV_CONF: &str = "nameserver 10.96.0.10\nsearch shop.svc.cluster.local svc.cluster.local\n";

/// The machine's pod as JSON.
fn pod(machine: &Value) -> Value {
    let vmi: VirtualMachineInstance = serde_json::from_value(machine.clone()).unwrap();
    serde_json::to_value(launcher_pod(&vmi, &Default::default(), &Images::default()).unwrap()).unwrap()
}

/// The environment of each netd, in the order of the interfaces.
fn environments(pod: &Value) -> Vec<Vec<Value>> {
    let sidecars = pod["spec"]["initContainers"].as_array().unwrap().iter();
    let netds = sidecars.filter(|c| c["name"].as_str().unwrap().starts_with("netd"));
    netds.map(|c| c["env"].as_array().unwrap().clone()).collect()
}

/// What each netd of the machine comes to, by its own parser.
fn configurations(machine: &Value) -> Vec<Config> {
    let of = |environment: Vec<Value>| {
        let variable = |name: &str| environment.iter().find(|v| v["name"] == name);
        // What the kubelet takes from an annotation that the pod has not is empty.
        let get = |name: &str| Some(variable(name)?["value"].as_str().unwrap_or_default().to_owned());
        let spec = run_netd::spec(get, None).unwrap();
        let text = run_netd::config(spec, RESOLV_CONF, mesh::may_be_in_pod(get)).unwrap();
        File::parse(&text).unwrap().check().unwrap_or_else(|problems| panic!("{problems}\n{text}"))
    };
    environments(&pod(machine)).into_iter().map(of).collect()
}

/// The machine's domain as virt-launcher defines it.
fn domain(machine: &Value) -> String {
    let mut vmi = podvirt_api::VirtualMachineInstance::from_value(machine.clone()).unwrap();
    podvirt_api::defaults::set_defaults(&mut vmi);
    podvirt_api::validate::validate(&vmi).into_result().unwrap();
    let devices = &vmi.spec.domain.devices;
    let image = || Image::new("/d", ImageFormat::Raw);
    let environment = Environment {
        accelerator: Accelerator::Tcg,
        kernel: Some(Kernel { kernel: "/k".into(), initrd: None }),
        ovmf: None,
        images: devices.disks.iter().map(|d| (d.name.clone(), image())).collect(),
        sockets: devices
            .interfaces
            .iter()
            .map(|i| (i.name.clone(), PathBuf::from("/s")))
            .collect::<BTreeMap<_, _>>(),
        filesystems: [].into(),
        taps: [].into(),
        devices: [].into(),
        serial_socket: "/serial".into(),
        serial_log: "/log".into(),
        vnc_socket: "/vnc".into(),
        balloon_period: 0,
        smbios: podvirt_proto::cmd::default_smbios(),
    };
    convert(&vmi, &environment).unwrap().to_xml().unwrap()
}

/// A machine that says all that a network can be told, and has secrets.
fn everything() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "0a1b",
            "annotations": {"podvirt.io/netd-metrics-port": "9100"},
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "of-the-vm",
            }],
        },
        "spec": {
            "hostname": "shop-front", "subdomain": "db", "dnsPolicy": "ClusterFirst",
            "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["example.org"]},
            "domain": {
                "cpu": {"cores": 2, "sockets": 2, "threads": 1},
                "memory": {"guest": "256Mi"},
                "devices": {
                    "networkInterfaceMultiqueue": true,
                    "disks": [{"name": "root", "disk": {"bus": "virtio"}}, {"name": "seed", "disk": {"bus": "virtio"}}],
                    "interfaces": [
                        {
                            "name": "default", "masquerade": {}, "macAddress": "52-54-00-00-00-01",
                            "ports": [{"name": "http", "port": 80}, {"port": 53, "protocol": "UDP"}],
                            "dhcpOptions": {
                                "bootFileName": "b.efi", "tftpServerName": "t.example", "ntpServers": ["192.0.2.1"],
                                "privateOptions": [{"option": 240, "value": "x"}],
                            },
                        },
                        {"name": "flat", "passtBinding": {}},
                    ],
                },
            },
            "networks": [
                {"name": "default", "pod": {"vmNetworkCIDR": "10.10.010.0/24", "vmIPv6NetworkCIDR": "fd10:10::2/64"}},
                {"name": "flat", "multus": {"networkName": "flat"}},
            ],
            "volumes": [
                {"name": "root", "containerDisk": {"image": "registry.example/disk:1"}},
                {"name": "seed", "cloudInitNoCloud": {"userData": "password: hush"}},
            ],
        },
    })
}

#[test]
fn all_that_a_machine_says_of_its_network_is_netds_configuration() {
    let machine = everything();
    let [first, second] = configurations(&machine).try_into().unwrap();
    assert_eq!(first.name.as_deref(), Some("shop/web"));
    assert_eq!((first.vhost_user.queue_pairs, second.vhost_user.queue_pairs), (4, 4));
    let metrics = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 9100));
    assert_eq!((first.metrics_listen, second.metrics_listen), (Some(metrics), None));
    assert_eq!((first.mode, second.mode), (Mode::Masquerade, Mode::Passthrough));
    assert_eq!((first.ports.ask_guest, second.ports.ask_guest), (true, false));
    let guest = (first.masquerade.guest_v4, first.masquerade.gateway_v4, first.masquerade.prefix_v4);
    assert_eq!(guest, (Ipv4Addr::new(10, 10, 10, 2), Ipv4Addr::new(10, 10, 10, 1), 24));
    let guest = (first.masquerade.guest_v6, first.masquerade.prefix_v6);
    assert_eq!(guest, ("fd10:10::2".parse().unwrap(), 64));
    assert_eq!((first.interface.as_deref(), first.bind_interface), (Some("eth0"), true));
    let flat = podvirt_api::names::pod::interface("flat");
    assert_eq!((second.interface, second.bind_interface), (Some(flat), true));
    assert_eq!(first.guest.mac.unwrap().to_string(), "52:54:00:00:00:01");
    assert_eq!(first.guest.hostname.as_deref(), Some("shop-front"));
    assert_eq!(first.guest.fqdn.as_deref(), Some("shop-front.db.shop.svc.cluster.local"));
    let resolvers = [[10, 96, 0, 10], [192, 0, 2, 53]].map(|ip| IpAddr::V4(Ipv4Addr::from(ip)));
    assert_eq!(first.guest.dns.as_deref(), Some(&resolvers[..]));
    assert_eq!(
        first.guest.search.unwrap(),
        ["shop.svc.cluster.local", "svc.cluster.local", "example.org"].map(str::to_owned)
    );
    let codes: Vec<u8> = first.guest.dhcp_options.iter().map(|o| o.code).collect();
    assert_eq!(codes, [42, 66, 67, 240]);
    assert_ne!(first.ports, second.ports, "listed ports, and all of them");
    assert_eq!(
        (first.vhost_user.socket, second.vhost_user.socket),
        ("/var/run/kubevirt/netd/n0.sock".into(), "/var/run/kubevirt/netd/n1.sock".into(),)
    );

    // The other side of the same socket.
    let domain = domain(&machine);
    assert_eq!(domain.matches("queues=\"4\"").count(), 2, "{domain}");
    assert!(domain.contains(&second.guest.mac.unwrap().to_string()), "{domain}");
}

#[test]
fn netd_and_the_domain_have_as_many_queue_pairs_for_any_number_of_processors() {
    assert_eq!(podvirt_api::netd::MAX_QUEUE_PAIRS, netd::limits::MAX_QUEUE_PAIRS as u64);
    for (sockets, pairs) in [(1, 1), (2, 2), (3, 3), (8, 8), (9, 8)] {
        let mut machine = everything();
        machine["spec"]["domain"]["cpu"] = json!({"sockets": sockets});
        for config in configurations(&machine) {
            assert_eq!(config.vhost_user.queue_pairs, pairs);
        }
        assert_eq!(domain(&machine).matches(&format!("queues=\"{pairs}\"")).count(), 2);
        machine["spec"]["domain"]["devices"]["networkInterfaceMultiqueue"] = json!(false);
        assert!(configurations(&machine).iter().all(|config| config.vhost_user.queue_pairs == 1));
        assert!(!domain(&machine).contains("queues="));
    }
}

#[test]
fn no_secret_is_in_a_pods_environment() {
    let pod = pod(&everything());
    let containers = ["containers", "initContainers"].map(|kind| pod["spec"][kind].as_array().unwrap());
    for container in containers.into_iter().flatten() {
        let text = container["env"].to_string();
        assert!(
            !text.contains("hush") && !text.contains("registry.example"),
            "{}: {text}",
            container["name"]
        );
    }
}

/// A sidecar's ports are the guest's where no injector has left a mark on the pod, and ambient mode's where the machine lists them.
#[test]
fn a_machine_in_no_mesh_has_a_meshs_ports() {
    let mut machine = everything();
    machine["spec"]["domain"]["devices"]["interfaces"][0]["ports"] = json!([{"port": 4190}, {"port": 15008}]);
    let [first, second] = configurations(&machine).try_into().unwrap();
    let reserved = |config: &Config| [4190, 15008].map(|p| config.ports.reserved.contains(Proto::Tcp, p));
    assert_eq!((reserved(&first), reserved(&second)), ([false; 2], [false, true]));
    for environment in environments(&pod(&machine)) {
        for (name, field) in mesh::MARKS {
            let mark = environment.iter().find(|v| v["name"] == name).unwrap();
            assert_eq!(mark["valueFrom"]["fieldRef"]["fieldPath"], field);
        }
    }
}

/// The machines of the examples, as the API server would have them.
#[test]
fn the_examples_reach_netd() {
    for file in ["vmi-netd.yaml", "vmi-debian.yaml"] {
        let path = format!("{}/../examples/{file}", env!("CARGO_MANIFEST_DIR"));
        let mut machine: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        machine["metadata"]["uid"] = json!("0a1b");
        let [config] = configurations(&machine).try_into().unwrap();
        assert_eq!((config.interface, config.bind_interface), (None, false), "it has the whole pod");
        assert_eq!(config.vhost_user.queue_pairs, 1);
        assert!(domain(&machine).contains(&config.guest.mac.unwrap().to_string()));
    }
}
