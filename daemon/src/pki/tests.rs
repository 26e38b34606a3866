use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use podvirt_api::rotation::{Life, Rotation};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);
/// A name of virt-api's server certificate.
const SERVER_NAME: &str = "virt-api";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_900_000_000 + seconds).unwrap()
}

fn read(pair: &KeyPairPem) -> Certificate {
    Certificate::all_from_pem(&pair.certificate).unwrap().remove(0)
}

fn leaf(ca: &KeyPairPem, request: &LeafRequest, now: Timestamp, life: Duration) -> KeyPairPem {
    make_leaf(ca, &request.common_name, &request.dns_names, request.purpose, now, life).unwrap()
}

/// What the API server would hold.
#[derive(Default)]
struct Store {
    ca: Option<KeyPairPem>,
    bundle: Vec<Certificate>,
    leaves: Vec<Option<KeyPairPem>>,
}

impl Store {
    fn observed(&self) -> Observed {
        Observed {
            ca: self.ca.as_ref().map(read),
            bundle: self.bundle.clone(),
            leaves: self.leaves.iter().map(|pair| pair.as_ref().map(read)).collect(),
        }
    }

    /// Carries out every step that is due; returns them.
    fn settle(&mut self, requests: &[LeafRequest], policy: &Policy, now: Timestamp) -> Vec<Step> {
        self.leaves.resize_with(requests.len(), || None);
        let mut steps = Vec::new();
        while let Some(step) = next_step(&self.observed(), requests, policy, now) {
            assert!(steps.len() < 32, "the plan never ends: {steps:?}");
            match &step {
                Step::MakeCa => self.ca = Some(make_ca(now, policy.ca.duration).unwrap()),
                Step::WriteBundle(bundle) => self.bundle.clone_from(bundle),
                Step::MakeLeaf(n) => {
                    let ca = self.ca.as_ref().unwrap();
                    self.leaves[*n] = Some(leaf(ca, &requests[*n], now, policy.leaf.duration));
                }
            }
            steps.push(step);
        }
        steps
    }
}

fn kinds(steps: &[Step]) -> Vec<&'static str> {
    steps
        .iter()
        .map(|step| match step {
            Step::MakeCa => "ca",
            Step::WriteBundle(_) => "bundle",
            Step::MakeLeaf(_) => "leaf",
        })
        .collect()
}

fn settled() -> (Store, Vec<LeafRequest>, Policy) {
    let (requests, policy) = (LeafRequest::of_the_daemons("kubevirt"), Policy::default());
    let mut store = Store::default();
    store.settle(&requests, &policy, at(0));
    (store, requests, policy)
}

#[test]
fn an_empty_store_is_filled_in_order_and_then_left_alone() {
    let (requests, policy) = (LeafRequest::of_the_daemons("kubevirt"), Policy::default());
    let mut store = Store::default();
    let steps = store.settle(&requests, &policy, at(0));
    assert_eq!(kinds(&steps), ["ca", "bundle", "leaf", "leaf", "leaf", "leaf"]);
    assert_eq!(store.settle(&requests, &policy, at(1)), []);
}

#[test]
fn a_leaf_is_renewed_at_four_fifths_of_its_life_and_not_before() {
    let (mut store, requests, policy) = settled();
    let life = i64::try_from(policy.leaf.duration.as_secs()).unwrap();
    assert_eq!(store.settle(&requests, &policy, at(life * 4 / 5 - 600)), []);
    assert_eq!(kinds(&store.settle(&requests, &policy, at(life * 4 / 5))), ["leaf", "leaf", "leaf", "leaf"]);
}

#[test]
fn a_lost_object_is_made_anew_at_once() {
    let (mut store, requests, policy) = settled();
    store.leaves[1] = None;
    assert_eq!(store.settle(&requests, &policy, at(10)), [Step::MakeLeaf(1)]);

    store.bundle.clear();
    assert_eq!(kinds(&store.settle(&requests, &policy, at(20))), ["bundle"]);

    // The old CA stays trusted: its leaves are in use until the new one is known everywhere.
    store.ca = None;
    assert_eq!(kinds(&store.settle(&requests, &policy, at(30))), ["ca", "bundle"]);
    assert_eq!(store.bundle.len(), 2);
    assert_eq!(kinds(&store.settle(&requests, &policy, at(30 + 120))), ["leaf", "leaf", "leaf", "leaf"]);
}

#[test]
fn leaves_whose_ca_no_daemon_trusts_are_replaced_without_waiting() {
    let (mut store, requests, policy) = settled();
    store.ca = None;
    store.bundle.clear();
    assert_eq!(
        kinds(&store.settle(&requests, &policy, at(10))),
        ["ca", "bundle", "leaf", "leaf", "leaf", "leaf"]
    );
}

