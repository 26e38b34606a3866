//! A machine moves from one launcher pod to another, through the proxies of two handlers.
//!
//! Two tests without an interface, and one with all that belongs to its connections: netd in both pods, the handlers' repair
//! service, a target whose address is silent until the machine runs there, as podvirt-cni makes it, and a mesh's sidecar.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use jiff::Timestamp;
use nix::sys::signal::Signal;
use podvirt_api::names::pod::ENDED_WITH_POD;
use podvirt_api::storage;
use podvirt_cni::net::silence;
use podvirt_daemon::pki::{Identity, KeyPairPem, NODE_COMMON_NAME, Purpose, make_ca, make_leaf, node_name};
use podvirt_e2e::artefacts::program_dir;
use podvirt_e2e::{Console, Net, NetOptions, peer, until};
use podvirt_proto::cmd::v1::{MigrationRequest, Response};
use podvirt_proto::domain::{Status, reason};
use podvirt_proto::migration::{AbortStatus, Options, port};
use serde_json::{Value, json};
use tempfile::TempDir;
use virt_handler::migration::network::{Armed, Network, PodNetwork};
use virt_handler::migration::proxy::{Inbound, Outbound, Pod};
use virt_handler::process::Process;
use virt_handler::repair::Repairs;
use virt_handler::sockets::PodVolumes;

use crate::launched::{GREETER, GROWN, LIMIT, Launched, MARK, POD_UID, request, vmi};
use crate::mesh::sidecar;

/// A migration of 256 MiB on two busy processors.
const MOVE: Duration = Duration::from_secs(110);
/// Process ids that may come up while a test runs.
const PROCESSES: u32 = 4000;
const HOUR: Duration = Duration::from_secs(3600);

fn machine() -> Value {
    let mut vmi = vmi();
    vmi["spec"]["domain"]["devices"]["interfaces"] = json!([]);
    vmi["spec"]["domain"]["devices"]["autoattachPodInterface"] = json!(false);
    vmi["spec"]["networks"] = json!([]);
    let disks = ["data", "scratch", "grown"].map(|name| json!({"name": name, "disk": {"bus": "virtio"}}));
    vmi["spec"]["domain"]["devices"]["disks"] = json!(disks);
    let grown = json!({"name": "grown", "containerDisk": {"image": "registry.example/grown"}});
    vmi["spec"]["volumes"].as_array_mut().unwrap().push(grown);
    vmi
}

/// Two pods and what their handlers have between them.
struct Bed {
    // The proxies before the pods in which they listen.
    _outbound: Option<Outbound>,
    _inbound: Option<Inbound>,
    processes: TempDir,
    source: Launched,
    target: Launched,
    vmi: Value,
}

impl Bed {
    /// A machine that runs in one pod, and another pod that is ready for it.
    fn new() -> (Bed, Console) {
        Bed::of(machine())
    }

    fn of(vmi: Value) -> (Bed, Console) {
        Bed::with(vmi, |_| ())
    }

    /// The same; each pod is prepared once its network is there.
    fn with(vmi: Value, prepare: impl Fn(&Net)) -> (Bed, Console) {
        let vmi = judged(vmi);
        let net = Net::up(NetOptions::default()).unwrap();
        prepare(&net);
        let source = Launched::at(net, "--allow-emulation", &vmi);
        let answer = source.sync(&mut source.client(), &vmi);
        assert!(answer.success, "{answer:?}\n{}", source.compute.log());
        let console = source.console();
        let twin = source.pod.net.twin(|| Ok(silence::silence("eth0")?)).unwrap();
        prepare(&twin);
        let target = Launched::at(twin, "--allow-emulation", &vmi);
        let ready = target.client().sync_migration_target(request(&vmi)).await_in(&target);
        assert!(ready.success, "{ready:?}\n{}", target.compute.log());
        let again = target.client().sync_migration_target(request(&vmi)).await_in(&target);
        assert!(again.success, "{again:?}");
        assert_eq!(target.domain(&mut target.client()).status, Status::NoState);
        let processes = processes();
        let bed = Bed { _outbound: None, _inbound: None, processes, source, target, vmi };
        (bed, console)
    }

