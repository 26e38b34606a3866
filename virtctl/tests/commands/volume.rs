//! addvolume, removevolume.

use serde_json::{Value, json};

use crate::fake::{Fake, Reply};

const VMS: &str = "/apis/subresources.kubevirt.io/v1/namespaces/blue/virtualmachines/testvm";
const VMIS: &str = "/apis/subresources.kubevirt.io/v1/namespaces/blue/virtualmachineinstances/testvm";
const CLAIM: &str = "/api/v1/namespaces/blue/persistentvolumeclaims/data";
const DATA_VOLUME: &str = "/apis/cdi.kubevirt.io/v1beta1/namespaces/blue/datavolumes/data";

fn missing() -> Reply {
    Reply::status(404, "NotFound", "not found")
}

/// A cluster that has these paths.
async fn cluster(has: &'static [&'static str]) -> Fake {
    Fake::start(move |asked| {
        let path = asked.line.split(' ').nth(1).unwrap_or_default();
        if has.iter().any(|there| path.starts_with(there)) { Reply::ok() } else { missing() }
    })
    .await
}

#[tokio::test]
async fn a_claim_or_a_data_volume_is_plugged_as_upstream_does() {
    let claim = json!({"persistentVolumeClaim": {"claimName": "data", "hotpluggable": true}});
    let data = json!({"dataVolume": {"name": "data", "hotpluggable": true}});
    let disk = |disk: Value| json!({"name": "data", "disk": disk, "volumeSource": claim});
    let cases: [(&str, &'static [&'static str], Value, &str); 4] = [
        (
            "addvolume testvm --volume-name=data",
            &[CLAIM, VMS],
            disk(json!({"disk": {"bus": "scsi"}, "serial": "data"})),
            VMS,
        ),
        (
            "addvolume testvm --volume-name=data --serial=7 --bus=virtio --cache=none --persist",
            &[CLAIM, VMS],
            disk(json!({"disk": {"bus": "virtio"}, "serial": "7", "cache": "none"})),
            VMS,
        ),
        (
            "addvolume testvm --volume-name=data --disk-type=lun",
            &[CLAIM, VMIS],
            disk(json!({"lun": {"bus": "scsi"}, "serial": "data"})),
            VMIS,
        ),
        (
            "addvolume testvm --volume-name=data",
            &[CLAIM, DATA_VOLUME, VMS],
            json!({"name": "data", "disk": {"disk": {"bus": "scsi"}, "serial": "data"}, "volumeSource": data}),
            VMS,
        ),
    ];
    for (line, has, body, path) in cases {
        let fake = cluster(has).await;
        let done = fake.run(&line.split(' ').collect::<Vec<_>>()).await;
        let out = "Successfully submitted add volume request to VM testvm for volume data\n";
        assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), out, ""), "{line}");
        let asked = fake.seen().pop().unwrap();
        assert_eq!(asked.line, format!("PUT {path}/addvolume"), "{line}");
        assert_eq!(serde_json::from_str::<Value>(&asked.body).unwrap(), body, "{line}");
    }
}

#[tokio::test]
async fn a_volume_is_unplugged_and_what_is_wrong_is_told() {
    let fake = cluster(&[VMS]).await;
    let done = fake.run(&["removevolume", "testvm", "--volume-name=data", "--dry-run"]).await;
    let out =
        "Dry Run execution\nSuccessfully submitted remove volume request to VM testvm for volume data\n";
    assert_eq!((done.code, done.out.as_str()), (Some(0), out));
    let asked = fake.seen().pop().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&asked.body).unwrap(),
        json!({"name": "data", "dryRun": ["All"]})
    );

    let done = fake.run(&["addvolume", "testvm", "--volume-name=data"]).await;
    assert_eq!(done.code, Some(1));
    assert!(done.err.contains("Volume data is not a DataVolume or PersistentVolumeClaim"), "{}", done.err);
    let fake = cluster(&[CLAIM, VMS]).await;
    for (flag, words) in
        [("--bus=sata", "scsi and virtio are"), ("--cache=some", "none, writethrough and writeback are")]
    {
        let done = fake.run(&["addvolume", "testvm", "--volume-name=data", flag]).await;
        assert!(done.code == Some(1) && done.err.contains(words), "{flag}: {}", done.err);
    }
}
