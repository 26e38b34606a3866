//! `expose`: makes a Service that leads to a machine.

use anyhow::bail;
use podvirt_api::names::{self, label};
use serde_json::{Map, Value, json};

use crate::api::Cluster;
use crate::api::objects::SERVICES;
use crate::args::Expose;
use crate::output::say;
use crate::target::checked;

/// What can be exposed: the word by which upstream's errors name it, and its plural in paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exposed {
    Instance,
    Machine,
    ReplicaSet,
}

impl Exposed {
    fn of(word: &str) -> anyhow::Result<Exposed> {
        Ok(match word {
            "vmi" | "vmis" | "virtualmachineinstance" | "virtualmachineinstances" => Self::Instance,
            "vm" | "vms" | "virtualmachine" | "virtualmachines" => Self::Machine,
            "vmirs" | "vmirss" | "virtualmachineinstancereplicaset" | "virtualmachineinstancereplicasets" => {
                Self::ReplicaSet
            }
            _ => bail!("unsupported resource type: {word}; vmi, vm and vmirs are allowed"),
        })
    }

    fn resource(self) -> &'static str {
        match self {
            Self::Instance => "virtualmachineinstances",
            Self::Machine => "virtualmachines",
            Self::ReplicaSet => "virtualmachineinstancereplicasets",
        }
    }

    /// The specification of the instances.
    fn instance_spec(self, object: &Value) -> &Value {
        match self {
            Self::Instance => &object["spec"],
            Self::Machine | Self::ReplicaSet => &object["spec"]["template"]["spec"],
        }
    }

    /// Labels of the pods.
    fn selector(self, object: &Value, name: &str) -> anyhow::Result<Value> {
        if self != Self::ReplicaSet {
            return Ok(json!({label::VMI_ID: names::label_value(name)}));
        }
        let selector = &object["spec"]["selector"];
        let labels = &selector["matchLabels"];
        if labels.as_object().is_none_or(Map::is_empty) {
            bail!("cannot expose VirtualMachineInstanceReplicaSet without any selector labels");
        }
        if selector["matchExpressions"].as_array().is_some_and(|all| !all.is_empty()) {
            bail!("cannot expose VirtualMachineInstanceReplicaSet with match expressions");
        }
        Ok(labels.clone())
    }
}

pub(super) async fn run(cluster: &Cluster, args: &Expose) -> anyhow::Result<()> {
    let word = args.kind.to_ascii_lowercase();
    let wishes = Wishes::of(args)?;
    let exposed = Exposed::of(&word)?;
    let (target, service) = (checked("name", &args.target)?, checked("name", &args.name)?);
    let namespace = checked("namespace", cluster.namespace())?;
    let object = cluster.read(exposed.resource(), &namespace, &target).await.map_err(|error| {
        error.explain_plain(&format!("read {word} {target:?} in namespace {namespace:?}"))
    })?;
    let selector = exposed.selector(&object, &target)?;
    let ports = wishes.ports(args, exposed.instance_spec(&object))?;
    let manifest = wishes.service(args, &service, &selector, &ports);
    cluster.create(SERVICES, &namespace, &manifest).await.map_err(|error| {
        error.explain_plain(&format!("make the service {service:?} in namespace {namespace:?}"))
    })?;
    say(&format!("Service {service} successfully created for {word} {target}"))
}

/// What the flags say, checked.
#[derive(Debug, PartialEq, Eq)]
struct Wishes {
    protocol: &'static str,
    service_type: &'static str,
    families: Vec<&'static str>,
    policy: Option<&'static str>,
}

