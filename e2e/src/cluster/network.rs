//! Networks of Multus that a test defines, and the test's own place on the segment that spans the nodes.

use std::net::IpAddr;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Namespace, Node};

/// The segment's switch, in the control plane as on the nodes.
pub const SEGMENT: &str = "br1";
/// By it a pod says what its first network is.
pub const FIRST_NETWORK: &str = "v1.multus-cni.io/default-network";

impl Namespace<'_> {
    /// Defines a network by the configuration of a CNI plugin, to which version and name are added.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn network(&self, name: &str, plugin: &Value) -> Result<()> {
        let mut config = plugin.clone();
        // One that every runtime knows: what a pod's first network answers goes to the runtime, which may not know 1.1.0.
        config["cniVersion"] = "1.0.0".into();
        if config["name"].is_null() {
            config["name"] = format!("{}-{name}", self.name()).into();
        }
        let manifest = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": name}, "spec": {"config": config.to_string()},
        });
        self.apply(&manifest.to_string())
    }

    /// Defines the pods' network of a node once more, as `change` makes it of the list of its plugins, and returns the
    /// annotation by which a pod on that node has it as its first network. Its addresses are of the same pool: no pod
    /// of the node has them.
    ///
    /// # Errors
    /// The node cannot be asked, or the API server refuses it.
    pub fn first_network(
        &self,
        name: &str,
        node: Node<'_>,
        change: impl FnOnce(&mut Vec<Value>),
    ) -> Result<String> {
        let text = node.run(&["cat", "/etc/cni/net.d/10-pods.conflist"])?;
        let mut config: Value = serde_json::from_str(&text)?;
        change(config["plugins"].as_array_mut().context("a list of plugins")?);
        self.network(name, &config)?;
        Ok(format!("{FIRST_NETWORK}: {}/{name}", self.name()))
    }
}

/// Addresses of this process on an interface of the control plane's, until this is dropped.
#[must_use = "dropping it takes the addresses away"]
pub struct Joined {
    device: &'static str,
    addresses: Vec<String>,
}

impl Joined {
    /// On the segment, each with the length of its prefix.
    ///
    /// # Errors
    /// It cannot have them.
    pub fn segment(addresses: &[(IpAddr, u8)]) -> Result<Joined> {
        let mut joined = Joined { device: SEGMENT, addresses: Vec::new() };
        for (address, bits) in addresses {
            let address = format!("{address}/{bits}");
            joined.ip("replace", &address)?;
            joined.addresses.push(address);
        }
        Ok(joined)
    }

    fn ip(&self, verb: &str, address: &str) -> Result<()> {
        let out = Command::new("ip")
            .args(["address", verb, address, "dev", self.device])
            .args(address.contains(':').then_some("nodad"))
            .output()
            .context("cannot start ip")?;
        ensure!(
            out.status.success(),
            "ip address {verb} {address}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        Ok(())
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        for address in &self.addresses {
            drop(self.ip("del", address));
        }
    }
}
