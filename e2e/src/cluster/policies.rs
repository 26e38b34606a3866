//! NetworkPolicies that an agent carries out for as long as a test wants it, and pods that they let through or not.
//!
//! A cluster that has come up has no agent: policies are objects without effect there. The agent hears of a policy when it
//! hears of it, so a test waits until a client is refused before it looks at what else the policy does.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use podvirt_bed_tools::wait;

use super::{Cluster, Namespace, SOON, cluster, talk};
use crate::artefacts::script;

/// The agent's table in a node's packet filter.
const TABLE: &str = "kube-network-policies";

/// NetworkPolicies have effect on both nodes until this is dropped.
#[must_use = "dropping it ends the agent"]
pub struct Enforced<'c>(&'c Cluster);

impl Cluster {
    /// Starts the agent on both nodes.
    ///
    /// # Errors
    /// Its image is not built, or it does not start.
    pub fn enforce_policies(&self) -> Result<Enforced<'_>> {
        cluster(&["load", "policies"])?;
        let manifest = script("cluster/policies.yaml");
        self.kubectl(&["apply", "--server-side", "-f", &manifest.to_string_lossy()])?;
        let enforced = Enforced(self);
        self.kubectl(&["-n", "kube-system", "rollout", "status", "daemonset/policies", "--timeout=60s"])?;
        wait::until("the agent's tables", SOON, || {
            let has = |number| self.node(number).run(&["nft", "list", "table", "inet", TABLE]).is_ok();
            Ok((has(1) && has(2)).then_some(()))
        })?;
        Ok(enforced)
    }
}

impl Drop for Enforced<'_> {
    fn drop(&mut self) {
        let daemonset = ["-n", "kube-system", "delete", "daemonset", "policies", "--ignore-not-found"];
        drop(self.0.kubectl(&[&daemonset[..], &["--cascade=foreground", "--timeout=60s"]].concat()));
        for number in [1, 2] {
            // The agent has taken it away, unless it was killed.
            drop(self.0.node(number).run(&["nft", "delete", "table", "inet", TABLE]));
        }
    }
}

/// A pod with a shell and network programs, confined as a machine's is.
pub struct ClientPod<'n> {
    namespace: &'n Namespace<'n>,
    name: String,
}

impl<'n> ClientPod<'n> {
    /// Starts one on a node. `labels` is the inside of a YAML flow mapping.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(
        namespace: &'n Namespace<'n>,
        name: &str,
        node: &str,
        labels: &str,
    ) -> Result<ClientPod<'n>> {
        ClientPod::annotated(namespace, name, node, labels, "")
    }

    /// The same with annotations, the inside of a YAML flow mapping.
    ///
    /// # Errors
    /// It does not start.
    pub fn annotated(
        namespace: &'n Namespace<'n>,
        name: &str,
        node: &str,
        labels: &str,
        annotations: &str,
    ) -> Result<ClientPod<'n>> {
        namespace.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{{labels}}}, annotations: {{{annotations}}}}}, \
             spec: {{nodeName: {node}, terminationGracePeriodSeconds: 1, automountServiceAccountToken: false, \
             securityContext: {{runAsUser: 107, runAsGroup: 107, runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}}}, \
             containers: [{{name: client, image: 'podvirt/tools:dev', command: [sleep, infinity], \
             securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}}}]}}}}"
        ))?;
        namespace.wait_pod(name, SOON)?;
        Ok(ClientPod { namespace, name: name.to_owned() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its addresses.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn addresses(&self) -> Result<Vec<IpAddr>> {
        let status = self.namespace.wait_pod(&self.name, SOON)?.status.unwrap_or_default();
        status.pod_ips.iter().flatten().map(|address| Ok(address.ip.parse()?)).collect()
    }

    /// Runs a shell command in it and returns what it printed.
    ///
    /// # Errors
    /// It failed; the message holds what the command said.
    pub fn sh(&self, command: &str) -> Result<String> {
        self.namespace.exec(&self.name, &["sh", "-c", command])
    }

    /// As many bytes go to a guest's greeter and come back, all of them and in their order.
    ///
    /// # Errors
    /// They do not.
    pub fn bulk(&self, address: IpAddr, port: u16, bytes: usize) -> Result<()> {
        let script = format!(
            "import os, socket, threading\n\
             sent = os.urandom({bytes})\n\
             stream = socket.create_connection(('{address}', {port}), 60)\n\
             whole = stream.makefile('rb')\n\
             assert whole.readline().startswith(b'GUEST-HELLO')\n\
             threading.Thread(target=stream.sendall, args=(sent,)).start()\n\
             assert whole.read(len(sent)) == sent, 'other bytes came back'"
        );
        self.namespace.exec(&self.name, &["python3", "-c", &script]).map(drop)
    }

    /// At which of these addresses something is said at a port of TCP within `limit`; all are tried at once.
    ///
    /// # Errors
    /// Nothing can be run in the pod.
    pub fn hears(&self, hosts: &[IpAddr], port: u16, limit: Duration) -> Result<Vec<IpAddr>> {
        let seconds = limit.as_secs();
        let attempt = |host: &IpAddr| {
            let at = talk::host(*host);
            let ask = format!(
                "socat -T {seconds} - TCP:{at}:{port},connect-timeout={seconds} </dev/null 2>/dev/null"
            );
            format!("({ask} | grep -q . && echo {host}) &")
        };
        let attempts: Vec<String> = hosts.iter().map(attempt).collect();
        let said = self.sh(&format!("{} wait", attempts.join(" ")))?;
        said.lines().map(|host| Ok(host.parse()?)).collect()
    }
}
