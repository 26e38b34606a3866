use std::sync::Mutex;

use http_body_util::BodyExt as _;
use podvirt_api::backup::{Key, Options, tunnel_identity};
use podvirt_api::export::TOKEN_HEADER;
use podvirt_daemon::pki::{KeyPairPem, Purpose};
use tempfile::TempDir;
use tokio::io::{DuplexStream, duplex};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tower::ServiceExt as _;
use virt_export::server::backup::nbd::double;
use virt_export::server::backup::served::{NAME, Served, TOKEN, UID, leaf};

use super::*;

/// An exporter that fails as it is told to, and then keeps streams.
#[derive(Default)]
struct Fake {
    failures: Mutex<Vec<&'static str>>,
    dialled: Mutex<Vec<Instant>>,
    /// The other ends.
    streams: Mutex<Vec<DuplexStream>>,
}

impl std::fmt::Display for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("fake")
    }
}

impl Dial for Fake {
    type Stream = DuplexStream;

    async fn dial(&self) -> Result<DuplexStream, DialError> {
        self.dialled.lock().unwrap().push(Instant::now());
        let failure = self.failures.lock().unwrap().pop();
        match failure {
            Some("hangs") => std::future::pending().await,
            Some(why) => Err(DialError::Connect(io::Error::other(why))),
            None => {
                let (ours, theirs) = duplex(64);
                self.streams.lock().unwrap().push(theirs);
                Ok(ours)
            }
        }
    }
}

