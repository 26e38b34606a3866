//! The Kubernetes of two nodes that `e2e/cluster` runs on this machine.
//!
//! A test is a program on the cluster's network. [`Cluster::get`] starts the cluster if it is not up and moves the
//! calling thread into the control plane's network namespace: sockets the test opens from then on, the client's own
//! among them, and processes it starts reach the API server, pods and Services by their addresses. Objects live in a
//! [`Namespace`] of the test, which is deleted when the value is dropped; what waits for something says on failure what
//! the namespace looked like. Manifests are applied by kubectl, as users do.

mod dynamic;
mod flat;
mod guest;
mod istio;
pub mod load;
mod machine;
pub mod mesh;
mod namespace;
mod network;
mod node;
mod policies;
mod segment;
mod storage;
pub mod talk;
mod webhook;

use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use nix::sched::{CloneFlags, setns};
use podvirt_bed_tools::wait;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

pub use dynamic::{DynamicNetworks, prepare_dynamic_networks};
pub use flat::Flat;
pub use guest::{Binding, Guest, counter};
pub use istio::{Istio, prepare_istio};
pub use machine::{BOOT, GONE, Manifest, Running, SOON};
pub use namespace::{Namespace, Security};
pub use network::{FIRST_NETWORK, Joined, SEGMENT};
pub use node::{Down, Node};
pub use policies::{ClientPod, Enforced};
pub use segment::Segment;
pub use storage::{Storage, prepare_storage, prepare_volumes};
pub use webhook::Webhook;

use crate::artefacts::script;

/// The control plane on the cluster's network.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 77, 100));
/// Answers in a row that every replica of virt-api has a part in, but for one in a hundred times.
const ANSWERS: u32 = 8;

/// The cluster, from a thread that is on its network.
pub struct Cluster {
    runtime: Runtime,
    client: Client,
    kubeconfig: PathBuf,
    kubectl: PathBuf,
}

impl Cluster {
    /// The running cluster, or a new one, which then stays. The calling thread is on its network from now on.
    ///
    /// # Errors
    /// It does not come up, or belongs to another clone of this repository.
    pub fn get() -> Result<Cluster> {
        cluster(&["up"])?;
        let environment = cluster(&["environment"])?;
        let value = |key: &str| {
            let line = environment.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('='));
            line.map(PathBuf::from).with_context(|| format!("{key} is not in {environment:?}"))
        };
        let (kubeconfig, kubectl, network) = (value("KUBECONFIG")?, value("KUBECTL")?, value("NETWORK")?);
        setns(File::open(&network)?, CloneFlags::CLONE_NEWNET).context("entering the cluster's network")?;

