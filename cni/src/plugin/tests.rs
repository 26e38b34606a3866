//! Whole calls: a runtime's environment and configuration, a store in memory, real network namespaces.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use serde_json::json;

use super::*;
use crate::ipam::race_tests::alone;
use crate::ipam::test_store::Fake;
use crate::ipam::{Held, Key, Leases};
use crate::net::bed::{self, PodNet, interfaces, on_node};

/// An API server with pods, machines and leases.
#[derive(Default)]
struct World {
    leases: Fake,
    pods: RefCell<BTreeMap<String, Pod>>,
    machines: RefCell<BTreeMap<String, Machine>>,
    broken: RefCell<bool>,
}

impl World {
    fn up(&self) -> Result<(), StoreError> {
        if *self.broken.borrow() {
            return Err(StoreError {
                what: "ask".into(),
                why: "connection refused".into(),
                is_answered: false,
            });
        }
        Ok(())
    }

    fn put_pod(&self, name: &str, owner: Option<&str>, target: bool) {
        let owners = owner.map_or(json!([]), |name| {
            json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name, "uid": format!("i-{name}"), "controller": true}])
        });
        let labels = if target { json!({"kubevirt.io/migrationJobUID": "m1"}) } else { json!({}) };
        let meta =
            json!({"name": name, "uid": format!("p-{name}"), "ownerReferences": owners, "labels": labels});
        self.pods
            .borrow_mut()
            .insert(name.into(), serde_json::from_value(json!({"metadata": meta})).unwrap());
    }

    fn put_machine(&self, name: &str) {
        let owners = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": format!("v-{name}"), "controller": true}]);
        let meta = json!({"name": name, "uid": format!("i-{name}"), "ownerReferences": owners});
        let machine = Machine { meta: serde_json::from_value(meta).unwrap(), node: None };
        self.machines.borrow_mut().insert(name.into(), machine);
    }
}

impl Store for World {
    async fn find(&self, key: &Key) -> Result<Option<Lease>, StoreError> {
        self.up()?;
        self.leases.find(key).await
    }

    async fn create(&self, lease: &Lease) -> Result<Option<Lease>, StoreError> {
        self.leases.create(lease).await
    }

    async fn update(&self, lease: &Lease) -> Result<Option<Lease>, StoreError> {
        self.leases.update(lease).await
    }

    async fn delete(&self, lease: &Lease) -> Result<bool, StoreError> {
        self.leases.delete(lease).await
    }

    async fn leases(&self) -> Result<Leases, StoreError> {
        self.leases.leases().await
    }

    async fn in_use(&self, namespace: &str, addresses: &[Held]) -> Result<HashSet<String>, StoreError> {
        self.leases.in_use(namespace, addresses).await
    }

    async fn addresses(&self, network: Option<&str>) -> Result<Vec<Held>, StoreError> {
        self.leases.addresses(network).await
    }

    async fn find_address(&self, network: &str, address: IpAddr) -> Result<Option<Held>, StoreError> {
        self.leases.find_address(network, address).await
    }

    async fn hold(&self, address: &Held) -> Result<Option<Held>, StoreError> {
        self.leases.hold(address).await
    }

    async fn free(&self, address: &Held) -> Result<(), StoreError> {
        self.leases.free(address).await
    }
}

impl Pods for World {
    async fn pod(&self, _namespace: &str, name: &str) -> Result<Option<Pod>, StoreError> {
        self.up()?;
        Ok(self.pods.borrow().get(name).cloned())
    }

    async fn machine(&self, _namespace: &str, name: &str) -> Result<Option<Machine>, StoreError> {
        Ok(self.machines.borrow().get(name).cloned())
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.up()
    }
}

fn plugin() -> Plugin<World> {
    Plugin { api: World::default(), node: "node1".into() }
}

fn call(command: &str, pod: &str, net: Option<&PodNet>) -> Call {
    Call::read(|name| match name {
        "CNI_COMMAND" => Some(command.into()),
        "CNI_CONTAINERID" => Some(format!("c-{pod}")),
        "CNI_IFNAME" => Some("net1".into()),
        "CNI_NETNS" => net.map(PodNet::path),
        "CNI_ARGS" => Some(format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};K8S_POD_UID=p-{pod}")),
        _ => None,
    })
    .unwrap()
}

