//! A machine that is moved, and what is watched of it meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use podvirt_api::migration::is_final;
use podvirt_api::v1::{
    self, VirtualMachineInstanceMigration as Migration, VirtualMachineInstanceMigrationPhase as Phase,
    VirtualMachineInstanceMigrationState as State,
};
use podvirt_e2e::Console;
use podvirt_e2e::cluster::{BOOT, Cluster, GONE, Manifest, Namespace, Node, Running, SOON};

/// A command in the guest, on a busy machine.
pub(crate) const COMMAND: Duration = Duration::from_secs(120);
/// A target pod, and 256 MiB of memory through three processes, on a busy machine.
pub(crate) const MOVE: Duration = Duration::from_secs(180);
/// A connection and its answer, on a busy machine.
const GREETER_TIMEOUT: Duration = Duration::from_secs(30);
/// The port of the tiny guest's greeter.
const GREETER: u16 = 7777;

/// A machine, and which boot of it is to go on.
pub(crate) struct Machine<'n> {
    namespace: &'n Namespace<'n>,
    name: String,
    boot: String,
    /// Those that go along with it; none: it has its pod's.
    own: Vec<IpAddr>,
    /// Whether it has its pod's address of IPv6 as well.
    ipv6: bool,
    // In this order: the console ends with the program.
    console: Console,
    _running: Running,
}

impl<'n> Machine<'n> {
    /// Starts one and waits until it can be moved.
    pub(crate) fn start(namespace: &'n Namespace<'n>, manifest: &Manifest<'_>) -> Machine<'n> {
        namespace.apply(&manifest.machine()).unwrap();
        Machine::started(namespace, manifest.name)
    }

    /// One whose manifest was applied.
    pub(crate) fn started(namespace: &'n Namespace<'n>, name: &str) -> Machine<'n> {
        namespace.wait_phase(name, "Running", BOOT).unwrap();
        let (mut console, running) = namespace.shell(name).unwrap();
        let boot = boot(&mut console);
        let movable = |i: &v1::VirtualMachineInstance| {
            i.status.conditions.iter().any(|c| c.r#type.as_str() == "LiveMigratable" && c.status == "True")
        };
        namespace.wait(name, "a machine that can be moved", SOON, movable).unwrap();
        Machine {
            namespace,
            name: name.to_owned(),
            boot,
            own: Vec::new(),
            ipv6: true,
            console,
            _running: running,
        }
    }

    /// Starts one on [`Flat`] alone.
    pub(crate) fn on_flat(namespace: &'n Namespace<'n>, manifest: &Manifest<'_>) -> Machine<'n> {
        namespace.apply(&flat(manifest).machine()).unwrap();
        Machine::started(namespace, manifest.name).with_own()
    }

    /// The same with the addresses that its instance tells.
    pub(crate) fn with_own(mut self) -> Machine<'n> {
        let told = |i: &v1::VirtualMachineInstance| {
            i.status.interfaces.first().map(|i| i.ip_addresses.clone()).unwrap_or_default()
        };
        let instance = self
            .namespace
            .wait(&self.name, "the machine's own addresses", SOON, |i| told(i).len() == 2)
            .unwrap();
        self.own = told(&instance).iter().map(|address| address.parse().unwrap()).collect();
        self
    }

    /// The same in its pod's place, which has no IPv6.
    pub(crate) fn in_place(mut self) -> Machine<'n> {
        self.ipv6 = false;
        self
    }

    /// The guest renews its lease, as it does by itself within half an hour, and learns where it is.
    pub(crate) fn renews(&mut self) {
        self.sh("kill -USR1 $(cat /tmp/udhcpc.pid)");
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its instance.
    pub(crate) fn instance(&self) -> v1::VirtualMachineInstance {
        self.namespace.wait(&self.name, "the instance", SOON, |_| true).unwrap()
    }

    /// The node that it is on.
    pub(crate) fn node(&self) -> Node<'n> {
        node(self.namespace.cluster(), &self.instance().status.node_name.unwrap())
    }

    /// The pod that it is in.
    pub(crate) fn pod(&self) -> Pod {
        self.namespace.launcher(&self.name).unwrap()
    }