        // Threads of the runtime start here, so they are on that network too.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let config = Kubeconfig::read_from(&kubeconfig)?;
        let client = runtime.block_on(async {
            let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
            anyhow::Ok(Client::try_from(config)?)
        })?;
        Ok(Cluster { runtime, client, kubeconfig, kubectl })
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Runs what needs the client to its end.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// A namespace of this test, with the given Pod Security level enforced.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn namespace(&self, security: Security) -> Result<Namespace<'_>> {
        Namespace::new(self, security)
    }

    /// Where pods reach the test.
    pub fn address(&self) -> IpAddr {
        ADDRESS
    }

    /// Node 1 or 2.
    pub fn node(&self, number: u8) -> Node<'_> {
        Node::new(self, number)
    }

    /// Where the cluster lives.
    fn home(&self) -> &Path {
        self.kubeconfig.parent().unwrap_or(&self.kubeconfig)
    }

    /// Certificate and key by which the API server shows virt-api that it is the API server, as files.
    pub fn front_proxy(&self) -> (PathBuf, PathBuf) {
        let pki = self.home().join("pki");
        (pki.join("front.crt"), pki.join("front.key"))
    }

    /// A program that talks to the API server: its configuration is in the environment.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", &self.kubeconfig).stdin(Stdio::null());
        command
    }

    /// Waits until podvirt's webhooks answer, if they are registered: after a node's loss the API server may for a
    /// while know an address at which no virt-api is left.
    ///
    /// # Errors
    /// They do not within `limit`.
    pub fn wait_admission(&self, limit: Duration) -> Result<()> {
        if self.kubectl(&["get", "mutatingwebhookconfiguration", "virt-api-mutator"]).is_err() {
            return Ok(());
        }
        let manifest = Manifest { name: "admission", ..Default::default() }.machine();
        let mut answers = 0;
        wait::until("podvirt's webhooks", limit, || {
            // Each call goes to one replica, whichever it may be.
            let args = ["create", "--namespace", "default", "--dry-run=server", "-f", "-"];
            answers = if self.kubectl_with(&args, &manifest).is_ok() { answers + 1 } else { 0 };
            Ok((answers >= ANSWERS).then_some(()))
        })
    }

    /// The path at which the API server asks one of podvirt's webhooks, by the webhook's name.
    ///
    /// # Errors
    /// No webhook configuration names it.
    pub fn webhook_path(&self, webhook: &str) -> Result<String> {
        let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
        let list: Value = serde_json::from_str(&self.kubectl(&["get", kinds, "-o", "json"])?)?;
        let configurations = list["items"].as_array().into_iter().flatten();
        let mut webhooks =
            configurations.filter_map(|configuration| configuration["webhooks"].as_array()).flatten();
        let found =
            webhooks.find(|known| known["name"] == webhook).with_context(|| format!("no {webhook}"))?;
        let path = found["clientConfig"]["service"]["path"].as_str();
        path.map(ToOwned::to_owned).with_context(|| format!("{webhook} has no path"))
    }

    /// kubectl, to be started.
    pub fn kubectl_command(&self) -> Command {
        self.command(&self.kubectl)
    }

    /// Puts an image that [`image`](crate::artefacts::image) has made into both nodes.
    ///
    /// # Errors
    /// A node refuses it.
    pub fn load(&self, image: &Path) -> Result<()> {
        cluster(&["load", &image.to_string_lossy()]).map(drop)
    }

    /// Runs kubectl and returns what it printed.
    ///
    /// # Errors
    /// It failed; the message is kubectl's.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with(args, "")
    }

    /// Kills the pods of one of podvirt's daemons, those of one node or all of them, as kubectl does by force.
    ///
    /// # Errors
    /// kubectl fails.
    pub fn kill_daemon(&self, daemon: &str, node: Option<&str>) -> Result<()> {
        let label = format!("kubevirt.io={daemon}");
        let on_node = node.map(|node| format!("spec.nodeName={node}")).unwrap_or_default();
        let which = ["-l", &label, "--field-selector", &on_node];
        let kill = ["-n", "kubevirt", "delete", "pods", "--force", "--grace-period=0"];
        self.kubectl(&[&kill[..], &which].concat()).map(drop)
    }

    /// Runs kubectl with `input` as standard input and returns what it printed.
    ///
    /// # Errors
    /// It failed; the message is kubectl's.
    pub fn kubectl_with(&self, args: &[&str], input: &str) -> Result<String> {
        let mut command = self.command(&self.kubectl);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start kubectl")?;
        let mut stdin = child.stdin.take().context("kubectl has no standard input")?;
        // What fails before it has read all tells why by itself.
        drop(stdin.write_all(input.as_bytes()));
        drop(stdin);
        let out = child.wait_with_output()?;
        let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        ensure!(out.status.success(), "kubectl {}: {}{text}", args.join(" "), errors);
        Ok(text.into_owned())
    }
}

/// Runs a verb of `e2e/cluster/cluster` and returns what it printed.
fn cluster(args: &[&str]) -> Result<String> {
    let mut command = Command::new(script("cluster/cluster"));
    let out = command.args(args).stdin(Stdio::null()).output().context("cannot start e2e/cluster/cluster")?;
    if !out.status.success() {
        bail!("cluster {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr));
    }
    Ok(String::from_utf8(out.stdout)?)
}
