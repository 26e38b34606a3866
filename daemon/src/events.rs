//! Kubernetes events: what a user sees under `kubectl describe`.
//!
//! Reasons are single words in upstream's spelling, messages whole sentences. Like events of one object are
//! counted in one event, as kube's recorder does. An event is a courtesy: when it cannot be written the log says
//! so and the work goes on.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as Stored;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::runtime::events::{Event, EventType, Reporter};
use kube::{Api, Client, Resource};
use podvirt_api::names::limits::{MAX_OBJECT_NAME_BYTES, shortened_with};

/// Longest message the API takes, in bytes (`note` of `events.k8s.io/v1`).
const NOTE_BYTES: usize = 1024;
/// Longest action the API takes, in bytes.
const ACTION_BYTES: usize = 128;

/// Longest name of an object of whose events kube makes the names, in bytes: it appends a point and a time.
const RECORDED_NAME_MAX_BYTES: usize = MAX_OBJECT_NAME_BYTES - 17;

/// Writes events in a daemon's name.
#[derive(Clone)]
pub struct Recorder {
    recorder: kube::runtime::events::Recorder,
    client: Client,
    reporter: Reporter,
}

impl Recorder {
    /// A recorder for the daemon `controller` (`virt-controller`), whose replica is `instance` (the pod's name).
    pub fn new(client: Client, controller: &str, instance: Option<String>) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance };
        let recorder = kube::runtime::events::Recorder::new(client.clone(), reporter.clone());
        Self { recorder, client, reporter }
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
            note: Some(shortened(&one_line(message))),
            action: action(reason, message),
            secondary: None,
        };
        let name = object.name.as_deref().unwrap_or_default();
        let published = if name.len() <= RECORDED_NAME_MAX_BYTES {
            self.recorder.publish(&event, object).await
        } else {
            self.publish_shortened(event, object).await
        };
        if let Err(error) = published {
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

impl Recorder {
    /// Tells of an object whose name is too long to be part of an event's. Repetitions are not counted: they have one name, and the first
    /// event stays.
    async fn publish_shortened(&self, event: Event, object: &ObjectReference) -> Result<(), kube::Error> {
        let namespace = object.namespace.as_deref().unwrap_or("default");
        let api: Api<Stored> = Api::namespaced(self.client.clone(), namespace);
        match api.create(&PostParams::default(), &self.stored(event, object, Timestamp::now())).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            created => created.map(drop),
        }
    }

    fn stored(&self, event: Event, object: &ObjectReference, now: Timestamp) -> Stored {
        let mut hasher = DefaultHasher::new();
        (&object.uid, &event.reason, &event.action).hash(&mut hasher);
        let suffix = format!(".{:016x}", hasher.finish());
        let name = object.name.as_deref().unwrap_or_default();
        let instance = self.reporter.instance.clone().unwrap_or_else(|| self.reporter.controller.clone());
        Stored {
            metadata: ObjectMeta {
                name: Some(shortened_with(name, &suffix, MAX_OBJECT_NAME_BYTES)),
                namespace: object.namespace.clone(),
                ..ObjectMeta::default()
            },
            action: Some(event.action),
            event_time: Some(MicroTime(now)),
            note: event.note,
            reason: Some(event.reason),
            regarding: Some(object.clone()),
            reporting_controller: Some(self.reporter.controller.clone()),
            reporting_instance: Some(instance),
            type_: Some(match event.type_ {
                EventType::Normal => "Normal".into(),
                EventType::Warning => "Warning".into(),
            }),
            ..Stored::default()
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

/// The message on one line: a table of events has a line for each, and a message may quote an error of several lines.
fn one_line(message: &str) -> String {
    let mut line = String::with_capacity(message.len());
    for part in message.split(char::is_control).map(str::trim).filter(|part| !part.is_empty()) {
        match line.chars().last() {
            None => {}
            Some(':' | ';' | ',' | '.') => line.push(' '),
            Some(_) => line.push_str("; "),
        }
        line.push_str(part);
    }
    line
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

    #[tokio::test]
    async fn an_object_with_the_longest_name_has_events() {
        for length in [1, RECORDED_NAME_MAX_BYTES, RECORDED_NAME_MAX_BYTES + 1, MAX_OBJECT_NAME_BYTES] {
            let (client, asked) = crate::testing::recorded("ns", |_| None);
            let recorder = Recorder::new(client, "virt-controller", None);
            let name = "a".repeat(length);
            let object = ObjectReference {
                name: Some(name.clone()),
                namespace: Some("ns".into()),
                ..ObjectReference::default()
            };
            recorder.publish(&object, EventType::Warning, "FailedCreate", "no").await;
            let asked = asked.lock().unwrap();
            let (what, body) = asked.front().unwrap();
            assert!(what.starts_with("POST /apis/events.k8s.io/v1/namespaces/ns/events"), "{what}");
            let made = body["metadata"]["name"].as_str().unwrap();
            assert!(made.len() <= MAX_OBJECT_NAME_BYTES && made.starts_with('a'), "{made}");
            assert_eq!((&body["regarding"]["name"], &body["note"]), (&name.into(), &"no".into()));
            assert_eq!((&body["reason"], &body["type"]), (&"FailedCreate".into(), &"Warning".into()));
        }
    }

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(one_line("as it is: a, b"), "as it is: a, b");
        let quoted = "netd: the configuration has 2 wrong settings\n  guest.search[4]: '.' is not allowed\r\n\tguest.mtu: 1\n";
        let line =
            "netd: the configuration has 2 wrong settings; guest.search[4]: '.' is not allowed; guest.mtu: 1";
        assert_eq!(one_line(quoted), line);
        assert_eq!(one_line("it says:\nno\u{1b}[0m"), "it says: no; [0m");
        assert_eq!(one_line("\n"), "");
    }

    #[test]
    fn long_messages_end_at_a_character_within_the_limit() {
        assert_eq!(shortened("short"), "short");
        let long = shortened(&"ä".repeat(600));
        assert!(long.len() <= NOTE_BYTES && long.ends_with("ä…"), "{}", long.len());
        assert_eq!(shortened(&"x".repeat(1024)).len(), 1024);
    }
}
