//! What becomes of disks, from the claims that virt-controller sees to what libvirt is told: the status is the one that
//! virt-controller decides on, the domain the one that is made from the manifest.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};
use virt_controller::kept::Kept;
use virt_controller::settings::Settings;
use virt_controller::vmi::claims::{Claims, told};
use virt_controller::vmi::{Observed, decide};

use super::*;
use crate::domain::{Accelerator, Base, Environment, Image, ImageFormat, Place, convert};

/// A machine with these volumes, each under a disk of its name; `disks` is laid over them.
fn machine(volumes: &[(&str, Value)], disks: &[(&str, Value)]) -> Value {
    let disk = |name: &str| {
        let mut disk = json!({"name": name, "disk": {"bus": "virtio"}});
        for (_, more) in disks.iter().filter(|(of, _)| *of == name) {
            json_patch::merge(&mut disk, more);
        }
        disk
    };
    let volume = |name: &str, source: &Value| {
        let mut volume = source.clone();
        volume["name"] = name.into();
        volume
    };
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "shop", "uid": "m1"},
        "spec": {
            "domain": {"memory": {"guest": "64Mi"}, "devices": {
                "disks": volumes.iter().map(|(name, _)| disk(name)).collect::<Vec<_>>(),
            }},
            "volumes": volumes.iter().map(|(name, source)| volume(name, source)).collect::<Vec<_>>(),
        },
    })
}

