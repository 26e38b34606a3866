//! Which fields of the upstream API podvirt carries out.
//!
//! [`VMI`] lists every field of `kubevirt.io/v1` VirtualMachineInstance. A field that is [`Support::Refused`]
//! stands for all that is below it. [`check()`] walks a document along the table and tells everything that is not
//! known, not carried out or of the wrong type; `docs/vmi-fields.md` is the same table for people, kept in step
//! by a test.

mod check;
mod table;

use std::collections::BTreeMap;
use std::fmt::Write;

pub use check::check;
pub use table::VMI;

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Fields; they stand in the table under their own paths.
    Object,
    /// A list of objects; their fields stand in the table under `path[]`.
    List,
    /// A text without control characters: one line.
    Text,
    /// A text of any number of lines.
    Lines,
    /// A list of texts.
    Texts,
    /// Texts by name.
    TextMap,
    /// A whole number in this range.
    Int(i64, i64),
    /// `true` or `false`.
    Bool,
    /// A quantity such as `256Mi`.
    Quantity,
    /// Quantities by name.
    QuantityMap,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// Anything: podvirt does not look at it.
    Any,
}

/// What podvirt does with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It is carried out.
    Carried,
    /// A manifest that sets it is refused.
    Refused,
    /// The API server or a controller writes it; it is read over.
    Kept,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Path from the object, with `[]` behind a list: `spec.domain.devices.disks[].serial`.
    pub path: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What podvirt does with it.
    pub support: Support,
    /// What a user has to know beside, or nothing.
    pub note: &'static str,
}

/// The table as a tree.
pub(crate) struct Node {
    pub(crate) field: Option<&'static Field>,
    pub(crate) children: BTreeMap<&'static str, Node>,
}

impl Node {
    pub(crate) fn build(table: &'static [Field]) -> Node {
        let mut root = Node { field: None, children: BTreeMap::new() };
        for field in table {
            let mut node = &mut root;
            for segment in field.path.split('.') {
                let name = segment.trim_end_matches("[]");
                node = node
                    .children
                    .entry(name)
                    .or_insert_with(|| Node { field: None, children: BTreeMap::new() });
            }
            node.field = Some(field);
        }
        root
    }
}

fn kind_text(kind: Kind) -> String {
    match kind {
        Kind::Object => "object".into(),
        Kind::List => "list of objects".into(),
        Kind::Text => "text".into(),
        Kind::Lines => "text, any number of lines".into(),
        Kind::Texts => "list of texts".into(),
        Kind::TextMap => "map of texts".into(),
        Kind::Int(i64::MIN, i64::MAX) => "integer".into(),
        Kind::Int(min, i64::MAX) => format!("integer, at least {min}"),
        Kind::Int(min, max) => format!("integer, {min} to {max}"),
        Kind::Bool => "`true`, `false`".into(),
        Kind::Quantity => "quantity".into(),
        Kind::QuantityMap => "map of quantities".into(),
        Kind::OneOf(names) => names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "),
        Kind::Any => String::new(),
    }
}

/// The table as the Markdown document `docs/vmi-fields.md`.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Fields of a VirtualMachineInstance\n\n\
         This page is written from the table in `api/src/fields/table.rs`; a test keeps it in step\n\
         (`UPDATE_DOCS=1 cargo test -p podvirt-api` writes it anew).\n\n\
         A manifest that sets a field podvirt does not carry out is refused, with the field's full path. So is\n\
         one that sets a field which does not exist. A field that is null counts as not set.\n\n\
         ## Carried out\n\n| Field | Values | Remarks |\n|---|---|---|\n",
    );
    let rows = |out: &mut String, support: Support| {
        for field in VMI.iter().filter(|f| f.support == support) {
            let values = kind_text(field.kind);
            // Writing to a String cannot fail.
            let _ = match support {
                Support::Carried => writeln!(out, "| `{}` | {values} | {} |", field.path, field.note),
                _ => writeln!(out, "| `{}` | {} |", field.path, field.note),
            };
        }
    };
    rows(&mut out, Support::Carried);
    out.push_str(
        "\n## Refused\n\nWith each of these goes all that is below it.\n\n| Field | Remarks |\n|---|---|\n",
    );
    rows(&mut out, Support::Refused);
    out.push_str(
        "\n## Read over\n\nThe API server and controllers write these.\n\n| Field | Remarks |\n|---|---|\n",
    );
    rows(&mut out, Support::Kept);
    out
}

#[cfg(test)]
mod tests;
