//! From libvirt's bulk statistics to KubeVirt's: a pure function of what libvirt has told.
//!
//! libvirt tells flat names with numbers in them, such as `block.0.rd.bytes`. A name that is missing is a number that libvirt
//! does not know; an interface without a name is one that libvirt cannot count, as those that a netd serves.

use std::collections::{BTreeMap, HashMap};

use podvirt_proto::stats::{Block, Cpu, DomainStats, Memory, Net, Vcpu};

use crate::domain::name_of;
use crate::domain::schema::Domain;

/// The most virtual CPUs, interfaces and disks that are read, each.
const MOST: u64 = 4096;

/// A value that libvirt has told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

/// What libvirt has told, by libvirt's names.
pub(super) type Answer = BTreeMap<String, Told>;

/// The names in the manifest of the devices that libvirt has under these names, such as `vda` and `tap0`.
pub(super) fn names(domain: &Domain) -> HashMap<String, String> {
    let disks = domain.devices.disks.iter().map(|disk| (disk.target.dev.as_str(), &disk.alias.name));
    let interfaces = domain.devices.interfaces.iter();
    let interfaces =
        interfaces.filter_map(|one| one.target.as_ref().map(|target| (target.dev.as_str(), &one.alias.name)));
    disks
        .chain(interfaces)
        .filter_map(|(target, alias)| Some((target.to_owned(), name_of(alias)?.to_owned())))
        .collect()
}

/// The numbers below a prefix, such as `block.0`.
struct Below<'a> {
    answer: &'a Answer,
    prefix: String,
}

impl Below<'_> {
    fn number(&self, name: &str) -> Option<u64> {
        match self.answer.get(&format!("{}.{name}", self.prefix)) {
            Some(Told::Number(number)) => Some(*number),
            _ => None,
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        match self.answer.get(&format!("{}.{name}", self.prefix)) {
            Some(Told::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }
}

/// What the domain has used, as `answer` tells it; `names` are those of [`names`].
pub(super) fn usage(answer: &Answer, names: &HashMap<String, String>) -> DomainStats {
    let below = |prefix: String| Below { answer, prefix };
    let (cpu, balloon, vcpu) = (below("cpu".into()), below("balloon".into()), below("vcpu".into()));
    let each = |kind: &'static str, count: Option<u64>| {
        (0..count.unwrap_or(0).min(MOST)).map(move |index| below(format!("{kind}.{index}")))
    };
    let count = |kind: &str| below(kind.to_owned()).number("count");
    DomainStats {
        cpu: Some(Cpu { time: cpu.number("time"), user: cpu.number("user"), system: cpu.number("system") }),
        memory: Some(memory(&balloon)),
        vcpus: vcpu.number("current").unwrap_or(0),
        vcpu: each("vcpu", vcpu.number("maximum")).map(|one| virtual_cpu(&one)).collect(),
        net: each("net", count("net")).filter_map(|one| interface(&one, names)).collect(),
        block: each("block", count("block")).map(|one| disk(&one, names)).collect(),
        ..DomainStats::default()
    }
}

fn memory(balloon: &Below<'_>) -> Memory {
    Memory {
        unused: balloon.number("unused"),
        cached: balloon.number("disk_caches"),
        available: balloon.number("available"),
        actual_balloon: balloon.number("current"),
        rss: balloon.number("rss"),
        swap_in: balloon.number("swap_in"),
        swap_out: balloon.number("swap_out"),
        major_fault: balloon.number("major_fault"),
        minor_fault: balloon.number("minor_fault"),
        usable: balloon.number("usable"),
        total: balloon.number("maximum"),
    }
}

fn virtual_cpu(one: &Below<'_>) -> Vcpu {
    Vcpu {
        state: one.number("state").and_then(|state| i64::try_from(state).ok()),
        time: one.number("time"),
        wait: one.number("wait"),
        delay: one.number("delay"),
    }
}

fn interface(one: &Below<'_>, names: &HashMap<String, String>) -> Option<Net> {
    let name = one.text("name")?;
    Some(Net {
        alias: names.get(&name).cloned(),
        name: Some(name),
        rx_bytes: one.number("rx.bytes"),
        rx_packets: one.number("rx.pkts"),
        rx_errors: one.number("rx.errs"),
        rx_dropped: one.number("rx.drop"),
        tx_bytes: one.number("tx.bytes"),
        tx_packets: one.number("tx.pkts"),
        tx_errors: one.number("tx.errs"),
        tx_dropped: one.number("tx.drop"),
    })
}

fn disk(one: &Below<'_>, names: &HashMap<String, String>) -> Block {
    let name = one.text("name");
    Block {
        alias: name.as_ref().and_then(|name| names.get(name)).cloned().unwrap_or_default(),
        name,
        backing_index: one.number("backingIndex"),
        path: one.text("path"),
        read_requests: one.number("rd.reqs"),
        read_bytes: one.number("rd.bytes"),
        read_time: one.number("rd.times"),
        write_requests: one.number("wr.reqs"),
        write_bytes: one.number("wr.bytes"),
        write_time: one.number("wr.times"),
        flush_requests: one.number("fl.reqs"),
        flush_time: one.number("fl.times"),
        errors: one.number("errors"),
        allocation: one.number("allocation"),
        capacity: one.number("capacity"),
        physical: one.number("physical"),
    }
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
