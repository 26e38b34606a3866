use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::{info, info_span, warn};

use super::*;
use crate::strict_json::StrictJson;

impl StrictJson {
    /// The texts at these keys.
    fn texts<const N: usize>(&self, keys: [&str; N]) -> [&str; N] {
        keys.map(|key| match self.at(key) {
            Self::Other(Value::String(text)) => text.as_str(),
            other => panic!("{key}: {other:?}"),
        })
    }

    fn at(&self, key: &str) -> &Self {
        let Self::Object(object) = self else { panic!("an object: {self:?}") };
        object.get(key).unwrap_or_else(|| panic!("the key {key}: {object:?}"))
    }
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines that are logged meanwhile.
fn logged(log: impl FnOnce()) -> Vec<StrictJson> {
    let written = Written::default();
    let writer = written.clone();
    let lines = tracing_subscriber::fmt().event_format(Lines).fmt_fields(Fields);
    tracing::subscriber::with_default(lines.with_writer(move || writer.clone()).finish(), log);
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[derive(Debug, thiserror::Error)]
#[error("the status cannot be written")]
struct Outer(#[source] Middle);

#[derive(Debug, thiserror::Error)]
#[error("the API server refuses")]
struct Middle(#[source] io::Error);

#[test]
fn an_error_has_the_words_of_all_of_its_sources() {
    let error = Outer(Middle(io::Error::other("409: the object\nhas changed")));
    let lines = logged(|| warn!(error = &error as &dyn Error, "a pass failed"));
    let [line] = lines.as_slice() else { panic!("one line: {lines:?}") };
    let words = "the status cannot be written: the API server refuses: 409: the object\nhas changed";
    assert_eq!(line.texts(["level", "message", "error"]), ["WARN", "a pass failed", words]);
}

#[test]
fn each_key_is_there_once() {
    let lines = logged(|| {
        let span = info_span!("vm", namespace = "shop", name = "web", uid = tracing::field::Empty);
        span.record("uid", "first");
        span.record("uid", "u-1");
        let _entered = span.enter();
        info!(message = "a field", level = 3, target = "a disk", span = true, r#type = "x", "a sentence");
        info!(timestamp = -1.5, field_level = 1, level = 2, "another");
    });
    let [first, second] = lines.as_slice() else { panic!("two lines: {lines:?}") };
    let own = ["level", "message", "field_message", "field_target", "type"];
    assert_eq!(first.texts(own), ["INFO", "a sentence", "a field", "a disk", "x"]);
    assert_eq!(first.at("field_level"), &StrictJson::Other(3.into()));
    assert_eq!(first.at("field_span"), &StrictJson::Other(true.into()));
    assert!(first.texts(["target"])[0].starts_with("podvirt_daemon::telemetry"));
    let span = first.at("span").texts(["name", "field_name", "namespace", "uid"]);
    assert_eq!(span, ["vm", "web", "shop", "u-1"]);
    assert_eq!(second.at("field_timestamp"), &StrictJson::Other(Value::from(-1.5)));
    assert_eq!(second.at("field_field_level"), &StrictJson::Other(2.into()));
}

#[test]
fn a_line_begins_with_its_time() {
    let written = Written::default();
    let writer = written.clone();
    let lines =
        tracing_subscriber::fmt().event_format(Lines).fmt_fields(Fields).with_writer(move || writer.clone());
    tracing::subscriber::with_default(lines.finish(), || info!("text"));
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    let time = text.strip_prefix(r#"{"timestamp":""#).and_then(|rest| rest.split('"').next()).unwrap();
    time.parse::<jiff::Timestamp>().unwrap();
    assert!(text.ends_with("}\n") && text.lines().count() == 1, "{text}");
}
