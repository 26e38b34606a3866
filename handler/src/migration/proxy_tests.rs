use std::net::Ipv4Addr;
use std::path::PathBuf;

use jiff::Timestamp;
use nix::unistd::Uid;
use podvirt_daemon::pki::{KeyPairPem, Purpose, make_ca, make_leaf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const MIGRATION: &str = "6d2c2c5e-1c7e-4a53-8a5b-0f5f5b5f5b5f";

/// A pod whose processes are this one.
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

fn server(ca: &KeyPairPem) -> Identity {
    let names = [HANDLER_SERVER_NAME.to_owned()];
    let leaf = make_leaf(ca, "virt-handler", &names, Purpose::Server, Timestamp::now(), HOUR).unwrap();
    Identity::fixed(&leaf, &ca.certificate).unwrap()
}

fn client(ca: &KeyPairPem, name: &str) -> Identity {
    let leaf = make_leaf(ca, name, &[], Purpose::Client, Timestamp::now(), HOUR).unwrap();
    Identity::fixed(&leaf, &ca.certificate).unwrap()
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
    let inbound = Inbound::open(target.pod.clone(), MIGRATION, &server(&ca)).await.unwrap();
    assert_eq!(inbound.ports().len(), port::ALL.len());
    let identity = client(&ca, MIGRATION_CLIENT_NAME);
    let outbound = Outbound::open(&source.pod, MIGRATION, &identity, &local(&inbound)).unwrap();
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
    let (shown, asks) = (server(&ca), client(&ca, MIGRATION_CLIENT_NAME));
    let inbound = Inbound::open(target.pod.clone(), MIGRATION, &shown).await.unwrap();
    let _outbound = Outbound::open(&source.pod, MIGRATION, &asks, &local(&inbound)).unwrap();
    let inside = target.listen(port::DIRECT);
    round_trip(&source, &inside, port::DIRECT, b"before").await;

    let new = make_ca(Timestamp::now(), HOUR).unwrap();
    let names = [HANDLER_SERVER_NAME.to_owned()];
    let leaf = make_leaf(&new, "virt-handler", &names, Purpose::Server, Timestamp::now(), HOUR).unwrap();
    shown.replace(&leaf, &new.certificate).unwrap();
    let leaf = make_leaf(&new, MIGRATION_CLIENT_NAME, &[], Purpose::Client, Timestamp::now(), HOUR).unwrap();
    asks.replace(&leaf, &new.certificate).unwrap();
    round_trip(&source, &inside, port::DIRECT, b"after").await;
}

/// Whether what connects is cut off.
async fn cut_off(source: &Bed, logical: u16) -> bool {
    let mut stream = source.connect(logical).await;
    let read = async { matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)) };
    tokio::time::timeout(Duration::from_secs(20), read).await.unwrap_or(false)
}

#[tokio::test]
async fn nobody_but_another_virt_handler_gets_through() {
    let (source, target) = (Bed::new("pod-a"), Bed::new("pod-b"));
    let ca = make_ca(Timestamp::now(), HOUR).unwrap();
    let inbound = Inbound::open(target.pod.clone(), MIGRATION, &server(&ca)).await.unwrap();
    let inside = target.listen(port::DIRECT);
    let other_ca = make_ca(Timestamp::now(), HOUR).unwrap();
    // virt-api's certificate, which is of the same CA; and the right name of another one.
    let strangers = [client(&ca, podvirt_daemon::pki::HANDLER_CLIENT_NAME), {
        let leaf = make_leaf(&other_ca, MIGRATION_CLIENT_NAME, &[], Purpose::Client, Timestamp::now(), HOUR);
        Identity::fixed(&leaf.unwrap(), &ca.certificate).unwrap()
    }];
    for stranger in strangers {
        let outbound = Outbound::open(&source.pod, MIGRATION, &stranger, &local(&inbound)).unwrap();
        assert!(cut_off(&source, port::DIRECT).await);
        drop(outbound);
    }
    // A server that is none.
    let names = ["virt-api".to_owned()];
    let leaf = make_leaf(&ca, "virt-api", &names, Purpose::Server, Timestamp::now(), HOUR).unwrap();
    let false_server = Identity::fixed(&leaf, &ca.certificate).unwrap();
    let trap = Inbound::open(target.pod.clone(), MIGRATION, &false_server).await.unwrap();
    let honest = client(&ca, MIGRATION_CLIENT_NAME);
    let _outbound = Outbound::open(&source.pod, MIGRATION, &honest, &local(&trap)).unwrap();
    assert!(cut_off(&source, port::DIRECT).await);
    let nobody = tokio::time::timeout(Duration::from_millis(1), inside.accept()).await;
    assert!(nobody.is_err(), "something got through");
}

#[tokio::test]
async fn a_process_of_another_pod_gets_nowhere() {
    let (source, target) = (Bed::new("pod-a"), Bed::new("pod-b"));
    let ca = make_ca(Timestamp::now(), HOUR).unwrap();
    let inbound = Inbound::open(target.pod.clone(), MIGRATION, &server(&ca)).await.unwrap();
    let elsewhere = Bed::new("pod-c");
    let volumes = source.pod.volumes.clone().with_processes(elsewhere._root.path().join("processes"));
    let pod = Pod { volumes, uid: source.pod.uid.clone() };
    let identity = client(&ca, MIGRATION_CLIENT_NAME);
    let _outbound = Outbound::open(&pod, MIGRATION, &identity, &local(&inbound)).unwrap();
    assert!(cut_off(&source, port::DIRECT).await);
    Outbound::open(&source.pod, "../x", &identity, &local(&inbound)).unwrap_err();
}
