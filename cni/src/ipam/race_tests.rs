//! Leases under everything that can happen at once: ADDs of several machines and pods, daemons that die between any two
//! calls to the store, machines that go while an ADD runs, collectors that run beside.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures::task::noop_waker;
use proptest::prelude::*;
use serde_json::json;

use super::test_store::Fake;
use super::{Attached, Failures, Key, Kind, Lease, Request, Store, acquire, confirm, end, sweep};
use crate::config::Network;
use crate::error::{Code, Error};
use crate::owner::Owner;

/// Runs to its end, alone.
pub(crate) fn alone<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = noop_waker();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
    }
}

fn network(v4: &str, extra: serde_json::Value) -> Network {
    let mut config = json!({
        "cniVersion": "1.1.0", "name": "flat", "bridge": "br1",
        "ipam": {"ranges": [[{"subnet": v4}], [{"subnet": "fd00:30::/125"}]]},
    });
    for (key, value) in extra.as_object().unwrap() {
        config[key] = value.clone();
    }
    Network::read(config.to_string().as_bytes(), None).unwrap()
}

fn owner(name: &str) -> Owner {
    Owner {
        api_version: "kubevirt.io/v1".into(),
        kind: "VirtualMachine".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
    }
}

fn key(name: &str) -> Key {
    Key { kind: Kind::AddressLease, namespace: "shop".into(), name: name.into() }
}

async fn add(store: &Fake, network: &Network, name: &str) -> Result<Lease, Error> {
    let owner = owner(name);
    let request = Request {
        key: key(name),
        network,
        interface: "net1",
        owner: &owner,
        machine: Some(name),
        attached: None,
    };
    let lease = acquire(store, &request).await?;
    confirm(store, &lease).await?;
    Ok(lease)
}

#[test]
fn a_machine_keeps_its_addresses_and_its_mac_address() {
    let (store, network) = (Fake::default(), network("172.30.0.0/29", json!({})));
    let first = alone(add(&store, &network, "web")).unwrap();
    assert_eq!(first.addresses.len(), 2);
    let IpAddr::V4(v4) = first.addresses[0].addr() else { panic!("the first set is of IPv4") };
    let [a, b, c, d] = v4.octets();
    assert_eq!(first.mac.unwrap().0, [0x02, 0x70, a, b, c, d]);
    let again = alone(add(&store, &network, "web")).unwrap();
    assert_eq!((&again.addresses, again.mac), (&first.addresses, first.mac));
    let other = alone(add(&store, &network, "db")).unwrap();
    assert!(other.addresses.iter().all(|x| !first.addresses.contains(x)));
}

#[test]
fn a_network_without_free_addresses_says_so_and_keeps_nothing() {
    let (store, network) = (Fake::default(), network("172.30.0.0/30", json!({})));
    for name in ["a", "b"] {
        alone(add(&store, &network, name)).unwrap();
    }
    let error = alone(add(&store, &network, "c")).unwrap_err();
    assert_eq!(error.code, Code::Exhausted, "{error}");
    assert_eq!(store.all_held().len(), 4);
    // Once a machine goes, the next one is served.
    let lease = store.all_leases().into_iter().find(|l| l.key.name == "a").unwrap();
    assert!(alone(end(&store, &lease)).unwrap());
    alone(add(&store, &network, "c")).unwrap();
}

#[test]
fn a_wished_address_is_given_or_its_holder_named() {
    let store = Fake::default();
    let wish = network(
        "172.30.0.0/24",
        json!({"runtimeConfig": {"ips": ["172.30.0.77"], "mac": "02:00:00:00:00:77"}}),
    );
    let lease = alone(add(&store, &wish, "web")).unwrap();
    assert!(lease.lists("172.30.0.77".parse().unwrap()));
    assert_eq!(lease.mac.unwrap().to_string(), "02:00:00:00:00:77");
    let error = alone(add(&store, &wish, "db")).unwrap_err();
    assert_eq!(error.code, Code::Lease);
    assert!(error.msg.contains("shop/web"), "{error}");
    let other = network("172.30.0.0/24", json!({"runtimeConfig": {"ips": ["172.30.0.78"]}}));
    let error = alone(add(&store, &other, "web")).unwrap_err();
    assert!(error.msg.contains("172.30.0.78"), "{error}");
}

