//! Backups of a machine's disks, and the checkpoints that they stand on. virt-controller asks for them.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use podvirt_api::backup::Options;
use podvirt_api::v1::BackupCheckpoint;

use super::{Failure, Server};
use crate::launcher::client::{Checkpoint, Error};

type Name = Path<(String, String)>;

/// Begins a backup, or has it given up.
pub(super) async fn backup(
    server: State<Server>,
    Path((namespace, name)): Name,
    Json(options): Json<Options>,
) -> Result<StatusCode, Failure> {
    let (vmi, pod) = server.find(&namespace, &name)?;
    let client = server.launcher(&pod).await?;
    tracing::info!(namespace, vmi = name, backup = options.backup_name, command = ?options.cmd, "a backup is asked for");
    match client.backup(&vmi, &options).await {
        Err(Error::Refused(message)) => return Err(Failure::conflict(message)),
        done => done?,
    }
    server.look_at(&vmi).await;
    Ok(StatusCode::ACCEPTED)
}

/// Makes a checkpoint known to the machine's hypervisor.
pub(super) async fn redefine_checkpoint(
    server: State<Server>,
    Path((namespace, name)): Name,
    Json(checkpoint): Json<BackupCheckpoint>,
) -> Result<StatusCode, Failure> {
    let (vmi, pod) = server.find(&namespace, &name)?;
    let client = server.launcher(&pod).await?;
    match client.redefine_checkpoint(&vmi, &checkpoint).await? {
        Checkpoint::Known => Ok(StatusCode::OK),
        Checkpoint::Invalid(message) => Err(Failure::unprocessable(message)),
    }
}