fn run(plugin: &Plugin<World>, call: &Call, changes: &Value) -> Result<Option<Value>, Error> {
    alone(plugin.run(call, bed::config(changes).to_string().as_bytes()))
}

fn add(plugin: &Plugin<World>, pod: &str, net: &PodNet) -> Result<Value, Error> {
    run(plugin, &call("ADD", pod, Some(net)), &json!({})).map(Option::unwrap)
}

#[test]
fn both_pods_of_a_machine_get_one_lease_and_it_outlives_them() {
    on_node(|| {
        let (plugin, source, target) = (plugin(), PodNet::new(), PodNet::new());
        plugin.api.put_machine("web");
        plugin.api.put_pod("web-a", Some("web"), false);
        plugin.api.put_pod("web-b", Some("web"), true);
        let first = add(&plugin, "web-a", &source).unwrap();
        let second = add(&plugin, "web-b", &target).unwrap();
        assert_eq!(first["ips"], second["ips"]);
        assert_eq!(first["interfaces"][1]["mac"], second["interfaces"][1]["mac"]);
        assert!(!source.enter(|| crate::net::silence::is_silent("net1")).unwrap());
        assert!(target.enter(|| crate::net::silence::is_silent("net1")).unwrap());

        for (pod, net, result) in [("web-a", &source, &first), ("web-b", &target, &second)] {
            let previous = json!({"prevResult": result});
            assert_eq!(run(&plugin, &call("CHECK", pod, Some(net)), &previous).unwrap(), None);
            assert_eq!(run(&plugin, &call("DEL", pod, Some(net)), &previous).unwrap(), None);
            assert_eq!(run(&plugin, &call("DEL", pod, None), &previous).unwrap(), None);
            let gone = run(&plugin, &call("CHECK", pod, Some(net)), &previous).unwrap_err();
            assert!([Code::Config, Code::Changed, Code::Io].contains(&gone.code), "{gone:?}");
        }
        // The machine starts anew.
        plugin.api.put_pod("web-c", Some("web"), false);
        let third = add(&plugin, "web-c", &PodNet::new()).unwrap();
        assert_eq!(third["ips"], first["ips"]);
        assert_eq!(third["interfaces"][1]["mac"], first["interfaces"][1]["mac"]);
    });
}

#[test]
fn a_pod_of_no_machine_gives_its_addresses_back() {
    on_node(|| {
        let (plugin, net) = (plugin(), PodNet::new());
        plugin.api.put_pod("plain", None, true);
        add(&plugin, "plain", &net).unwrap();
        assert!(!net.enter(|| crate::net::silence::is_silent("net1")).unwrap(), "only machines migrate");
        assert_eq!(plugin.api.leases.all_held().len(), 2);
        // The pod is gone, and so is its namespace.
        plugin.api.pods.borrow_mut().clear();
        run(&plugin, &call("DEL", "plain", None), &json!({})).unwrap();
        assert!(plugin.api.leases.all_held().is_empty() && plugin.api.leases.all_leases().is_empty());
    });
}

#[test]
fn an_add_that_fails_leaves_neither_interface_nor_lease_of_a_pod() {
    on_node(|| {
        let (plugin, net, before) = (plugin(), PodNet::new(), interfaces());
        plugin.api.put_pod("plain", None, false);
        let broken = json!({"bridge": "br9"});
        let error = run(&plugin, &call("ADD", "plain", Some(&net)), &broken).unwrap_err();
        assert_eq!(error.code, Code::Config, "{error:?}");
        assert!(plugin.api.leases.all_held().is_empty() && plugin.api.leases.all_leases().is_empty());
        assert_eq!((interfaces(), net.enter(interfaces)), (before, vec!["lo".to_owned()]));

        plugin.api.put_machine("web");
        plugin.api.put_pod("web-a", Some("web"), false);
        run(&plugin, &call("ADD", "web-a", Some(&net)), &broken).unwrap_err();
        assert_eq!(
            plugin.api.leases.all_held().len(),
            2,
            "it is the machine's, and its other pod may run with it"
        );
    });
}

