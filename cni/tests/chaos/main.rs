//! podvirt-cni as a runtime calls it, many at once, killed anywhere: real processes, real network namespaces, and an API
//! server that ends the process that asks it, at the request that was drawn ([`api::Death`]).
//!
//! A runtime does as containerd does: an ADD that did not succeed is followed by DEL and another ADD, a DEL that did not
//! succeed by another DEL. Virtual machines have two pods, of which one is the target of a migration, and both start at
//! any time; other pods have none. Machines go and others come.
//!
//! At every moment: no address has two owners; a machine keeps its addresses and its MAC address. In the end: an owner
//! that lives has what it was given, held for it; of an owner that is gone nothing is left, neither object nor
//! interface.
//!
//! `CHAOS_ROUNDS` is how often each runtime starts a pod; `CHAOS_SEED` draws other deaths.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails so")]

mod api;
mod node;
#[path = "../support/server.rs"]
mod server;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::Duration;

use api::{Api, Death, collect_garbage};
use node::{PodNet, interfaces, on_node};
use serde_json::{Value, json};

/// Runtimes at once.
const RUNTIMES: u64 = 4;
/// Machines; each has pods of two runtimes.
const MACHINES: usize = 3;
/// Requests of an ADD, about: deaths are drawn among them.
const REQUESTS: u64 = 14;

/// A sequence of numbers that looks like chance and is the same each time (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    /// Half of the processes live.
    fn death(&mut self) -> Option<Death> {
        let at = u32::try_from(1 + self.next(REQUESTS)).unwrap();
        match self.next(6) {
            0 => Some(Death::Before(at)),
            1 => Some(Death::Unanswered(at)),
            2 => Some(Death::After(at, Duration::from_micros(self.next(20_000)))),
            _ => None,
        }
    }
}

/// What all threads of the test see.
struct World {
    api: Api,
    at: SocketAddr,
    directory: tempfile::TempDir,
    tokens: AtomicU32,
    deaths: AtomicU32,
    /// How often a machine of this place has gone. A runtime that runs a pod of it keeps it from going.
    machines: [RwLock<u32>; MACHINES],
    /// The owner of each address that was given.
    users: Mutex<BTreeMap<String, String>>,
    /// What a machine was given: its addresses and its MAC address.
    given: Mutex<BTreeMap<String, (Value, Value)>>,
}

/// A pod's sandbox, as the runtime knows it.
struct Sandbox<'a> {
    container: String,
    pod: String,
    net: &'a PodNet,
}

impl World {
    fn new() -> World {
        let api = Api::default();
        let at = api.serve();
        let world = World {
            api,
            at,
            directory: tempfile::tempdir().unwrap(),
            tokens: AtomicU32::new(0),
            deaths: AtomicU32::new(0),
            machines: Default::default(),
            users: Mutex::default(),
            given: Mutex::default(),
        };
        (0..MACHINES).for_each(|place| world.put_machine(&name(place, 0)));
        world
    }

    fn put(&self, path: &str, kind: &str, mut meta: Value, owner: Option<(&str, &str, &str)>) {
        meta["namespace"] = json!("shop");
        meta["resourceVersion"] = json!("1");
        if let Some((kind, name, uid)) = owner {
            meta["ownerReferences"] = json!([{"apiVersion": "kubevirt.io/v1", "kind": kind, "name": name, "uid": uid, "controller": true}]);
        }
        let object =
            json!({"apiVersion": "v1", "kind": kind, "metadata": meta, "status": {"phase": "Running"}});
        self.api.objects(|server| drop(server.objects.insert(path.to_owned(), object)));
    }

    fn put_machine(&self, name: &str) {
        let (vm, vmi) = machine_paths(name);
        let (vm_uid, vmi_uid) = (format!("v-{name}"), format!("i-{name}"));
        self.put(&vm, "VirtualMachine", json!({"name": name, "uid": vm_uid}), None);
        let owner = Some(("VirtualMachine", name, vm_uid.as_str()));
        self.put(&vmi, "VirtualMachineInstance", json!({"name": name, "uid": vmi_uid}), owner);
    }

