//! Kubernetes events: what a user sees under `kubectl describe`.
//!
//! Reasons are single words in upstream's spelling, messages whole sentences. Like events of one object are
//! counted in one event, as kube's recorder does. An event is a courtesy: when it cannot be written the log says
//! so and the work goes on.

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Reporter};
use kube::{Client, Resource};

/// Longest message the API takes, in bytes (`note` of `events.k8s.io/v1`).
const NOTE_BYTES: usize = 1024;
/// Longest action the API takes, in bytes.
const ACTION_BYTES: usize = 128;

/// Writes events in a daemon's name.
#[derive(Clone)]
pub struct Recorder(kube::runtime::events::Recorder);

impl Recorder {
    /// A recorder for the daemon `controller` (`virt-controller`), whose replica is `instance` (the pod's name).
    pub fn new(client: Client, controller: &str, instance: Option<String>) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance };
        Self(kube::runtime::events::Recorder::new(client, reporter))
    }

    /// Tells that something happened to `object` as it should.
    pub async fn normal<K: Resource<DynamicType = ()>>(&self, object: &K, reason: &str, message: &str) {
        self.publish(&object.object_ref(&()), EventType::Normal, reason, message).await;
    }

    /// Tells that something happened to `object` that a user or an operator may have to look at.
    pub async fn warning<K: Resource<DynamicType = ()>>(&self, object: &K, reason: &str, message: &str) {
        self.publish(&object.object_ref(&()), EventType::Warning, reason, message).await;
    }

    /// Tells of an object that is known by reference only.
    pub async fn publish(&self, object: &ObjectReference, kind: EventType, reason: &str, message: &str) {
        let event = Event {
            type_: kind,
            reason: reason.to_owned(),
            note: Some(shortened(message)),
            action: action(reason, message),
            secondary: None,
        };
        if let Err(error) = self.0.publish(&event, object).await {
            tracing::warn!(
                namespace = object.namespace,
                name = object.name,
                reason,
                message,
                error = &error as &dyn std::error::Error,
                "event not written"
            );
        }
    }
}

/// The reason and a digest of the message. kube counts an event of the same object, reason and action as a repetition
/// and keeps the first message; what is told anew must be an event of its own.
fn action(reason: &str, message: &str) -> String {
    let mut hasher = DefaultHasher::new();
    message.hash(&mut hasher);
    let digest = format!("-{:016x}", hasher.finish());
    let end = reason.floor_char_boundary(ACTION_BYTES - digest.len());
    format!("{}{digest}", &reason[..end])
}

/// As much of `message` as fits, ended by an ellipsis when something is missing.
fn shortened(message: &str) -> String {
    if message.len() <= NOTE_BYTES {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(NOTE_BYTES - '…'.len_utf8());
    format!("{}…", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_tells_messages_apart_and_fits() {
        let first = action("CrashLoopBackOff", "the next one is in 10 s");
        assert!(first.starts_with("CrashLoopBackOff-"), "{first}");
        assert_eq!(first, action("CrashLoopBackOff", "the next one is in 10 s"));
        assert_ne!(first, action("CrashLoopBackOff", "the next one is in 40 s"));
        assert_eq!(action(&"x".repeat(200), "").len(), 128);
        assert!(action(&"ä".repeat(100), "").len() <= 128);
    }

    #[test]
    fn long_messages_end_at_a_character_within_the_limit() {
        assert_eq!(shortened("short"), "short");
        let long = shortened(&"ä".repeat(600));
        assert!(long.len() <= NOTE_BYTES && long.ends_with("ä…"), "{}", long.len());
        assert_eq!(shortened(&"x".repeat(1024)).len(), 1024);
    }
}
