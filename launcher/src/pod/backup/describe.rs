//! What libvirt is told of a backup.

use std::path::Path;

use podvirt_api::backup::Options;
use podvirt_api::export::backup::BITMAP;
use podvirt_proto::domain::BackupDisk;

use crate::domain::name_of;
use crate::domain::schema::backup as xml;
use crate::domain::schema::{Disk, TypeOnly};

/// A backup, and its checkpoint.
#[derive(Debug)]
pub(super) struct Description {
    /// `<domainbackup>`.
    pub(super) job: String,
    /// `<domaincheckpoint>`.
    pub(super) checkpoint: String,
    /// The disks that are in it.
    pub(super) told: Vec<BackupDisk>,
}

/// Describes a backup whose files go into `directory`. `whole`: aliases of disks that are in it whole. `socket`: where the disks are
/// offered, in pull mode.
pub(super) fn describe(
    disks: &[Disk],
    options: &Options,
    checkpoint: &str,
    directory: &Path,
    whole: &[String],
    socket: Option<&Path>,
) -> Result<Description, quick_xml::SeError> {
    let (mut all, mut points, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for disk in disks {
        let (name, volume) = (disk.target.dev.clone(), name_of(&disk.alias.name));
        let Some(volume) = volume.filter(|_| disk.is_tracked()) else {
            let no = || "no".to_owned();
            all.push(xml::BackupDisk { name: name.clone(), backup: no(), ..xml::BackupDisk::default() });
            points.push(xml::CheckpointDisk { name, checkpoint: no() });
            continue;
        };
        let is_whole = whole.contains(&disk.alias.name);
        let file = directory.join(format!("{}-{volume}.qcow2", options.backup_name));
        let file = Some(xml::BackupFile { file: file.display().to_string() });
        let described = xml::BackupDisk {
            name: name.clone(),
            backup: "yes".to_owned(),
            kind: Some("file".to_owned()),
            backup_mode: is_whole.then(|| "full".to_owned()),
            driver: Some(TypeOnly { kind: "qcow2".to_owned() }),
            ..xml::BackupDisk::default()
        };
        all.push(match socket {
            None => xml::BackupDisk { target: file, ..described },
            Some(_) => {
                // libvirt takes the bitmap's name of a disk that has one alone.
                let has_bitmap = options.incremental.is_some() && !is_whole;
                let export_bitmap = has_bitmap.then(|| BITMAP.to_owned());
                let export_name = Some(volume.to_owned());
                xml::BackupDisk { scratch: file, export_name, export_bitmap, ..described }
            }
        });
        points.push(xml::CheckpointDisk { name: name.clone(), checkpoint: "bitmap".to_owned() });
        told.push(BackupDisk { volume: volume.to_owned(), target: name });
    }
    let job = xml::Backup {
        mode: if socket.is_some() { "pull" } else { "push" }.to_owned(),
        incremental: options.incremental.clone(),
        server: socket.map(|socket| xml::BackupServer {
            transport: "unix".to_owned(),
            socket: socket.display().to_string(),
        }),
        disks: xml::BackupDisks { all },
    };
    let point = xml::Checkpoint {
        name: checkpoint.to_owned(),
        creation_time: None,
        disks: xml::CheckpointDisks { all: points },
    };
    Ok(Description { job: job.to_xml()?, checkpoint: point.to_xml()?, told })
}
