//! File systems.

use crate::vmi::VirtualMachineInstance;
use crate::{defaults, validate};

/// What is wrong with a machine of a cluster that has these devices and volumes, as `field reason`.
pub(super) fn wrong(devices: &str, volumes: &str) -> Vec<String> {
    let text = format!(
        "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {{name: vm}}, spec: {{volumes: [{volumes}], \
         domain: {{memory: {{guest: 64Mi}}, devices: {{autoattachPodInterface: false, {devices}}}}}}}}}"
    );
    let mut vmi = VirtualMachineInstance::from_value(serde_saphyr::from_str(&text).unwrap()).unwrap();
    defaults::set_defaults(&mut vmi);
    validate::validate(&vmi).0.iter().map(|p| format!("{} {:?}", p.field, p.reason)).collect()
}

#[test]
fn file_systems_are_of_volumes_with_files() {
    let volumes = "{name: claim, persistentVolumeClaim: {claimName: c}}, {name: map, configMap: {name: m}}, \
                   {name: image, containerDisk: {image: i}}, \
                   {name: a-name-of-more-than-thirty-six-letters, secret: {secretName: s}}";
    let of = |devices: &str| wrong(devices, volumes);
    let fs = |name: &str| format!("filesystems: [{{name: {name}, virtiofs: {{}}}}]");
    let field = "spec.domain.devices.filesystems[0].name";
    for good in ["claim", "map"] {
        assert_eq!(of(&fs(good)), [""; 0], "{good}");
    }
    assert_eq!(
        of(&format!("{}, disks: [{{name: map}}]", fs("map"))),
        [""; 0],
        "files, and a disk made of them"
    );
    for (bad, reason) in [
        (fs("image"), "FieldValueInvalid"),
        (fs("a-name-of-more-than-thirty-six-letters"), "FieldValueInvalid"),
        (fs("none"), "FieldValueNotFound"),
        (format!("{}, disks: [{{name: claim}}]", fs("claim")), "FieldValueInvalid"),
    ] {
        assert_eq!(of(&bad), [format!("{field} {reason}")], "{bad}");
    }
    let plugged = "{name: plugged, persistentVolumeClaim: {claimName: p, hotpluggable: true}}";
    assert_eq!(wrong(&fs("plugged"), plugged), [format!("{field} FieldValueInvalid")]);
    let bare = of("filesystems: [{name: map}]");
    assert_eq!(bare, ["spec.domain.devices.filesystems[0].virtiofs FieldValueRequired"]);
    let twice = "filesystems: [{name: map, virtiofs: {}}, {name: map, virtiofs: {}}]";
    assert_eq!(of(twice), ["spec.domain.devices.filesystems[1].name FieldValueDuplicate"]);
}