#[test]
fn a_lease_outside_the_networks_ranges_is_told_and_not_changed() {
    let store = Fake::default();
    let before = alone(add(&store, &network("172.30.0.0/24", json!({})), "web")).unwrap();
    let error = alone(add(&store, &network("172.31.0.0/24", json!({})), "web")).unwrap_err();
    assert_eq!(error.code, Code::Lease);
    assert_eq!(store.all_leases()[0].addresses, before.addresses);
    assert_eq!(store.all_held().len(), 2);
}

#[test]
fn an_ipam_claim_is_guarded_before_addresses_are_held_and_lists_them() {
    let (store, network) = (Fake::default(), network("172.30.0.0/29", json!({})));
    let key = Key { kind: Kind::IpamClaim, ..key("web.flat") };
    let owner = owner("web");
    let request = Request {
        key: key.clone(),
        network: &network,
        interface: "net1",
        owner: &owner,
        machine: Some("web"),
        attached: None,
    };
    assert!(alone(acquire(&store, &request)).unwrap_err().msg.contains("web.flat"), "no client has made it");
    store.put(Lease {
        key: key.clone(),
        uid: String::new(),
        version: String::new(),
        ending: false,
        guarded: false,
        network: "flat".into(),
        interface: "net1".into(),
        owner: None,
        machine: None,
        addresses: Vec::new(),
        mac: None,
        attached: None,
    });
    let lease = alone(acquire(&store, &request)).unwrap();
    let stored = &store.all_leases()[0];
    assert!(stored.guarded && stored.addresses == lease.addresses && stored.mac.is_none());
    assert_eq!(alone(acquire(&store, &request)).unwrap().mac, lease.mac);
    let other = Request { interface: "net2", ..request };
    assert_eq!(alone(acquire(&store, &other)).unwrap_err().code, Code::Lease);
}

#[test]
fn an_ipam_claim_need_not_say_which_interface_it_is_for() {
    let (store, network) = (Fake::default(), network("172.30.0.0/29", json!({})));
    let key = Key { kind: Kind::IpamClaim, ..key("web.flat") };
    store.put(Lease {
        key: key.clone(),
        uid: String::new(),
        version: String::new(),
        ending: false,
        guarded: false,
        network: "flat".into(),
        interface: String::new(),
        owner: None,
        machine: None,
        addresses: Vec::new(),
        mac: None,
        attached: None,
    });
    let owner = owner("web");
    let request = Request {
        key,
        network: &network,
        interface: "pod16477688c0e",
        owner: &owner,
        machine: Some("web"),
        attached: None,
    };
    let lease = alone(acquire(&store, &request)).unwrap();
    assert_eq!(alone(acquire(&store, &request)).unwrap().addresses, lease.addresses);
    let stored = &store.all_leases()[0];
    assert_eq!((stored.interface.as_str(), &stored.addresses), ("", &lease.addresses));
}

#[test]
fn a_lease_that_changed_is_not_ended_by_a_client_that_has_not_seen_it() {
    let (store, network) = (Fake::default(), network("172.30.0.0/29", json!({})));
    let owner = Owner { kind: "Pod".into(), ..owner("p") };
    let attached = |c: &str| Some(Attached { node: "n".into(), container: c.into() });
    let mut request = Request {
        key: key("p"),
        network: &network,
        interface: "eth0",
        owner: &owner,
        machine: None,
        attached: attached("old"),
    };
    let old = alone(acquire(&store, &request)).unwrap();
    request.attached = attached("new");
    let new = alone(acquire(&store, &request)).unwrap();
    assert_eq!(new.addresses, old.addresses);
    assert!(!alone(end(&store, &old)).unwrap());
    assert_eq!(store.all_held().len(), 2);
    assert!(alone(end(&store, &new)).unwrap());
    assert!(store.all_held().is_empty() && store.all_leases().is_empty());
}

