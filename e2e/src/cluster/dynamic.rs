//! A controller of dynamic networks for as long as a test wants it.
//!
//! A cluster that has come up has Multus as a plugin alone, which does nothing for a pod that runs. `e2e/cluster/dynamic` puts
//! Multus' daemon and podvirt's controller into its place and takes them away again.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::Cluster;
use crate::artefacts::{image, script};

/// Pods that run are attached to networks, until this is dropped.
#[must_use = "dropping it takes the controller away"]
pub struct DynamicNetworks {
    _private: (),
}

/// Makes the image of Multus' daemon. What it is made of may have to be fetched: to be called while the process is on the
/// machine's own network.
///
/// # Errors
/// It cannot be made.
pub fn prepare_dynamic_networks() -> Result<()> {
    image("multus").map(drop)
}

impl Cluster {
    /// Installs it; [`prepare_dynamic_networks`] has made what it takes.
    ///
    /// # Errors
    /// It does not become ready; what its parts said has been shown.
    pub fn dynamic_networks(&self) -> Result<DynamicNetworks> {
        let dynamic = DynamicNetworks { _private: () };
        run("up")?;
        Ok(dynamic)
    }
}

impl DynamicNetworks {
    /// Ends Multus' daemon on both nodes, and waits for the ones that take its place.
    ///
    /// # Errors
    /// They do not start.
    pub fn restart_multus(&self) -> Result<()> {
        run("restart")
    }
}

impl Drop for DynamicNetworks {
    fn drop(&mut self) {
        if let Err(error) = run("down") {
            eprintln!("the controller of dynamic networks stays in the cluster: {error}");
        }
    }
}

fn run(verb: &str) -> Result<()> {
    let status = Command::new(script("cluster/dynamic")).arg(verb).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "dynamic {verb} failed: {status}");
    Ok(())
}