#[test]
fn a_lease_that_ends_while_the_interface_is_made_takes_it_back() {
    on_node(|| {
        let (plugin, net, before) = (plugin(), PodNet::new(), interfaces());
        plugin.api.put_machine("web");
        plugin.api.put_pod("web-a", Some("web"), false);
        let (call, config) = (call("ADD", "web-a", Some(&net)), bed::config(&json!({})).to_string());
        let mut add = std::pin::pin!(plugin.run(&call, config.as_bytes()));
        let waker = futures::task::noop_waker();
        let mut context = std::task::Context::from_waker(&waker);
        // Up to the last question, whether the lease still stands.
        while interfaces() == before {
            assert!(add.as_mut().poll(&mut context).is_pending());
        }
        plugin.api.leases.mark_ending(&plugin.api.leases.all_leases()[0].key);
        let error = alone(add).unwrap_err();
        assert_eq!(error.code, Code::TryAgain, "{error:?}");
        assert_eq!((interfaces(), net.enter(interfaces)), (before, vec!["lo".to_owned()]));
    });
}

#[test]
fn errors_have_the_specifications_codes() {
    on_node(|| {
        let (plugin, net) = (plugin(), PodNet::new());
        let code = |call: &Call, changes: Value| run(&plugin, call, &changes).unwrap_err().code;
        assert_eq!(code(&call("ADD", "absent", Some(&net)), json!({})), Code::UnknownContainer);
        assert_eq!(code(&call("ADD", "absent", None), json!({})), Code::Environment);
        assert_eq!(code(&call("GC", "x", None), json!({})), Code::Config);
        assert_eq!(code(&call("STATUS", "x", None), json!({"bridge": "br9"})), Code::Unavailable);
        assert_eq!(run(&plugin, &call("STATUS", "x", None), &json!({})), Ok(None));
        *plugin.api.broken.borrow_mut() = true;
        assert_eq!(code(&call("ADD", "absent", Some(&net)), json!({})), Code::TryAgain);
        assert_eq!(code(&call("STATUS", "x", None), json!({})), Code::Unavailable);
        // A node that is cut off tears its pods down.
        assert_eq!(run(&plugin, &call("DEL", "absent", None), &json!({})), Ok(None));
        assert_eq!(
            run(&plugin, &call("VERSION", "x", None), &json!({})).unwrap().unwrap()["cniVersion"],
            "1.1.0"
        );
    });
}

#[test]
fn gc_frees_what_the_runtime_does_not_know() {
    on_node(|| {
        let (plugin, nets) = (plugin(), [PodNet::new(), PodNet::new(), PodNet::new()]);
        plugin.api.put_machine("web");
        plugin.api.put_pod("web-a", Some("web"), false);
        for (pod, net) in ["one", "two"].iter().zip(&nets) {
            plugin.api.put_pod(pod, None, false);
            add(&plugin, pod, net).unwrap();
        }
        add(&plugin, "web-a", &nets[2]).unwrap();
        let valid = json!({"cni.dev/valid-attachments": [{"containerID": "c-two", "ifname": "net1"}]});
        let other = Plugin { api: plugin.api, node: "node2".into() };
        // Another node's runtime knows nothing of this node's pods; here both share the kernel, so only leases tell.
        run(&other, &call("GC", "x", None), &json!({"name": "other", "cni.dev/valid-attachments": []}))
            .unwrap();
        assert_eq!(other.api.leases.all_leases().len(), 3);
        let plugin = Plugin { api: other.api, node: "node1".into() };
        run(&plugin, &call("GC", "x", None), &valid).unwrap();
        let interfaces = nets.each_ref().map(|net| net.enter(interfaces).len());
        assert_eq!(interfaces, [1, 2, 1]);
        let owners: Vec<_> =
            plugin.api.leases.all_leases().into_iter().map(|l| l.owner.unwrap().name).collect();
        assert_eq!(owners, ["two", "web"], "the machine's lease is the machine's");
    });
}

#[test]
fn a_network_without_ranges_gives_both_pods_one_mac_address() {
    on_node(|| {
        let (plugin, nets) = (plugin(), [PodNet::new(), PodNet::new()]);
        plugin.api.put_machine("web");
        let mut macs = Vec::new();
        for (pod, net) in ["web-a", "web-b"].iter().zip(&nets) {
            plugin.api.put_pod(pod, Some("web"), *pod == "web-b");
            let result = run(&plugin, &call("ADD", pod, Some(net)), &json!({"ipam": {}})).unwrap().unwrap();
            assert_eq!(result.get("ips"), None);
            macs.push(result["interfaces"][1]["mac"].clone());
        }
        assert_eq!(macs[0], macs[1]);
        assert!(plugin.api.leases.all_leases().is_empty());
    });
}