#[test]
fn a_leaf_with_other_names_or_another_purpose_is_replaced() {
    let (mut store, requests, policy) = settled();
    let ca = store.ca.clone().unwrap();
    let mut other = requests[1].clone();
    other.dns_names.push("another-name".into());
    store.leaves[1] = Some(leaf(&ca, &other, at(0), policy.leaf.duration));
    let client = LeafRequest { purpose: Purpose::Client, ..requests[0].clone() };
    store.leaves[0] = Some(leaf(&ca, &client, at(0), policy.leaf.duration));
    assert_eq!(store.settle(&requests, &policy, at(10)), [Step::MakeLeaf(0), Step::MakeLeaf(1)]);
}

#[test]
fn a_ca_from_the_future_or_of_the_past_is_replaced() {
    for shift in [-200 * 3600, 24 * 3600] {
        let (mut store, requests, policy) = settled();
        store.ca = Some(make_ca(at(shift), policy.ca.duration).unwrap());
        let steps = store.settle(&requests, &policy, at(0));
        assert_eq!(steps[0], Step::MakeCa, "shift {shift}");
    }
}

/// What a span of virtual time has seen.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    /// CAs that were made.
    cas: usize,
    /// Most CAs that were trusted at once.
    most: usize,
    /// Leaves that were made.
    leaves: usize,
}

/// Looks at the store from `from` to `to` as an issuer does; at each look every leaf is valid, and trusted by a reader that
/// has the leaf already, but still the bundle of the look before.
fn pass_time(store: &mut Store, policy: &Policy, from: i64, to: i64) -> Seen {
    let requests = LeafRequest::of_the_daemons("kubevirt");
    let (mut seen, mut before) = (Seen::default(), store.bundle.clone());
    let look = usize::try_from(policy.look().as_secs()).unwrap();
    for second in (from..to).step_by(look) {
        let now = at(second);
        let steps = store.settle(&requests, policy, now);
        seen.cas += steps.iter().filter(|step| **step == Step::MakeCa).count();
        seen.leaves += steps.iter().filter(|step| matches!(step, Step::MakeLeaf(_))).count();
        seen.most = seen.most.max(store.bundle.len());
        for leaf in store.observed().leaves.into_iter().flatten() {
            assert!(leaf.not_before <= now && now < leaf.not_after, "second {second}");
            let known = |bundle: &[Certificate]| {
                bundle.iter().any(|ca| ca.subject_key == leaf.authority_key && now < ca.not_after)
            };
            assert!(known(&store.bundle), "second {second}");
            assert!(before.is_empty() || known(&before), "second {second}");
        }
        before.clone_from(&store.bundle);
    }
    seen
}

fn policy(ca: Life, server: Life, overlap: Duration) -> Policy {
    Rotation { ca, server, overlap }.into()
}

fn minutes(duration: u64, renew_before: u64) -> Life {
    Life {
        duration: MINUTE * u32::try_from(duration).unwrap(),
        renew_before: MINUTE * u32::try_from(renew_before).unwrap(),
    }
}

#[test]
fn through_many_rotations_every_leaf_is_trusted_by_readers_that_lag() {
    let policy = policy(Life::of(30 * HOUR), Life::of(7 * HOUR), HOUR);
    let seen = pass_time(&mut Store::default(), &policy, 0, 4 * 24 * 3600);
    assert_eq!((seen.cas, seen.most), (4, 2), "CAs made, CAs trusted at once");
}

#[test]
fn the_shortest_lives_and_those_of_upstreams_tests_hold_as_well() {
    for (ca, server, overlap) in [
        (minutes(20, 12), minutes(14, 10), 12 * MINUTE),
        (minutes(5, 1), minutes(5, 1), MINUTE),
        (minutes(10, 9), minutes(5, 4), 9 * MINUTE),
        // The last leaf of a CA ends with it, long before a leaf's own time.
        (minutes(60, 1), minutes(60, 50), MINUTE),
        (minutes(60, 50), minutes(60, 1), 50 * MINUTE),
    ] {
        let policy = policy(ca, server, overlap);
        let seen = pass_time(&mut Store::default(), &policy, 0, 4 * 3600);
        let period = (ca.duration - ca.renew_before).as_secs();
        assert!(seen.cas as u64 >= 4 * 3600 / period - 1, "{policy:?}: {seen:?}");
        assert!(seen.most <= 11, "{policy:?}: {seen:?}");
    }
}

