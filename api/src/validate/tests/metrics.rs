//! Metrics of the node.

use super::filesystems::wrong;

#[test]
fn metrics_are_on_one_disk_on_the_virtio_bus() {
    let of = |disks: &str, volumes: &str| wrong(&format!("disks: [{disks}]"), volumes);
    let volume = "{name: m, downwardMetrics: {}}";
    for good in ["", "{name: m}", "{name: m, disk: {bus: virtio}}"] {
        assert_eq!(of(good, volume), [""; 0], "{good}");
    }
    let disk = "spec.domain.devices.disks[0].disk";
    assert_eq!(of("{name: m, cdrom: {}}", volume), [format!("{disk} FieldValueRequired")]);
    assert_eq!(of("{name: m, disk: {bus: sata}}", volume), [format!("{disk}.bus FieldValueInvalid")]);
    let two = format!("{volume}, {{name: other, downwardMetrics: {{}}}}");
    assert_eq!(of("", &two), ["spec.volumes FieldValueInvalid"]);
}