    /// The handlers open their ends.
    fn connect(&mut self, migration: &str) {
        let pod = |launched: &Launched| Pod {
            volumes: PodVolumes::new(launched.pod.path("pods")).with_processes(self.processes.path()),
            uid: POD_UID.into(),
        };
        let ca = make_ca(Timestamp::now(), HOUR).unwrap();
        let (here, there) = (identity(&ca, "node1"), identity(&ca, "node2"));
        let opening = Inbound::open(pod(&self.target), migration, &there, "node1");
        let inbound = self.target.runtime.block_on(opening).unwrap();
        let to: BTreeMap<u16, SocketAddr> = inbound
            .ports()
            .iter()
            .map(|(tcp, logical)| (*logical, (Ipv4Addr::LOCALHOST, *tcp).into()))
            .collect();
        let _inside = self.source.runtime.enter();
        self._outbound = Some(Outbound::open(&pod(&self.source), migration, &here, "node2", &to).unwrap());
        self._inbound = Some(inbound);
    }

    /// The handlers of both nodes offer to repair connections.
    fn arm(&self) -> [Box<dyn Armed>; 2] {
        [(&self.source, false), (&self.target, true)].map(|(launched, incoming)| {
            let _inside = launched.runtime.enter();
            let volumes = PodVolumes::new(launched.pod.path("pods")).with_processes(self.processes.path());
            let network = PodNetwork {
                bridged: Vec::new(),
                pod_uid: POD_UID.into(),
                launcher: Process::of(launched.only("netd").as_raw()).unwrap(),
                sockets: launched.pod.path("public/netd"),
                interfaces: vec![(0, "default".into())],
                incoming,
                to: None,
            };
            Repairs::new(volumes).arm(&network).unwrap()
        })
    }

    fn migrate(&self, options: &Options) -> Response {
        let request =
            MigrationRequest { vmi: request(&self.vmi).vmi, options: serde_json::to_vec(options).unwrap() };
        self.source.client().migrate_virtual_machine(request).await_in(&self.source)
    }
}

/// The machine as virt-controller writes it: how it moves.
fn judged(mut vmi: Value) -> Value {
    let typed = serde_json::from_value(vmi.clone()).unwrap();
    vmi["status"]["migrationMethod"] = storage::method(&storage::fates(&typed).unwrap()).as_str().into();
    vmi
}

/// Sets a flag when it goes.
struct StoreOnDrop<'a>(&'a AtomicBool);

impl Drop for StoreOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// What a node shows.
fn identity(ca: &KeyPairPem, node: &str) -> Identity {
    let names = [node_name(node)];
    let leaf = make_leaf(ca, NODE_COMMON_NAME, &names, Purpose::Node, Timestamp::now(), HOUR).unwrap();
    Identity::fixed(&leaf, &ca.certificate).unwrap()
}

/// Says of every process younger than the test's that it is the pod's: which ones QEMU and libvirt will have is not
/// known. In memory, as they are thousands.
fn processes() -> TempDir {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let newest = std::fs::read_dir("/proc").unwrap().flatten();
    let newest = newest.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max().unwrap();
    for pid in std::process::id()..newest + PROCESSES {
        let path = directory.path().join(pid.to_string());
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("cgroup"), format!("0::/kubepods/pod{POD_UID}/c\n")).unwrap();
    }
    directory
}

/// A call's answer, waited for.
trait AwaitIn {
    fn await_in(self, launched: &Launched) -> Response;
}

impl<F: Future<Output = Result<tonic::Response<Response>, tonic::Status>>> AwaitIn for F {
    fn await_in(self, launched: &Launched) -> Response {
        launched.runtime.block_on(self).unwrap().into_inner()
    }
}

fn sockets(launched: &Launched) -> Vec<String> {
    let public = launched.pod.path("public");
    let names = std::fs::read_dir(Path::new(&public)).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("migration-")).collect()
}

