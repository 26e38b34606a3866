//! The network's configuration, as the runtime or Multus writes it to standard input (CNI specification 1.1,
//! section 1), and what of it is podvirt-cni's own:
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0", "name": "flat", "type": "podvirt-cni",
//!   "mode": "bridge", "bridge": "br1", "mtu": 1500,
//!   "capabilities": {"mac": true, "ips": true},
//!   "ipam": {
//!     "ranges": [[{"subnet": "172.30.0.0/24", "rangeStart": "172.30.0.10", "gateway": "172.30.0.1", "exclude": ["172.30.0.128/25"]}],
//!                [{"subnet": "fd00:30::/64"}]],
//!     "routes": [{"dst": "0.0.0.0/0"}]
//!   }
//! }
//! ```
//!
//! A field of another plugin that podvirt-cni does not carry out is refused. A field that belongs to no known plugin is passed
//! over, since runtimes add fields of their own.

use std::net::IpAddr;

use ipnet::IpNet;
use podvirt_api::mac::MacAddr;
use serde::Deserialize;
use serde_json::Value;

use crate::args::{self, Attachment};
use crate::error::{Code, Error};
use crate::range::{Range, RangeSet};

/// Versions of the specification that are spoken, oldest first.
pub const VERSIONS: &[&str] = &["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Smallest and largest MTU, bytes: IPv6 needs 1280 (RFC 8200, section 5), but a network without it does with 68
/// (RFC 791); Linux gives veth and bridges up to 65535.
const MTU: std::ops::RangeInclusive<u32> = 68..=65535;

/// What the pod's interface is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// One end of a veth pair; the other is a port of this bridge of the node.
    Bridge(String),
    /// A macvlan interface, mode bridge, on this interface of the node.
    Macvlan(String),
}

/// A route that pods get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to.
    pub destination: IpNet,
    /// Over which router; the range's gateway where not said.
    pub gateway: Option<IpAddr>,
}

