//! A node without Kubernetes: a server that keeps VMIs as the API server does, and a launcher in a pod's volumes.

pub(crate) mod api;
pub(crate) mod launcher;
pub(crate) mod netd;
mod stall;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use podvirt_daemon::http::Readiness;
use podvirt_daemon::pki::{Identity, KeyPairPem, NODE_COMMON_NAME, Purpose, make_ca, make_leaf, node_name};
use podvirt_daemon::shutdown::{Shutdown, Trigger};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpStream, UnixListener};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use virt_handler::metrics::Metrics;
use virt_handler::migration::Means;
use virt_handler::node::{self, Node, Store};
use virt_handler::record::Records;
use virt_handler::rest::Server;
use virt_handler::sockets::{Dir, PodVolumes};
use virt_handler::statistics::collect::Statistics;

use api::Api;
use launcher::Launcher;

/// UID of the VMI.
pub(crate) const VMI: &str = "11111111-1111-4111-8111-111111111111";
/// UID of its pod.
pub(crate) const POD: &str = "22222222-2222-4222-8222-222222222222";
/// For something that takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The node's directories, which outlive a handler.
pub(crate) struct Ground {
    root: TempDir,
}

/// A handler that runs.
pub(crate) struct Handler {
    trigger: Trigger,
    node: JoinHandle<()>,
    /// Its REST server.
    pub(crate) rest: Server,
    /// What its machines have used.
    pub(crate) statistics: Statistics,
}

impl Ground {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let ground = Self { root };
        ground.add_pod(POD);
        ground
    }

    /// Makes the volumes of a pod.
    pub(crate) fn add_pod(&self, pod: &str) {
        for volume in ["public", "sockets", "private", "netd"] {
            std::fs::create_dir_all(volume_of(self.root.path(), pod, volume)).unwrap();
        }
        // The launchers are tasks of this process; its control group says that it is of each of their pods.
        let process = self.root.path().join("processes").join(std::process::id().to_string());
        std::fs::create_dir_all(&process).unwrap();
        let mut groups = OpenOptions::new().create(true).append(true).open(process.join("cgroup")).unwrap();
        writeln!(groups, "0::/kubepods/burstable/pod{pod}/c").unwrap();
    }

    pub(crate) fn volume(&self, volume: &str) -> PathBuf {
        self.volume_of(POD, volume)
    }

    pub(crate) fn volume_of(&self, pod: &str, volume: &str) -> PathBuf {
        volume_of(self.root.path(), pod, volume)
    }

    fn volumes(&self) -> PodVolumes {
        PodVolumes::new(self.root.path().join("pods"))
            .with_processes(self.root.path().join("processes"))
            .with_owner(nix::unistd::Uid::current().as_raw())
    }

    /// A directory in a volume; paths to the sockets in it are too long for themselves.
    pub(crate) fn dir(&self, pod: &str, volume: &str, sub: &str) -> Dir {
        self.volumes().dir(pod, volume, sub).unwrap()
    }

    /// Listens on a socket in a volume.
    pub(crate) fn listen(&self, volume: &str, sub: &str, name: &str) -> UnixListener {
        self.listen_of(POD, volume, sub, name)
    }

    /// Listens on a socket in a volume of a pod.
    pub(crate) fn listen_of(&self, pod: &str, volume: &str, sub: &str, name: &str) -> UnixListener {
        self.dir(pod, volume, sub).listen(name, nix::unistd::Uid::current().as_raw()).unwrap()
    }

    pub(crate) fn records(&self) -> Records {
        Records::open(&self.root.path().join("records")).unwrap()
    }

    /// Starts a handler.
    pub(crate) fn handler(&self, api: &Api) -> Handler {
        let volumes = self.volumes();
        let store = Store::default();
        let metrics = Metrics::register(&mut Registry::default(), store.clone(), "node1".into());
        let (node, triggers, mail) = Node::new(
            "node1".into(),
            api.client(),
            volumes.clone(),
            self.records(),
            store.clone(),
            metrics.clone(),
        );
        let node = node.with_migrations(means());
        let recorder = podvirt_daemon::events::Recorder::new(api.client(), "virt-handler", None);
        tokio::spawn(node::post(recorder, store.clone(), mail));
        let statistics = Statistics::new("node1".into(), store.clone(), volumes.clone());
        let rest = Server::new("node1".into(), store, volumes, node.triggers.clone());
        let (trigger, shutdown) = Shutdown::manual();
        let gate = Readiness::new().gate("VMIs");
        let node = tokio::spawn(async move { node::run(&node, triggers, &gate, &shutdown).await.unwrap() });
        Handler { trigger, node, rest, statistics }
    }
}

