//! `addvolume` and `removevolume`: plug a volume into a running virtual machine, or unplug it.
//!
//! The volume has the name of its DataVolume or claim. Which of the two it is, the cluster is asked. What is asked of a virtual
//! machine stays in its specification; a virtual machine instance that belongs to none is asked itself.

use anyhow::bail;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::Cluster;
use crate::api::objects::{CLAIMS, DATA_VOLUMES};
use crate::args::{AddVolume, DiskType, RemoveVolume};
use crate::output::say;
use crate::target::{Kind, Object};

/// Plugs a volume.
pub(super) async fn add(cluster: &Cluster, args: &AddVolume) -> anyhow::Result<()> {
    let (source, name) = (source(cluster, &args.volume_name).await?, &args.volume_name);
    let device = match (args.disk_type, args.bus.as_str()) {
        (DiskType::Disk, bus @ ("scsi" | "virtio")) => json!({"disk": {"bus": bus}}),
        (DiskType::Lun, "scsi") => json!({"lun": {"bus": "scsi"}}),
        (DiskType::Disk, bus) => bail!("--bus={bus} is not possible for a disk: scsi and virtio are"),
        (DiskType::Lun, bus) => bail!("--bus={bus} is not possible with --disk-type=lun: scsi is"),
    };
    let mut disk = device;
    disk["serial"] = args.serial.as_deref().filter(|serial| !serial.is_empty()).unwrap_or(name).into();
    if let Some(cache) = args.cache.as_deref().filter(|cache| !cache.is_empty()) {
        if !["none", "writethrough", "writeback"].contains(&cache) {
            bail!("--cache={cache} is not possible: none, writethrough and writeback are");
        }
        disk["cache"] = cache.into();
    }
    let mut options = json!({"name": name, "disk": disk, "volumeSource": source});
    if let Some(all) = args.common.dry_run.option()? {
        options["dryRun"] = json!(all);
    }
    put(cluster, &args.common.name, "addvolume", &options).await?;
    say(&format!("Successfully submitted add volume request to VM {} for volume {name}", args.common.name))
}

/// Unplugs a volume.
pub(super) async fn remove(cluster: &Cluster, args: &RemoveVolume) -> anyhow::Result<()> {
    let name = &args.volume_name;
    let mut options = json!({"name": name});
    if let Some(all) = args.common.dry_run.option()? {
        options["dryRun"] = json!(all);
    }
    put(cluster, &args.common.name, "removevolume", &options).await?;
    say(&format!("Successfully submitted remove volume request to VM {} for volume {name}", args.common.name))
}

/// Asks the virtual machine, or the instance where there is no such virtual machine.
async fn put(
    cluster: &Cluster,
    name: &str,
    subresource: &str,
    options: &impl Serialize,
) -> anyhow::Result<()> {
    let vm = Object::new(Kind::Vm, name, cluster.namespace())?;
    match cluster.put(&vm, subresource, options).await {
        Err(error) if error.is_not_found() => {}
        result => return result.map_err(|error| error.explain(subresource, &vm)),
    }
    let vmi = Object::new(Kind::Vmi, name, cluster.namespace())?;
    cluster.put(&vmi, subresource, options).await.map_err(|error| error.explain(subresource, &vmi))
}

/// The DataVolume of this name, or the claim.
async fn source(cluster: &Cluster, name: &str) -> anyhow::Result<Value> {
    let named = Object::new(Kind::Vm, name, cluster.namespace())?;
    if cluster.object(DATA_VOLUMES, &named.namespace, &named.name).await.is_ok() {
        return Ok(json!({"dataVolume": {"name": name, "hotpluggable": true}}));
    }
    match cluster.object(CLAIMS, &named.namespace, &named.name).await {
        Ok(_) => Ok(json!({"persistentVolumeClaim": {"claimName": name, "hotpluggable": true}})),
        Err(error) if error.is_not_found() => {
            bail!("error adding volume, Volume {name} is not a DataVolume or PersistentVolumeClaim")
        }
        Err(error) => Err(error.explain_plain(&format!("read PersistentVolumeClaim {name}"))),
    }
}