#[test]
fn the_end_of_a_lease_reads_its_own_addresses_and_not_the_networks() {
    let (store, network) = (Fake::default(), network("172.30.0.0/16", json!({})));
    let lease = alone(add(&store, &network, "web")).unwrap();
    for number in 0..2_000_u32 {
        let others = super::Held {
            network: "flat".into(),
            address: IpAddr::V4((0xac1e_0000 + 0x4000 + number).into()),
            lease: key("others"),
            lease_uid: "others".into(),
            uid: String::new(),
        };
        let _taken = alone(store.hold(&others)).unwrap();
    }
    let (held, answered) = (store.all_held().len(), store.answered());
    assert!(alone(end(&store, &lease)).unwrap());
    assert_eq!(store.answered() - answered, 2);
    assert_eq!((held - store.all_held().len(), store.all_leases().len()), (2, 0));
}

#[test]
fn a_lease_that_ends_before_its_addresses_are_chosen_frees_what_is_held_for_it() {
    let (store, network) = (Fake::default(), network("172.30.0.0/29", json!({})));
    let lease = alone(add(&store, &network, "web")).unwrap();
    let empty = Lease { addresses: Vec::new(), ..lease };
    let empty = alone(store.update(&empty)).unwrap().unwrap();
    assert!(alone(end(&store, &empty)).unwrap());
    assert!(store.all_held().is_empty() && store.all_leases().is_empty());
}

/// Wherever the one is when the other takes up what it holds.
#[test]
fn an_add_that_fails_does_not_free_what_the_other_pod_took_up() {
    let waker = noop_waker();
    let mut refused = 0;
    for steps in 0..40 {
        let (store, network) = (Fake::default(), network("172.30.0.0/24", json!({})));
        // The second set has seven addresses.
        let others: Vec<_> =
            (0..7).map(|i| alone(add(&store, &network, &format!("other{i}"))).unwrap()).collect();
        let mut one = Box::pin(add(&store, &network, "web"));
        let mut outcome = None;
        for _ in 0..steps {
            if let Poll::Ready(result) = one.as_mut().poll(&mut Context::from_waker(&waker)) {
                outcome = Some(result);
                break;
            }
        }
        assert!(alone(end(&store, &others[0])).unwrap());
        let other = alone(add(&store, &network, "web")).unwrap();
        let one = outcome.unwrap_or_else(|| alone(one));
        match one {
            Ok(one) => assert_eq!(one.addresses, other.addresses),
            Err(error) => {
                assert_eq!(error.code, Code::Exhausted);
                refused += 1;
            }
        }
        let held = store.all_held();
        let holds = |a: &ipnet::IpNet| held.iter().any(|h| h.address == a.addr() && h.lease_uid == other.uid);
        assert!(other.addresses.iter().all(holds), "after {steps} steps an address of a running pod is free");
    }
    assert!(refused > 0, "the one that came first was never refused");
}

/// What happens next.
#[derive(Clone, Debug)]
enum Act {
    /// A pod of a machine starts.
    Add(usize),
    /// A task goes on to its next call.
    Step(prop::sample::Index),
    /// The process of a task dies.
    Kill(prop::sample::Index),
    /// A machine goes: its pods have ended, its lease is marked. Another of the same name may come.
    Gone(usize),
    /// A collector ends the leases of machines that are gone, or sweeps.
    Collect(bool),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..4usize).prop_map(Act::Add),
        40 => any::<prop::sample::Index>().prop_map(Act::Step),
        3 => any::<prop::sample::Index>().prop_map(Act::Kill),
        2 => (0..4usize).prop_map(Act::Gone),
        2 => any::<bool>().prop_map(Act::Collect),
    ]
}

type Task = Pin<Box<dyn Future<Output = Option<(String, Lease)>>>>;

#[derive(Default)]
struct World {
    store: Rc<Fake>,
    tasks: Vec<Task>,
    /// How often a machine of each name has gone.
    generation: [u32; 4],
    gone: BTreeSet<String>,
    /// What pods that run were given, by machine.
    granted: BTreeMap<String, Vec<Lease>>,
}

impl World {
    fn name(&self, vm: usize) -> String {
        format!("vm{vm}-{}", self.generation[vm])
    }

    fn add(&mut self, vm: usize) {
        let (store, name) = (self.store.clone(), self.name(vm));
        // Fewer addresses than machines and their leftovers could take.
        let network = network("172.30.0.0/29", json!({}));
        self.tasks.push(Box::pin(async move {
            let lease = add(&store, &network, &name).await.ok()?;
            Some((name, lease))
        }));
    }

