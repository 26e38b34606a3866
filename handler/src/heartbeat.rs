//! The sign of life: node label `kubevirt.io/schedulable` and annotation `kubevirt.io/heartbeat`.
//!
//! Launcher pods go only to nodes with the label; virt-controller takes it away, and gives up the node's VMIs,
//! when the annotation is older than a few minutes. Both are written by server-side apply, which touches nothing
//! else of the node and wins the label back from the controller. The last beat of a process that ends says
//! `false`: no virt-handler can start a machine until its successor is there.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use podvirt_api::names::{annotation, label};
use podvirt_daemon::shutdown::Shutdown;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::metrics::Metrics;

/// Owner of the two fields in the node's record of which client wrote which field.
const FIELD_MANAGER: &str = "virt-handler";
/// Least time between two beats; the controller waits for several.
const PERIOD: Duration = Duration::from_secs(60);
/// What is added to it at most, so that the nodes of a cluster spread.
const JITTER: Duration = Duration::from_secs(12);
/// Time until a beat that failed is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Time for the last beat, and for one that a server does not answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Beats until `shutdown`, and says `false` then. The node is schedulable once `ready` is true.
pub async fn beat(
    client: Client,
    node: &str,
    mut ready: watch::Receiver<bool>,
    metrics: &Metrics,
    shutdown: &Shutdown,
) {
    let api: Api<Node> = Api::all(client);
    let spread = RandomState::new();
    for number in 0_u64.. {
        let schedulable = *ready.borrow_and_update();
        let written = write(&api, node, schedulable).await;
        metrics.beat(written);
        let pause = if written { pause(spread.hash_one(number)) } else { RETRY };
        tokio::select! {
            () = shutdown.requested() => break,
            () = tokio::time::sleep(pause) => {}
            // A sender that is gone says nothing new.
            Ok(()) = ready.changed() => {}
        }
    }
    write(&api, node, false).await;
}

async fn write(api: &Api<Node>, node: &str, schedulable: bool) -> bool {
    let document = document(node, schedulable, Timestamp::now());
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let apply = Patch::Apply(&document);
    let patch = api.patch_metadata(node, &parameters, &apply);
    let error = match tokio::time::timeout(DEADLINE, patch).await {
        Ok(Ok(_)) => return true,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", DEADLINE.as_secs()),
    };
    tracing::warn!(node, error, "no heartbeat");
    false
}

/// What is applied to the node.
fn document(node: &str, schedulable: bool, now: Timestamp) -> Value {
    let seconds = Timestamp::from_second(now.as_second()).unwrap_or(now);
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node,
            "labels": { label::SCHEDULABLE: schedulable.to_string() },
            "annotations": { annotation::HEARTBEAT: seconds.to_string() },
        },
    })
}

/// The pause before the next beat, somewhere in the range by a random number.
fn pause(random: u64) -> Duration {
    let share = u32::try_from(random % 1000).unwrap_or_default();
    PERIOD + JITTER * share / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_says_two_things_of_one_node() {
        let now: Timestamp = "2026-11-21T17:00:00.5Z".parse().unwrap();
        let text = document("node1", true, now).to_string();
        assert!(text.contains(r#""kubevirt.io/schedulable":"true""#), "{text}");
        assert!(text.contains(r#""kubevirt.io/heartbeat":"2026-11-21T17:00:00Z""#), "{text}");
    }

    #[test]
    fn beats_spread_but_not_beyond_their_range() {
        let pauses: Vec<_> = [0, 999, 1000, u64::MAX].map(pause).into();
        assert_eq!(pauses[0], pauses[2]);
        assert!(pauses.iter().all(|p| (PERIOD..PERIOD + JITTER).contains(p)), "{pauses:?}");
        assert!(pauses[1] > pauses[0]);
    }
}
