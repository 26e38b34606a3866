//! Machines whose guests are told what their node and they use: by a disk and by a serial port, at the source and at the target.

use podvirt_e2e::cluster::{Cluster, Manifest, SOON, Security};

use crate::moving::Machine;

/// Prints what the disk says, past the guest's page cache.
const DISK: &str = "disk=$(for d in /dev/vd?; do [ \"$(head -c 4 $d)\" = mvbd ] && echo $d; done); \
                    dd if=$disk iflag=direct bs=64k count=1 2>/dev/null | tail -c +17 | tr -d '\\000'";
/// Asks by the serial port, and prints the answer.
const PORT: &str = "port=$(grep -l org.github.vhostmd.1 /sys/class/virtio-ports/*/name | cut -d / -f 5); exec 3<>/dev/$port; \
                    printf 'GET /metrics/XML\\n\\n' >&3; \
                    while read -r line && [ -n \"$line\" ]; do echo \"$line\"; done <&3; exec 3>&-";

/// The value of a metric that the guest is told.
fn told<'m>(metrics: &'m str, context: &str, name: &str) -> &'m str {
    let named = format!("<name>{name}</name>");
    let head = format!("context=\"{context}\"");
    let mut all = metrics.split("<metric ").filter(|one| one.contains(&head) && one.contains(&named));
    let one = all.next();
    assert!(one.is_some(), "no {name} in {metrics}");
    one.unwrap().split_once("<value>").unwrap().1.split_once("</value>").unwrap().0
}

/// What a document says of the node and of the machine, and its time.
fn assert_told(metrics: &str, node: &str) -> u64 {
    assert_eq!(told(metrics, "host", "HostName"), node);
    assert!(told(metrics, "host", "VirtProductInfo").starts_with("QEMU "), "{metrics}");
    assert_eq!(told(metrics, "vm", "ResourceProcessorLimit"), "1");
    assert_eq!(told(metrics, "vm", "ResourceMemoryLimit"), "262144");
    for name in ["TotalCPUTime", "FreePhysicalMemory"] {
        assert!(told(metrics, "host", name).parse::<f64>().unwrap() > 0.0, "{name}");
    }
    // Of a machine that has just come to its node it may be none yet.
    assert!(told(metrics, "vm", "TotalCPUTime").parse::<f64>().unwrap() >= 0.0);
    told(metrics, "host", "Time").parse().unwrap()
}

/// The guest is told of the node that it is on, by both ways, and later again.
fn assert_both_tell(machine: &mut Machine<'_>) {
    let node = machine.pod().spec.unwrap().node_name.unwrap();
    for way in [DISK, PORT] {
        let limit = std::time::Instant::now() + SOON;
        // The disk is empty until the launcher sees that the machine runs.
        let mut told = machine.sh(way);
        while !told.contains("<metric ") && std::time::Instant::now() < limit {
            told = machine.sh(way);
        }
        let first = assert_told(&told, &node);
        while assert_told(&machine.sh(way), &node) <= first {
            assert!(std::time::Instant::now() < limit, "the metrics are not new");
        }
    }
}

#[test]
fn long_a_guest_is_told_what_its_node_and_it_use_and_after_a_move_of_its_new_node() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let manifest = Manifest {
        name: "vm",
        volumes: "{name: vhostmd, downwardMetrics: {}}",
        devices: "downwardMetrics: {}",
        ..Manifest::default()
    };
    let mut machine = Machine::start(&namespace, &manifest);
    assert_both_tell(&mut machine);
    let refused = machine.sh(&PORT.replace("GET /metrics/XML\\n", "DELETE everything"));
    assert_eq!(refused, "INVALID REQUEST");
    let writes = "disk=$(grep -l 1 /sys/block/vd?/ro | head -n 1 | cut -d / -f 4); dd if=/dev/zero of=/dev/$disk count=1 2>/dev/null";
    assert_eq!(machine.sh(&format!("{writes} || echo refused")), "refused");

    let source = machine.pod();
    let migration = machine.migrate();
    machine.has_moved(&migration, &source);
    assert_both_tell(&mut machine);
}
