use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use podvirt_api::v1::VirtualMachine;
use serde_json::{Value, json};

use super::external::External;
use super::manifest;
use super::tests::{export, of};

#[test]
fn manifests_lack_what_is_this_clusters() {
    let own = export("VirtualMachine", "vm");
    let vm: VirtualMachine = of(json!({
        "metadata": {"name": "vm", "namespace": "ns", "uid": "v", "resourceVersion": "7", "labels": {"a": "b"}},
        "spec": {
            "dataVolumeTemplates": [{"metadata": {"name": "disk"}, "spec": {"sourceRef": {"name": "r"}, "source": {"pvc": {"name": "p"}}}}],
            "template": {"spec": {"domain": {"devices": {}}, "volumes": [
                {"name": "a", "dataVolume": {"name": "disk"}}, {"name": "b", "persistentVolumeClaim": {"claimName": "more"}},
            ]}},
        },
        "status": {"created": true},
    }));
    assert_eq!(manifest::claims(&vm), ["disk", "more"]);
    let claims: Vec<PersistentVolumeClaim> = of(json!([
        {"metadata": {"name": "disk", "namespace": "ns"}},
        {"metadata": {"name": "more", "namespace": "ns"}, "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
            "resources": {"requests": {"storage": "1Gi"}}}},
    ]));
    let data = manifest::data(&own, &vm, &claims, "BUNDLE", None);
    let names: Vec<&str> = data.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["dv-more", "export-name", "internal_ca_cm", "internal_host", "virtualmachine-manifest"]
    );
    let machine: Value = serde_json::from_str(&data["virtualmachine-manifest"]).unwrap();
    assert_eq!(machine["metadata"], json!({"name": "vm", "namespace": "ns", "labels": {"a": "b"}}));
    assert_eq!(machine.get("status"), None);
    assert_eq!(machine["spec"]["dataVolumeTemplates"][0]["spec"], json!({"source": {"http": {"url": ""}}}));
    let volume: Value = serde_json::from_str(&data["dv-more"]).unwrap();
    assert_eq!(volume["spec"]["storage"]["resources"]["requests"]["storage"], "1Gi");
    let external = External { host: "h".into(), certificate: "C".into() };
    let data = manifest::data(&own, &vm, &claims, "BUNDLE", Some(&external));
    assert_eq!(
        data["external_host"],
        "h/api/export.kubevirt.io/v1beta1/namespaces/ns/virtualmachineexports/x"
    );
}