/// The machine as virt-controller writes it, when the API server has these claims; as virt-handler hands it on.
fn judged(vmi: &Value, claims: &[(&str, &str)]) -> VirtualMachineInstance {
    let claim = |mode: &str| -> PersistentVolumeClaim {
        let spec = json!({"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}});
        serde_json::from_value(json!({"spec": spec, "status": {"phase": "Bound"}})).unwrap()
    };
    let claims: Claims = claims.iter().map(|(name, mode)| ((*name).to_owned(), Some(claim(mode)))).collect();
    let mut vmi: VirtualMachineInstance = serde_json::from_value(vmi.clone()).unwrap();
    // Waiting for its pod.
    vmi.status.phase = Some("Pending".into());
    let settings = Settings::default();
    let seen = Observed {
        claims_told: Some(&told(&vmi, &claims, &Kept::new().0).unwrap()),
        ..Observed::alone(&vmi, &settings, "launcher:1")
    };
    let decision = decide(&seen, "2026-01-01T12:00:00Z".parse().unwrap());
    serde_json::from_slice(&serde_json::to_vec(&decision.vmi).unwrap()).unwrap()
}

/// The domain that this launcher makes of the machine.
fn domain(vmi: &Value) -> Domain {
    let mut vmi = podvirt_api::VirtualMachineInstance::from_value(vmi.clone()).unwrap();
    podvirt_api::defaults::set_defaults(&mut vmi);
    let image = |volume: &podvirt_api::vmi::Volume| {
        let on_claim = volume.persistent_volume_claim.is_some();
        let base = Base { path: "/images/base.img".into(), place: Place::File, format: ImageFormat::Raw };
        let image = if volume.is_hotpluggable() && volume.name.starts_with("block") {
            let path = crate::fdset::place(&volume.name);
            Image::of(Base { path, place: Place::Block, format: ImageFormat::Raw })
        } else if volume.is_hotpluggable() {
            Image::new(path::plugged_image(&volume.name), ImageFormat::Raw)
        } else if on_claim && volume.name.starts_with("block") {
            let path = path::claim_device(&volume.name);
            Image::of(Base { path, place: Place::Block, format: ImageFormat::Raw })
        } else if on_claim {
            Image::new(path::claim_image(&volume.name), ImageFormat::Raw)
        } else {
            let overlay = Path::new(path::EPHEMERAL_DISKS).join("disks").join(&volume.name);
            Image::new(overlay, ImageFormat::Qcow2).over(base)
        };
        (volume.name.clone(), image)
    };
    let environment = Environment {
        accelerator: Accelerator::Tcg,
        kernel: None,
        ovmf: None,
        images: vmi.spec.volumes.iter().map(image).collect(),
        sockets: [("default".to_owned(), "/run/n0".into())].into(),
        filesystems: [].into(),
        taps: [].into(),
        devices: [].into(),
        serial_socket: "/run/serial".into(),
        serial_log: "/run/serial-log".into(),
        vnc_socket: "/run/vnc".into(),
        balloon_period: 0,
        smbios: podvirt_proto::cmd::default_smbios(),
    };
    convert(&vmi, &environment).unwrap()
}

fn claim(name: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": name}})
}

fn plugged(name: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": name, "hotpluggable": true}})
}

fn read_only(name: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": name, "readOnly": true}})
}

#[test]
fn what_virt_controller_calls_movable_moves_and_no_claim_is_copied() {
    let vmi = machine(
        &[
            ("root", json!({"containerDisk": {"image": "i"}})),
            ("data", claim("many")),
            ("block", claim("many")),
            ("quorum", claim("many")),
            ("block-plugged", plugged("many")),
            ("plugged", plugged("many")),
            ("books", read_only("library")),
            ("temp", json!({"ephemeral": {"persistentVolumeClaim": {"claimName": "many"}}})),
            ("scratch", json!({"emptyDisk": {"capacity": "1Gi"}})),
            ("init", json!({"cloudInitNoCloud": {"userData": "x"}})),
        ],
        &[
            ("quorum", json!({"shareable": true, "cache": "none"})),
            ("init", json!({"disk": null, "cdrom": {"bus": "sata"}})),
        ],
    );
    let written = judged(&vmi, &[("many", "ReadWriteMany"), ("library", "ReadOnlyMany")]);
    let condition = written.status.conditions.iter().find(|c| c.r#type.as_str() == "LiveMigratable").unwrap();
    assert_eq!(condition.status, "True", "{condition:?}");
    let disks = of(&domain(&vmi), &written).unwrap();
    // vdb to vdg are on claims.
    assert_eq!(disks, Disks { copied: vec!["vda".into(), "vdh".into(), "vdi".into()], shared: true });
}

#[test]
fn what_virt_controller_calls_immovable_is_refused() {
    let running = domain(&machine(&[("data", claim("one"))], &[]));
    for (name, source, mode) in [
        ("data", claim("one"), "ReadWriteOnce"),
        ("data", claim("one"), "ReadOnlyMany"),
        ("data", read_only("one"), "ReadWriteOnce"),
        ("data", json!({"ephemeral": {"persistentVolumeClaim": {"claimName": "one"}}}), "ReadWriteOnce"),
        ("data", json!({"hostDisk": {"path": "/d", "type": "Disk", "shared": true}}), "ReadWriteMany"),
    ] {
        let vmi = machine(&[(name, source.clone())], &[("data", json!({"shareable": true}))]);
        let written = judged(&vmi, &[("one", mode)]);
        let condition =
            written.status.conditions.iter().find(|c| c.r#type.as_str() == "LiveMigratable").unwrap();
        let told = (condition.status.as_str(), condition.reason.as_deref());
        assert_eq!(told, ("False", Some("DisksNotLiveMigratable")), "{source} {mode}");
        let why = of(&running, &written).unwrap_err().to_string();
        assert!(why.starts_with("status.migrationMethod: virt-controller has not said"), "{why}");
    }
    // A claim that is not there.
    let vmi = machine(&[("data", claim("none"))], &[]);
    let missing: Claims = [("none".to_owned(), None)].into();
    let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
    assert_eq!(told(&vmi, &missing, &Kept::new().0), None);
    of(&running, &vmi).unwrap_err();
}

#[test]
fn a_judgement_that_does_not_fit_the_disks_moves_nothing() {
    let shared = machine(&[("data", claim("many"))], &[]);
    let copied = machine(&[("data", json!({"emptyDisk": {"capacity": "1Gi"}}))], &[]);
    let other = machine(&[("other", claim("many"))], &[]);
    let block = machine(&[("block", claim("many"))], &[]);
    let made = machine(&[("block", json!({"emptyDisk": {"capacity": "1Gi"}}))], &[]);
    let claims = [("many", "ReadWriteMany")];
    // The disk is on a claim, the status says that it is copied; then the other way round.
    for (domain_of, status_of, why) in [
        (&shared, &copied, "disk vda: volume data is Copied by the VMI's status, which contradicts"),
        (&copied, &shared, "disk vda: volume data is Shared by the VMI's status, which contradicts"),
        (&block, &made, "disk vda: volume block is Copied by the VMI's status, which contradicts"),
        (&shared, &other, "disk vda: 'ua-data' names no volume of the VMI"),
    ] {
        let said = of(&domain(domain_of), &judged(status_of, &claims)).unwrap_err().to_string();
        assert!(said.starts_with(why), "{said}");
    }
}