#[test]
fn a_machine_moves_with_its_memory_and_its_disks() {
    let (mut bed, mut console) = Bed::new();
    console
        .sh("MARK=remembered; echo moved-with-it >/dev/vda; echo scratched >/dev/vdb; sync", LIMIT)
        .unwrap();
    // An image's size is what its header says, whatever its file's is.
    assert_eq!(console.sh("blockdev --getsize64 /dev/vdc", LIMIT).unwrap(), GROWN.to_string());
    let last = format!("bs=4096 seek={} conv=notrunc,fsync", GROWN / 4096 - 1);
    console.sh(&format!("echo at-its-end | dd of=/dev/vdc {last}"), LIMIT).unwrap();
    let options = Options { migration_uid: "m-1".into(), max_downtime_ms: 900, ..Options::default() };
    let (heard, _handler) = bed.source.handler();
    let (heard_there, _handler_there) = bed.target.handler();
    bed.connect("m-1");
    let begun = bed.migrate(&options);
    assert!(begun.success, "{begun:?}\n{}", bed.source.compute.log());
    assert!(bed.migrate(&options).success, "the same one again");

    let last = heard.wait_within(MOVE, "the end at the source", |d| d.status.is_final());
    assert_eq!((last.status, last.reason.as_str()), (Status::Shutoff, reason::MIGRATED), "{last:?}");
    let migration = last.migration.unwrap();
    assert!(migration.completed && !migration.failed && migration.uid == "m-1", "{migration:?}");
    assert_eq!(bed.source.compute.wait(LIMIT).unwrap().code(), Some(0), "{}", bed.source.compute.log());
    let here = heard_there.wait("running at the target", |d| d.status == Status::Running);
    // It came held, and was let go by the source's word.
    assert_eq!(here.reason, reason::UNPAUSED);
    for (launched, word) in
        [(&bed.source, "the target has not heard"), (&bed.target, "has not come this way")]
    {
        assert!(!launched.compute.log().contains(word), "{}", launched.compute.log());
    }
    assert!(bed.target.compute.log().contains("the source has given its word"));

    let target = &mut bed.target;
    let finished = target.client().finalize_virtual_machine_migration(request(&bed.vmi)).await_in(target);
    assert!(finished.success, "{finished:?}");
    // Too late, and no harm done.
    let leave = target.client().signal_target_pod_cleanup(request(&bed.vmi)).await_in(target);
    assert!(leave.success);
    let mut there = Console::connect(&target.private("virt-serial0"), LIMIT).unwrap();
    assert_eq!(there.sh("echo $MARK", LIMIT).unwrap(), "remembered");
    there.sh("echo 3 >/proc/sys/vm/drop_caches", LIMIT).unwrap();
    assert_eq!(there.sh("head -n 1 /dev/vda", LIMIT).unwrap(), "moved-with-it");
    assert_eq!(there.sh("head -n 1 /dev/vdb", LIMIT).unwrap(), "scratched");
    assert_eq!(there.sh("blockdev --getsize64 /dev/vdc", LIMIT).unwrap(), GROWN.to_string());
    let last = format!("dd if=/dev/vdc bs=4096 skip={} 2>/dev/null | head -n 1", GROWN / 4096 - 1);
    assert_eq!(there.sh(&last, LIMIT).unwrap(), "at-its-end");
    let image = std::fs::read(target.image.as_ref().unwrap().path().join("disk.img")).unwrap();
    assert!(image.starts_with(MARK.as_bytes()), "the image is never written");

    // It is the target's in every respect.
    target.compute.signal(Signal::SIGTERM).unwrap();
    there.wait_for("GUEST-POWER-BUTTON", LIMIT).unwrap();
    let code = target.compute.wait(LIMIT).unwrap().code();
    assert_eq!(code, Some(ENDED_WITH_POD.into()), "{}", target.compute.log());
}

#[test]
fn long_a_migration_that_is_aborted_or_cut_leaves_the_machine_where_it_was() {
    let (mut bed, mut console) = Bed::new();
    console.sh("MARK=remembered", LIMIT).unwrap();
    let (heard, _handler) = bed.source.handler();
    // So slow that it does not end by itself.
    let slow = |uid: &str| Options { migration_uid: uid.into(), bandwidth: 1 << 20, ..Options::default() };
    bed.connect("m-1");
    assert!(bed.migrate(&slow("m-1")).success, "{}", bed.source.compute.log());
    let under_way = |d: &podvirt_proto::domain::Domain| {
        d.migration.as_ref().and_then(|m| m.progress).is_some_and(|p| p.processed > 0)
    };
    heard.wait("progress", under_way);
    let cancel =
        bed.source.client().cancel_virtual_machine_migration(request(&bed.vmi)).await_in(&bed.source);
    assert!(cancel.success, "{cancel:?}");
    let over = |uid: &'static str| {
        move |d: &podvirt_proto::domain::Domain| {
            d.migration.as_ref().is_some_and(|m| m.uid == uid && m.completed)
        }
    };
    let report = heard.wait("the abort", over("m-1"));
    let migration = report.migration.unwrap();
    assert_eq!((migration.failed, migration.abort_status), (true, Some(AbortStatus::Succeeded)));
    assert_eq!(console.sh("echo $MARK", LIMIT).unwrap(), "remembered");

    // Once more to the same target; this time the handlers die.
    bed.connect("m-2");
    let begun = bed.migrate(&slow("m-2"));
    assert!(begun.success, "{begun:?}");
    until("the connections", LIMIT, || Ok((sockets(&bed.source).len() == port::ALL.len()).then_some(())))
        .unwrap();
    heard.wait("progress again", |d| under_way(d) && d.migration.as_ref().is_some_and(|m| m.uid == "m-2"));
    (bed._outbound, bed._inbound) = (None, None);
    let report = heard.wait("the failure", over("m-2"));
    let migration = report.migration.unwrap();
    assert!(migration.failed && migration.abort_status.is_none(), "{migration:?}");
    assert!(sockets(&bed.source).is_empty());
    assert_eq!(console.sh("echo $MARK", LIMIT).unwrap(), "remembered");
    assert_eq!(bed.source.domain(&mut bed.source.client()).status, Status::Running);

    let target = &mut bed.target;
    let leave = target.client().signal_target_pod_cleanup(request(&bed.vmi)).await_in(target);
    assert!(leave.success, "{leave:?}");
    assert_eq!(target.compute.wait(LIMIT).unwrap().code(), Some(0), "{}", target.compute.log());
}