impl Fake {
    fn seconds(&self, since: Instant) -> Vec<f64> {
        self.dialled.lock().unwrap().iter().map(|moment| (*moment - since).as_secs_f64().round()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn an_exporter_that_is_not_there_is_dialled_until_it_is() {
    let (fake, begun) = (Arc::new(Fake::default()), Instant::now());
    *fake.failures.lock().unwrap() =
        ["hangs", "refused", "refused", "refused", "refused", "hangs", "hangs"].into();
    let (aims, aimed) = watch::channel(fake.clone());
    let (tells, mut told) = mpsc::unbounded_channel();
    let report = move |why: String| drop(tells.send((why, Instant::now())));
    let running = tokio::spawn(run(aimed, "/nowhere".into(), report));
    sleep(Duration::from_secs(100)).await;
    // Two that hang for 10 s; pauses of 1, 2, 4, 8, 10 s; one more that hangs; then both that are wanted.
    assert_eq!(fake.seconds(begun), [0.0, 0.0, 11.0, 13.0, 17.0, 25.0, 35.0, 55.0, 55.0]);
    let reported: Vec<_> =
        std::iter::from_fn(|| told.try_recv().ok()).map(|(why, at)| (why, (at - begun).as_secs())).collect();
    let hangs = "no answer within 10 s";
    let wanted = [("no connection: refused", 25), (hangs, 45), ("", 55)];
    assert_eq!(reported, wanted.map(|(why, at)| (why.to_owned(), at)));
    // What ends while it waits is dialled again, and not without a pause.
    let ended = Instant::now();
    drop(fake.streams.lock().unwrap().remove(0));
    sleep(Duration::from_secs(10)).await;
    let last = *fake.dialled.lock().unwrap().last().unwrap();
    assert_eq!((last - ended).as_millis(), 500);
    assert_eq!(fake.streams.lock().unwrap().len(), 2);

    // Another exporter is dialled at once where the one before fails.
    *fake.failures.lock().unwrap() = vec!["refused"; 100];
    fake.streams.lock().unwrap().clear();
    sleep(Duration::from_secs(60)).await;
    let other = Arc::new(Fake::default());
    let aimed_at = Instant::now();
    aims.send_replace(other.clone());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(other.seconds(aimed_at), [0.0, 0.0]);
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    let mut stream = other.streams.lock().unwrap().remove(0);
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "streams end with the tunnel");
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_taken_by_one_byte_alone() {
    let fake = Arc::new(Fake::default());
    let (_aims, aimed) = watch::channel(fake.clone());
    let _running = tokio::spawn(run(aimed, "/nowhere".into(), drop));
    sleep(Duration::from_millis(100)).await;
    for byte in [2, TAKEN] {
        let mut stream = fake.streams.lock().unwrap().remove(0);
        stream.write_u8(byte).await.unwrap();
        // There is no NBD server either.
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }
    sleep(Duration::from_secs(5)).await;
    assert_eq!(fake.streams.lock().unwrap().len(), 2);
}

#[test]
fn what_is_the_same_is_told_once() {
    let mut told = Told::default();
    let news: Vec<bool> = ["a", "a", "b", "a"].map(|why| told.fails(why)).into();
    assert_eq!(news, [true, false, true, true]);
    assert!(told.reaches(Stage::Parked) && !told.reaches(Stage::Parked) && !told.fails("a"));
    assert!(!told.reaches(Stage::Serving) && told.fails("a"), "it was of use meanwhile");
}

/// The exporter itself, and a machine's NBD server.
struct Both {
    served: Served,
    socket: PathBuf,
    data: Vec<u8>,
    asks: mpsc::UnboundedSender<Asked>,
    _files: TempDir,
}

type Asked = (String, oneshot::Sender<(u16, Vec<u8>)>);

impl Both {
    async fn new() -> Self {
        let files = tempfile::tempdir().unwrap();
        let served = Served::new(files.path(), &["root"]).await;
        let routes = served.routes.clone();
        let (asks, mut asked) = mpsc::unbounded_channel::<Asked>();
        // Clients with the token, whose way the exporter's own tests go.
        tokio::spawn(async move {
            while let Some((path, answers)) = asked.recv().await {
                let routes = routes.clone();
                tokio::spawn(async move {
                    let request = http::Request::get(path).header(TOKEN_HEADER, TOKEN);
                    let answer = routes.oneshot(request.body(String::new()).unwrap()).await.unwrap();
                    let (head, body) = answer.into_parts();
                    let body = body.collect().await.unwrap().to_bytes().to_vec();
                    let _ = answers.send((head.status.as_u16(), body));
                });
            }
        });
        let data: Vec<u8> = (0..3_000_000_u32).map(|place| u8::try_from(place % 251).unwrap()).collect();
        let socket = files.path().join("nbd");
        let server = UnixListener::bind(&socket).unwrap();
        let changes = ("qemu:dirty-bitmap:changes".to_owned(), vec![(65_536, 1), (2_934_464, 0)]);
        let disk = double::Disk {
            name: "root".into(),
            data: data.clone(),
            contexts: vec![changes],
            broken_from: None,
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = server.accept().await {
                let disk = disk.clone();
                tokio::spawn(async move { double::serve(stream, &[disk]).await });
            }
        });
        Both { served, socket, data, asks, _files: files }
    }

    fn target(&self, ca: &KeyPairPem, name: &str, uid: &str) -> Target {
        let machine = leaf(&self.served.cas[1], &tunnel_identity(uid), Purpose::Client);
        let options = Options {
            export_server_addr: Some(NAME.into()),
            export_server_name: Some(name.into()),
            backup_key: Some(Key(machine.key)),
            backup_cert: Some(machine.certificate),
            ca_cert: Some(ca.certificate.clone()),
            ..Options::default()
        };
        Target::new(&options).unwrap().at(self.served.address)
    }

    /// Asks for a path; the answer comes later.
    fn ask(&self, path: &str) -> oneshot::Receiver<(u16, Vec<u8>)> {
        let (answers, answer) = oneshot::channel();
        self.asks.send((path.to_owned(), answers)).unwrap();
        answer
    }

    async fn get(&self, path: &str) -> (u16, Vec<u8>) {
        self.ask(path).await.unwrap()
    }
}

#[tokio::test]
async fn an_exporter_reads_the_machines_disks() {
    let both = Both::new().await;
    let tunnel = Tunnel::open(both.target(&both.served.cas[0], NAME, UID), both.socket.clone(), drop);
    let (code, body) = both.get("/exports/root/data").await;
    assert_eq!(code, 200);
    assert!(body == both.data);
    let (_, body) = both.get("/exports/root/map").await;
    let told = String::from_utf8(body).unwrap();
    assert_eq!(
        told,
        "{\"extents\":[{\"offset\":0,\"length\":65536,\"type\":1,\"description\":\"dirty\"},\
         {\"offset\":65536,\"length\":2934464,\"type\":0,\"description\":\"clean\"}],\"next_offset\":null}"
    );
    // Many at a time; the certificate is renewed meanwhile.
    let part = |n: usize| format!("/exports/root/data?offset={}&length=100000", n * 100_000);
    let all: Vec<_> = (0..24).map(|n| both.ask(&part(n))).collect();
    tunnel.aim(both.target(&both.served.cas[0], NAME, UID));
    for (n, answer) in all.into_iter().enumerate() {
        let (code, body) = answer.await.unwrap();
        assert_eq!(code, 200);
        assert!(body == both.data[n * 100_000..(n + 1) * 100_000]);
    }
    drop(tunnel);
}

#[tokio::test]
async fn an_exporter_and_a_machine_are_known_by_their_certificates() {
    let both = Both::new().await;
    let fails = async |target: Target| chain(&target.dial().await.map(drop).unwrap_err());
    let strange = fails(both.target(&both.served.cas[1], NAME, UID)).await;
    // Both CAs have the same name, if they were made in the same second.
    assert!(strange.contains("UnknownIssuer") || strange.contains("BadSignature"), "{strange}");
    let misnamed = fails(both.target(&both.served.cas[0], "other.ns.svc", UID)).await;
    assert!(misnamed.contains("not valid for name"), "{misnamed}");
    let other = fails(both.target(&both.served.cas[0], NAME, "u-2")).await;
    assert_eq!(other, "it answers 403 Forbidden");
    both.target(&both.served.cas[0], NAME, UID).dial().await.map(drop).unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let away = fails(both.target(&both.served.cas[0], NAME, UID).at(closed)).await;
    assert!(away.starts_with("no connection: "), "{away}");
}
