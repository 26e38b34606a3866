use std::net::Ipv4Addr;
use std::path::PathBuf;

use jiff::Timestamp;
use nix::unistd::Uid;
use podvirt_daemon::pki::{KeyPairPem, NODE_COMMON_NAME, Purpose, make_ca, make_leaf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const MIGRATION: &str = "6d2c2c5e-1c7e-4a53-8a5b-0f5f5b5f5b5f";

/// A pod whose only process is the test's own.
struct Bed {
    _root: tempfile::TempDir,
    pod: Pod,
    public: PathBuf,
}

impl Bed {
    fn new(uid: &str) -> Bed {
        let root = tempfile::tempdir().unwrap();
        let process = root.path().join("processes").join(std::process::id().to_string());
        std::fs::create_dir_all(&process).unwrap();
        std::fs::write(process.join("cgroup"), format!("0::/kubepods/burstable/pod{uid}/c\n")).unwrap();
        let volumes = PodVolumes::new(root.path().join("pods"))
            .with_processes(root.path().join("processes"))
            .with_owner(Uid::current().as_raw());
        let public = volumes.path(uid, pod::volume::PUBLIC);
        std::fs::create_dir_all(&public).unwrap();
        std::fs::create_dir_all(volumes.path(uid, pod::volume::LIBVIRT_RUNTIME).join("x/libvirt")).unwrap();
        Bed { _root: root, pod: Pod { volumes, uid: uid.into() }, public }
    }

    /// Listens as the launcher's programs do.
    fn listen(&self, logical: u16) -> UnixListener {
        let dir = |volume, sub| self.pod.volumes.dir(&self.pod.uid, volume, sub).unwrap();
        let owner = self.pod.volumes.owner();
        match logical {
            port::LIBVIRT => dir(pod::volume::LIBVIRT_RUNTIME, LIBVIRT.0).listen(LIBVIRT.1, owner).unwrap(),
            port::WORD => dir(pod::volume::PUBLIC, "").listen(word::SOCKET, owner).unwrap(),
            _ => dir(pod::volume::PUBLIC, "").listen(&name(MIGRATION, logical).unwrap(), owner).unwrap(),
        }
    }

    async fn connect(&self, logical: u16) -> UnixStream {
        let dir = self.pod.volumes.dir(&self.pod.uid, pod::volume::PUBLIC, "").unwrap();
        dir.connect(&name(MIGRATION, logical).unwrap()).await.unwrap()
    }
}

/// What a node shows.
fn node(ca: &KeyPairPem, node: &str) -> Identity {
    Identity::fixed(&leaf(ca, node), &ca.certificate).unwrap()
}

fn leaf(ca: &KeyPairPem, node: &str) -> KeyPairPem {
    let names = [node_name(node)];
    make_leaf(ca, NODE_COMMON_NAME, &names, Purpose::Node, Timestamp::now(), HOUR).unwrap()
}

fn local(inbound: &Inbound) -> BTreeMap<u16, SocketAddr> {
    let ports = inbound.ports().iter();
    ports.map(|(tcp, logical)| (*logical, (Ipv4Addr::LOCALHOST, *tcp).into())).collect()
}

/// Sends `bytes` through and has them come back.
async fn round_trip(source: &Bed, inside: &UnixListener, logical: u16, bytes: &[u8]) {
    let mut stream = source.connect(logical).await;
    let there = async {
        let (mut stream, _) = inside.accept().await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        stream.write_all(&all).await.unwrap();
    };
    let here = async {
        let (mut read, mut write) = stream.split();
        let mut back = Vec::new();
        let send = async {
            write.write_all(bytes).await.unwrap();
            write.shutdown().await.unwrap();
        };
        let (_, received) = tokio::join!(send, read.read_to_end(&mut back));
        received.unwrap();
        back
    };
    let ((), back) = tokio::join!(there, here);
    assert!(back == bytes, "{logical}: {} of {} bytes", back.len(), bytes.len());
}

#[tokio::test]
async fn bytes_and_their_end_go_both_ways_on_every_port() {
    let (source, target) = (Bed::new("pod-a"), Bed::new("pod-b"));
    let ca = make_ca(Timestamp::now(), HOUR).unwrap();
    let inbound = Inbound::open(target.pod.clone(), MIGRATION, &node(&ca, "n2"), "n1").await.unwrap();
    assert_eq!(inbound.ports().len(), port::ALL.len());
    let identity = node(&ca, "n1");
    let outbound = Outbound::open(&source.pod, MIGRATION, &identity, "n2", &local(&inbound)).unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    for logical in port::ALL {
        let inside = target.listen(logical);
        round_trip(&source, &inside, logical, &bytes).await;
        round_trip(&source, &inside, logical, b"once more").await;
    }
    // The end cuts what stands and leaves no socket.
    let inside = target.listen(port::DIRECT);
    let mut stream = source.connect(port::DIRECT).await;
    let (mut there, _) = inside.accept().await.unwrap();
    drop((inbound, outbound));
    let mut byte = [0];
    let ended = async {
        let _cut = there.read(&mut byte).await;
    };
    tokio::time::timeout(Duration::from_secs(20), ended).await.unwrap();
    let ended = async { matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)) };
    assert!(tokio::time::timeout(Duration::from_secs(20), ended).await.unwrap());
    assert_eq!(std::fs::read_dir(&source.public).unwrap().count(), 0);
}