/// A handler whose machine runs.
pub(crate) async fn running() -> (Ground, Api, Handler, Launcher) {
    let (ground, api) = (Ground::new(), Api::start().await);
    api.put(vmi("Scheduled"));
    let handler = ground.handler(&api);
    let launcher = Launcher::start(&ground);
    api.wait_phase("Running").await;
    (ground, api, handler, launcher)
}

impl Handler {
    /// Ends it.
    pub(crate) async fn stop(self) {
        self.trigger.request();
        self.node.await.unwrap();
    }
}

/// Means of migrations, with this node's certificate.
fn means() -> Means {
    let means = Means::new("127.0.0.1".into());
    means.identity.set(identity("node1")).unwrap();
    means
}

/// What a node shows. All nodes have certificates of one CA.
fn identity(node: &str) -> Identity {
    static CA: OnceLock<KeyPairPem> = OnceLock::new();
    let (now, life) = (jiff::Timestamp::now(), Duration::from_secs(3600));
    let ca = CA.get_or_init(|| make_ca(now, life).unwrap());
    let leaf = make_leaf(ca, NODE_COMMON_NAME, &[node_name(node)], Purpose::Node, now, life).unwrap();
    Identity::fixed(&leaf, &ca.certificate).unwrap()
}

/// A connection to this node's port for a migration, as the handler of `node` makes it.
pub(crate) async fn dial(address: IpAddr, port: u16, node: &str) -> TlsStream<TcpStream> {
    let config = identity(node).client_config(&node_name("node1")).unwrap();
    let stream = TcpStream::connect((address, port)).await.unwrap();
    let name = ServerName::from(address);
    within("the handshake", TlsConnector::from(config).connect(name, stream)).await.unwrap()
}

/// The VMI while it moves from another node to this node.
pub(crate) fn coming() -> Value {
    let mut vmi = vmi("Running");
    vmi["metadata"]["labels"] =
        json!({ "kubevirt.io/nodeName": "node0", "kubevirt.io/migrationTargetNodeName": "node1" });
    vmi["status"]["nodeName"] = "node0".into();
    vmi["status"]["activePods"] = json!({ "33333333-3333-4333-8333-333333333333": "node0" });
    vmi["status"]["migrationState"] = json!({
        "migrationUid": "m", "sourceNode": "node0", "sourcePod": "launcher-0", "targetNode": "node1",
        "targetPod": "launcher-1",
    });
    vmi
}

/// The pod that it comes to.
pub(crate) fn target_pod() -> Value {
    let mut pod = pod();
    pod["metadata"]["name"] = "launcher-1".into();
    pod["metadata"]["labels"]["kubevirt.io/migrationJobUID"] = "m".into();
    pod
}

/// The machine's pod.
pub(crate) fn pod() -> Value {
    pod_of("a", VMI, POD)
}

/// The pod of another machine.
pub(crate) fn pod_of(name: &str, vmi: &str, pod: &str) -> Value {
    let owner = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name, "uid": vmi,
        "controller": true,
    });
    json!({
        "metadata": {
            "name": podvirt_api::names::launcher_name(name, vmi), "namespace": "n", "uid": pod,
            "labels": { "kubevirt.io/created-by": vmi }, "ownerReferences": [owner],
        },
        "spec": { "nodeName": "node1", "containers": [] },
    })
}

fn volume_of(root: &Path, pod: &str, volume: &str) -> PathBuf {
    root.join("pods").join(pod).join("volumes/kubernetes.io~empty-dir").join(volume)
}

/// The VMI as the controller hands it over.
pub(crate) fn vmi(phase: &str) -> Value {
    vmi_of("a", VMI, POD, phase)
}

/// Another VMI as the controller hands it over.
pub(crate) fn vmi_of(name: &str, uid: &str, pod: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": name, "namespace": "n", "uid": uid, "labels": { "kubevirt.io/nodeName": "node1" },
        },
        "spec": { "domain": { "devices": {} }, "terminationGracePeriodSeconds": 30 },
        "status": { "phase": phase, "nodeName": "node1", "activePods": { (pod): "node1" } },
    })
}

/// Waits for what will come, and fails when it does not.
pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, work).await.unwrap_or_else(|_| panic!("{what}: not in time"))
}