    /// What is to be typed at it.
    pub(crate) fn sh(&mut self, command: &str) -> String {
        self.console.sh(command, COMMAND).unwrap()
    }

    /// Its addresses for others.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        if !self.own.is_empty() {
            return self.own.clone();
        }
        let status = self.pod().status.unwrap();
        let mut addresses: Vec<IpAddr> =
            status.pod_ips.iter().flatten().map(|ip| ip.ip.parse().unwrap()).collect();
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        addresses.retain(|address| self.ipv6 || address.is_ipv4());
        addresses
    }

    /// What virsh says of it in one of its pods: a command, and its arguments behind the domain.
    pub(crate) fn virsh(&self, pod: &str, command: &[&str], arguments: &[&str]) -> anyhow::Result<String> {
        self.namespace.virsh(pod, &self.name, command, arguments)
    }

    /// Asks for a migration by an object, and returns its name.
    pub(crate) fn migrate(&self) -> String {
        let manifest = format!(
            "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration, metadata: {{generateName: {0}-}}, spec: {{vmiName: {0}}}}}",
            self.name
        );
        let args = ["--namespace", self.namespace.name(), "create", "-o", "name", "-f", "-"];
        let said = self.namespace.cluster().kubectl_with(&args, &manifest).unwrap();
        said.trim().rsplit('/').next().unwrap().to_owned()
    }

    /// Asks for one as `virtctl migrate` does.
    pub(crate) fn migrate_by_virtctl(&self) -> String {
        let known = self.migrations();
        let said = self.namespace.virtctl(&["migrate", &self.name]).unwrap();
        assert!(said.contains(&format!("VM {} was scheduled to migrate", self.name)), "{said}");
        let new: Vec<String> = self.migrations().into_iter().filter(|m| !known.contains(m)).collect();
        assert_eq!(new.len(), 1, "{new:?}");
        new.into_iter().next().unwrap()
    }

    fn migrations(&self) -> Vec<String> {
        let api = self.namespace.api::<Migration>();
        let all = self.namespace.cluster().block_on(api.list(&ListParams::default())).unwrap();
        let of_this = |m: &&Migration| m.spec.vmi_name.as_deref() == Some(self.name.as_str());
        all.items.iter().filter(of_this).map(ResourceExt::name_any).collect()
    }

    /// Waits until memory is copied.
    pub(crate) fn wait_under_way(&self, migration: &str) -> State {
        let runs = |m: &Migration| is_final(m) || m.status.phase == Some(Phase::Running);
        let seen = self.namespace.wait(migration, "a migration that runs", MOVE, runs).unwrap();
        assert_eq!(seen.status.phase, Some(Phase::Running), "{:?}", seen.status);
        self.instance().status.migration_state.unwrap()
    }

    /// Waits until a migration is over, and returns how it ended.
    pub(crate) fn wait_over(&self, migration: &str, limit: Duration) -> Phase {
        let ended = self.namespace.wait(migration, "the end of the migration", limit, is_final).unwrap();
        ended.status.phase.unwrap()
    }

    /// Waits until it has moved, and looks at what that leaves. `source` is the pod it was in.
    pub(crate) fn has_moved(&mut self, migration: &str, source: &Pod) {
        self.has_moved_within(migration, source, MOVE);
    }

    /// The same for one that takes its time.
    pub(crate) fn has_moved_within(&mut self, migration: &str, source: &Pod, limit: Duration) {
        let phase = self.wait_over(migration, limit);
        assert_eq!(phase, Phase::Succeeded, "{}", self.namespace.report());
        let from = source.spec.as_ref().unwrap().node_name.clone();
        let instance = self.instance();
        let state = instance.status.migration_state.clone().unwrap();
        assert_ne!(instance.status.node_name, from);
        assert_eq!((&state.source_node, &state.target_node), (&from, &instance.status.node_name));
        assert_eq!((state.completed, state.failed.unwrap_or(false)), (Some(true), false), "{state:?}");
        self.namespace.wait_ended(source).unwrap();
        let target = self.pod();
        assert_eq!(Some(target.name_any()), state.target_pod);
        let active: Vec<_> = instance.status.active_pods.into_iter().collect();
        let here = |(uid, on): &(String, String)| {
            Some(uid) == target.metadata.uid.as_ref() && Some(on) == state.target_node.as_ref()
        };
        assert!(active.iter().any(here), "{active:?}");
        self.runs_on_one_side();
    }

    /// Waits until a migration has failed or is deleted, and looks at what that leaves. `source` is the pod it was in.
    pub(crate) fn has_stayed(&mut self, migration: &str, source: &Pod, target: &str) {
        let api = self.namespace.api::<Migration>();
        let over = || {
            let found = self.namespace.cluster().block_on(api.get_opt(migration))?;
            Ok(found.as_ref().is_none_or(is_final).then(|| found.and_then(|m| m.status.phase)))
        };
        let phase = self.namespace.until("the end of the migration", MOVE, over).unwrap();
        assert!(matches!(phase, None | Some(Phase::Failed)), "{}", self.namespace.report());
        let instance = self.instance();
        assert_eq!(instance.status.node_name, source.spec.as_ref().unwrap().node_name);
        self.namespace.wait_gone::<Pod>(target, GONE).unwrap();
        assert_eq!(self.pod().metadata.uid, source.metadata.uid);
        self.runs_on_one_side();
    }

    /// The guest never began anew, and one node alone runs it; nothing of a migration is left in its pod.
    pub(crate) fn runs_on_one_side(&mut self) {
        let cluster = self.namespace.cluster();
        let name = format!("guest={}_{},", self.namespace.name(), self.name);
        let alone = || {
            let on = |number: u8| {
                let count =
                    cluster.node(number).run(&["sh", "-c", &format!("pgrep -fc '[q]emu.*{name}' || true")]);
                count.unwrap().trim().parse::<u32>().unwrap()
            };
            Ok(Some([on(1), on(2)]).filter(|on| on.iter().sum::<u32>() == 1))
        };
        let on = self.namespace.until("one QEMU", SOON, alone).unwrap();
        assert_eq!(on[usize::from(self.node().number() - 1)], 1, "{on:?}");
        let labelled = |i: &v1::VirtualMachineInstance| {
            let labels = i.labels();
            !labels.contains_key("kubevirt.io/migrationTargetNodeName")
                && labels.get("kubevirt.io/nodeName") == i.status.node_name.as_ref()
        };
        self.namespace.wait(&self.name, "labels of one node", SOON, labelled).unwrap();
        let pod = self.pod().name_any();
        let clean = || {
            let names =
                self.namespace.kubectl(&["exec", &pod, "-c", "compute", "--", "ls", "/var/run/kubevirt"])?;
            Ok((!names.contains("migration-")).then_some(()))
        };
        self.namespace.until("an end of the migration's sockets", SOON, clean).unwrap();
        self.goes_on();
    }

    /// The guest answers, and has not begun anew.
    pub(crate) fn goes_on(&mut self) {
        let (mut console, mut running) = self.namespace.console(&self.name).unwrap();
        self.namespace.wait_shell(&mut console, &mut running).unwrap();
        assert_eq!(boot(&mut console), self.boot, "the guest began anew");
        (self.console, self._running) = (console, running);
    }

    /// New connections find the guest at its present addresses, and lead out of it; its status has them.
    pub(crate) fn is_reached(&mut self) {
        let addresses = self.addresses();
        for &address in &addresses {
            let mut greeted =
                self.namespace.until("a greeting", SOON, || Ok(Connection::to(address).ok())).unwrap();
            greeted.echoes();
        }
        let tells = |i: &v1::VirtualMachineInstance| {
            let told: Vec<&String> = i.status.interfaces.iter().flat_map(|i| &i.ip_addresses).collect();
            addresses.iter().all(|address| told.iter().any(|told| **told == address.to_string()))
        };
        self.namespace.wait(&self.name, "an instance with its addresses", SOON, tells).unwrap();
        // What has addresses of its own has nothing else here, and no way to anywhere.
        if self.own.is_empty() {
            self.sh("socat -u /dev/null TCP:kubernetes.default:443,connect-timeout=10");
        }
    }
}