#[tokio::test]
async fn what_a_process_left_that_is_gone_is_removed() {
    let bed = Bed::new("1-1");
    std::fs::write(bed.public.join("other"), "").unwrap();
    for logical in port::ALL {
        std::fs::write(bed.public.join(name(MIGRATION, logical).unwrap()), "").unwrap();
    }
    sweep(&bed.pod, "another");
    assert_eq!(std::fs::read_dir(&bed.public).unwrap().count(), port::ALL.len() + 1);
    sweep(&bed.pod, MIGRATION);
    assert_eq!(std::fs::read_dir(&bed.public).unwrap().count(), 1);
    sweep(&Pod { uid: "gone".into(), ..bed.pod.clone() }, MIGRATION);
}

#[tokio::test]
async fn certificates_that_are_renewed_are_taken_at_the_next_handshake() {
    let (source, target) = (Bed::new("pod-a"), Bed::new("pod-b"));
    let ca = make_ca(Timestamp::now(), HOUR).unwrap();
    let (shown, asks) = (node(&ca, "n2"), node(&ca, "n1"));
    let inbound = Inbound::open(target.pod.clone(), MIGRATION, &shown, "n1").await.unwrap();
    let _outbound = Outbound::open(&source.pod, MIGRATION, &asks, "n2", &local(&inbound)).unwrap();
    let inside = target.listen(port::DIRECT);
    round_trip(&source, &inside, port::DIRECT, b"before").await;

    let new = make_ca(Timestamp::now(), HOUR).unwrap();
    shown.replace(&leaf(&new, "n2"), &new.certificate).unwrap();
    asks.replace(&leaf(&new, "n1"), &new.certificate).unwrap();
    round_trip(&source, &inside, port::DIRECT, b"after").await;
}

/// Whether what connects is cut off.
async fn cut_off(source: &Bed, logical: u16) -> bool {
    let mut stream = source.connect(logical).await;
    let read = async { matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)) };
    tokio::time::timeout(Duration::from_secs(20), read).await.unwrap_or(false)
}

#[tokio::test]
async fn only_the_two_nodes_of_the_migration_get_through() {
    let (source, target) = (Bed::new("pod-a"), Bed::new("pod-b"));
    let ca = make_ca(Timestamp::now(), HOUR).unwrap();
    let inbound = Inbound::open(target.pod.clone(), MIGRATION, &node(&ca, "n2"), "n1").await.unwrap();
    let inside = target.listen(port::DIRECT);
    let other_ca = make_ca(Timestamp::now(), HOUR).unwrap();
    let client = |name: &str, names: &[String]| {
        let leaf = make_leaf(&ca, name, names, Purpose::Client, Timestamp::now(), HOUR).unwrap();
        Identity::fixed(&leaf, &ca.certificate).unwrap()
    };
    let strangers = [
        // Another node, and the target itself: their certificates are of the same CA.
        node(&ca, "n3"),
        node(&ca, "n2"),
        // virt-api's.
        client(podvirt_daemon::pki::HANDLER_CLIENT_NAME, &[]),
        // A name beside the right one.
        client(NODE_COMMON_NAME, &[node_name("n3"), node_name("n1")]),
        // The right name of another CA.
        Identity::fixed(&leaf(&other_ca, "n1"), &ca.certificate).unwrap(),
    ];
    for stranger in strangers {
        let outbound = Outbound::open(&source.pod, MIGRATION, &stranger, "n2", &local(&inbound)).unwrap();
        assert!(cut_off(&source, port::DIRECT).await);
        drop(outbound);
    }
    // A server that is another node.
    let trap = Inbound::open(target.pod.clone(), MIGRATION, &node(&ca, "n3"), "n1").await.unwrap();
    let honest = node(&ca, "n1");
    let _outbound = Outbound::open(&source.pod, MIGRATION, &honest, "n2", &local(&trap)).unwrap();
    assert!(cut_off(&source, port::DIRECT).await);
    let accepted = tokio::time::timeout(Duration::from_millis(1), inside.accept()).await;
    assert!(accepted.is_err(), "something got through");
}