/// The one of `known` that `word` is, whatever its letters' case.
fn one_of(word: &str, known: &[&'static str]) -> Option<&'static str> {
    known.iter().find(|one| one.eq_ignore_ascii_case(word)).copied()
}

impl Wishes {
    fn of(args: &Expose) -> anyhow::Result<Wishes> {
        const PROTOCOLS: [&str; 2] = ["TCP", "UDP"];
        const TYPES: [&str; 3] = ["ClusterIP", "NodePort", "LoadBalancer"];
        const POLICIES: [&str; 3] = ["SingleStack", "PreferDualStack", "RequireDualStack"];
        let Some(protocol) = one_of(&args.protocol, &PROTOCOLS) else {
            bail!("unknown protocol: {}; {} are allowed", args.protocol, PROTOCOLS.join(" and "));
        };
        let Some(service_type) = one_of(&args.service_type, &TYPES) else {
            let known = if args.service_type.eq_ignore_ascii_case("ExternalName") {
                "type"
            } else {
                "unknown service type"
            };
            let not = if known == "type" { " not supported" } else { "" };
            bail!("{known}: {}{not}; {} are allowed", args.service_type, TYPES.join(", "));
        };
        let families = match args.ip_family.to_ascii_lowercase().as_str() {
            "" => vec![],
            "ipv4" => vec!["IPv4"],
            "ipv6" => vec!["IPv6"],
            "ipv4,ipv6" => vec!["IPv4", "IPv6"],
            "ipv6,ipv4" => vec!["IPv6", "IPv4"],
            _ => bail!(
                "unknown IPFamily/s: {}; IPv4, IPv6, IPv4,IPv6 and IPv6,IPv4 are allowed",
                args.ip_family
            ),
        };
        let policy = match args.ip_family_policy.as_str() {
            "" => (families.len() > 1).then_some("PreferDualStack"),
            word => match one_of(word, &POLICIES) {
                None => bail!("unknown IPFamilyPolicy/s: {word}; {} are allowed", POLICIES.join(", ")),
                policy => policy,
            },
        };
        Ok(Wishes { protocol, service_type, families, policy })
    }

    /// The Service's ports: that of the flags, or those that the machine lists for the pod's network.
    fn ports(&self, args: &Expose, spec: &Value) -> anyhow::Result<Vec<Value>> {
        if args.port != 0 {
            let mut port = json!({"protocol": self.protocol, "port": args.port});
            match args.target_port.parse::<i32>() {
                Ok(number) => port["targetPort"] = number.into(),
                Err(_) if !args.target_port.is_empty() => {
                    port["targetPort"] = args.target_port.as_str().into();
                }
                Err(_) => {}
            }
            if !args.port_name.is_empty() {
                port["name"] = args.port_name.as_str().into();
            }
            return Ok(vec![port]);
        }
        let ports = listed(spec);
        if ports.is_empty() {
            bail!("couldn't find port via --port flag or introspection");
        }
        Ok(ports)
    }

    fn service(&self, args: &Expose, name: &str, selector: &Value, ports: &[Value]) -> Value {
        let mut spec = json!({"type": self.service_type, "selector": selector, "ports": ports});
        if !args.cluster_ip.is_empty() {
            spec["clusterIP"] = args.cluster_ip.as_str().into();
        }
        if !args.external_ip.is_empty() {
            spec["externalIPs"] = json!([args.external_ip]);
        }
        if !self.families.is_empty() {
            spec["ipFamilies"] = json!(self.families);
        }
        if let Some(policy) = self.policy {
            spec["ipFamilyPolicy"] = policy.into();
        }
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
    }
}

/// The ports that the interface on the pod's network lists.
fn listed(spec: &Value) -> Vec<Value> {
    let all = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let of_pod = all(&spec["networks"]).into_iter().find(|network| network["pod"].is_object());
    let Some(network) = of_pod else { return Vec::new() };
    let interfaces = all(&spec["domain"]["devices"]["interfaces"]);
    let interface = interfaces.iter().find(|interface| interface["name"] == network["name"]);
    let ports = interface.map(|interface| all(&interface["ports"])).unwrap_or_default();
    let port = |(place, port): (usize, &Value)| {
        let mut rule = json!({"name": format!("port-{}", place + 1), "port": port["port"]});
        if let Some(protocol) = port["protocol"].as_str().filter(|word| !word.is_empty()) {
            rule["protocol"] = protocol.into();
        }
        rule
    };
    ports.iter().enumerate().map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(flags: &[&str]) -> Expose {
        let line = ["virtctl", "expose", "vmi", "web", "--name=web"].iter().chain(flags);
        let line: Vec<_> = line.map(Into::into).collect();
        match crate::help::parse(&line).unwrap().command {
            Some(crate::args::Command::Expose(args)) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_are_read_in_any_case_and_wrong_ones_are_told_with_what_is_allowed() {
        let flags = ["--protocol=udp", "--type=nodeport", "--ip-family=ipv6,IPv4"];
        let expected = Wishes {
            protocol: "UDP",
            service_type: "NodePort",
            families: vec!["IPv6", "IPv4"],
            policy: Some("PreferDualStack"),
        };
        assert_eq!(Wishes::of(&args(&flags)).unwrap(), expected);
        assert_eq!(Wishes::of(&args(&["--ip-family=IPv4"])).unwrap().policy, None);
        for (flag, words) in [
            ("--protocol=sctp", "unknown protocol: sctp; TCP and UDP"),
            ("--type=ExternalName", "type: ExternalName not supported"),
            ("--type=x", "unknown service type: x; ClusterIP, NodePort, LoadBalancer"),
            ("--ip-family=x", "unknown IPFamily/s: x"),
            ("--ip-family-policy=x", "unknown IPFamilyPolicy/s: x; SingleStack"),
        ] {
            let error = Wishes::of(&args(&[flag])).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }

    #[test]
    fn ports_are_the_flags_or_the_machines_on_the_pods_network() {
        let spec = json!({
            "networks": [{"name": "blue", "multus": {"networkName": "n"}}, {"name": "default", "pod": {}}],
            "domain": {"devices": {"interfaces": [
                {"name": "blue", "ports": [{"port": 1}]},
                {"name": "default", "ports": [{"name": "web", "port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]},
            ]}},
        });
        let ports = |flags: &[&str], spec: &Value| {
            let args = args(flags);
            Wishes::of(&args).unwrap().ports(&args, spec)
        };
        assert_eq!(
            ports(&[], &spec).unwrap(),
            [
                json!({"name": "port-1", "port": 80, "protocol": "TCP"}),
                json!({"name": "port-2", "port": 53, "protocol": "UDP"})
            ]
        );
        assert_eq!(
            ports(&["--port=80", "--target-port=8080", "--port-name=web"], &spec).unwrap(),
            [json!({"name": "web", "protocol": "TCP", "port": 80, "targetPort": 8080})]
        );
        assert_eq!(
            ports(&["--port=80", "--target-port=http"], &spec).unwrap(),
            [json!({"protocol": "TCP", "port": 80, "targetPort": "http"})]
        );
        let error = ports(&[], &json!({})).unwrap_err().to_string();
        assert_eq!(error, "couldn't find port via --port flag or introspection");
    }

    #[test]
    fn a_replica_set_is_selected_by_its_labels_alone() {
        let select = |selector: Value| {
            Exposed::of("vmirs").unwrap().selector(&json!({"spec": {"selector": selector}}), "web")
        };
        assert_eq!(select(json!({"matchLabels": {"a": "b"}})).unwrap(), json!({"a": "b"}));
        assert!(select(json!({})).is_err());
        assert!(select(json!({"matchLabels": {"a": "b"}, "matchExpressions": [{}]})).is_err());
        let by_name = Exposed::of("vm").unwrap().selector(&json!({}), "web").unwrap();
        assert_eq!(by_name, json!({"vmi.kubevirt.io/id": "web"}));
        assert!(Exposed::of("pod").unwrap_err().to_string().contains("vmi, vm and vmirs are allowed"));
    }
}