    fn gone(&mut self, vm: usize) {
        let name = self.name(vm);
        self.granted.remove(&name);
        self.store.mark_ending(&key(&name));
        self.gone.insert(name);
        self.generation[vm] += 1;
    }

    fn collect(&mut self, sweeps: bool) {
        let store = self.store.clone();
        if sweeps {
            self.tasks.push(Box::pin(async move {
                let _freed = sweep(&*store, &mut Failures::default()).await;
                None
            }));
            return;
        }
        for name in self.gone.clone() {
            // Pods of a machine that is gone may have been served by a new lease, as long as they run.
            if self.granted.contains_key(&name) {
                continue;
            }
            let store = store.clone();
            self.tasks.push(Box::pin(async move {
                let lease = store.find(&key(&name)).await.ok()??;
                if lease.ending {
                    let _ended = end(&*store, &lease).await;
                }
                None
            }));
        }
    }

    fn step(&mut self, at: usize) {
        let waker = noop_waker();
        if let Poll::Ready(outcome) = self.tasks[at].as_mut().poll(&mut Context::from_waker(&waker)) {
            drop(self.tasks.swap_remove(at));
            if let Some((name, lease)) = outcome {
                self.granted.entry(name).or_default().push(lease);
            }
        }
    }

    fn check(&self) {
        let mut users: BTreeMap<IpAddr, &str> = BTreeMap::new();
        let held = self.store.all_held();
        for (name, leases) in &self.granted {
            for lease in leases {
                assert_eq!(lease.addresses, leases[0].addresses, "pods of {name} have different addresses");
                assert_eq!(lease.mac, leases[0].mac);
                for address in &lease.addresses {
                    let other = users.insert(address.addr(), name);
                    assert!(other.is_none_or(|o| o == name), "{address} is used by {name} and {other:?}");
                    let holds = |h: &&super::Held| h.address == address.addr() && h.lease_uid == lease.uid;
                    assert!(held.iter().any(|h| holds(&h)), "{address} of {name}, which runs, is not held");
                }
            }
        }
        for lease in self.store.all_leases().iter().filter(|l| !l.ending) {
            for address in &lease.addresses {
                let holds = |h: &super::Held| h.address == address.addr() && h.lease_uid == lease.uid;
                assert!(held.iter().any(holds), "{address} is listed by {} and not held", lease.key.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// At no moment two machines have one address, or two pods of a machine different ones; what a machine that lives
    /// has been given stays held; and in the end nothing is left of those that are gone.
    #[test]
    fn no_two_machines_ever_share_an_address(acts in proptest::collection::vec(act(), 1..400)) {
        let mut world = World::default();
        for act in acts {
            match act {
                Act::Add(vm) => world.add(vm),
                Act::Step(index) => if !world.tasks.is_empty() { world.step(index.index(world.tasks.len())) },
                Act::Kill(index) => if !world.tasks.is_empty() {
                    let at = index.index(world.tasks.len());
                    drop(world.tasks.swap_remove(at));
                },
                Act::Gone(vm) => world.gone(vm),
                Act::Collect(sweeps) => world.collect(sweeps),
            }
            world.check();
        }
        // Whatever runs comes to its end; then the machines that are gone lose the pods they still have.
        let mut steps = 0;
        while !world.tasks.is_empty() {
            world.step(0);
            world.check();
            steps += 1;
            prop_assert!(steps < 100_000, "tasks do not come to an end");
        }
        for name in world.gone.clone() {
            world.granted.remove(&name);
            world.store.mark_ending(&key(&name));
        }
        world.collect(false);
        while !world.tasks.is_empty() {
            world.step(0);
            world.check();
        }
        alone(sweep(&*world.store, &mut Failures::default())).unwrap();
        world.check();
        let leases = world.store.all_leases();
        prop_assert!(leases.iter().all(|l| !world.gone.contains(&l.key.name)), "a lease of a machine that is gone is left");
        for held in world.store.all_held() {
            let lease = leases.iter().find(|l| l.uid == held.lease_uid);
            // An empty lease keeps what the next ADD takes up.
            prop_assert!(lease.is_some_and(|l| l.lists(held.address) || l.addresses.is_empty()), "{held:?} is left over");
        }
        // A machine that lives is served at last, from what is free.
        let living = leases.iter().filter(|l| !l.addresses.is_empty()).count();
        prop_assert!(living <= 6);
    }
}
