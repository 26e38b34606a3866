//! Events for users, written beside the passes: a slow API server delays no machine.

use std::sync::Arc;

use podvirt_api::v1::VirtualMachineInstance;
use podvirt_daemon::events::Recorder;
use tokio::sync::mpsc;

use super::Store;
use super::pass::API;
use crate::launcher::notify::Told;
use crate::vm::{Event, Weight};

/// An event and the VMI it is about.
#[derive(Debug)]
pub struct VmiEvent {
    /// What it is about.
    pub vmi: Arc<VirtualMachineInstance>,
    /// What happened.
    pub event: Event,
}

/// What waits to be written.
#[derive(Debug)]
pub struct Mail {
    pub(super) told: mpsc::Receiver<Told>,
    pub(super) event_queue: mpsc::Receiver<VmiEvent>,
}

/// Writes events until no sender is left.
pub async fn post(recorder: Recorder, store: Store, mail: Mail) {
    let Mail { mut told, mut event_queue } = mail;
    loop {
        tokio::select! {
            Some(VmiEvent { vmi, event }) = event_queue.recv() => {
                tracing::info!(
                    namespace = vmi.metadata.namespace,
                    vmi = vmi.metadata.name,
                    reason = event.reason,
                    message = event.message,
                    "event"
                );
                write(&recorder, &vmi, event.weight, event.reason, &event.message).await;
            }
            Some(Told { vmi_uid, event }) = told.recv() => {
                // Without its VMI no user reads it.
                let Some(vmi) = store.get(&vmi_uid) else { continue };
                let weight = if event.kind == "Warning" { Weight::Warning } else { Weight::Normal };
                write(&recorder, &vmi, weight, &event.reason, &event.message).await;
            }
            else => return,
        }
    }
}

async fn write(
    recorder: &Recorder,
    vmi: &VirtualMachineInstance,
    weight: Weight,
    reason: &str,
    message: &str,
) {
    let written = async {
        match weight {
            Weight::Normal => recorder.normal(vmi, reason, message).await,
            Weight::Warning => recorder.warning(vmi, reason, message).await,
        }
    };
    if tokio::time::timeout(API, written).await.is_err() {
        tracing::warn!(reason, "an event is lost: the API server does not answer");
    }
}
