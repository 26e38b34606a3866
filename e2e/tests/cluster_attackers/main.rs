//! Attackers of five kinds, each with the rights that it really has, beside a machine that means no harm.
//!
//! | module | attacker | rights |
//! |---|---|---|
//! | `tenant`, `images` | a user of the API | a service account with the role `kubevirt.io:edit` in a namespace of its own, by its token |
//! | `stranger` | a pod | the cluster's network; no token, no certificate |
//! | `launcher` | a process in a launcher's pod, by `pods/exec` or by the guest | the pod's user and control group |
//! | `peer` | a pod beside a machine, and a guest | the pods' network |
//! | `operator` | a pod of virt-operator | its service account's, by a token |
//!
//! An attack gets a clear answer: an HTTP status of virt-api's or of the API server's own, a closed connection, a counter. Before it,
//! while it goes on and after it the honest machine is reached by its addresses and by its console, and none of podvirt's daemons is
//! started again. Beside `operator` there is none: nothing comes of what it asks.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

mod images;
mod launcher;
mod operator;
mod peer;
mod stranger;
mod tenant;

use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use podvirt_e2e::cluster::talk::{GREETER, greeting};
use podvirt_e2e::cluster::{Binding, Cluster, Guest, Manifest, Namespace, SOON};

/// podvirt's namespace.
const PODVIRT: &str = "kubevirt";
/// The machine that means no harm, and its node.
const HONEST: &str = "honest";
const NODE: &str = "node1";
/// Beside attacks the machine is reached anew after this time.
const GREETING_INTERVAL: Duration = Duration::from_secs(1);

/// An attack: its name, and what it does.
type Attack<'a> = (&'static str, Box<dyn FnOnce() + Send + 'a>);

/// What a machine on that node says in its `spec`.
fn on_node() -> String {
    format!("nodeSelector: {{kubernetes.io/hostname: {NODE}}}")
}

/// Containers of podvirt's daemons, each with its pod, the pod's UID, and how often it was started again.
fn daemons(cluster: &Cluster) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), PODVIRT);
    let pods = cluster.block_on(async { pods.list(&ListParams::default()).await }).unwrap().items;
    let containers = pods.iter().flat_map(|pod| {
        let status = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        status.map(|c| format!("{} {} {}: {}", pod.name_any(), pod.uid().unwrap(), c.name, c.restart_count))
    });
    let mut containers: Vec<String> = containers.collect();
    containers.sort();
    containers
}

/// Addresses of the pods of one of podvirt's daemons.
fn addresses(cluster: &Cluster, daemon: &str) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), PODVIRT);
    let params = ListParams::default().labels(&format!("kubevirt.io={daemon}"));
    let pods = cluster.block_on(async { pods.list(&params).await }).unwrap().items;
    pods.into_iter().map(|pod| pod.status.unwrap().pod_ip.unwrap()).collect()
}

/// Memory of a daemon's pods that the kernel cannot take back, as their kubelets see it, in bytes.
fn working_set(cluster: &Cluster, daemon: &str) -> u64 {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), PODVIRT);
    let params = ListParams::default().labels(&format!("kubevirt.io={daemon}"));
    let pods = cluster.block_on(async { pods.list(&params).await }).unwrap().items;
    let memory = |pod: &Pod| {
        let node = pod.spec.as_ref().unwrap().node_name.as_deref().unwrap();
        let path = format!("/api/v1/nodes/{node}/proxy/stats/summary");
        let summary: serde_json::Value =
            serde_json::from_str(&cluster.kubectl(&["get", "--raw", &path]).unwrap()).unwrap();
        let name = pod.name_any();
        let all = summary["pods"].as_array().unwrap();
        let own = all.iter().find(|pod| pod["podRef"]["name"] == name.as_str()).unwrap();
        own["containers"][0]["memory"]["workingSetBytes"].as_u64().unwrap()
    };
    pods.iter().map(memory).sum()
}

/// The machine beside an attack, and podvirt's daemons as they were before it.
struct Honest<'n> {
    guest: Guest<'n>,
    daemons: Vec<String>,
}

impl<'n> Honest<'n> {
    fn start(namespace: &'n Namespace<'n>) -> Honest<'n> {
        let manifest = Manifest { name: HONEST, spec: &on_node(), ..Default::default() };
        let guest = Guest::start(namespace, Binding::PASST, &manifest, "").unwrap();
        let honest = Honest { guest, daemons: daemons(namespace.cluster()) };
        honest.is_reached("no attack yet");
        honest
    }

    /// It greets at each of its addresses.
    fn is_reached(&self, when: &str) {
        for address in &self.guest.addresses {
            let what = format!("{when}: a greeting at {address}");
            self.guest.namespace.until(&what, SOON, || Ok(greeting(*address, GREETER))).unwrap();
        }
    }

    /// Carries out attacks that do not need each other, all at the same time. Until the last of them is over the machine is reached and
    /// no daemon is started again.
    fn stands_beside(&mut self, attacks: Vec<Attack<'_>>) {
        let names: Vec<&str> = attacks.iter().map(|(name, _)| *name).collect();
        let all = names.join("; ");
        thread::scope(|scope| {
            let under_way: Vec<ScopedJoinHandle<'_, ()>> = attacks
                .into_iter()
                .map(|(name, attack)| {
                    let carry_out = move || {
                        attack();
                        eprintln!("{name}: over");
                    };
                    thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, carry_out).unwrap()
                })
                .collect();
            while !under_way.iter().all(ScopedJoinHandle::is_finished) {
                self.is_reached(&all);
                assert_eq!(daemons(self.guest.namespace.cluster()), self.daemons, "beside: {all}");
                thread::sleep(GREETING_INTERVAL);
            }
        });
        self.is_unhurt(&all);
    }

    /// It is the same machine, it is reached, and no daemon was started again.
    fn is_unhurt(&mut self, after: &str) {
        eprintln!("{after}: over");
        assert_eq!(daemons(self.guest.namespace.cluster()), self.daemons, "{after}");
        self.is_reached(after);
        assert_eq!(self.guest.sh("echo alive").unwrap().trim(), "alive", "{after}");
        let now = self.guest.namespace.wait_phase(HONEST, "Running", SOON).unwrap();
        assert_eq!(now.uid(), self.guest.instance.uid(), "{after}");
        assert_eq!(now.status.node_name, self.guest.instance.status.node_name, "{after}");
    }
}
