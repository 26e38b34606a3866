//! Fields that both a template and its instance type set.

use std::fmt;

use crate::problem::{Problems, Reason};

/// One field of which the instance type has the say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Path of the field.
    pub field: String,
    /// What is wrong, where it is not that both set the field.
    pub message: Option<String>,
}

/// All conflicts of a template with an instance type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

impl Conflicts {
    /// Notes a field.
    pub(super) fn add(&mut self, path: &str, field: &str) {
        self.0.push(Conflict { field: format!("{path}.{field}"), message: None });
    }

    /// Notes a field, if `is_set`.
    pub(super) fn add_if(&mut self, is_set: bool, path: &str, field: &str) {
        if is_set {
            self.add(path, field);
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The fields, separated by commas.
    pub fn fields(&self) -> String {
        let fields: Vec<&str> = self.0.iter().map(|conflict| conflict.field.as_str()).collect();
        fields.join(", ")
    }

    /// Each conflict as a problem of the VirtualMachine.
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        for conflict in &self.0 {
            problems.add(Reason::FieldValueInvalid, &conflict.field, conflict.to_string());
        }
        problems
    }

    /// Itself as an error, or `Ok` when there is none.
    pub(super) fn into_result(self) -> Result<(), Conflicts> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }
}

/// Upstream's words.
fn tell(fields: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "VM field(s) {fields} conflicts with selected instance type")
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.message {
            Some(message) => f.write_str(message),
            None => tell(&self.field, f),
        }
    }
}

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0[..] {
            [one] => one.fmt(f),
            _ => tell(&self.fields(), f),
        }
    }
}

impl std::error::Error for Conflicts {}