fn boot(console: &mut Console) -> String {
    let boot = console.sh("cat /proc/sys/kernel/random/boot_id", COMMAND).unwrap();
    assert_eq!(boot.len(), 36, "{boot}");
    boot
}

/// The node of this name.
pub(crate) fn node<'c>(cluster: &'c Cluster, name: &str) -> Node<'c> {
    cluster.node(name.trim_start_matches("node").parse().unwrap())
}

/// The manifest with a network of [`Flat`] as the machine's only one.
pub(crate) fn flat<'a>(manifest: &Manifest<'a>) -> Manifest<'a> {
    assert_eq!((manifest.spec, manifest.devices), ("", ""), "the network's");
    Manifest {
        spec: "evictionStrategy: LiveMigrate, networks: [{name: flat, multus: {networkName: flat}}]",
        devices: "interfaces: [{name: flat, passtBinding: {}}]",
        ..manifest.clone()
    }
}

/// A connection to the guest's greeter, which echoes.
pub(crate) struct Connection(TcpStream);

impl Connection {
    /// Its socket, behind the greeting.
    pub(crate) fn into_inner(self) -> TcpStream {
        self.0
    }

    /// Opens it and hears the greeting.
    pub(crate) fn to(address: IpAddr) -> std::io::Result<Connection> {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, GREETER), GREETER_TIMEOUT)?;
        stream.set_read_timeout(Some(GREETER_TIMEOUT))?;
        stream.set_write_timeout(Some(GREETER_TIMEOUT))?;
        let mut line = Vec::new();
        let mut byte = [0];
        while line.last() != Some(&b'\n') {
            stream.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        if line.starts_with(b"GUEST-HELLO") {
            Ok(Connection(stream))
        } else {
            Err(ErrorKind::InvalidData.into())
        }
    }

    /// It goes on.
    pub(crate) fn echoes(&mut self) {
        self.0.write_all(b"still there?").unwrap();
        let mut back = [0; 12];
        self.0.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"still there?");
    }

    /// Its end comes, as a reset.
    pub(crate) fn ends_reset(mut self) {
        self.0.set_read_timeout(Some(SOON)).unwrap();
        let error = self.0.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
}

