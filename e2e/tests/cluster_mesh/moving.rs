//! A machine in a mesh moves to the other node, where its pod has a proxy of its own.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podvirt_api::migration::is_final;
use podvirt_api::v1::{
    VirtualMachineInstanceMigration as Migration, VirtualMachineInstanceMigrationPhase as Phase,
};
use podvirt_e2e::cluster::mesh::{Mesh, Proxy};
use podvirt_e2e::cluster::{BOOT, Manifest, SOON, Security};

use crate::machine::{GREETER, Machine, SSH, cluster, greeted};
use crate::sidecar::{INJECT, MASQUERADE};

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

#[test]
fn long_a_machine_in_a_mesh_moves() {
    in_a_mesh("");
}

#[test]
fn long_a_machine_behind_masquerade_in_a_mesh_moves() {
    in_a_mesh(MASQUERADE);
}

fn in_a_mesh(devices: &str) {
    let cluster = cluster();
    let namespace = cluster.namespace(Security::Privileged).unwrap();
    let mesh = Mesh::new(&namespace).unwrap();
    mesh.configure("mesh", &Proxy::default()).unwrap();
    let mut machine = Machine::start(
        &namespace,
        &Manifest { name: "vm", annotations: INJECT, devices, ..Default::default() },
    );
    machine.is_served();
    let before: Vec<TcpStream> = machine
        .addresses
        .iter()
        .flat_map(|&address| [GREETER, SSH].map(|port| greeted(address, port).unwrap().0))
        .collect();
    moves(&mut machine);
    // The pod has other addresses.
    before.into_iter().for_each(is_reset);
    // By way of the proxy that the new pod has.
    machine.is_served();
}
