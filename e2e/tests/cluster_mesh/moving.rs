//! A machine in a mesh moves to the other node, where its pod has a proxy of its own.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podvirt_api::migration::is_final;
use podvirt_api::v1::{
    VirtualMachineInstanceMigration as Migration, VirtualMachineInstanceMigrationPhase as Phase,
};
use podvirt_e2e::cluster::mesh::{Mesh, Proxy};
use podvirt_e2e::cluster::{BOOT, Binding, Manifest, SOON, Security};

use crate::machine::{GREETER, Machine, SSH, cluster, greeted};
use crate::sidecar::INJECT;

/// Moves the machine, and waits until nothing is left of its old pod.
fn moves(machine: &mut Machine<'_>) {
    let migration = "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration, metadata: {name: move}, spec: {vmiName: vm}}";
    machine.namespace.apply(migration).unwrap();
    let over =
        machine.namespace.wait::<Migration>("move", "the end of the migration", BOOT, is_final).unwrap();
    assert_eq!(over.status.phase, Some(Phase::Succeeded), "{}", machine.namespace.report());
    let source = machine.pod();
    // It is deleted when all of its containers have ended.
    machine.namespace.wait_gone::<Pod>(&source, SOON).unwrap();
    machine.look_again("vm");
    assert_ne!(machine.pod.name_any(), source);
}

fn is_reset(mut stream: TcpStream) {
    stream.set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

fn is_left(mut stream: TcpStream) {
    drop(stream.write_all(b"is it still there\n"));
    let heard = stream.read(&mut [0]);
    assert!(!heard.as_ref().is_ok_and(|size| *size > 0), "{heard:?}");
}

#[test]
fn long_a_machine_in_a_mesh_moves() {
    in_a_mesh(Binding::PASST);
}

#[test]
fn long_a_machine_behind_masquerade_in_a_mesh_moves() {
    in_a_mesh(Binding::MASQUERADE);
}

#[test]
fn long_a_machine_behind_the_kernels_masquerade_in_a_mesh_moves() {
    in_a_mesh(Binding::BY_KERNEL);
}

fn in_a_mesh(binding: Binding) {
    let cluster = cluster();
    let namespace = cluster.namespace(Security::Privileged).unwrap();
    let mesh = Mesh::new(&namespace).unwrap();
    mesh.configure("mesh", &Proxy::default()).unwrap();
    let manifest = Manifest { name: "vm", annotations: INJECT, ..Default::default() };
    let mut machine = Machine::start(&namespace, binding, &manifest);
    machine.is_served();
    let before: Vec<TcpStream> = machine
        .addresses
        .iter()
        .flat_map(|&address| [GREETER, SSH].map(|port| greeted(address, port).unwrap().0))
        .collect();
    moves(&mut machine);
    // The pod has other addresses. netd tells each client; the kernel's clients hear nothing of the guest any more.
    before.into_iter().for_each(if binding.by_netd() { is_reset } else { is_left });
    // By way of the proxy that the new pod has.
    machine.is_served();
}