#[tokio::test]
async fn clients_that_say_nothing_keep_no_other_client_out() {
    let (source, target) = (Bed::new("pod-a"), Bed::new("pod-b"));
    let ca = make_ca(Timestamp::now(), HOUR).unwrap();
    let inbound = Inbound::open(target.pod.clone(), MIGRATION, &node(&ca, "n2"), "n1").await.unwrap();
    let to = local(&inbound);
    let mut silent = Vec::new();
    for _ in 0..2 * (HANDSHAKES + CONNECTIONS) {
        silent.push(TcpStream::connect(to[&port::DIRECT]).await.unwrap());
    }
    let identity = node(&ca, "n1");
    let _outbound = Outbound::open(&source.pod, MIGRATION, &identity, "n2", &to).unwrap();
    let inside = target.listen(port::DIRECT);
    round_trip(&source, &inside, port::DIRECT, b"through all of them").await;
    // The oldest is cut off, the newest is waited for; and not because its time is over.
    let cut = tokio::time::timeout(GREETING / 2, silent[0].read(&mut [0])).await.expect("it is not cut off");
    assert_eq!(cut.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_process_of_another_pod_gets_nowhere() {
    let (source, target) = (Bed::new("pod-a"), Bed::new("pod-b"));
    let ca = make_ca(Timestamp::now(), HOUR).unwrap();
    let inbound = Inbound::open(target.pod.clone(), MIGRATION, &node(&ca, "n2"), "n1").await.unwrap();
    let elsewhere = Bed::new("pod-c");
    let volumes = source.pod.volumes.clone().with_processes(elsewhere._root.path().join("processes"));
    let pod = Pod { volumes, uid: source.pod.uid.clone() };
    let identity = node(&ca, "n1");
    let _outbound = Outbound::open(&pod, MIGRATION, &identity, "n2", &local(&inbound)).unwrap();
    assert!(cut_off(&source, port::DIRECT).await);
    Outbound::open(&source.pod, "../x", &identity, "n2", &local(&inbound)).unwrap_err();
}

#[tokio::test]
async fn one_connection_more_than_a_port_carries_is_cut() {
    let target = Bed::new("pod-b");
    let ca = make_ca(Timestamp::now(), HOUR).unwrap();
    let inbound = Inbound::open(target.pod.clone(), MIGRATION, &node(&ca, "n2"), "n1").await.unwrap();
    let address = local(&inbound)[&port::DIRECT];
    let inside = target.listen(port::DIRECT);
    let connector = TlsConnector::from(node(&ca, "n1").client_config(&node_name("n2")).unwrap());
    let connect = async || {
        let stream = TcpStream::connect(address).await.unwrap();
        connector.connect(ServerName::from(address.ip()), stream).await.unwrap()
    };
    let mut carried = Vec::new();
    for _ in 0..CONNECTIONS {
        carried.push((connect().await, inside.accept().await.unwrap()));
    }
    let mut more = connect().await;
    let cut = async { matches!(more.read(&mut [0]).await, Ok(0) | Err(_)) };
    assert!(tokio::time::timeout(GREETING / 2, cut).await.expect("it is carried"));
    drop(carried.pop());
    let again = async {
        // The place of the one that ended is free in a moment.
        loop {
            let _stream = connect().await;
            let accepted = tokio::time::timeout(Duration::from_millis(200), inside.accept()).await;
            if accepted.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), again).await.expect("its place is not free");
}
