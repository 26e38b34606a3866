//! What is wrong with a manifest, in the form of the API server's `StatusCause`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most problems that are noted of a manifest.
pub const MOST: usize = 256;

/// Longest message of a problem, in bytes: an answer has each several times.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Longest path of a problem, in bytes.
const MAX_FIELD_BYTES: usize = 1024;

/// A text, without what is beyond `max` bytes of it.
fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max - "...".len()));
        text.push_str("...");
        text.shrink_to_fit();
    }
    text
}

/// Machine-readable kind of a problem; the names are Kubernetes' cause types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// A value is missing.
    FieldValueRequired,
    /// A value is not allowed.
    FieldValueInvalid,
    /// A value, or the field itself, exists in the API but podvirt does not carry it out; or it does not exist.
    FieldValueNotSupported,
    /// A value must be unique and is not.
    FieldValueDuplicate,
    /// A value refers to something that is not there.
    FieldValueNotFound,
    /// A value has another type than the field.
    FieldValueTypeInvalid,
}

/// One problem of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Kind.
    pub reason: Reason,
    /// What is wrong and what is allowed, for people.
    pub message: String,
    /// Full path of the field, e.g. `spec.domain.devices.interfaces[0].model`.
    pub field: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// All problems that were found, in the order of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The problems as an error, or `Ok` when there is none.
    ///
    /// # Errors
    ///
    /// Itself, when it holds a problem.
    pub fn into_result(self) -> Result<(), Problems> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }

    /// Notes a problem, up to [`MOST`]: a manifest of nothing but mistakes takes no more memory than itself.
    pub(crate) fn add(&mut self, reason: Reason, field: impl Into<String>, message: impl Into<String>) {
        if self.0.len() >= MOST {
            return;
        }
        let (message, field) = (cut(message.into(), MAX_MESSAGE_BYTES), cut(field.into(), MAX_FIELD_BYTES));
        self.0.push(Problem { reason, message, field });
    }

    pub(crate) fn required(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add(Reason::FieldValueRequired, field, message);
    }

    /// Notes a value that is not allowed, with the value and what is.
    pub(crate) fn invalid(&mut self, field: impl Into<String>, value: impl fmt::Display, allowed: &str) {
        self.add(Reason::FieldValueInvalid, field, format!("'{value}' is not allowed; {allowed}"));
    }

    pub(crate) fn duplicate(&mut self, field: impl Into<String>, value: impl fmt::Display, other: &str) {
        self.add(Reason::FieldValueDuplicate, field, format!("'{value}' is also the value of {other}"));
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if n == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_and_paths_are_cut_at_a_character() {
        let mut problems = Problems::default();
        problems.invalid("ä".repeat(1 << 20), "ö".repeat(1 << 20), "a short one is allowed");
        let problem = &problems.0[0];
        assert!(problem.message.len() <= MAX_MESSAGE_BYTES && problem.message.ends_with("ö..."));
        assert!(problem.field.len() <= MAX_FIELD_BYTES && problem.field.ends_with("ä..."));
        problems.required("spec.a", "a short one stays");
        assert_eq!(problems.0[1].to_string(), "spec.a: a short one stays");
    }
}