/// A network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Version of the specification that the answer has to follow.
    pub version: String,
    /// The network's name: addresses are unique within it.
    pub name: String,
    /// The interface.
    pub link: Link,
    /// Its MTU, bytes; the bridge's or the master's where not said.
    pub mtu: Option<u32>,
    /// One address of each.
    pub sets: Vec<RangeSet>,
    /// Routes.
    pub routes: Vec<Route>,
    /// Handed on as it is.
    pub dns: Option<Value>,
    /// The MAC address that the pod asks for.
    pub mac: Option<MacAddr>,
    /// The addresses that the pod asks for.
    pub wishes: Vec<IpAddr>,
    /// CHECK and DEL: what ADD has answered.
    pub previous: Option<Value>,
    /// GC: what is there by right.
    pub valid: Option<Vec<Attachment>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    cni_version: Option<String>,
    #[serde(default)]
    name: String,
    mode: Option<String>,
    bridge: Option<String>,
    master: Option<String>,
    mtu: Option<u32>,
    #[serde(default)]
    ipam: Ipam,
    dns: Option<Value>,
    #[serde(default)]
    runtime_config: RuntimeConfig,
    #[serde(default)]
    args: Args,
    prev_result: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid: Option<Vec<Attachment>>,
    /// The name under which early runtimes of 1.1 wrote the list.
    #[serde(rename = "cni.dev/attachments")]
    early_valid: Option<Vec<Attachment>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ipam {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    ranges: Vec<Vec<RawRange>>,
    #[serde(default)]
    routes: Vec<RawRoute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawRange {
    subnet: IpNet,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
    #[serde(default)]
    exclude: Vec<IpNet>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRoute {
    dst: IpNet,
    gw: Option<IpAddr>,
}

#[derive(Default, Deserialize)]
struct RuntimeConfig {
    mac: Option<String>,
    #[serde(default)]
    ips: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Args {
    #[serde(default)]
    cni: RuntimeConfig,
}

/// The version that a configuration asks for, as far as it can be read: for answers to what is wrong in it.
pub fn version_of(config: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Only {
        #[serde(rename = "cniVersion")]
        version: String,
    }
    let asked = serde_json::from_slice::<Only>(config).map(|only| only.version).unwrap_or_default();
    if VERSIONS.contains(&asked.as_str()) { asked } else { VERSIONS[VERSIONS.len() - 1].to_owned() }
}

impl Network {
    /// Reads a configuration. `mac` is a MAC address that CNI_ARGS ask for.
    ///
    /// # Errors
    /// It is no JSON, or says what cannot be.
    pub fn read(config: &[u8], mac: Option<&str>) -> Result<Network, Error> {
        let decode = |e: serde_json::Error| {
            Error::because(Code::Decode, "the network's configuration cannot be read", &e)
        };
        let value: Value = serde_json::from_slice(config).map_err(decode)?;
        let asked = value.get("cniVersion").and_then(Value::as_str).unwrap_or_default();
        if !VERSIONS.contains(&asked) {
            let allowed = VERSIONS.join(", ");
            let msg = format!("cniVersion is {asked:?}; allowed: {allowed}");
            return Err(Error::new(Code::IncompatibleVersion, msg));
        }
        refuse_foreign(&value)?;
        let raw: Raw = serde_json::from_value(value).map_err(decode)?;
        if !args::is_identifier(&raw.name) {
            let allowed = "letters, digits, '_', '.', '-', a letter or digit first";
            return Err(wrong(format!("name is {:?}; allowed: {allowed}", raw.name)));
        }
        if let Some(kind) = raw.ipam.kind.as_deref().filter(|k| !["", "podvirt-cni"].contains(k)) {
            let msg = format!("ipam.type is {kind:?}; allowed: podvirt-cni, or nothing");
            return Err(Error::new(Code::UnsupportedField, msg));
        }
        if let Some(mtu) = raw.mtu.filter(|mtu| !MTU.contains(mtu)) {
            let (low, high) = MTU.into_inner();
            return Err(wrong(format!("mtu is {mtu}; allowed: {low} to {high}")));
        }
        let link = link(&raw)?;
        let sets = sets(&raw.ipam.ranges)?;
        let routes = routes(&raw.ipam.routes, &sets)?;
        let runtime = [raw.runtime_config, raw.args.cni];
        let mac = runtime[0].mac.as_deref().or(mac).or(runtime[1].mac.as_deref()).filter(|m| !m.is_empty());
        let wishes = runtime.iter().map(|r| &r.ips).find(|ips| !ips.is_empty());
        Ok(Network {
            version: raw.cni_version.unwrap_or_default(),
            name: raw.name,
            link,
            mtu: raw.mtu,
            mac: mac.map(read_mac).transpose()?,
            wishes: wishes.map_or(Ok(Vec::new()), |ips| read_wishes(ips, &sets))?,
            sets,
            routes,
            dns: raw.dns,
            previous: raw.prev_result,
            valid: raw.valid.or(raw.early_valid),
        })
    }

    /// Reads of a configuration what removing needs. A pod must come to its end, also when its addresses are no more
    /// the network's.
    ///
    /// # Errors
    /// As [`Network::read`].
    pub fn read_for_removal(config: &[u8]) -> Result<Network, Error> {
        let Ok(Value::Object(mut fields)) = serde_json::from_slice(config) else {
            return Network::read(config, None);
        };
        fields.retain(|key, _| !["ipam", "runtimeConfig", "args", "mtu"].contains(&key.as_str()));
        Network::read(Value::Object(fields).to_string().as_bytes(), None)
    }

    /// The router that `address` reaches other networks over.
    pub fn gateway(&self, address: IpAddr) -> Option<IpAddr> {
        self.sets.iter().find_map(|set| set.range_of(address))?.gateway
    }
}

/// Refuses what plugins of the same kind do and this plugin does not: if such a field were passed over, a network would
/// not be what its author thinks.
fn refuse_foreign(value: &Value) -> Result<(), Error> {
    const FOREIGN: &[&str] = &[
        "vlan",
        "vlanTrunk",
        "isGateway",
        "isDefaultGateway",
        "ipMasq",
        "promiscMode",
        "macspoofchk",
        "portIsolation",
        "linkInContainer",
    ];
    for field in FOREIGN {
        let set = match value.get(field) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Number(n)) => n.as_u64() != Some(0),
            Some(Value::Array(list)) => !list.is_empty(),
            Some(_) => true,
        };
        if set {
            let msg = format!("{field} is not carried out by podvirt-cni; allowed: not set");
            return Err(Error::new(Code::UnsupportedField, msg));
        }
    }
    Ok(())
}

fn link(raw: &Raw) -> Result<Link, Error> {
    let name = |field: &str, value: &Option<String>| match value.as_deref() {
        Some(name) if !name.is_empty() && name.len() <= 15 => Ok(name.to_owned()),
        other => {
            let value = other.unwrap_or_default();
            Err(wrong(format!("{field} is {value:?}; allowed: the name of an interface of the node")))
        }
    };
    match raw.mode.as_deref().unwrap_or("bridge") {
        "bridge" => Ok(Link::Bridge(name("bridge", &raw.bridge)?)),
        "macvlan" => Ok(Link::Macvlan(name("master", &raw.master)?)),
        other => Err(wrong(format!("mode is {other:?}; allowed: bridge, macvlan"))),
    }
}

fn sets(raw: &[Vec<RawRange>]) -> Result<Vec<RangeSet>, Error> {
    let mut sets: Vec<RangeSet> = Vec::new();
    for (i, ranges) in raw.iter().enumerate() {
        let ranges = ranges
            .iter()
            .map(|r| Range {
                subnet: r.subnet.trunc(),
                first: r.range_start.unwrap_or(r.subnet.network()),
                last: r.range_end.unwrap_or(r.subnet.broadcast()),
                gateway: r.gateway,
                exclude: r.exclude.iter().map(IpNet::trunc).collect(),
            })
            .collect();
        let set = RangeSet::new(ranges)
            .map_err(|e| Error::because(Code::Config, format!("ipam.ranges[{i}] cannot be"), &e))?;
        if let Some((a, b)) = sets.iter().find_map(|other| other.common_subnet(&set)) {
            return Err(wrong(format!(
                "ipam.ranges[{i}] has the subnet {b}, which overlaps {a} of another list"
            )));
        }
        sets.push(set);
    }
    Ok(sets)
}

fn routes(raw: &[RawRoute], sets: &[RangeSet]) -> Result<Vec<Route>, Error> {
    raw.iter()
        .map(|route| {
            let ipv4 = route.dst.addr().is_ipv4();
            if route.gw.is_some_and(|gw| gw.is_ipv4() != ipv4) {
                return Err(wrong(format!("ipam.routes: the gateway of {} is of another family", route.dst)));
            }
            if sets.is_empty() {
                return Err(wrong(format!("ipam.routes has {}, but ipam.ranges is empty", route.dst)));
            }
            Ok(Route { destination: route.dst.trunc(), gateway: route.gw })
        })
        .collect()
}

fn read_mac(text: &str) -> Result<MacAddr, Error> {
    let allowed = "six pairs of hexadecimal digits, unicast and not zero";
    let mac: Option<MacAddr> = text.parse().ok().filter(|mac: &MacAddr| mac.is_usable());
    mac.ok_or_else(|| wrong(format!("mac is {text:?}; allowed: {allowed}")))
}

fn read_wishes(texts: &[String], sets: &[RangeSet]) -> Result<Vec<IpAddr>, Error> {
    let mut used = vec![false; sets.len()];
    texts
        .iter()
        .map(|text| {
            let bare = text.split('/').next().unwrap_or_default();
            let address: IpAddr =
                bare.parse().map_err(|_| wrong(format!("ips has {text:?}; allowed: addresses")))?;
            let set = sets.iter().position(|set| set.offers(address));
            let Some(set) = set else {
                return Err(wrong(format!("ips has {address}, which no range of the network offers")));
            };
            if std::mem::replace(&mut used[set], true) {
                return Err(wrong(format!(
                    "ips has {address} and another of ipam.ranges[{set}]; allowed: one a list"
                )));
            }
            Ok(address)
        })
        .collect()
}

fn wrong(msg: String) -> Error {
    Error::new(Code::Config, msg)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn base() -> Value {
        json!({
            "cniVersion": "1.1.0", "name": "flat", "type": "podvirt-cni", "bridge": "br1",
            "ipam": {
                "ranges": [[{"subnet": "172.30.0.0/24", "gateway": "172.30.0.1"}], [{"subnet": "fd00:30::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd00::/8", "gw": "fd00:30::1"}],
            },
        })
    }

    fn with(changes: Value) -> Result<Network, Error> {
        let mut config = base();
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        Network::read(config.to_string().as_bytes(), None)
    }

    #[test]
    fn a_configuration_is_read() {
        let network = with(
            json!({"mtu": 1400, "runtimeConfig": {"mac": "02:00:00:00:00:07", "ips": ["172.30.0.9/24"]}}),
        )
        .unwrap();
        assert_eq!(network.link, Link::Bridge("br1".into()));
        assert_eq!((network.name.as_str(), network.mtu, network.sets.len()), ("flat", Some(1400), 2));
        assert_eq!(network.mac, Some(MacAddr([2, 0, 0, 0, 0, 7])));
        assert_eq!(network.wishes, ["172.30.0.9".parse::<IpAddr>().unwrap()]);
        assert_eq!(network.gateway("172.30.0.9".parse().unwrap()), Some("172.30.0.1".parse().unwrap()));
        assert_eq!(network.routes[1].gateway, Some("fd00:30::1".parse().unwrap()));
        let macvlan = with(json!({"mode": "macvlan", "master": "eth1"})).unwrap();
        assert_eq!(macvlan.link, Link::Macvlan("eth1".into()));
    }

    #[test]
    fn a_mac_address_of_the_runtime_goes_before_those_of_the_arguments() {
        let config = base().to_string();
        let mac = |n| Some(MacAddr([2, 0, 0, 0, 0, n]));
        assert_eq!(Network::read(config.as_bytes(), Some("02:00:00:00:00:01")).unwrap().mac, mac(1));
        let both = with(
            json!({"args": {"cni": {"mac": "02:00:00:00:00:02"}}, "runtimeConfig": {"mac": "02:00:00:00:00:03"}}),
        );
        assert_eq!(both.unwrap().mac, mac(3));
        assert_eq!(with(json!({"args": {"cni": {"mac": "02:00:00:00:00:02"}}})).unwrap().mac, mac(2));
    }

    #[test]
    fn lists_of_valid_attachments_are_read_under_both_names() {
        let list = json!([{"containerID": "a", "ifname": "net1"}]);
        let expected = Some(vec![Attachment { container: "a".into(), ifname: "net1".into() }]);
        assert_eq!(with(json!({"cni.dev/valid-attachments": list})).unwrap().valid, expected);
        assert_eq!(with(json!({"cni.dev/attachments": list})).unwrap().valid, expected);
        let both = with(json!({"cni.dev/valid-attachments": list, "cni.dev/attachments": []}));
        assert_eq!(both.unwrap().valid, expected);
        assert_eq!(with(json!({})).unwrap().valid, None);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_specifications_code_and_the_field() {
        for (changes, code, field) in [
            (json!({"cniVersion": "9.0.0"}), Code::IncompatibleVersion, "cniVersion"),
            (json!({"cniVersion": 1}), Code::IncompatibleVersion, "cniVersion"),
            (json!({"name": "a/b"}), Code::Config, "name"),
            (json!({"bridge": ""}), Code::Config, "bridge"),
            (json!({"mode": "ipvlan"}), Code::Config, "mode"),
            (json!({"mode": "macvlan"}), Code::Config, "master"),
            (json!({"mtu": 10}), Code::Config, "mtu"),
            (json!({"vlan": 7}), Code::UnsupportedField, "vlan"),
            (json!({"isGateway": true}), Code::UnsupportedField, "isGateway"),
            (json!({"ipam": {"type": "host-local"}}), Code::UnsupportedField, "ipam.type"),
            (json!({"ipam": {"ranges": [[{"subnet": "x"}]]}}), Code::Decode, ""),
            (json!({"ipam": {"ranges": [[{"subnet": "10.0.0.0/24", "range": 1}]]}}), Code::Decode, ""),
            (json!({"ipam": {"ranges": [[]]}}), Code::Config, "ipam.ranges[0]"),
            (
                json!({"ipam": {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.0.0.0/16"}]]}}),
                Code::Config,
                "overlaps",
            ),
            (json!({"ipam": {"routes": [{"dst": "0.0.0.0/0"}]}}), Code::Config, "ipam.routes"),
            (json!({"runtimeConfig": {"mac": "01:00:00:00:00:07"}}), Code::Config, "mac"),
            (json!({"runtimeConfig": {"ips": ["172.30.0.1"]}}), Code::Config, "172.30.0.1"),
            (json!({"runtimeConfig": {"ips": ["172.30.0.2", "172.30.0.3"]}}), Code::Config, "one a list"),
        ] {
            let error = with(changes.clone()).unwrap_err();
            assert_eq!(error.code, code, "{changes}: {error}");
            assert!(error.msg.contains(field), "{changes}: {error}");
        }
        assert_eq!(with(json!({"vlan": 0, "ipMasq": false})).unwrap().name, "flat");
        assert_eq!(Network::read(b"{", None).unwrap_err().code, Code::Decode);
    }

    #[test]
    fn what_removing_does_not_need_does_not_keep_from_it() {
        let mut config = base();
        config["runtimeConfig"] = json!({"ips": ["10.0.0.1"], "mac": "nonsense"});
        config["ipam"] = json!({"ranges": [[{"subnet": "10.0.0.0/33"}]]});
        let config = config.to_string();
        assert!(Network::read(config.as_bytes(), None).is_err());
        let network = Network::read_for_removal(config.as_bytes()).unwrap();
        assert_eq!((network.name.as_str(), network.link), ("flat", Link::Bridge("br1".into())));
        assert_eq!(Network::read_for_removal(b"{").unwrap_err().code, Code::Decode);
    }

    #[test]
    fn an_answer_to_an_unreadable_configuration_has_a_version() {
        assert_eq!(version_of(b"{\"cniVersion\": \"0.4.0\"}"), "0.4.0");
        assert_eq!(version_of(b"{\"cniVersion\": \"7\"}"), "1.1.0");
        assert_eq!(version_of(b"nothing"), "1.1.0");
    }
}
