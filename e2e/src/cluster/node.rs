//! The nodes' power switches and cables.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1 as core;
use kube::api::ListParams;
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};

use super::{Cluster, cluster};
use crate::until;

/// A node's return, and that of its pods.
const REPAIR: Duration = Duration::from_secs(120);

/// One of the two nodes.
#[derive(Clone, Copy)]
pub struct Node<'c> {
    cluster: &'c Cluster,
    number: u8,
}

/// A node without power or network, which is whole again when this is dropped.
#[must_use = "dropping it repairs the node"]
pub struct Down<'c> {
    cluster: &'c Cluster,
    number: u8,
    repair: Option<&'static str>,
}

impl<'c> Node<'c> {
    pub(super) fn new(cluster: &'c Cluster, number: u8) -> Node<'c> {
        Node { cluster, number }
    }

    /// Its name as a Kubernetes object.
    pub fn name(&self) -> String {
        format!("node{}", self.number)
    }

    /// 1 or 2.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Takes its power away: all its processes are gone, nothing says farewell, its disks stay.
    ///
    /// # Errors
    /// It has none.
    pub fn kill(&self) -> Result<Down<'c>> {
        self.take_down("kill-node", "start-node")
    }

    /// Pulls its network cable; it runs on.
    ///
    /// # Errors
    /// It is off.
    pub fn partition(&self) -> Result<Down<'c>> {
        self.take_down("partition", "heal")
    }

    fn take_down(&self, verb: &str, repair: &'static str) -> Result<Down<'c>> {
        self.spread()?;
        cluster(&[verb, &self.number.to_string()])?;
        Ok(Down { cluster: self.cluster, number: self.number, repair: Some(repair) })
    }

    /// Sees to it that the other node has replicas of podvirt's control plane, too: a drain moves all of them to one, and
    /// nothing moves them back.
    fn spread(&self) -> Result<()> {
        for app in ["virt-api", "virt-controller"] {
            let pods: Api<core::Pod> = Api::namespaced(self.cluster.client(), "kubevirt");
            let list = || -> Result<Vec<core::Pod>> {
                let of = ListParams::default().labels(&format!("kubevirt.io={app}"));
                Ok(self.cluster.block_on(pods.list(&of))?.items)
            };
            let on = |pod: &core::Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let here = |pod: &&core::Pod| on(pod) == Some(self.name());
            let all = list()?;
            let Some(one) = all.iter().find(here).filter(|_| all.iter().all(|pod| here(&pod))) else {
                continue;
            };
            self.cluster.kubectl(&["-n", "kubevirt", "delete", "pod", &one.name_any()])?;
            let ready = |pod: &core::Pod| {
                let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
                conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
            };
            until(&format!("{app} on both nodes"), REPAIR, || {
                Ok(list()?.iter().any(|pod| !here(&pod) && ready(pod)).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Runs a command on the node, as root beside the kubelet, and returns what it printed.
    ///
    /// # Errors
    /// It failed or the node is off.
    pub fn run(&self, command: &[&str]) -> Result<String> {
        let number = self.number.to_string();
        cluster(&[&["node", &number], command].concat())
    }

    /// A directory of the node's disks, such as `/var/lib/kubelet`, as this machine has it.
    pub fn directory(&self, path: &str) -> PathBuf {
        self.cluster.home().join(self.name()).join(path.trim_start_matches('/'))
    }

    /// Waits until the API server takes the node for ready, or for not ready.
    ///
    /// # Errors
    /// It does not within `limit`.
    pub fn wait_ready(&self, ready: bool, limit: Duration) -> Result<()> {
        let api: Api<core::Node> = Api::all(self.cluster.client());
        let name = self.name();
        let wanted = move |node: Option<&core::Node>| node.is_some_and(|n| is_ready(n) == ready);
        let waited = self
            .cluster
            .block_on(async { tokio::time::timeout(limit, await_condition(api, &name, wanted)).await });
        let word = if ready { "ready" } else { "not ready" };
        waited.map_err(|_| anyhow::anyhow!("{name} is not taken for {word} within {limit:?}"))??;
        Ok(())
    }
}

fn is_ready(node: &core::Node) -> bool {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

impl Down<'_> {
    /// Makes the node whole again, and waits until podvirt, if it is in the cluster, is too.
    ///
    /// # Errors
    /// That failed.
    pub fn repair(mut self) -> Result<()> {
        self.mend()
    }

    fn mend(&mut self) -> Result<()> {
        let Some(verb) = self.repair.take() else { return Ok(()) };
        cluster(&[verb, &self.number.to_string()])?;
        self.cluster.node(self.number).wait_ready(true, REPAIR)?;
        self.cluster.wait_admission(REPAIR)
    }
}

impl Drop for Down<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.mend() {
            eprintln!("node{} stays down: {error:#}", self.number);
        }
    }
}
