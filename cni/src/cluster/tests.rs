//! The store over HTTP, before a server that keeps objects by the API server's rules.

#[path = "../../tests/support/server.rs"]
mod server;

use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use server::Server;

use super::*;
use crate::collect::Scope;
use crate::config::Network;
use crate::ipam::{self, Failures, Request as Wanted};
use crate::objects::FINALIZER;

type Shared = Arc<Mutex<Server>>;

fn cluster(server: &Shared) -> Cluster {
    let server = server.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = server.clone();
        async move {
            let (method, uri) = (request.method().clone(), request.uri().clone());
            let body = request.into_body().collect_bytes().await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let query = uri.query().unwrap_or_default();
            let (code, value) = server.lock().unwrap().answer(method.as_str(), uri.path(), query, &body);
            let mut response = Response::new(Body::from(value.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    Cluster::new(Client::new(service, "shop"))
}

fn network() -> Network {
    let ranges = json!([[{"subnet": "172.30.0.0/29"}], [{"subnet": "fd00:30::/64"}]]);
    let config = json!({"cniVersion": "1.1.0", "name": "flat", "bridge": "br1", "ipam": {"ranges": ranges}});
    Network::read(config.to_string().as_bytes(), None).unwrap()
}

fn owner(name: &str) -> Owner {
    Owner {
        api_version: "kubevirt.io/v1".into(),
        kind: "VirtualMachine".into(),
        name: name.into(),
        uid: format!("v-{name}"),
    }
}

async fn acquire(cluster: &Cluster, kind: Kind, name: &str) -> Result<Lease, crate::error::Error> {
    let (network, owner) = (network(), owner(name));
    let key = Key { kind, namespace: "shop".into(), name: name.into() };
    let request = Wanted {
        key,
        network: &network,
        interface: "net1",
        owner: &owner,
        machine: Some(name),
        attached: None,
    };
    let lease = ipam::acquire(cluster, &request).await?;
    ipam::confirm(cluster, &lease).await?;
    Ok(lease)
}

#[tokio::test]
async fn machines_get_different_addresses_and_keep_them() {
    let server = Shared::default();
    let cluster = cluster(&server);
    let mut leases = Vec::new();
    for name in ["a", "b", "c"] {
        leases.push(acquire(&cluster, Kind::AddressLease, name).await.unwrap());
    }
    assert_eq!(acquire(&cluster, Kind::AddressLease, "b").await.unwrap(), leases[1]);
    let held = cluster.addresses(Some("flat")).await.unwrap();
    assert_eq!(held.len(), 6);
    for lease in &leases {
        let of_lease = held.iter().filter(|h| h.lease_uid == lease.uid);
        assert!(of_lease.clone().count() == 2 && of_lease.clone().all(|h| lease.lists(h.address)));
    }
    assert!(cluster.addresses(Some("other")).await.unwrap().is_empty());
    // Where the API server knows no IPAMClaims, there are leases all the same.
    assert_eq!(cluster.leases().await.unwrap().found.len(), 3);
    cluster.ready().await.unwrap();
}

#[tokio::test]
async fn only_the_version_that_was_read_is_changed_or_deleted() {
    let server = Shared::default();
    let cluster = cluster(&server);
    let old = acquire(&cluster, Kind::AddressLease, "a").await.unwrap();
    let mac = Some("02:00:00:00:00:01".parse().unwrap());
    let new = cluster.update(&Lease { mac, ..old.clone() }).await.unwrap().unwrap();
    assert_ne!(new.version, old.version);
    assert_eq!(cluster.update(&old).await.unwrap(), None);
    assert!(!cluster.delete(&old).await.unwrap());
    assert_eq!(cluster.find(&old.key).await.unwrap().unwrap().mac, mac);
    // An address by its UID.
    let mut held = cluster.addresses(None).await.unwrap();
    held[0].uid = "another".into();
    cluster.free(&held[0]).await.unwrap();
    assert_eq!(cluster.addresses(None).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_lease_that_is_ended_leaves_nothing_and_one_that_is_ending_is_not_acquired() {
    let server = Shared::default();
    let cluster = cluster(&server);
    let lease = acquire(&cluster, Kind::AddressLease, "a").await.unwrap();
    assert!(cluster.delete(&lease).await.unwrap());
    let ending = cluster.find(&lease.key).await.unwrap().unwrap();
    assert!(ending.ending);
    let error = acquire(&cluster, Kind::AddressLease, "a").await.unwrap_err();
    assert_eq!(error.code, crate::error::Code::TryAgain);
    assert!(ipam::confirm(&cluster, &lease).await.is_err());
    server.lock().unwrap().requests.clear();
    assert!(ipam::end(&cluster, &ending).await.unwrap());
    assert!(server.lock().unwrap().objects.is_empty());
    let requests = std::mem::take(&mut server.lock().unwrap().requests);
    assert!(!requests.iter().any(|request| request.ends_with("/leasedaddresses")), "{requests:?}");
    assert!(ipam::end(&cluster, &ending).await.unwrap(), "once more does no harm");
}

#[tokio::test]
async fn addresses_that_no_lease_lists_are_swept() {
    let server = Shared::default();
    let cluster = cluster(&server);
    let lease = acquire(&cluster, Kind::AddressLease, "a").await.unwrap();
    let mut stray = cluster.addresses(None).await.unwrap().remove(0);
    stray.address = "172.30.0.6".parse().unwrap();
    if lease.lists(stray.address) {
        stray.address = "172.30.0.5".parse().unwrap();
    }
    cluster.hold(&stray).await.unwrap().unwrap();
    assert_eq!(cluster.hold(&stray).await.unwrap(), None);
    let swept = ipam::sweep(&cluster, &mut Failures::default()).await.unwrap();
    assert_eq!(swept.iter().map(|h| h.address).collect::<Vec<_>>(), [stray.address]);
    assert_eq!(cluster.addresses(None).await.unwrap().len(), 2);
}

fn put_claim(server: &Shared, at: &str) {
    let mut server = server.lock().unwrap();
    server.claims = true;
    server.objects.insert(at.into(), json!({
        "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
        "metadata": {"name": "web", "namespace": "shop", "uid": "c1", "resourceVersion": "1", "finalizers": ["theirs"]},
        "spec": {"network": "flat", "interface": "net1"},
        "status": {"ips": [], "conditions": [{"type": "Theirs"}]},
    }));
}

#[tokio::test]
async fn an_address_stays_held_while_its_claim_is_not_found_and_a_pod_uses_it() {
    let (server, metrics) = (Shared::default(), crate::collect::Metrics::default());
    let at = "/apis/k8s.cni.cncf.io/v1alpha1/namespaces/shop/ipamclaims/web";
    put_claim(&server, at);
    let cluster = cluster(&server);
    let lease = acquire(&cluster, Kind::IpamClaim, "web").await.unwrap();
    let held = async || {
        crate::collect::collect(&cluster, &metrics, Scope::Everything).await.unwrap();
        cluster.addresses(None).await.unwrap().len()
    };
    // The API server does not know the kind, as for a moment after its own start.
    server.lock().unwrap().claims = false;
    assert_eq!(held().await, 2, "nothing says that the claim is gone");
    server.lock().unwrap().claims = true;

    // The claim is removed with its guard while the pods that use it run: one names it, the other tells its addresses.
    server.lock().unwrap().objects.remove(at);
    let pod = "/api/v1/namespaces/shop/pods/virt-launcher-web-x";
    let put = |phase: &str, annotations: Value| {
        let object = json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": phase}, "metadata":
            {"name": "virt-launcher-web-x", "namespace": "shop", "uid": "p1", "annotations": annotations}});
        server.lock().unwrap().objects.insert(pod.into(), object);
    };
    let networks = json!([{"name": "flat", "ipam-claim-reference": "web"}]).to_string();
    put("Running", json!({"k8s.v1.cni.cncf.io/networks": networks}));
    assert_eq!(held().await, 2, "the pod names the claim");
    let ips: Vec<String> = lease.addresses.iter().map(|a| a.addr().to_string()).collect();
    let told =
        json!([{"name": "cbr0", "default": true}, {"name": "shop/flat", "interface": "net1", "ips": ips}]);
    put("Running", json!({"k8s.v1.cni.cncf.io/network-status": told.to_string()}));
    assert_eq!(held().await, 2, "the pod has the addresses");
    put("Succeeded", json!({"k8s.v1.cni.cncf.io/network-status": told.to_string()}));
    assert_eq!(held().await, 0, "no pod has them any more");
}

#[tokio::test]
async fn an_ipam_claim_is_guarded_and_gets_its_status_and_nothing_else() {
    let server = Shared::default();
    let at = "/apis/k8s.cni.cncf.io/v1alpha1/namespaces/shop/ipamclaims/web";
    put_claim(&server, at);
    let cluster = cluster(&server);
    let lease = acquire(&cluster, Kind::IpamClaim, "web").await.unwrap();
    let stored = server.lock().unwrap().objects[at].clone();
    let ips: Vec<String> = lease.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(stored["status"], json!({"ips": ips, "conditions": [{"type": "Theirs"}]}));
    assert_eq!(stored["metadata"]["finalizers"], json!(["theirs", FINALIZER]));
    assert_eq!(cluster.leases().await.unwrap().found.len(), 1);
    assert!(ipam::sweep(&cluster, &mut Failures::default()).await.unwrap().is_empty());
    // Its author deletes it.
    assert!(ipam::end(&cluster, &cluster.find(&lease.key).await.unwrap().unwrap()).await.unwrap());
    let server = server.lock().unwrap();
    assert_eq!(server.objects.len(), 1);
    assert_eq!(server.objects[at]["metadata"]["finalizers"], json!(["theirs"]));
}

#[tokio::test]
async fn the_collector_waits_for_the_last_pod_of_a_machine_that_is_gone() {
    let (server, metrics) = (Shared::default(), crate::collect::Metrics::default());
    let cluster = cluster(&server);
    let lease = acquire(&cluster, Kind::AddressLease, "web").await.unwrap();
    let (vm, pod) = (
        "/apis/kubevirt.io/v1/namespaces/shop/virtualmachines/web",
        "/api/v1/namespaces/shop/pods/virt-launcher-web-x",
    );
    let put = |at: &str, object: Value| {
        server.lock().unwrap().objects.insert(at.into(), object);
    };
    let meta = json!({"name": "web", "namespace": "shop", "uid": "v-web", "resourceVersion": "1"});
    put(vm, json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": meta}));
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web", "uid": "i-web", "controller": true});
    let launcher = |phase: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": phase},
            "metadata": {"name": "virt-launcher-web-x", "namespace": "shop", "uid": "p1", "ownerReferences": [owner]}})
    };
    put(pod, launcher("Running"));
    crate::collect::collect(&cluster, &metrics, Scope::Everything).await.unwrap();
    assert!(!cluster.find(&lease.key).await.unwrap().unwrap().ending, "its owner is there");

    // The machine goes, by a deletion that orphans: the garbage collector does not ask for the lease's deletion.
    server.lock().unwrap().objects.remove(vm);
    crate::collect::collect(&cluster, &metrics, Scope::Everything).await.unwrap();
    assert!(cluster.find(&lease.key).await.unwrap().unwrap().ending);
    crate::collect::collect(&cluster, &metrics, Scope::Everything).await.unwrap();
    assert_eq!(cluster.addresses(None).await.unwrap().len(), 2, "its pod runs");

    put(pod, launcher("Succeeded"));
    server.lock().unwrap().requests.clear();
    crate::collect::collect(&cluster, &metrics, Scope::Ending(Vec::new())).await.unwrap();
    assert!(server.lock().unwrap().requests.is_empty(), "nothing ends: nothing is asked");
    crate::collect::collect(&cluster, &metrics, Scope::Ending(vec![lease.key.clone()])).await.unwrap();
    let requests = std::mem::take(&mut server.lock().unwrap().requests);
    assert!(!requests.iter().any(|request| request.ends_with("/addressleases")), "{requests:?}");
    assert_eq!(cluster.find(&lease.key).await.unwrap(), None);
    assert!(cluster.addresses(None).await.unwrap().is_empty());
}

const CLAIMS: &str = "/apis/k8s.cni.cncf.io/v1alpha1/namespaces/shop/ipamclaims";

#[tokio::test]
async fn an_object_that_cannot_be_read_blocks_no_more_than_itself() {
    let (server, metrics) = (Shared::default(), crate::collect::Metrics::default());
    let cluster = cluster(&server);
    let mut leases = Vec::new();
    for name in ["a", "b"] {
        let lease = acquire(&cluster, Kind::AddressLease, name).await.unwrap();
        assert!(cluster.delete(&lease).await.unwrap());
        leases.push(lease);
    }
    // Another program's claim without a prefix length, one of another shape, and an address of an unreadable claim.
    let claim = |uid: &str, status: Value| {
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim", "status": status,
            "metadata": {"name": uid, "namespace": "shop", "uid": uid, "resourceVersion": "1"},
            "spec": {"network": "flat", "interface": "net1"},
        })
    };
    server.lock().unwrap().claims = true;
    for (uid, status) in [("c1", json!({"ips": ["10.0.0.7"]})), ("c2", json!({"ips": "10.0.0.8/24"}))] {
        server.lock().unwrap().objects.insert(format!("{CLAIMS}/{uid}"), claim(uid, status));
    }
    let held = Held {
        network: "flat".into(),
        address: "172.30.0.77".parse().unwrap(),
        lease: Key { kind: Kind::IpamClaim, namespace: "shop".into(), name: "c1".into() },
        lease_uid: "c1".into(),
        uid: String::new(),
    };
    let held = cluster.hold(&held).await.unwrap().unwrap();

    crate::collect::collect(&cluster, &metrics, Scope::Everything).await.unwrap();
    for lease in &leases {
        assert_eq!(cluster.find(&lease.key).await.unwrap(), None, "{} did not end", lease.key.name);
    }
    assert_eq!(cluster.addresses(None).await.unwrap(), [held], "the claim is there: its address stays held");
    assert_eq!(cluster.leases().await.unwrap().unreadable.len(), 2);
}

