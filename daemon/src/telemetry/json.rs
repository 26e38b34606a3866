//! Log lines as JSON, an object each.
//!
//! ```text
//! {"timestamp": …, "level": "WARN", "message": …, <the event's fields>, "target": …, "span": {<its fields>, "name": …}}
//! ```
//!
//! Readers may refuse an object that has a key twice (RFC 8259 leaves it to them), and most take the last one alone. A field whose
//! name is taken gets [`FIELD_PREFIX`] before it. A field that is an error has the words of all of its sources.

use std::error::Error;
use std::fmt::{self, Debug};

use podvirt_api::error::chain;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::Record;
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// Keys of a line that no field of an event has.
const LINE_KEYS: [&str; 4] = ["timestamp", "level", "target", "span"];
/// Key of a span that none of its fields has: its own name.
const SPAN_NAME: &str = "name";
/// What stands before the name of a field whose key is taken.
const FIELD_PREFIX: &str = "field_";

/// Writes an event as a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines;

/// Writes the fields of a span as a JSON object, which [`Lines`] reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields;

/// Keys and values in their order, each key once.
#[derive(Default)]
struct Entries {
    entries: Vec<(String, Value)>,
    /// The target of a line that comes from the crate `log`.
    target: Option<String>,
}

impl Entries {
    fn insert(&mut self, field: &Field, value: Value) {
        let mut key = name(field).to_owned();
        while LINE_KEYS.contains(&key.as_str()) || self.entries.iter().any(|(known, _)| *known == key) {
            key.insert_str(0, FIELD_PREFIX);
        }
        self.entries.push((key, value));
    }
}

impl Serialize for Entries {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.entries.len()))?;
        for (key, value) in &self.entries {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// Hands the values of fields on.
struct Values<F>(F);

impl<F: FnMut(&Field, Value)> Visit for Values<F> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        (self.0)(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        (self.0)(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        (self.0)(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        (self.0)(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        (self.0)(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        (self.0)(field, chain(value).into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        (self.0)(field, format!("{value:?}").into());
    }
}

/// The name of a field; one that is a word of Rust stands as `r#type`.
fn name(field: &Field) -> &'static str {
    field.name().strip_prefix("r#").unwrap_or(field.name())
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut line = Entries::default();
        event.record(&mut Values(|field: &Field, value: Value| match field.name() {
            "log.target" => line.target = value.as_str().map(str::to_owned),
            name if name.starts_with("log.") => {}
            _ => line.insert(field, value),
        }));
        let target = line.target.take().unwrap_or_else(|| event.metadata().target().to_owned());
        let before = [("timestamp", time), ("level", event.metadata().level().to_string())];
        drop(line.entries.splice(..0, before.map(|(key, value)| (key.to_owned(), value.into()))));
        line.entries.push(("target".to_owned(), target.into()));
        if let Some(span) = context.lookup_current() {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>().map(|fields| object(&fields.fields));
            let mut fields = fields.unwrap_or_default();
            fields.insert(SPAN_NAME.to_owned(), span.name().into());
            line.entries.push(("span".to_owned(), fields.into()));
        }
        let text = serde_json::to_string(&line).map_err(|_| fmt::Error)?;
        writeln!(writer, "{text}")
    }
}

impl<'a> FormatFields<'a> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'a>, fields: R) -> fmt::Result {
        write_fields(writer, Map::new(), fields)
    }

    fn add_fields(&self, current: &'a mut FormattedFields<Self>, fields: &Record<'_>) -> fmt::Result {
        let known = object(&current.fields);
        current.fields.clear();
        write_fields(current.as_writer(), known, fields)
    }
}

/// Writes the known fields and those that are recorded, which replace known ones.
fn write_fields(
    mut writer: Writer<'_>,
    mut known: Map<String, Value>,
    fields: impl RecordFields,
) -> fmt::Result {
    fields.record(&mut Values(|field: &Field, value| {
        let name = name(field);
        let key = if name == SPAN_NAME { format!("{FIELD_PREFIX}{name}") } else { name.to_owned() };
        known.insert(key, value);
    }));
    let text = serde_json::to_string(&known).map_err(|_| fmt::Error)?;
    writer.write_str(&text)
}

/// The fields that [`Fields`] has written.
fn object(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
