//! A process in a launcher's pod, which has the pod's user and control group: virt-handler takes it for the launcher. It comes there by
//! `pods/exec`, which Kubernetes' role `edit` has, or out of QEMU.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use podvirt_api::names::path;
use podvirt_api::v1;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, Node, SOON, Security};

use super::{HONEST, Honest, NODE, PODVIRT, on_node, working_set};

/// What virt-handlers' memory may grow by under a launcher's reports, in bytes.
const GROWTH_BYTES: u64 = 128 << 20;
/// Connections to virt-handler's socket that say nothing.
const SILENT: usize = 200;
/// Those of them that virt-handler may hold.
const HELD: usize = 8;

const SOCKETS: &str = "/var/run/kubevirt/sockets";
/// A user and a group of a pod that are not the machine's.
const OTHER_USER: &str = "1000:1000";
/// Connects to each of its arguments, and prints what came of it.
const CONNECT: &str = "\
import errno, socket, sys
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print(path, 'opened')
    except OSError as error:
        print(path, errno.errorcode[error.errno])
";

/// A pod in which an attacker runs what it likes.
struct Taken<'n> {
    namespace: &'n Namespace<'n>,
    pod: String,
}

impl<'n> Taken<'n> {
    /// A machine of the attacker's own on the honest machine's node.
    fn apply(namespace: &Namespace<'_>) {
        let spec = on_node();
        let manifest = Manifest { name: "taken", run: "Once", spec: &spec, ..Default::default() };
        namespace.apply(&manifest.machine()).unwrap();
    }

    /// Its pod, once it runs.
    fn over(namespace: &'n Namespace<'n>) -> Taken<'n> {
        namespace.wait_phase("taken", "Running", BOOT).unwrap();
        Taken { namespace, pod: namespace.launcher("taken").unwrap().name_any() }
    }

    fn sh(&self, command: &str) -> String {
        self.namespace.kubectl(&["exec", &self.pod, "-c", "compute", "--", "sh", "-c", command]).unwrap()
    }

    /// Speaks to virt-handler by its own socket; what came of it.
    fn reports(&self, what: &str, uid: &str) -> String {
        let script = include_str!("launcher.py");
        let python = ["exec", &self.pod, "-c", "compute", "--", "python3", "-c", script, "report", what, uid];
        self.namespace.kubectl(&python).unwrap()
    }

    /// Stops virt-launcher and starts the attacker's process at its socket: virt-handler connects anew, and the attacker reports the
    /// instance `uid` in place of the pod's own instance `own`.
    fn takes_the_launchers_place(&self, uid: &str, own: &str) {
        let script = include_str!("launcher.py");
        let begin = format!(
            "echo giant >{SOCKETS}/mode; setsid python3 -c \"$0\" serve {uid} {own} >{SOCKETS}/log 2>&1 & kill -STOP $(pidof virt-launcher)"
        );
        self.namespace
            .kubectl(&["exec", &self.pod, "-c", "compute", "--", "sh", "-c", &begin, script])
            .unwrap();
    }

    /// Has it answer in this way, and waits until virt-handler has asked it so.
    fn answers(&self, mode: &str) {
        self.sh(&format!("echo {mode} >{SOCKETS}/mode"));
        let what = format!("virt-handler asks, and is answered by {mode}");
        let asked = || {
            // A change of the instance makes virt-handler ask its launcher.
            drop(self.namespace.kubectl(&[
                "annotate",
                "vmi",
                "taken",
                "--overwrite",
                &format!("renewed={}", fresh()),
            ]));
            let log = self.sh(&format!("cat {SOCKETS}/log"));
            Ok((log.lines().filter(|line| *line == format!("asked {mode}")).count() >= 2).then_some(()))
        };
        self.namespace.until(&what, BOOT, asked).unwrap();
    }
}

/// A text that was not there before.
fn fresh() -> String {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos().to_string()
}

/// virt-handler's pod on the node.
fn handler(cluster: &Cluster) -> String {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), PODVIRT);
    let on =
        ListParams::default().labels("kubevirt.io=virt-handler").fields(&format!("spec.nodeName={NODE}"));
    cluster.block_on(async { pods.list(&on).await }).unwrap().items.remove(0).name_any()
}

/// virt-handler does what is asked of it for the honest machine.
fn is_obeyed(namespace: &Namespace<'_>, when: &str) {
    for (command, status) in [("pause", "Paused"), ("unpause", "Running")] {
        let says = |vm: &v1::VirtualMachine| {
            vm.status.printable_status.as_ref().is_some_and(|shown| shown.as_str() == status)
        };
        namespace.virtctl(&[command, "vmi", HONEST]).unwrap();
        namespace.wait(HONEST, &format!("{when}: {status}"), SOON, says).unwrap();
    }
}

