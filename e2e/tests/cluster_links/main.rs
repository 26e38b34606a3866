//! Links that are not as most are, and guests that are not as most are: sizes, gateways, cards, addresses, frames.
//!
//! What is about the pod's network is seen by every binding, side by side on one node.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

mod cards;
mod families;
mod hosts;
mod mtu;
mod spoof;

use podvirt_e2e::cluster::{Binding, Guest, Manifest, Namespace};

/// What a machine on a node says in its `spec`.
fn on(node: &str) -> String {
    format!("nodeSelector: {{kubernetes.io/hostname: {node}}}")
}

/// Machines of these bindings on node 1, by their names, with these annotations and more in their `spec`; their guests are up.
fn start<'n>(
    namespace: &'n Namespace<'n>,
    bindings: &[Binding],
    annotations: &str,
    spec: &str,
) -> Vec<(Binding, Guest<'n>)> {
    let comma = if spec.is_empty() { "" } else { ", " };
    let spec = format!("{}{comma}{spec}", on("node1"));
    for binding in bindings {
        let manifest = Manifest { name: binding.name, annotations, spec: &spec, ..Default::default() };
        binding.apply(namespace, &manifest, "").unwrap();
    }
    let up = |binding: &Binding| {
        let mut guest = Guest::of(namespace, binding.name).unwrap();
        guest.addresses.retain(|address| binding.ipv6 || address.is_ipv4());
        (*binding, guest)
    };
    bindings.iter().map(up).collect()
}

/// A machine `second` on node 1 with interfaces on two networks of Multus: `served` by netd, `hosted` by `bridge`.
fn second(namespace: &Namespace<'_>) {
    let second = Manifest {
        name: "second",
        spec: &format!(
            "networks: [{{name: default, pod: {{}}}}, {{name: served, multus: {{networkName: served}}}}, {{name: hosted, multus: {{networkName: hosted}}}}], {}",
            on("node1")
        ),
        devices: "interfaces: [{name: default, masquerade: {}}, {name: served, passtBinding: {}}, {name: hosted, bridge: {}}]",
        ..Default::default()
    };
    namespace.apply(&second.machine()).unwrap();
}
