//! Hook sidecars: programs of the machine's users in containers of its pod, which have a say in its domain.
//!
//! ```text
//!   collect ──> Info ──> [ PreCloudInitIso ] ──> OnDefineDomain ──> the machine lives ──> Shutdown
//!    sockets    version   a disk of cloud-init     the domain's XML                         of v1alpha3
//! ```
//!
//! Every sidecar serves gRPC on a socket in a directory of its container's name. It is asked by the highest version that it
//! and virt-launcher speak, and only at the points that it names. At each point the sidecar with the highest priority comes
//! first; the names decide between equal ones. What one has changed is what the next is given.
//!
//! A machine that comes from another node has its domain defined by its source's virt-launcher: its sidecars are asked for
//! OnDefineDomain all the same, for what they make ready beside, and what they answer is left.
//!
//! A sidecar that fails, that does not answer in time or that answers what cannot be used ends the attempt to start the
//! machine. What is waited for is told as it begins.

mod cloud_init;
mod error;
mod restore;
mod sidecar;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use podvirt_api::names::pod::hook_sidecar;
use tokio::time::sleep;
use tracing::{info, warn};

pub use cloud_init::CloudInit;
pub use error::{CallError, HookError};
use sidecar::{Sidecar, Version};

use crate::domain::schema::Domain;
use crate::media::cloud_init::Seed;

/// Between two looks for a socket.
const LOOK: Duration = Duration::from_millis(100);

/// Points of a machine's life at which sidecars are asked, as they name them.
const ON_DEFINE_DOMAIN: &str = "OnDefineDomain";
const PRE_CLOUD_INIT_ISO: &str = "PreCloudInitIso";
const SHUTDOWN: &str = "Shutdown";

/// Told what is waited for.
pub type Waits<'a> = &'a (dyn Fn(String) + Send + Sync);

/// The sidecars of a machine.
#[derive(Debug, Default)]
pub struct Hooks(Vec<Sidecar>);

impl Hooks {
    /// Waits for the sockets of `count` sidecars below `directory`, and asks each what it is.
    ///
    /// # Errors
    ///
    /// A sidecar does not answer, or speaks no version that virt-launcher speaks.
    pub async fn collect(directory: &Path, count: usize, waits: Waits<'_>) -> Result<Hooks, HookError> {
        let mut sidecars = Vec::new();
        for container in (0..count).map(hook_sidecar) {
            let own = directory.join(&container);
            waits(format!("the socket of the hook sidecar {container} in {}", own.display()));
            let channel = loop {
                match sidecar::reach(&own).await {
                    Some(channel) => break channel,
                    None => sleep(LOOK).await,
                }
            };
            let sidecar = Sidecar::ask(container, channel, waits).await?;
            info!(
                container = sidecar.container, name = sidecar.name, version = ?sidecar.version,
                points = ?sidecar.points, "a hook sidecar is there"
            );
            sidecars.push(sidecar);
        }
        Ok(Hooks(sidecars))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that want to be asked at a point, and can be since this version, in their order.
    fn at(&self, point: &str, since: Version) -> Vec<&Sidecar> {
        let mut asked: Vec<(i32, &Sidecar)> =
            self.0.iter().filter_map(|sidecar| Some((*sidecar.points.get(point)?, sidecar))).collect();
        asked.retain(|(_, sidecar)| {
            let can = sidecar.version >= since;
            if !can {
                warn!(sidecar = %sidecar, point, version = ?sidecar.version, "its version does not have this point");
            }
            can
        });
        asked.sort_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one.name.cmp(&other.name)));
        asked.into_iter().map(|(_, sidecar)| sidecar).collect()
    }

    /// Whose answer the domain's XML is: those that are asked for it, for people. None where none is.
    pub fn authors(&self) -> Option<String> {
        let authors: Vec<String> =
            self.at(ON_DEFINE_DOMAIN, Version::V1Alpha1).iter().map(ToString::to_string).collect();
        (!authors.is_empty()).then(|| authors.join(", "))
    }

    /// What the sidecars make of the domain's XML; `vmi` is the machine as JSON.
    ///
    /// # Errors
    ///
    /// A sidecar fails, or answers what is no domain, or another one.
    pub async fn on_define_domain(
        &self,
        mut xml: String,
        vmi: &[u8],
        waits: Waits<'_>,
    ) -> Result<String, HookError> {
        for sidecar in self.at(ON_DEFINE_DOMAIN, Version::V1Alpha1) {
            waits(format!("{ON_DEFINE_DOMAIN} of {sidecar}"));
            let answer = sidecar.on_define_domain(&xml, vmi).await?;
            let answer = same_domain(&xml, answer).and_then(|answer| Ok(restore::restored(&xml, answer)?));
            xml = answer.map_err(|error| sidecar.failed(ON_DEFINE_DOMAIN, error))?;
        }
        Ok(xml)
    }

    /// What the sidecars make of what a cloud-init gets; `vmi` is the machine as JSON.
    ///
    /// # Errors
    ///
    /// A sidecar fails, or answers what cannot be used.
    pub async fn pre_cloud_init_iso(
        &self,
        mut seed: Seed,
        vmi: &[u8],
        waits: Waits<'_>,
    ) -> Result<Seed, HookError> {
        for sidecar in self.at(PRE_CLOUD_INIT_ISO, Version::V1Alpha2) {
            waits(format!("{PRE_CLOUD_INIT_ISO} of {sidecar}"));
            let failed = |error| sidecar.failed(PRE_CLOUD_INIT_ISO, error);
            let given = cloud_init::given(&seed).map_err(failed)?;
            let answer = sidecar.pre_cloud_init_iso(given, vmi).await?;
            seed = cloud_init::taken(seed, &answer).map_err(failed)?;
        }
        Ok(seed)
    }

    /// Tells the sidecars that the machine has ended.
    pub async fn shutdown(&self) {
        for sidecar in self.at(SHUTDOWN, Version::V1Alpha3) {
            match sidecar.shutdown().await {
                Ok(()) => info!(%sidecar, "told that the machine has ended"),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    warn!(error, "a hook sidecar does not hear that the machine has ended");
                }
            }
        }
    }
}

/// The answer to `given`: a domain that is found by the same name.
fn same_domain(given: &str, answer: Vec<u8>) -> Result<String, CallError> {
    let text = String::from_utf8(answer)?;
    let (needed, given) = (Domain::from_xml(given)?.name, Domain::from_xml(&text)?.name);
    if needed == given { Ok(text) } else { Err(CallError::OtherDomain { given, needed }) }
}

/// Points and their priorities.
type Points = BTreeMap<String, i32>;