/// Reports to virt-handler's own socket: of another machine, of four megabytes, and connections without any.
fn reports_of_no_other(taken: &Taken<'_>, victim: &str, own: &str) {
    let refused = |said: &str| {
        said.starts_with("answered 1 ") || said.starts_with("answered 3 ") || said.starts_with("ended")
    };
    // Trailers without a message before them are an error.
    let said = taken.reports("other", victim);
    assert!(said.starts_with("answered 1 "), "a report of another machine: {said}");
    let said = taken.reports("giant", own);
    assert!(refused(&said), "a report of four megabytes: {said}");
    let said = taken.reports("hold", own);
    let closed: usize = said.trim().strip_prefix("closed ").unwrap().parse().unwrap();
    assert!(closed >= SILENT - HELD, "{closed} of {SILENT} connections are closed");
}

/// A process of the pod with another user opens none of netd's sockets, by one of which the pod's own user asks netd.
fn opens_no_socket_of_netd(taken: &Taken<'_>, node: Node<'_>) {
    taken.namespace.netctl("taken", 0, "counters").unwrap();
    let found = taken.sh("find /var/run/kubevirt/netd -type s");
    let sockets: Vec<&str> = found.lines().collect();
    let control = path::netd_control(0).display().to_string();
    assert!(sockets.contains(&control.as_str()), "{sockets:?} without {control}");
    let status = taken.namespace.launcher("taken").unwrap().status.unwrap();
    let mut containers = status.container_statuses.unwrap().into_iter();
    let compute = containers.find(|container| container.name == "compute").unwrap().container_id.unwrap();
    let id = compute.strip_prefix("containerd://").unwrap();
    let exec = ["ctr", "-n", "k8s.io", "tasks", "exec", "--exec-id", "other-user", "--user", OTHER_USER, id];
    let said = node.run(&[&exec[..], &["python3", "-c", CONNECT][..], &sockets[..]].concat()).unwrap();
    eprint!("as the user {OTHER_USER}:\n{said}");
    let refused: Vec<String> = sockets.iter().map(|socket| format!("{socket} EACCES")).collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), refused);
}

#[test]
fn a_launcher_that_was_taken_over_fools_no_node_agent() {
    let cluster = Cluster::get().unwrap();
    let (others, own) =
        (cluster.namespace(Security::Restricted).unwrap(), cluster.namespace(Security::Restricted).unwrap());
    Taken::apply(&own);
    let mut honest = Honest::start(&others);
    let taken = Taken::over(&own);
    opens_no_socket_of_netd(&taken, cluster.node(1));
    honest.is_unhurt("another user of the pod at netd's sockets");
    let uid = |namespace: &Namespace<'_>, name: &str| {
        namespace.wait_phase(name, "Running", SOON).unwrap().metadata.uid.unwrap()
    };
    let (victim, mine) = (uid(&others, HONEST), uid(&own, "taken"));
    reports_of_no_other(&taken, &victim, &mine);
    honest.is_unhurt("reports to virt-handler's socket");

    let before = working_set(&cluster, "virt-handler");
    taken.takes_the_launchers_place(&victim, &mine);
    taken.answers("giant");
    let handler = handler(&cluster);
    for _ in 0..3 {
        let metrics = format!("/api/v1/namespaces/{PODVIRT}/pods/{handler}:8080/proxy/metrics");
        let text = cluster.kubectl(&["get", "--raw", &metrics]).unwrap();
        assert!(text.len() < 4 << 20, "{} bytes of metrics", text.len());
    }
    is_obeyed(&others, "giant reports");
    let after = working_set(&cluster, "virt-handler");
    assert!(after < before + GROWTH_BYTES, "virt-handlers have grown from {before} to {after} bytes");
    honest.is_unhurt("giant reports");

    taken.answers("other");
    is_obeyed(&others, "reports of another machine");
    honest.is_unhurt("reports of another machine");

    taken.answers("stall");
    is_obeyed(&others, "a launcher that does not answer");
    honest.is_unhurt("a launcher that does not answer");

    // Links in the place of its sockets lead to the node's own paths, and are not followed.
    let launcher = others.launcher(HONEST).unwrap().uid().unwrap();
    let path =
        format!("/var/lib/kubelet/pods/{launcher}/volumes/kubernetes.io~empty-dir/sockets/launcher-sock");
    taken
        .sh(&format!("ln -sf {path} {SOCKETS}/launcher-sock; ln -sf {path} {SOCKETS}/launcher-volumes-sock"));
    let logs = || {
        drop(own.kubectl(&["annotate", "vmi", "taken", "--overwrite", &format!("renewed={}", fresh())]));
        let said = cluster.kubectl(&["-n", PODVIRT, "logs", &handler, "--tail=400"])?;
        Ok(said.lines().any(|line| line.contains("launcher-sock is no socket")).then_some(()))
    };
    own.until("a link that is refused", BOOT, logs).unwrap();
    is_obeyed(&others, "links in the place of sockets");
    honest.is_unhurt("links in the place of sockets");
}
