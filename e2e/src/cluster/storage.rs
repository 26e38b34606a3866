//! Storage for as long as a test wants it.
//!
//! A cluster that has come up has no volumes but directories of its nodes. `e2e/cluster/storage` puts a CSI driver, its classes and
//! the Containerized Data Importer into it, and takes them away again.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::Cluster;
use crate::artefacts::{image, script};

/// The cluster has volumes, until this is dropped, or longer if it had them before.
#[must_use = "dropping it takes the storage away"]
pub struct Storage {
    ours: bool,
}

/// Makes the images of it. What they are made of may have to be fetched: to be called while the process is on the machine's own
/// network.
///
/// # Errors
/// They cannot be made.
pub fn prepare_storage() -> Result<()> {
    ["tools", "disk-tiny", "csi", "cdi-operator", "registry"]
        .into_iter()
        .try_for_each(|name| image(name).map(drop))
}

/// Makes the image of it without what imports data, as [`prepare_storage`].
///
/// # Errors
/// It cannot be made.
pub fn prepare_volumes() -> Result<()> {
    image("csi").map(drop)
}

impl Cluster {
    /// Installs volumes and their classes alone, unless the cluster has them; [`prepare_volumes`] has made what it takes.
    ///
    /// # Errors
    /// They do not become ready; what their parts said has been shown.
    pub fn volumes(&self) -> Result<Storage> {
        let storage = Storage { ours: run("cluster/storage", &["status"]).is_err() };
        if storage.ours {
            run("cluster/storage", &["up"])?;
        }
        Ok(storage)
    }

    /// Installs it; [`prepare_storage`] has made what it takes.
    ///
    /// # Errors
    /// It does not become ready; what its parts said has been shown.
    pub fn storage(&self) -> Result<Storage> {
        let storage = Storage { ours: run("cluster/storage", &["status"]).is_err() };
        run("cluster/storage", &["up", "cdi"])?;
        Ok(storage)
    }
}

impl Storage {
    /// Has claims of every mode written to, copied and grown.
    ///
    /// # Errors
    /// One does not do what it should, which has been shown.
    pub fn check_claims(&self) -> Result<()> {
        run("cluster/storage-check", &[])
    }

    /// Has `DataVolumes` of every source filled.
    ///
    /// # Errors
    /// One does not get what it should, which has been shown.
    pub fn check_data_volumes(&self) -> Result<()> {
        run("cluster/cdi-check", &[])
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        if let Err(error) = run("cluster/storage", &["down"]) {
            eprintln!("the storage stays in the cluster: {error}");
        }
    }
}

fn run(name: &str, arguments: &[&str]) -> Result<()> {
    let status = Command::new(script(name)).args(arguments).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "{name} {} failed: {status}", arguments.join(" "));
    Ok(())
}