    /// Runs the program; the result that it printed, if it succeeded.
    fn run(&self, command: &str, sandbox: &Sandbox<'_>, chance: &mut Chance) -> Option<Value> {
        let death = chance.death();
        let config = json!({
            "cniVersion": "1.1.0", "name": "flat", "type": "podvirt-cni", "bridge": "br1",
            "ipam": {"ranges": [[{"subnet": "172.30.0.0/27"}], [{"subnet": "fd00:30::/64"}]]},
        });
        let pod = &sandbox.pod;
        let environment = [
            ("CNI_COMMAND", command.to_owned()),
            ("CNI_CONTAINERID", sandbox.container.clone()),
            ("CNI_IFNAME", "net1".to_owned()),
            ("CNI_NETNS", sandbox.net.path()),
            ("CNI_ARGS", format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};K8S_POD_UID=p-{pod}")),
        ];
        let (token, child) = self.start(&environment, &[]);
        self.api.expect(&token, child.id(), death);
        let output = node::finish(child, &config);
        self.deaths.fetch_add(u32::from(output.status.code().is_none()), Ordering::Relaxed);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Some(serde_json::from_str(&text).unwrap_or(Value::Null));
        }
        // A process that was not killed says what is wrong: other processes may be ending a lease, and nothing else.
        let code = serde_json::from_str::<Value>(&text).map(|v| v["code"].clone()).unwrap_or_default();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code().is_none() || code == 11, "{command} of {pod}: {text} {errors}");
        None
    }

    /// Starts the program with a token of its own.
    fn start(&self, environment: &[(&str, String)], args: &[&str]) -> (String, std::process::Child) {
        let token = format!("t{}", self.tokens.fetch_add(1, Ordering::Relaxed));
        let directory = self.directory.path().join(&token);
        node::set_up(&directory, self.at, &token);
        (token, node::start(&directory, environment, args))
    }

    /// Notes what `owner`'s pod was given: no other owner has it.
    fn note(&self, owner: &str, result: &Value) {
        let addresses: Vec<String> = result["ips"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ip| ip["address"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(addresses.len(), 2, "{result}");
        let mut users = self.users.lock().unwrap();
        for address in addresses {
            let other = users.insert(address.clone(), owner.to_owned());
            assert!(other.as_deref().is_none_or(|o| o == owner), "{address} is {owner}'s and {other:?}'s");
        }
        let now = (result["ips"].clone(), result["interfaces"][1]["mac"].clone());
        let mut given = self.given.lock().unwrap();
        let before = given.entry(owner.to_owned()).or_insert_with(|| now.clone());
        assert_eq!(*before, now, "{owner} has other addresses than before");
    }

    fn forget(&self, owner: &str) {
        self.users.lock().unwrap().retain(|_, user| user != owner);
        self.given.lock().unwrap().remove(owner);
    }

    /// A pod's life: it starts whatever it takes, runs, and is removed whatever it takes.
    fn pod(&self, runtime: u64, round: u64, chance: &mut Chance) {
        let place = usize::try_from(chance.next(MACHINES as u64 + 1)).unwrap();
        // No machine: a pod of its own.
        let Some(machine) = self.machines.get(place) else {
            let pod = format!("plain-{runtime}-{round}");
            self.life(&pod, &pod, None, chance);
            return self.forget(&pod);
        };
        let generation = machine.read().unwrap();
        let owner = name(place, *generation);
        let pod = format!("{owner}-{runtime}-{round}");
        self.life(&pod, &owner, Some(chance.next(2) == 0), chance);
    }

    fn life(&self, pod: &str, owner: &str, target: Option<bool>, chance: &mut Chance) {
        let path = format!("/api/v1/namespaces/shop/pods/{pod}");
        let labels =
            if target == Some(true) { json!({"kubevirt.io/migrationJobUID": "m1"}) } else { json!({}) };
        let uid = format!("i-{owner}");
        let vmi = target.map(|_| ("VirtualMachineInstance", owner, uid.as_str()));
        self.put(&path, "Pod", json!({"name": pod, "uid": format!("p-{pod}"), "labels": labels}), vmi);
        // The namespace is the sandbox's: a new one for each attempt.
        for attempt in 0.. {
            assert!(attempt < 50, "{pod} never starts");
            let net = PodNet::new();
            let sandbox = Sandbox { container: format!("{pod}-{attempt}"), pod: pod.to_owned(), net: &net };
            let result = self.run("ADD", &sandbox, chance);
            if let Some(result) = &result {
                self.note(owner, result);
                assert_eq!(net.is_silent("net1"), target == Some(true));
            }
            // It is gone from the users' view before its addresses are freed.
            if target.is_none() {
                self.forget(owner);
            }
            let removed = (0..50).any(|_| self.run("DEL", &sandbox, chance).is_some());
            assert!(removed, "{pod} cannot be removed");
            assert_eq!(net.interfaces(), ["lo"], "DEL of {pod} leaves an interface in the pod");
            if result.is_some() {
                break;
            }
        }
        self.api.objects(|server| drop(server.objects.remove(&path)));
    }

    /// A machine goes, once none of its pods is left, and another one comes.
    fn replace(&self, place: usize) {
        let mut generation = self.machines[place].write().unwrap();
        let old = name(place, *generation);
        self.forget(&old);
        let (vm, vmi) = machine_paths(&old);
        self.api.objects(|server| {
            server.objects.remove(&vm);
            server.objects.remove(&vmi);
            collect_garbage(server);
        });
        *generation += 1;
        self.put_machine(&name(place, *generation));
    }

    /// A collector, which may be killed as well.
    fn collect(&self, death: Option<Death>) {
        let (token, child) = self.start(&[], &["collect", "--once"]);
        self.api.expect(&token, child.id(), death);
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_none_or(|code| code == 0), "{errors}");
    }

    fn count(&self, kind: &str) -> usize {
        self.api.objects(|server| server.objects.values().filter(|object| object["kind"] == kind).count())
    }
}