/// A connection that the guest has opened.
pub(crate) struct FromGuest(TcpStream);

impl FromGuest {
    /// Has the guest open one to this process; the guest's end makes a file when it ends.
    pub(crate) fn open(machine: &mut Machine<'_>) -> FromGuest {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let here = machine.namespace.cluster().address();
        let port = listener.local_addr().unwrap().port();
        machine.sh(&format!("(socat -u TCP:{here}:{port} OPEN:/dev/null; echo >/tmp/ended) &"));
        let (stream, _) = listener.accept().unwrap();
        FromGuest(stream)
    }

    /// Both ends have been told.
    pub(crate) fn ends_reset(self, machine: &mut Machine<'_>) {
        Connection(self.0).ends_reset();
        machine.sh("until [ -e /tmp/ended ]; do sleep 1; done");
    }
}

/// Slow migrations of the machines of a namespace, until it is dropped.
pub(crate) struct Slowly<'n> {
    cluster: &'n Cluster,
    name: String,
}

impl<'n> Slowly<'n> {
    /// 1 MiB a second: the tiny guest takes minutes.
    pub(crate) fn new(namespace: &Namespace<'n>) -> Slowly<'n> {
        Slowly::by(namespace, "bandwidthPerMigration: 1Mi, completionTimeoutPerGiB: 10000")
    }

    /// As the inside of a policy's `spec` says.
    pub(crate) fn by(namespace: &Namespace<'n>, spec: &str) -> Slowly<'n> {
        let (cluster, name) = (namespace.cluster(), namespace.name().to_owned());
        let manifest = format!(
            "{{apiVersion: migrations.kubevirt.io/v1alpha1, kind: MigrationPolicy, metadata: {{name: {name}}}, \
             spec: {{{spec}, selectors: {{namespaceSelector: {{kubernetes.io/metadata.name: {name}}}}}}}}}"
        );
        cluster.kubectl_with(&["create", "-f", "-"], &manifest).unwrap();
        Slowly { cluster, name }
    }
}

impl Drop for Slowly<'_> {
    fn drop(&mut self) {
        drop(self.cluster.kubectl(&["delete", "migrationpolicy", &self.name]));
    }
}
