//! Istio's own control plane for as long as a test wants it.
//!
//! A cluster that has come up has no mesh. `e2e/cluster/mesh` installs Istio and takes it away again: its webhooks are asked
//! about every pod of the cluster, so no other test is to have them.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::Cluster;
use crate::artefacts::{image, script};

/// Istio is in the cluster until this is dropped.
#[must_use = "dropping it takes Istio away"]
pub struct Istio {
    _private: (),
}

/// Makes Istio's images. What they are made of may have to be fetched: to be called while the process is on the machine's
/// own network.
///
/// # Errors
/// They cannot be made.
pub fn prepare_istio() -> Result<()> {
    for name in ["istio-pilot", "istio-proxy"] {
        image(name)?;
    }
    Ok(())
}

impl Cluster {
    /// Installs Istio, for which [`prepare_istio`] has made the images.
    ///
    /// # Errors
    /// It does not become ready; what its parts said has been shown.
    pub fn istio(&self) -> Result<Istio> {
        let istio = Istio { _private: () };
        mesh("up")?;
        Ok(istio)
    }
}

impl Drop for Istio {
    fn drop(&mut self) {
        if let Err(error) = mesh("down") {
            eprintln!("Istio stays in the cluster: {error}");
        }
    }
}

fn mesh(verb: &str) -> Result<()> {
    let status = Command::new(script("cluster/mesh")).arg(verb).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "mesh {verb} failed: {status}");
    Ok(())
}