fn name(place: usize, generation: u32) -> String {
    format!("vm{place}-{generation}")
}

fn machine_paths(name: &str) -> (String, String) {
    let path = |plural: &str| format!("/apis/kubevirt.io/v1/namespaces/shop/{plural}/{name}");
    (path("virtualmachines"), path("virtualmachineinstances"))
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn whatever_is_killed_no_address_is_shared_or_lost_and_nothing_is_left() {
    let (rounds, seed) = (setting("CHAOS_ROUNDS", 5), setting("CHAOS_SEED", 1));
    on_node(move || {
        let before = interfaces();
        let world = World::new();
        std::thread::scope(|scope| {
            let runtimes: Vec<_> = (0..RUNTIMES)
                .map(|runtime| {
                    let world = &world;
                    scope.spawn(move || {
                        let mut chance = Chance(seed << 8 | runtime);
                        for round in 0..rounds {
                            world.pod(runtime, round, &mut chance);
                        }
                    })
                })
                .collect();
            let mut chance = Chance(seed << 8 | RUNTIMES);
            while runtimes.iter().any(|runtime| !runtime.is_finished()) {
                world.replace(usize::try_from(chance.next(MACHINES as u64)).unwrap());
                world.collect(chance.death());
            }
        });
        assert!(world.deaths.load(Ordering::Relaxed) > 0, "no process was killed");
        assert_eq!(interfaces(), before, "an interface is left on the node");

        // Nothing that was given is lost: each address is held for the lease that lists it.
        world.collect(None);
        let given = world.given.lock().unwrap().clone();
        world.api.objects(|server| {
            for (owner, (ips, _)) in &given {
                let of_owner =
                    |o: &&Value| o["kind"] == "AddressLease" && o["spec"]["owner"]["name"] == **owner;
                let lease =
                    server.objects.values().find(of_owner).unwrap_or_else(|| panic!("{owner} has no lease"));
                for ip in ips.as_array().unwrap() {
                    assert!(
                        lease["status"]["addresses"].as_array().unwrap().contains(&ip["address"]),
                        "{lease}"
                    );
                    let address = ip["address"].as_str().unwrap().split('/').next().unwrap();
                    let holds = |o: &Value| {
                        o["kind"] == "LeasedAddress"
                            && o["spec"]["address"] == address
                            && o["spec"]["lease"]["uid"] == lease["metadata"]["uid"]
                    };
                    assert!(server.objects.values().any(holds), "{address} of {owner} is not held");
                }
            }
        });
        // And when the machines go, nothing is left of them.
        (0..MACHINES).for_each(|place| world.replace(place));
        for attempt in 0.. {
            world.collect(None);
            let left = (world.count("AddressLease"), world.count("LeasedAddress"));
            if left == (0, 0) {
                break;
            }
            assert!(attempt < 3, "left over: {left:?} leases and addresses");
        }
    });
}
