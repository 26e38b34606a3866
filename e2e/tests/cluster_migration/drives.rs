//! CD-ROM drives whose media are inserted and ejected while the machine runs, and come along when it moves.

use podvirt_e2e::cluster::{Cluster, Manifest, Namespace, Security, prepare_volumes};
use serde_json::{Value, json};

use crate::moving::Machine;
use crate::storage::claim;
use crate::volumes::{wait_gone, wait_ready};

/// Changes the template's volumes.
fn change(namespace: &Namespace<'_>, operation: &Value) {
    let patch = json!([operation]).to_string();
    namespace.kubectl(&["patch", "vm", "vm", "--type=json", "-p", &patch]).unwrap();
}

fn medium(claim: &str) -> Value {
    json!({"name": "drive", "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}})
}

/// Waits until the guest reads this word from the drive; none: it has no medium.
fn assert_read(machine: &mut Machine<'_>, word: Option<&str>) {
    let read = "dd if=/dev/sr0 bs=2048 count=1 2>/dev/null | tr -d '\\0'";
    let test = match word {
        Some(word) => format!("[ \"$({read})\" = {word} ]"),
        None => "! dd if=/dev/sr0 bs=2048 count=1 >/dev/null 2>&1".to_owned(),
    };
    let wait =
        format!("i=0; until {test}; do i=$((i + 1)); [ $i -lt 200 ] || break; usleep 100000; done; {read}");
    assert_eq!(machine.sh(&wait), word.unwrap_or_default());
}

/// A disk image and a device are put into a drive that is empty at first, one after the other; the machine moves with a medium in it.
#[test]
fn media_are_inserted_exchanged_and_ejected_and_move_with_the_machine() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "image", "Filesystem", "ReadWriteMany", "16Mi");
    claim(&namespace, "device", "Block", "ReadWriteMany", "16Mi");
    let manifest = Manifest { name: "vm", disks: "{name: drive, cdrom: {bus: sata}}", ..Default::default() };
    let mut machine = Machine::start(&namespace, &manifest);
    assert_read(&mut machine, None);

    // The guest itself writes the media, as disks.
    for volume in ["image", "device"] {
        let named = format!("--volume-name={volume}");
        namespace.virtctl(&["addvolume", "vm", &named]).unwrap();
        wait_ready(&namespace, &machine, &[volume]);
        machine.sh(&format!(
            "until disk=$(ls /sys/block | grep ^sd); do usleep 50000; done; echo {volume} | dd of=/dev/$disk bs=2048 conv=sync,fsync 2>/dev/null"
        ));
        namespace.virtctl(&["removevolume", "vm", &named]).unwrap();
        wait_gone(&namespace, &machine, volume);
    }

    change(
        &namespace,
        &json!({"op": "add", "path": "/spec/template/spec/volumes/-", "value": medium("image")}),
    );
    wait_ready(&namespace, &machine, &["drive"]);
    assert_read(&mut machine, Some("image"));
    let writes = "dd if=/dev/zero of=/dev/sr0 bs=2048 count=1 2>/dev/null && echo written || echo refused";
    assert_eq!(machine.sh(writes), "refused");

    let source = machine.pod();
    let migration = machine.migrate();
    machine.has_moved(&migration, &source);
    assert_read(&mut machine, Some("image"));

    // Behind the root disk and cloud-init's.
    let place = "/spec/template/spec/volumes/2";
    change(&namespace, &json!({"op": "replace", "path": place, "value": medium("device")}));
    assert_read(&mut machine, Some("device"));
    change(&namespace, &json!({"op": "remove", "path": place}));
    wait_gone(&namespace, &machine, "drive");
    assert_read(&mut machine, None);
}