#[test]
fn shorter_lives_take_effect_at_once_and_longer_ones_with_the_next_renewal() {
    let (mut store, requests, long) = settled();
    let short = policy(minutes(120, 24), minutes(60, 12), 24 * MINUTE);
    let steps = store.settle(&requests, &short, at(600));
    assert_eq!(kinds(&steps), ["ca", "bundle"], "leaves wait until the new CA is known");
    assert_eq!(kinds(&store.settle(&requests, &short, at(600 + 120))), ["leaf", "leaf", "leaf", "leaf"]);
    let leaf = store.observed().leaves[0].clone().unwrap();
    assert_eq!(leaf.not_after, at(720 + 3600));
    // A replica that has not seen the change yet undoes nothing.
    assert_eq!(store.settle(&requests, &long, at(730)), []);
    assert_eq!(store.settle(&requests, &short, at(731)), []);
    // Back again: what lives shorter stays until it is due.
    let due = 720 + 3600 * 4 / 5;
    assert_eq!(store.settle(&requests, &long, at(due - 1)), []);
    assert_eq!(kinds(&store.settle(&requests, &long, at(due))), ["leaf", "leaf", "leaf", "leaf"]);
}

#[test]
fn only_the_leaves_are_made_anew_when_only_their_life_is_shorter() {
    let (mut store, requests, long) = settled();
    let short = Policy { leaf: minutes(60, 12), ..long };
    assert_eq!(kinds(&store.settle(&requests, &short, at(600))), ["leaf", "leaf", "leaf", "leaf"]);
    let seen = pass_time(&mut store, &short, 660, 24 * 3600);
    assert_eq!((seen.cas, seen.leaves / 4), (0, 29), "one each 48 minutes");
}

#[test]
fn certificates_say_what_they_were_made_for() {
    let ca = make_ca(at(0), HOUR).unwrap();
    let own = read(&ca);
    assert!(own.is_ca && own.purpose.is_none());
    assert_eq!(own.not_after, at(3600));
    let requests = LeafRequest::of_the_daemons("kubevirt");
    for request in &requests {
        let leaf = read(&leaf(&ca, request, at(0), 10 * HOUR));
        assert_eq!((&leaf.common_name, &leaf.dns_names), (&request.common_name, &request.dns_names));
        assert_eq!((leaf.purpose, leaf.is_ca), (Some(request.purpose), false));
        assert_eq!(leaf.authority_key, own.subject_key);
        assert_eq!(leaf.not_after, own.not_after, "a leaf does not outlive its CA");
        assert_eq!(Certificate::all_from_pem(&leaf.to_pem()).unwrap(), [leaf]);
    }
}

#[test]
fn no_form_of_a_pair_shows_the_key() {
    let ca = make_ca(at(0), HOUR).unwrap();
    let line = ca.key.lines().nth(1).unwrap();
    assert!(!format!("{ca:?}{ca:#?}").contains(line));
    let spoilt = KeyPairPem { key: ca.key.replace("-----END", "----END"), ..ca.clone() };
    let error = spoilt.certified_key().unwrap_err();
    assert!(!format!("{error} {error:?}").contains(line));
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let (one, other) = (make_ca(at(0), HOUR).unwrap(), make_ca(at(0), HOUR).unwrap());
    let mixed = KeyPairPem { certificate: one.certificate, key: other.key };
    assert!(matches!(mixed.certified_key(), Err(CertificateError::Key(_))));
}

/// A CA with a server and a client of it, valid around the real time: rustls looks at the clock.
struct World {
    ca: KeyPairPem,
    server: KeyPairPem,
    client: KeyPairPem,
}

impl World {
    fn new() -> Self {
        let now = Timestamp::now();
        let ca = make_ca(now, HOUR).unwrap();
        let requests = LeafRequest::of_the_daemons("kubevirt");
        World { server: leaf(&ca, &requests[0], now, HOUR), client: leaf(&ca, &requests[1], now, HOUR), ca }
    }

    fn server(&self) -> Identity {
        Identity::fixed(&self.server, &self.ca.certificate).unwrap()
    }

    fn client(&self) -> Identity {
        Identity::fixed(&self.client, &self.ca.certificate).unwrap()
    }
}