#[tokio::test]
async fn an_address_that_cannot_be_read_counts_as_taken() {
    let server = Shared::default();
    let cluster = cluster(&server);
    let first = acquire(&cluster, Kind::AddressLease, "a").await.unwrap();
    let name = address_name("flat", first.addresses[0].addr());
    let at = format!("/apis/podvirt.io/v1alpha1/leasedaddresses/{name}");
    server.lock().unwrap().objects.get_mut(&at).unwrap()["spec"]["address"] = json!("nonsense");
    // The range has six addresses, of which one cannot be read.
    for name in ["b", "c", "d", "e", "f"] {
        let lease = acquire(&cluster, Kind::AddressLease, name).await.unwrap();
        assert!(!lease.lists(first.addresses[0].addr()), "{name}");
    }
    let error = acquire(&cluster, Kind::AddressLease, "g").await.unwrap_err();
    assert_eq!(error.code, crate::error::Code::Exhausted, "{error}");
    let found = async |place: usize| {
        let address = first.addresses[place].addr();
        cluster.find_address("flat", address).await.unwrap().map(|held| held.lease)
    };
    assert_eq!((found(0).await, found(1).await), (None, Some(first.key.clone())));
    ipam::sweep(&cluster, &mut Failures::default()).await.unwrap();
    assert!(server.lock().unwrap().objects.contains_key(&at), "it is not swept");
}

