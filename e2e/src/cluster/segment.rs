//! A further segment that spans the nodes, for as long as a test wants it.
//!
//! The cluster has one, `br1`. Another one is a bridge on each node and in the control plane, joined by VXLAN over the
//! nodes' network: what is on the one does not hear the other.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{ADDRESS, Cluster};

/// The nodes' addresses on their network, node 1's first.
const NODES: [&str; 2] = ["192.168.77.1", "192.168.77.2"];

/// The segment, until this is dropped.
#[must_use = "dropping it takes the segment away"]
pub struct Segment<'c> {
    cluster: &'c Cluster,
    id: u8,
}

impl Cluster {
    /// Makes a segment; `id` tells it from others.
    ///
    /// # Errors
    /// There is one of this `id`.
    pub fn segment(&self, id: u8) -> Result<Segment<'_>> {
        let segment = Segment { cluster: self, id };
        let own = ADDRESS.to_string();
        let members = [NODES[0], NODES[1], &own];
        for (index, local) in members.iter().enumerate() {
            let others: String = members
                .iter()
                .filter(|other| *other != local)
                .map(|other| format!("bridge fdb append 00:00:00:00:00:00 dev vx{id} dst {other}; "))
                .collect();
            segment.at(
                index,
                &format!(
                    "ip link add vx{id} type vxlan id {id} dstport 4789 local {local}; {others}\
                     ip link add seg{id} type bridge; ip link set vx{id} master seg{id} up; ip link set seg{id} up"
                ),
            )?;
        }
        segment.at(NODES.len(), &arp_ignore(1))?;
        Ok(segment)
    }
}

/// This process has a place on several segments. At 1 the kernel answers for an address on its own segment alone, and not on
/// another one, as it does at 0.
fn arp_ignore(value: u8) -> String {
    format!("echo {value} >/proc/sys/net/ipv4/conf/all/arp_ignore")
}

impl Segment<'_> {
    /// Name of its bridge on the nodes.
    pub fn bridge(&self) -> String {
        format!("seg{}", self.id)
    }

    /// Gives this process a place on it, with an address such as `172.30.0.1/24`.
    ///
    /// # Errors
    /// It cannot have it.
    pub fn join(&self, address: &str) -> Result<()> {
        self.at(NODES.len(), &format!("ip address add {address} dev {}", self.bridge()))
    }

    /// A script on a node, by its index; behind the last one comes the control plane.
    fn at(&self, index: usize, script: &str) -> Result<()> {
        let command = ["sh", "-ec", script];
        match index {
            0 => self.cluster.node(1).run(&command).map(drop),
            1 => self.cluster.node(2).run(&command).map(drop),
            _ => {
                let out = Command::new(command[0]).args(&command[1..]).output().context("cannot start sh")?;
                ensure!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
                Ok(())
            }
        }
    }
}

impl Drop for Segment<'_> {
    fn drop(&mut self) {
        drop(self.at(NODES.len(), &arp_ignore(0)));
        for index in 0..=NODES.len() {
            drop(
                self.at(
                    index,
                    &format!("ip link del vx{0} || true; ip link del {1}", self.id, self.bridge()),
                ),
            );
        }
    }
}