/// Talks once over TLS; returns what the server saw as the client's name.
async fn talk(
    server: Arc<rustls::ServerConfig>,
    client: Arc<rustls::ClientConfig>,
) -> std::io::Result<Option<String>> {
    let (near, far) = tokio::io::duplex(16 * 1024);
    let serve = async {
        let mut stream = TlsAcceptor::from(server).accept(far).await?;
        let name = stream.get_ref().1.peer_certificates().and_then(|chain| common_name(&chain[0]));
        stream.write_all(b"hello").await?;
        stream.shutdown().await?;
        std::io::Result::Ok(name)
    };
    let call = async {
        let name = ServerName::try_from("10.0.0.7").unwrap();
        let mut stream = TlsConnector::from(client).connect(name, near).await?;
        let mut said = Vec::new();
        stream.read_to_end(&mut said).await?;
        assert_eq!(said, b"hello");
        std::io::Result::Ok(())
    };
    let (name, called) = tokio::join!(serve, call);
    called?;
    name
}

#[tokio::test]
async fn two_daemons_know_each_other_by_name_and_ca() {
    let world = World::new();
    let (server, client) = (world.server(), world.client());
    let to_server = client.client_config(SERVER_NAME).unwrap();
    let name = talk(server.server_config(true).unwrap(), Arc::clone(&to_server)).await.unwrap();
    assert_eq!(name.as_deref(), Some(HANDLER_CLIENT_NAME));
    let unasked = talk(server.server_config(false).unwrap(), to_server).await.unwrap();
    assert_eq!(unasked, None);
    let wrong_name = client.client_config(&node_name("node1")).unwrap();
    talk(server.server_config(true).unwrap(), wrong_name).await.unwrap_err();
}

#[tokio::test]
async fn a_peer_of_another_ca_or_with_a_server_certificate_is_refused() {
    let (world, stranger) = (World::new(), World::new());
    let server = world.server().server_config(true).unwrap();
    let false_client = Identity::fixed(&stranger.client, &world.ca.certificate).unwrap();
    talk(Arc::clone(&server), false_client.client_config(SERVER_NAME).unwrap()).await.unwrap_err();
    let false_server = Identity::fixed(&stranger.server, &world.ca.certificate).unwrap();
    let client = world.client().client_config(SERVER_NAME).unwrap();
    talk(false_server.server_config(true).unwrap(), client).await.unwrap_err();
    let server_as_client = world.server().client_config(SERVER_NAME).unwrap();
    talk(server, server_as_client).await.unwrap_err();
}

#[tokio::test]
async fn configurations_follow_a_rotation() {
    let (old, new) = (World::new(), World::new());
    let (server, client) = (old.server(), old.client());
    let (accept, call) = (server.server_config(true).unwrap(), client.client_config(SERVER_NAME).unwrap());
    talk(Arc::clone(&accept), Arc::clone(&call)).await.unwrap();

    let both = format!("{}{}", new.ca.certificate, old.ca.certificate);
    let mut bundle = server.ca_bundle();
    server.replace(&old.server, &both).unwrap();
    assert_eq!(**bundle.borrow_and_update(), *both);
    client.replace(&new.client, &both).unwrap();
    talk(Arc::clone(&accept), Arc::clone(&call)).await.unwrap();

    server.replace(&new.server, &new.ca.certificate).unwrap();
    talk(Arc::clone(&accept), Arc::clone(&call)).await.unwrap();

    client.replace(&old.client, &both).unwrap();
    talk(Arc::clone(&accept), Arc::clone(&call)).await.unwrap_err();
    server.replace(&new.server, "nothing").unwrap_err();
    client.replace(&new.client, &both).unwrap();
    talk(accept, call).await.unwrap();
}

#[derive(Debug)]
struct NoIdentity;

impl rustls::client::ResolvesClientCert for NoIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_client_may_show_no_certificate_but_not_one_of_another_ca() {
    let (world, stranger) = (World::new(), World::new());
    let clients = TrustedClients::optional(&world.ca.certificate).unwrap();
    let server = world.server().server_config_with(clients.clone()).unwrap();
    let known = world.client().client_config(SERVER_NAME).unwrap();
    let name = talk(Arc::clone(&server), Arc::clone(&known)).await.unwrap();
    assert_eq!(name.as_deref(), Some(HANDLER_CLIENT_NAME));

    let mut anonymous = (*known).clone();
    anonymous.client_auth_cert_resolver = Arc::new(NoIdentity);
    assert_eq!(talk(Arc::clone(&server), Arc::new(anonymous)).await.unwrap(), None);

    clients.replace(&stranger.ca.certificate).unwrap();
    talk(server, known).await.unwrap_err();
}

#[test]
fn spans_of_the_default_policy_leave_room_for_each_other() {
    let policy = Policy::default();
    assert!(policy.leaf.duration < policy.ca.renew_before, "the last leaf of a CA lives its whole life");
    assert!(policy.distribution < policy.leaf.renew_before, "a due leaf outlives the wait for the new CA");
}
