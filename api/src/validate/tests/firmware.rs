//! Tables of the firmware.

use serde_json::json;

use crate::vmi::VirtualMachineInstance;
use crate::{defaults, validate};

#[test]
fn tables_of_the_firmware_are_in_volumes_of_secrets() {
    let wrong = |acpi: serde_json::Value| -> Vec<String> {
        let volumes = json!([{"name": "s", "secret": {"secretName": "s"}}, {"name": "e", "emptyDisk": {"capacity": "1Gi"}}]);
        let domain = json!({"memory": {"guest": "64Mi"}, "firmware": {"acpi": acpi}});
        let mut vmi = VirtualMachineInstance::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
            "spec": {"domain": domain, "volumes": volumes},
        }))
        .unwrap();
        defaults::set_defaults(&mut vmi);
        validate::validate(&vmi).0.iter().map(|p| p.field.clone()).collect()
    };
    let none: [&str; 0] = [];
    assert_eq!(wrong(json!({"slicNameRef": "s", "msdmNameRef": "s"})), none);
    assert_eq!(wrong(json!({})), ["spec.domain.firmware.acpi"]);
    assert_eq!(wrong(json!({"slicNameRef": "e"})), ["spec.domain.firmware.acpi.slicNameRef"]);
    assert_eq!(wrong(json!({"msdmNameRef": "x"})), ["spec.domain.firmware.acpi.msdmNameRef"]);
}
