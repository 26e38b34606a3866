//! What CDI does meanwhile: makes the upload pod, and writes what it has got.

use std::time::Duration;

use anyhow::bail;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{POD_PHASE, POD_READY, Upload, annotation};
use crate::api::objects::EVENTS;
use crate::output::say;

/// Time between two looks (upstream's).
const LOOK: Duration = Duration::from_secs(2);
/// How long CDI may take to write what it has got (upstream's).
const PROCESSING: Duration = Duration::from_secs(24 * 3600);
/// What an event says of a conflict of two writers, which goes by (the API server's).
const CONFLICT: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// How far the upload pod is.
#[derive(Debug, PartialEq)]
enum Stage {
    Ready,
    /// Not yet.
    Waiting,
    /// It does not come until something else happens.
    Stuck(String),
}

/// How far the DataVolume is.
fn stage(data_volume: &Value, binds: bool) -> Stage {
    match data_volume["status"]["phase"].as_str().unwrap_or_default() {
        "UploadReady" => Stage::Ready,
        phase @ ("WaitForFirstConsumer" | "PendingPopulation") if !binds => Stage::Stuck(format!(
            "cannot upload to DataVolume in {phase} phase, make sure the PVC is Bound, or use force-bind flag"
        )),
        _ => Stage::Waiting,
    }
}

/// What an event tells of a claim or a DataVolume that cannot be.
fn failure(event: &Value) -> Option<String> {
    let message = event["message"].as_str().unwrap_or_default();
    match (event["involvedObject"]["kind"].as_str(), event["reason"].as_str()) {
        (Some("PersistentVolumeClaim"), Some("ProvisioningFailed")) if !message.contains(CONFLICT) => {
            Some(format!("Provisioning failed: {message}"))
        }
        (Some("DataVolume"), Some("ErrClaimNotValid")) => Some(format!("Claim not valid: {message}")),
        _ => None,
    }
}

impl Upload<'_> {
    /// Waits until the upload pod takes an image.
    pub(super) async fn until_ready(&self, seconds: u32) -> anyhow::Result<()> {
        let end = Instant::now() + Duration::from_secs(seconds.into());
        let name = &self.wishes.name;
        let mut told = false;
        loop {
            let stage = if self.wishes.claim {
                match self.find_claim(name).await? {
                    Some(claim) if annotation(&claim, POD_READY) == Some("true") => Stage::Ready,
                    _ => Stage::Waiting,
                }
            } else {
                match self.find_data_volume().await? {
                    Some(found) => stage(&found, self.wishes.binds),
                    None => Stage::Waiting,
                }
            };
            match stage {
                Stage::Ready if told => return say("Pod now ready"),
                Stage::Ready => return Ok(()),
                Stage::Stuck(why) => bail!(why),
                Stage::Waiting => self.fail_early().await?,
            }
            if !told {
                say(&format!("Waiting for PVC {name} upload pod to be ready..."))?;
                told = true;
            }
            if Instant::now() >= end {
                bail!(
                    "PVC {name}: the upload pod is not ready after {seconds} s, the time that --wait-secs gives"
                );
            }
            sleep(LOOK).await;
        }
    }

    /// Ends the wait where an event says that it is in vain.
    async fn fail_early(&self) -> anyhow::Result<()> {
        let objects = [self.find_claim(&self.wishes.name).await?, self.find_data_volume_if_any().await];
        for object in objects.iter().flatten() {
            let Some(uid) = object["metadata"]["uid"].as_str() else { continue };
            let query = format!("fieldSelector=involvedObject.uid%3D{uid}");
            let events = self.cluster.objects(EVENTS, &self.namespace, &query).await;
            let events = events.map_err(|error| error.explain_plain("list events"))?;
            if let Some(why) = events.iter().find_map(failure) {
                bail!(why);
            }
        }
        Ok(())
    }

    /// The DataVolume; a claim has none, and its user need not be allowed to look.
    async fn find_data_volume_if_any(&self) -> Option<Value> {
        if self.wishes.claim { None } else { self.find_data_volume().await.ok().flatten() }
    }

    /// Waits until CDI has written what it has got.
    pub(super) async fn until_processed(&self) -> anyhow::Result<()> {
        let end = Instant::now() + PROCESSING;
        loop {
            let claim = self.find_claim(&self.wishes.name).await?;
            let Some(claim) = claim else {
                bail!("PVC {} has gone while what was uploaded was processed", self.path());
            };
            if annotation(&claim, POD_PHASE) == Some("Succeeded") {
                return say("Processing completed successfully");
            }
            if Instant::now() >= end {
                bail!(
                    "Timed out waiting for post upload processing to complete, please check upload pod status for progress"
                );
            }
            sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_data_volume_that_waits_for_a_machine_is_told_unless_it_is_bound_by_force() {
        let at = |phase: &str, binds| stage(&json!({"status": {"phase": phase}}), binds);
        assert_eq!(at("UploadReady", false), Stage::Ready);
        assert_eq!(at("UploadScheduled", false), Stage::Waiting);
        assert_eq!(at("", false), Stage::Waiting);
        for phase in ["WaitForFirstConsumer", "PendingPopulation"] {
            assert_eq!(at(phase, true), Stage::Waiting);
            let Stage::Stuck(why) = at(phase, false) else { panic!("{phase} goes on") };
            assert!(why.contains(phase) && why.contains("force-bind"), "{why}");
        }
    }

    #[test]
    fn events_tell_what_cannot_be() {
        let event = |kind: &str, reason: &str, message: &str| {
            failure(&json!({"involvedObject": {"kind": kind}, "reason": reason, "message": message}))
        };
        let claim = event("PersistentVolumeClaim", "ProvisioningFailed", "no room");
        assert_eq!(claim.as_deref(), Some("Provisioning failed: no room"));
        assert_eq!(event("PersistentVolumeClaim", "ProvisioningFailed", CONFLICT), None);
        assert_eq!(event("PersistentVolumeClaim", "WaitForFirstConsumer", "waiting"), None);
        let volume = event("DataVolume", "ErrClaimNotValid", "no mode");
        assert_eq!(volume.as_deref(), Some("Claim not valid: no mode"));
    }
}