/// The numbers from one on, a line each: what `seq` writes, and nothing lost or doubled goes unseen.
struct Ramp {
    next: u64,
    line: Vec<u8>,
}

impl Ramp {
    fn new() -> Ramp {
        Ramp { next: 1, line: Vec::new() }
    }

    /// Bytes that go on where the last ones ended.
    fn more(&mut self, len: usize) -> Vec<u8> {
        while self.line.len() < len {
            self.line.extend(format!("{}\n", self.next).as_bytes());
            self.next += 1;
        }
        self.line.drain(..len).collect()
    }
}

/// What was reset, by reason, as netd in a pod tells.
fn dropped(launched: &Launched, reason: &str) -> u64 {
    let asked = Command::new(program_dir("netctl").unwrap().join("netctl"))
        .arg("--socket")
        .arg(launched.pod.path("public/netd/n0.ctl"))
        .args(["--json", "counters"])
        .output()
        .unwrap();
    let rows: Value = serde_json::from_slice(&asked.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    let row = rows.iter().find(|r| r["name"].as_str().is_some_and(|name| name.ends_with(reason)));
    row.expect("a counter for the reason")["value"].as_u64().unwrap()
}

#[test]
fn long_connections_go_along_with_the_machine_and_those_through_a_meshs_proxy_are_reset() {
    let mut vmi = vmi();
    let ports = [GREETER, 8001, 8002, 8003].map(|port| json!({"port": port}));
    vmi["spec"]["domain"]["devices"]["interfaces"][0]["ports"] = json!(ports);
    // Those on 8003 into the guest, and to 7002 out of it, go through the proxy of their pod.
    let past: (&[u16], &[u16]) = (&[GREETER, 8001, 8002], &[7001]);
    let (mut bed, mut console) = Bed::with(vmi, |net| sidecar(net, past).unwrap());
    let net = &bed.source.pod.net;
    let world = |port| std::net::SocketAddr::from((net.client4, port));
    let pod = |port| std::net::SocketAddr::from((Net::POD4, port));

    // Out of the guest and into it, each of them compared from its first byte to its last.
    let listener = net.listen(world(7001)).unwrap();
    console.sh("(seq 1 1000000000 | socat -u - TCP4:10.9.0.1:7001) >/dev/null 2>&1 &", LIMIT).unwrap();
    let mut out = peer::accept(&listener).unwrap();
    let serve = |console: &mut Console, port: u16, program: &str| {
        let wait = format!("until ss -Hltn | grep -q ':{port} '; do usleep 50000; done");
        console
            .sh(&format!("({program}) >/tmp/{port}.log 2>&1 & echo $! >/tmp/{port}.pid; {wait}"), LIMIT)
            .unwrap();
    };
    serve(&mut console, 8001, "socat -u TCP4-LISTEN:8001,reuseaddr - | sha256sum");
    serve(&mut console, 8002, "socat TCP4-LISTEN:8002,reuseaddr,fork PIPE");
    // A listed port is refused until netd has asked the guest again.
    let reach = |port| until("a connection to the guest", LIMIT, || Ok(net.connect(pod(port)).ok())).unwrap();
    let mut into = reach(8001);
    let mut idle: Vec<_> = (0..20).map(|_| reach(8002)).collect();
    let echo = |idle: &mut Vec<std::net::TcpStream>| {
        for (i, stream) in idle.iter_mut().enumerate() {
            stream.write_all(&[i as u8]).unwrap();
            let mut back = [!0];
            stream.read_exact(&mut back).unwrap_or_else(|e| panic!("idle connection {i}: {e}"));
            assert_eq!(back, [i as u8]);
        }
    };
    echo(&mut idle);
    serve(&mut console, 8003, "socat TCP4-LISTEN:8003,reuseaddr,fork PIPE");
    let proxied = net.listen(world(7002)).unwrap();
    console
        .sh("(socat TCP4:10.9.0.1:7002 EXEC:cat >/tmp/7002.log 2>&1) & echo $! >/tmp/7002.pid", LIMIT)
        .unwrap();
    // The proxy accepts at once, and ends what it finds refused.
    let through = || {
        let mut stream = net.connect(pod(8003))?;
        let echoes = stream.write_all(&[0]).and_then(|()| stream.read_exact(&mut [0]));
        Ok(echoes.ok().map(|()| stream))
    };
    let through = until("an echo through the proxy", LIMIT, through).unwrap();
    let mut meshed = vec![through, peer::accept(&proxied).unwrap()];
    echo(&mut meshed);

    let (stop, came, went) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let hash = std::thread::scope(|scope| {
        // Also when an expectation fails: the scope waits for its threads.
        let _ended = StoreOnDrop(&stop);
        let received = scope.spawn(|| {
            let (mut ramp, mut buffer) = (Ramp::new(), vec![0; 64 << 10]);
            while !stop.load(SeqCst) {
                let n = out.read(&mut buffer).expect("the stream out of the guest broke");
                assert!(n > 0, "the stream out of the guest ended");
                let before = came.fetch_add(n as u64, SeqCst);
                assert!(buffer[..n] == ramp.more(n), "wrong within {n} bytes from {before} on");
            }
        });
        let sent = scope.spawn(|| {
            let (mut ramp, mut all) = (Ramp::new(), Vec::new());
            while !stop.load(SeqCst) {
                let bytes = ramp.more(16 << 10);
                into.write_all(&bytes).expect("the stream into the guest broke");
                all.extend(&bytes);
                went.fetch_add(bytes.len() as u64, SeqCst);
                std::thread::sleep(Duration::from_millis(5));
            }
            into.shutdown(std::net::Shutdown::Write).unwrap();
            peer::sha256(&all).unwrap()
        });
        let moves = |what: &str| {
            let before = [came.load(SeqCst), went.load(SeqCst)];
            let on = || [came.load(SeqCst), went.load(SeqCst)].iter().zip(before).all(|(now, b)| *now > b);
            let moved = until(what, LIMIT, || Ok(on().then_some(())));
            if moved.is_err() || received.is_finished() || sent.is_finished() {
                stop.store(true, SeqCst);
            }
            moved.unwrap();
        };
        moves("before the migration");
        let armed = bed.arm();
        let options = Options { migration_uid: "m-1".into(), max_downtime_ms: 900, ..Options::default() };
        let (heard, _handler) = bed.source.handler();
        let (heard_there, _handler_there) = bed.target.handler();
        bed.connect("m-1");
        let begun = bed.migrate(&options);
        assert!(begun.success, "{begun:?}\n{}", bed.source.compute.log());
        let last = heard.wait_within(MOVE, "the end at the source", |d| d.status.is_final());
        assert_eq!((last.status, last.reason.as_str()), (Status::Shutoff, reason::MIGRATED), "{last:?}");
        heard_there.wait("running at the target", |d| d.status == Status::Running);
        moves("after the migration");
        drop(armed);
        stop.store(true, SeqCst);
        received.join().unwrap();
        sent.join().unwrap()
    });
    echo(&mut idle);
    let mut there = Console::connect(&bed.target.private("virt-serial0"), LIMIT).unwrap();
    let said = there.sh("wait $(cat /tmp/8001.pid); cat /tmp/8001.log", LIMIT).unwrap();
    assert!(said.contains(&hash), "damaged on the way in: {said}");
    assert!(came.load(SeqCst) > 0 && went.load(SeqCst) > 0);
    // Their proxy is another one now: both ends have heard so.
    for (stream, what) in meshed.iter_mut().zip(["into the guest", "out of it"]) {
        let end = stream.read(&mut [0]).expect_err(what).kind();
        assert_eq!(end, std::io::ErrorKind::ConnectionReset, "{what}");
    }
    assert_eq!(dropped(&bed.source, "migration_local"), 2);
    let said = there.sh("wait $(cat /tmp/7002.pid); cat /tmp/7002.log", LIMIT).unwrap();
    assert!(said.contains("reset by peer"), "{said}");
    // New ones work as ever, the proxy's as well.
    for port in [8002, 8003] {
        idle.push(bed.source.pod.net.connect(pod(port)).unwrap());
    }
    echo(&mut idle);
}
