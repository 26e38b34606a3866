//! What ADD answers (CNI specification 1.1, section 5, "ADD Success"), in the form of the version that was asked for.

use std::net::IpAddr;

use ipnet::IpNet;
use podvirt_api::mac::MacAddr;
use serde_json::{Value, json};

use crate::config::{Network, VERSIONS};
use crate::error::{Code, Error};

/// An interface that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its MTU, bytes.
    pub mtu: u32,
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// On the node, with a veth pair.
    pub host: Option<Interface>,
    /// In the pod.
    pub pod: Interface,
    /// The pod's network namespace.
    pub sandbox: String,
    /// The pod's addresses.
    pub addresses: Vec<IpNet>,
}

/// What CHECK has to find again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The pod's addresses.
    pub addresses: Vec<IpNet>,
    /// The pod's MAC address.
    pub mac: MacAddr,
}

/// The answer to VERSION.
pub fn versions() -> Value {
    json!({"cniVersion": VERSIONS[VERSIONS.len() - 1], "supportedVersions": VERSIONS})
}

/// The answer to ADD.
pub fn added(network: &Network, made: &Made) -> Value {
    let old = network.version.starts_with("0.");
    let interface = |i: &Interface, sandbox: Option<&str>| {
        let mut object = json!({"name": i.name, "mac": i.mac.to_string()});
        if let Some(sandbox) = sandbox {
            object["sandbox"] = json!(sandbox);
        }
        if network.version == "1.1.0" {
            object["mtu"] = json!(i.mtu);
        }
        object
    };
    let mut interfaces: Vec<Value> = made.host.iter().map(|i| interface(i, None)).collect();
    interfaces.push(interface(&made.pod, Some(&made.sandbox)));
    let inside = interfaces.len() - 1;
    let ips: Vec<Value> = made
        .addresses
        .iter()
        .map(|address| {
            let mut object = json!({"address": address.to_string(), "interface": inside});
            if let Some(gateway) = network.gateway(address.addr()) {
                object["gateway"] = json!(gateway.to_string());
            }
            if old {
                object["version"] = json!(if address.addr().is_ipv4() { "4" } else { "6" });
            }
            object
        })
        .collect();
    let routes: Vec<Value> = network
        .routes
        .iter()
        .map(|route| match route_gateway(network, route, &made.addresses) {
            Some(gateway) => json!({"dst": route.destination.to_string(), "gw": gateway.to_string()}),
            None => json!({"dst": route.destination.to_string()}),
        })
        .collect();
    let mut result = json!({
        "cniVersion": network.version,
        "interfaces": interfaces,
        "dns": network.dns.clone().unwrap_or_else(|| json!({})),
    });
    if !ips.is_empty() {
        result["ips"] = json!(ips);
    }
    if !routes.is_empty() {
        result["routes"] = json!(routes);
    }
    result
}

/// The router of `route` for an interface with `addresses`; none: the destination is on the link.
pub fn route_gateway(network: &Network, route: &crate::config::Route, addresses: &[IpNet]) -> Option<IpAddr> {
    let ipv4 = route.destination.addr().is_ipv4();
    let of_family = |a: &&IpNet| a.addr().is_ipv4() == ipv4;
    route.gateway.or_else(|| addresses.iter().filter(of_family).find_map(|a| network.gateway(a.addr())))
}

/// What CHECK has to find of the interface `ifname`, by ADD's answer.
///
/// # Errors
/// There is no answer of ADD, or the interface is not in it.
pub fn expected(network: &Network, ifname: &str) -> Result<Expected, Error> {
    let wrong = |what: &str| Error::new(Code::Config, format!("prevResult {what}"));
    let previous = network.previous.as_ref().ok_or_else(|| wrong("is missing: CHECK needs it"))?;
    let list = |key: &str| previous.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let interfaces = list("interfaces");
    let is_ours =
        |i: &Value| i["name"] == ifname && i["sandbox"].as_str().is_some_and(|sandbox| !sandbox.is_empty());
    let index =
        interfaces.iter().position(is_ours).ok_or_else(|| wrong(&format!("has no interface {ifname:?}")))?;
    let mac = interfaces[index]["mac"].as_str().and_then(|text| text.parse().ok());
    let mac = mac.ok_or_else(|| wrong(&format!("has no MAC address of {ifname:?}")))?;
    let addresses = list("ips")
        .iter()
        .filter(|ip| ip["interface"].as_u64() == Some(index as u64))
        .map(|ip| {
            ip["address"]
                .as_str()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| wrong("has a wrong address"))
        })
        .collect::<Result<_, Error>>()?;
    Ok(Expected { addresses, mac })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(version: &str) -> Network {
        let config = json!({
            "cniVersion": version, "name": "flat", "bridge": "br1", "dns": {"nameservers": ["172.30.0.1"]},
            "ipam": {"ranges": [[{"subnet": "172.30.0.0/24", "gateway": "172.30.0.1"}], [{"subnet": "fd00:30::/64"}]],
                     "routes": [{"dst": "0.0.0.0/0"}]},
        });
        Network::read(config.to_string().as_bytes(), None).unwrap()
    }

    fn made() -> Made {
        let interface = |name: &str, last| Interface {
            name: name.into(),
            mac: MacAddr([2, 0, 0, 0, 0, last]),
            mtu: 1500,
        };
        Made {
            host: Some(interface("pv0", 1)),
            pod: interface("net1", 2),
            sandbox: "/run/netns/x".into(),
            addresses: vec!["172.30.0.9/24".parse().unwrap(), "fd00:30::9/64".parse().unwrap()],
        }
    }

    #[test]
    fn the_answer_has_interfaces_addresses_and_routes() {
        let expected = json!({
            "cniVersion": "1.1.0",
            "interfaces": [
                {"name": "pv0", "mac": "02:00:00:00:00:01", "mtu": 1500},
                {"name": "net1", "mac": "02:00:00:00:00:02", "mtu": 1500, "sandbox": "/run/netns/x"},
            ],
            "ips": [
                {"address": "172.30.0.9/24", "gateway": "172.30.0.1", "interface": 1},
                {"address": "fd00:30::9/64", "interface": 1},
            ],
            "routes": [{"dst": "0.0.0.0/0", "gw": "172.30.0.1"}],
            "dns": {"nameservers": ["172.30.0.1"]},
        });
        assert_eq!(added(&network("1.1.0"), &made()), expected);
    }

    #[test]
    fn older_versions_name_the_family_and_no_mtu() {
        let answer = added(&network("0.3.1"), &made());
        assert_eq!(answer["ips"][1]["version"], "6");
        assert_eq!(answer["interfaces"][0].get("mtu"), None);
        assert_eq!(added(&network("1.0.0"), &made())["ips"][0].get("version"), None);
    }

    #[test]
    fn check_finds_again_what_add_has_answered() {
        let mut network = network("1.1.0");
        assert!(expected(&network, "net1").unwrap_err().msg.contains("prevResult"));
        network.previous = Some(added(&network, &made()));
        let found = expected(&network, "net1").unwrap();
        assert_eq!(found, Expected { addresses: made().addresses, mac: made().pod.mac });
        assert!(expected(&network, "pv0").is_err(), "not in the pod");
        assert!(expected(&network, "net2").is_err());
    }
}
