//! The tables for people.

use std::fmt::Write;

use super::annotations::refused_values;
use super::{ANNOTATIONS, Annotation, Effect, Field, Kind, Support, TABLES};

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
        Kind::SomeOf(names) => {
            format!("list of {}", names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "))
        }
        Kind::Any => String::new(),
    }
}

/// Writes the rows with `support`, headed by `title` and `text`; nothing when there is none.
fn section(out: &mut String, table: &[Field], support: Support, title: &str, text: &str) {
    let rows: Vec<&Field> = table.iter().filter(|f| f.support == support).collect();
    if rows.is_empty() {
        return;
    }
    // Writing to a String cannot fail.
    let _ = write!(out, "\n### {title}\n\n{text}");
    let values = matches!(support, Support::Carried | Support::Cluster | Support::Alone);
    out.push_str(if values {
        "| Field | Values | Remarks |\n|---|---|---|\n"
    } else {
        "| Field | Remarks |\n|---|---|\n"
    });
    for field in rows {
        let _ = if values {
            writeln!(out, "| `{}` | {} | {} |", field.path, kind_text(field.kind), field.note)
        } else {
            writeln!(out, "| `{}` | {} |", field.path, field.note)
        };
    }
}

/// The tables as the Markdown document `docs/vmi-fields.md`.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Fields\n\n\
         This page is written from the tables in `api/src/fields`; a test keeps it in step\n\
         (`UPDATE_DOCS=1 cargo test -p podvirt-api` writes it anew).\n\n\
         A manifest that sets a field podvirt does not carry out is refused, with the field's full path. So is\n\
         one that sets a field which does not exist. A field that is null or an empty list counts as not set.\n",
    );
    for (kind, table) in TABLES {
        let _ = writeln!(out, "\n## {kind}");
        section(&mut out, table, Support::Carried, "Carried out", "");
        let text = "`virt-launcher` alone, outside a cluster, refuses these.\n\n";
        section(&mut out, table, Support::Cluster, "Carried out in a cluster", text);
        let text = "`virt-launcher` alone carries these out; a cluster refuses them.\n\n";
        section(&mut out, table, Support::Alone, "Carried out without a cluster", text);
        section(
            &mut out,
            table,
            Support::Refused,
            "Refused",
            "With each of these goes all that is below it.\n\n",
        );
        let text =
            "These have no effect: the API server and controllers write them, or the remark says why.\n\n";
        section(&mut out, table, Support::Kept, "Read over", text);
    }
    out
}

/// Writes the annotations whose effect `cells` knows: the columns between the key and the remark.
fn annotations(out: &mut String, title: &str, head: &str, cells: impl Fn(&Annotation) -> Option<String>) {
    let columns = head.matches('|').count() - 1;
    let _ = write!(out, "\n{title}\n\n{head}\n{}|\n", "|---".repeat(columns));
    for row in ANNOTATIONS {
        if let Some(cells) = cells(row) {
            let _ = writeln!(out, "| {} | `{}` |{cells} {} |", row.on.kind(), row.key, row.note);
        }
    }
}

/// Every field that a cluster refuses, and every annotation, as the part of `docs/compatibility.md` between its markers.
pub fn refused_markdown() -> String {
    let mut out = String::new();
    for (kind, table) in TABLES {
        let text = match *kind {
            "VirtualMachine" => "Besides those of a VirtualMachineInstance, below `spec.template.spec`:\n\n",
            "VirtualMachineInstanceReplicaSet" => {
                "Those of a VirtualMachineInstance, below `spec.template.spec`.\n"
            }
            "VirtualMachineInstancePreset" => "Those of a VirtualMachineInstance, below `spec.domain`.\n",
            "VirtualMachinePool" => "Those of a VirtualMachine, below `spec.virtualMachineTemplate.spec`.\n",
            _ => "",
        };
        let _ = write!(out, "\n### {kind}\n\n{text}");
        let refused = table.iter().filter(|f| matches!(f.support, Support::Refused | Support::Alone));
        for (n, field) in refused.enumerate() {
            let head = if n == 0 { "| Field | Remarks |\n|---|---|\n" } else { "" };
            let _ = writeln!(out, "{head}| `{}` | {} |", field.path, field.note);
        }
    }
    out.push_str(
        "\n### Annotations\n\n\
         What stands here for a VirtualMachineInstance holds for each template of one as well. Annotations\n\
         that no table names are their users' own: they are kept. A VirtualMachineInstance hands its annotations on to its\n\
         launcher pod, but for kubectl's, those that container runtimes and their device plugins read, and, unless the feature gate `Sidecar` is open,\n\
         those that have an injector add something of their author's choice: whose name has `image` in it, `inject.istio.io/…`, and of\n\
         `sidecar.istio.io/…` what does more than inject the proxy, size it and set its logs.\n",
    );
    let plain = "| Object | Annotation | Remarks |";
    let of = |effect: Effect| move |row: &Annotation| (row.effect == effect).then(String::new);
    let carried = |row: &Annotation| matches!(row.effect, Effect::Carried(_)).then(String::new);
    annotations(&mut out, "Carried out:", plain, carried);
    let refused = |row: &Annotation| match row.effect {
        Effect::Refused(wish) => Some(format!(" {} |", refused_values(wish))),
        _ => None,
    };
    let head = "| Object | Annotation | Values | Remarks |";
    annotations(&mut out, "Refused with these values:", head, refused);
    annotations(&mut out, "Kept, with nothing left to do:", plain, of(Effect::Unneeded));
    let written =
        "Kept, and written by controllers of upstream's or of podvirt's alone; a user's has no effect:";
    annotations(&mut out, written, plain, of(Effect::Written));
    out
}
