//! Machines whose address goes along, and what their connections notice of it: nothing.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use podvirt_api::v1::{MigrationAbortStatus, VirtualMachineInstanceMigration as Migration};
use podvirt_e2e::cluster::{Cluster, Flat, Manifest, Namespace, SOON, Security};

use crate::leftovers::Leftovers;
use crate::moving::{Machine, Slowly};
use crate::stream::{Pace, Stream};

/// A machine on a network of its own, with streams in and out of it, by both families, and what there is beside them.
pub(crate) struct Busy<'n> {
    pub(crate) machine: Machine<'n>,
    pub(crate) network: Flat<'n>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) leftovers: Leftovers<'n>,
}

impl<'n> Busy<'n> {
    pub(crate) fn new(namespace: &'n Namespace<'n>, subnet: u8) -> Busy<'n> {
        let mut network = Flat::new(namespace, subnet).unwrap();
        network.join().unwrap();
        let mut machine = Machine::on_flat(namespace, &Manifest { name: "vm", ..Default::default() });
        machine.is_reached();
        let [here4, here6] = network.addresses();
        let addresses = machine.addresses();
        let four = addresses.iter().find(|address| address.is_ipv4()).unwrap();
        let six = addresses.iter().find(|address| address.is_ipv6()).unwrap();
        let streams = vec![
            Stream::to(*four, Pace::Steady),
            Stream::to(*six, Pace::Full),
            Stream::from(&mut machine, here4, Pace::Full),
            Stream::from(&mut machine, here6, Pace::Steady),
        ];
        let leftovers = Leftovers::before(namespace, &network);
        Busy { machine, network, streams, leftovers }
    }

    /// The streams go on, and nothing is left of what was done.
    pub(crate) fn goes_on(&mut self) {
        Stream::all_go_on(&self.streams);
        self.leftovers.none(&self.network);
    }

    /// Not a byte was lost or doubled, from the beginning.
    pub(crate) fn ends_whole(self) {
        let bytes: Vec<u64> = self.streams.into_iter().map(Stream::ends_whole).collect();
        println!("bytes of the streams: {bytes:?}");
        assert!(bytes.iter().all(|bytes| *bytes > 0));
    }
}

fn moves(subnet: u8, times: u32) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let mut busy = Busy::new(&namespace, subnet);
    let mut silences = Vec::new();
    for number in 1..=times {
        for stream in &busy.streams {
            stream.silence();
        }
        let source = busy.machine.pod();
        let migration = busy.machine.migrate();
        busy.machine.has_moved(&migration, &source);
        busy.goes_on();
        busy.machine.is_reached();
        let silent: Vec<Duration> = busy.streams.iter().map(Stream::silence).collect();
        println!("move {number}: the streams brought nothing for {silent:?} at most");
        silences.extend(silent);
    }
    busy.ends_whole();
    silences.sort();
    let at = |percent: usize| silences[(silences.len() - 1) * percent / 100];
    println!("{times} moves: silent for {:?} (p50), {:?} (p95), {:?} (p99)", at(50), at(95), at(99));
}

#[test]
fn streams_go_on_where_the_machine_goes_and_when_it_comes_back() {
    moves(62, 2);
}

#[test]
fn long_streams_go_on_over_twelve_moves() {
    moves(63, 12);
}

/// Half an hour.
#[test]
fn long_streams_go_on_over_a_hundred_moves() {
    moves(67, 100);
}

/// Shorter than this it is not slow.
const SLOW: Duration = Duration::from_secs(90);

#[test]
fn long_streams_go_on_while_memory_is_copied_for_minutes() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let mut busy = Busy::new(&namespace, 64);
    // What does not compress to nothing: the tiny guest has little else.
    busy.machine.sh("dd if=/dev/urandom of=/tmp/ballast bs=1M count=80 2>/dev/null");
    let sum = busy.machine.sh("md5sum </tmp/ballast");
    let slowly = Slowly::new(&namespace);
    let source = busy.machine.pod();
    let migration = busy.machine.migrate();
    busy.machine.wait_under_way(&migration);
    let copied = |for_: Duration| {
        let said = busy.machine.virsh(&source.name_any(), &["domjobinfo"], &[])?;
        let elapsed = said.lines().find_map(|line| line.strip_prefix("Time elapsed:"));
        let milliseconds = elapsed.and_then(|text| text.split_whitespace().next()).map(str::parse::<u64>);
        Ok(milliseconds.transpose()?.filter(|ms| u128::from(*ms) > for_.as_millis()))
    };
    namespace.until("a copy that is slow", SLOW * 2, || copied(SLOW)).unwrap();
    Stream::all_go_on(&busy.streams);
    // What the streams write is more than that: it would go on for ever.
    busy.machine.virsh(&source.name_any(), &["migrate-setspeed"], &["64"]).unwrap();
    busy.machine.has_moved_within(&migration, &source, SLOW * 3);
    let state = busy.machine.instance().status.migration_state.unwrap();
    let time = |at: Option<Option<Time>>| at.flatten().unwrap().0;
    let took =
        Duration::try_from(time(state.end_timestamp).duration_since(time(state.start_timestamp))).unwrap();
    println!("the copy took {took:?}");
    assert!(took > SLOW, "{took:?}");
    busy.goes_on();
    assert_eq!(busy.machine.sh("md5sum </tmp/ballast"), sum);
    busy.ends_whole();
    drop(slowly);
}

#[test]
fn long_a_guest_that_writes_faster_than_it_is_copied_is_slowed_down_and_moves() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let mut busy = Busy::new(&namespace, 65);
    // 40 MiB that are written anew all the time, and 4 MiB a second to copy them by.
    busy.machine.sh(
        "(until [ -e /tmp/enough ]; do dd if=/dev/urandom of=/tmp/dirt bs=1M count=40 conv=notrunc 2>/dev/null; done &)",
    );
    let _slowly = Slowly::by(
        &namespace,
        "bandwidthPerMigration: 4Mi, completionTimeoutPerGiB: 10000, allowAutoConverge: true",
    );
    let source = busy.machine.pod();
    let migration = busy.machine.migrate();
    busy.machine.wait_under_way(&migration);
    let throttled = || {
        let said = busy.machine.virsh(&source.name_any(), &["domjobinfo"], &[])?;
        Ok(said.lines().any(|line| line.starts_with("Auto converge throttle:")).then_some(()))
    };
    namespace.until("a guest that is slowed down", SOON * 3, throttled).unwrap();
    busy.machine.has_moved_within(&migration, &source, SLOW * 6);
    busy.machine.sh("touch /tmp/enough");
    busy.goes_on();
    busy.ends_whole();
}

#[test]
fn long_a_migration_is_aborted_under_streams() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let mut busy = Busy::new(&namespace, 66);
    let _slowly = Slowly::new(&namespace);
    let source = busy.machine.pod();
    let migration = busy.machine.migrate();
    let state = busy.machine.wait_under_way(&migration);
    namespace.virtctl(&["migrate-cancel", "vm"]).unwrap();
    namespace.wait_gone::<Migration>(&migration, SOON).unwrap();
    let said = busy.machine.instance().status.migration_state.unwrap();
    assert_eq!(said.abort_status, Some(MigrationAbortStatus::Succeeded), "{said:?}");
    busy.machine.has_stayed(&migration, &source, &state.target_pod.unwrap());
    busy.goes_on();
    busy.ends_whole();
}