#[tokio::test]
async fn what_fails_for_one_lease_is_told_after_the_others_are_ended() {
    let (server, metrics) = (Shared::default(), crate::collect::Metrics::default());
    let cluster = cluster(&server);
    for name in ["a", "b", "c"] {
        let lease = acquire(&cluster, Kind::AddressLease, name).await.unwrap();
        assert!(cluster.delete(&lease).await.unwrap());
    }
    server.lock().unwrap().refused = Some("/virtualmachineinstances/a".into());
    let error = crate::collect::collect(&cluster, &metrics, Scope::Everything).await.unwrap_err();
    assert!(error.what.contains("shop/a"), "{error}");
    let left: Vec<String> =
        cluster.leases().await.unwrap().found.into_iter().map(|lease| lease.key.name).collect();
    assert_eq!(left, ["a"]);
}

#[tokio::test]
async fn an_add_lists_addresses_only_after_its_first_candidate_was_taken() {
    let server = Shared::default();
    let cluster = cluster(&server);
    let lists = || {
        let requests = std::mem::take(&mut server.lock().unwrap().requests);
        requests.iter().filter(|request| *request == "GET /apis/podvirt.io/v1alpha1/leasedaddresses").count()
    };
    let key = |name: &str| Key { kind: Kind::AddressLease, namespace: "shop".into(), name: name.into() };
    let ranges = json!([[{"subnet": "172.30.0.0/16"}], [{"subnet": "fd00:30::/64"}]]);
    let config = json!({"cniVersion": "1.1.0", "name": "flat", "bridge": "br1", "ipam": {"ranges": ranges}});
    let network = Network::read(config.to_string().as_bytes(), None).unwrap();
    let mut leases = Vec::new();
    for name in ["a", "b", "c"] {
        let owner = owner(name);
        let request = Wanted {
            key: key(name),
            network: &network,
            interface: "net1",
            owner: &owner,
            machine: Some(name),
            attached: None,
        };
        leases.push(ipam::acquire(&cluster, &request).await.unwrap());
    }
    assert_eq!(lists(), 0, "the first candidates were free");

    // Another machine has the first candidates of a lease that is empty again; one list serves both sets.
    let empty = cluster.update(&Lease { addresses: Vec::new(), ..leases[0].clone() }).await.unwrap().unwrap();
    for object in server.lock().unwrap().objects.values_mut() {
        if object["spec"]["lease"]["name"] == "a" {
            object["spec"]["lease"]["uid"] = json!("another");
        }
    }
    let owner = owner("a");
    let request = Wanted {
        key: key("a"),
        network: &network,
        interface: "net1",
        owner: &owner,
        machine: Some("a"),
        attached: None,
    };
    let lease = ipam::acquire(&cluster, &request).await.unwrap();
    assert!(lease.addresses.iter().all(|address| !leases[0].addresses.contains(address)), "{lease:?}");
    assert_eq!(lease.uid, empty.uid);
    assert_eq!(lists(), 6, "one list, an object a page");
}
