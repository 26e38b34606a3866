//! A network of podvirt-cni on the segment that spans the nodes, and the test's own place on it.
//!
//! Addresses on it belong to machines, not to pods: what a machine has there goes along when it moves. The control plane
//! has a port of the segment's switch, so the test's process can have an address there, too, and be the machine's peer.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::{Joined, Namespace, SEGMENT};

/// Pods that are gone, and the collector's next pass.
const FREED: Duration = Duration::from_secs(180);

/// A network with the name of the test's namespace: addresses are unique within a name, so those of another
/// test do not matter here. Its attachment definition is called `flat`.
pub struct Flat<'n> {
    namespace: &'n Namespace<'n>,
    subnet: u8,
    joined: Option<Joined>,
}

impl<'n> Flat<'n> {
    /// Makes 172.30.`subnet`.0/24 and fd00:30:`subnet`::/64; of each it leases all but what the test has.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn new(namespace: &'n Namespace<'n>, subnet: u8) -> Result<Flat<'n>> {
        Self::leasing(namespace, subnet, 0)
    }

    /// The same with that many addresses of each family; 0: all.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn leasing(namespace: &'n Namespace<'n>, subnet: u8, addresses: u8) -> Result<Flat<'n>> {
        let flat = Flat { namespace, subnet, joined: None };
        let [own4, own6] = flat.addresses();
        let range = |net: String, own: IpAddr, host: &dyn Fn(u8) -> IpAddr| {
            let bits = if own.is_ipv4() { 32 } else { 128 };
            let mut range = serde_json::json!({"subnet": net, "exclude": [format!("{own}/{bits}")]});
            if addresses > 0 {
                range["rangeStart"] = host(10).to_string().into();
                range["rangeEnd"] = host(9 + addresses).to_string().into();
            }
            range
        };
        let ranges = [
            [range(format!("172.30.{subnet}.0/24"), own4, &|host| v4(subnet, host))],
            [range(format!("fd00:30:{subnet}::/64"), own6, &|host| v6(subnet, host))],
        ];
        let config = serde_json::json!({
            "name": namespace.name(), "type": "podvirt-cni", "bridge": SEGMENT,
            "capabilities": {"mac": true, "ips": true}, "ipam": {"ranges": ranges},
        });
        namespace.network("flat", &config)?;
        Ok(flat)
    }

    /// The test's addresses, IPv4 and IPv6, once it has [joined](Self::join).
    pub fn addresses(&self) -> [IpAddr; 2] {
        [v4(self.subnet, 250), v6(self.subnet, 250)]
    }

    /// Gives this process its place on the network, until this is dropped.
    ///
    /// # Errors
    /// It cannot have it.
    pub fn join(&mut self) -> Result<()> {
        let [own4, own6] = self.addresses();
        self.joined = Some(Joined::segment(&[(own4, 24), (own6, 64)])?);
        Ok(())
    }

    /// Objects of this network, of a kind such as `addressleases`.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn objects(&self, kind: &str) -> Result<Vec<Value>> {
        let text = self.namespace.kubectl(&["get", kind, "-A", "-o", "json"])?;
        let all: Value = serde_json::from_str(&text)?;
        let ours = |object: &&Value| object["spec"]["network"] == self.namespace.name();
        Ok(all["items"].as_array().into_iter().flatten().filter(ours).cloned().collect())
    }

    /// Addresses that are held on it.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn held(&self) -> Result<BTreeSet<String>> {
        let held = self.objects("leasedaddresses")?;
        Ok(held.iter().filter_map(|object| object["spec"]["address"].as_str().map(str::to_owned)).collect())
    }

    /// Waits until only these are held.
    ///
    /// # Errors
    /// Others still are.
    pub fn wait_freed(&self, kept: &BTreeSet<String>) -> Result<()> {
        self.namespace.until("the addresses are free", FREED, || Ok((self.held()? == *kept).then_some(())))
    }
}

fn v4(subnet: u8, host: u8) -> IpAddr {
    Ipv4Addr::new(172, 30, subnet, host).into()
}

/// The digits of `subnet` are the group's, as they are in the range's text.
fn v6(subnet: u8, host: u8) -> IpAddr {
    let group = u16::from_str_radix(&subnet.to_string(), 16).unwrap_or_default();
    Ipv6Addr::new(0xfd00, 0x30, group, 0, 0, 0, 0, u16::from(host)).into()
}
