//! Rust from the model.
//!
//! A field that may be missing is an `Option`; a list or a map that may be missing is empty then. Both leave
//! nothing behind when a value is written, so a document comes out as it went in. A word that the model does
//! not know is kept as it is: the types judge nothing, admission does.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Context, Result, bail};

use crate::model::{Field, Shape, Type, Types, reachable};
use crate::{MESSAGES, ROOTS, crd};

/// Go's zero time is null in JSON, also where the field may be missing.
const NULLABLE_TIME: &str = "Option<meta::Time>";

const HEAD: &str = "// Written by podvirt-api-generate from api/model. Do not edit.\n\n";

fn wanted(types: &Types) -> BTreeSet<String> {
    let roots: Vec<&str> = ROOTS.iter().chain(MESSAGES).copied().collect();
    reachable(types, &roots)
}

/// The types with fields.
pub(crate) fn types(types: &Types) -> Result<String> {
    let mut out = String::from(HEAD);
    out.push_str(
        "use std::collections::BTreeMap;\n\nuse k8s_openapi::api::core::v1 as core;\n\
         use k8s_openapi::apimachinery::pkg::api::resource::Quantity;\n\
         use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;\nuse serde::{Deserialize, Serialize};\n\n\
         use super::word::resource;\nuse super::words::*;\n",
    );
    let mut taken = BTreeSet::new();
    for name in wanted(types) {
        if !taken.insert(rust_name(&name, types)) {
            bail!("two types are called {}", rust_name(&name, types));
        }
        let ty = &types[&name];
        if ty.alias.is_none() {
            record(&mut out, &name, ty, types)?;
        }
    }
    for kind in ROOTS {
        let (plural, group) = crd::served_as(kind).with_context(|| format!("{kind} is not served"))?;
        let group = group.map(|(group, version)| format!(", \"{group}\", \"{version}\"")).unwrap_or_default();
        write!(out, "\nresource!({}, \"{plural}\"{group});\n", rust_name(kind, types))?;
    }
    Ok(out)
}

fn record(out: &mut String, name: &str, ty: &Type, types: &Types) -> Result<()> {
    write!(
        out,
        "\n/// `{name}` of upstream's API.\n#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]\n\
         pub struct {} {{\n",
        rust_name(name, types)
    )?;
    let mut seen = BTreeSet::new();
    for field in &ty.fields {
        if !seen.insert(field.json.as_str()) {
            bail!("{name} has {} twice", field.json);
        }
        let is_root = ROOTS.contains(&name);
        let (rust, attributes) = match field.json.as_str() {
            "kind" if is_root => (
                "String".into(),
                format!(", default, serialize_with = \"{}::write_kind\"", rust_name(name, types)),
            ),
            "apiVersion" if is_root => {
                // Of another group than most.
                let writer =
                    if name.contains('.') { rust_name(name, types) } else { "super::word".to_owned() };
                ("String".into(), format!(", default, serialize_with = \"{writer}::write_api_version\""))
            }
            _ => {
                let (rust, attributes) = field_type(field, is_root, types)?;
                (rust, attributes.to_owned())
            }
        };
        let ident = snake(&field.json);
        let raw =
            if ["type", "virtual", "final", "static", "ref"].contains(&ident.as_str()) { "r#" } else { "" };
        write!(
            out,
            "    /// `{}`.\n    #[serde(rename = \"{}\"{attributes})]\n    pub {raw}{ident}: {rust},\n",
            field.json, field.json
        )?;
    }
    out.push_str("}\n");
    Ok(())
}

fn field_type(field: &Field, is_root: bool, types: &Types) -> Result<(String, &'static str)> {
    const LIST: &str =
        ", default, deserialize_with = \"super::null::as_default\", skip_serializing_if = \"Vec::is_empty\"";
    // Their specifications have no schema.
    const TEMPLATES: &str = ", default, deserialize_with = \"super::templates::bounded\", skip_serializing_if = \"Vec::is_empty\"";
    const MAP: &str = ", default, deserialize_with = \"super::null::as_default\", skip_serializing_if = \"BTreeMap::is_empty\"";
    const KEPT: &str =
        ", default, deserialize_with = \"super::null::kept\", skip_serializing_if = \"Option::is_none\"";
    const FULL: &str = ", default, deserialize_with = \"super::null::as_default\"";
    let shape = Shape::parse(&field.go);
    let inner = rust_type(&shape, types)?;
    if is_root && ["metadata", "status"].contains(&field.json.as_str()) {
        return Ok((inner, ", default, skip_serializing_if = \"super::null::is_default\""));
    }
    if inner == NULLABLE_TIME && (field.optional || matches!(shape, Shape::Pointer(_))) {
        return Ok((format!("Option<{inner}>"), KEPT));
    }
    Ok(match (&shape, field.optional) {
        (Shape::List(_), true) if inner == "Vec<DataVolumeTemplateSpec>" => (inner, TEMPLATES),
        (Shape::List(_), true) => (inner, LIST),
        (Shape::Map(_), true) => (inner, MAP),
        (Shape::Pointer(_), _) | (_, true) => {
            (format!("Option<{inner}>"), ", default, skip_serializing_if = \"Option::is_none\"")
        }
        (_, false) => (inner, FULL),
    })
}

fn rust_type(shape: &Shape, types: &Types) -> Result<String> {
    Ok(match shape {
        Shape::Pointer(inner) => rust_type(inner, types)?,
        Shape::List(inner) => format!("Vec<{}>", rust_type(inner, types)?),
        Shape::Map(inner) => format!("BTreeMap<String, {}>", rust_type(inner, types)?),
        Shape::Named(name) => named(name, types)?,
    })
}

fn named(name: &str, types: &Types) -> Result<String> {
    if let Some(ty) = types.get(name) {
        return Ok(if ty.alias.is_some() && ty.values.is_empty() {
            "String".into()
        } else {
            rust_name(name, types)
        });
    }
    Ok(match name {
        "string" | "types.UID" | "metav1.Duration" => "String",
        "bool" => "bool",
        "int" | "int64" => "i64",
        "int32" => "i32",
        "uint" | "uint64" => "u64",
        "uint32" => "u32",
        "uint8" | "byte" => "u8",
        "float32" | "float64" => "f64",
        "resource.Quantity" => "Quantity",
        "metav1.Time" => NULLABLE_TIME,
        "metav1.ObjectMeta" => "meta::ObjectMeta",
        "metav1.ListMeta" => "meta::ListMeta",
        "metav1.LabelSelector" => "meta::LabelSelector",
        "intstr.IntOrString" => "k8s_openapi::apimachinery::pkg::util::intstr::IntOrString",
        "k8sv1.ResourceList" | "v1.ResourceList" => "BTreeMap<String, Quantity>",
        // Of projects whose types podvirt does not look into.
        "cdiv1.DataVolumeSpec" | "backupv1.BackupVolumeInfo" => "serde_json::Value",
        "k8sv1.ConditionStatus"
        | "corev1.ConditionStatus"
        | "v1.PullPolicy"
        | "k8sv1.PullPolicy"
        | "k8sv1.PersistentVolumeAccessMode"
        | "k8sv1.PersistentVolumeMode"
        | "k8sv1.DNSPolicy"
        | "k8sv1.PodQOSClass" => "String",
        _ => match name.split_once('.') {
            Some(("k8sv1" | "v1" | "corev1", core)) => return Ok(format!("core::{core}")),
            _ => bail!("no Rust type is known for {name}"),
        },
    }
    .into())
}

/// The texts of which the values are known.
pub(crate) fn words(types: &Types) -> Result<String> {
    let mut out = String::from(HEAD);
    out.push_str("use super::word::open_words;\n");
    for name in wanted(types) {
        let ty = &types[&name];
        if ty.values.is_empty() {
            continue;
        }
        write!(
            out,
            "\nopen_words! {{\n    /// `{name}` of upstream's API.\n    {} {{\n",
            rust_name(&name, types)
        )?;
        for value in ty.values.iter().filter(|v| !v.is_empty()) {
            write!(out, "        /// `{value}`.\n        {} = \"{value}\",\n", variant(value))?;
        }
        out.push_str("    }\n}\n");
    }
    Ok(out)
}

/// The name of a type in Rust: with its group in front where a type of the core, of another group or of Kubernetes has the name
/// as well, or one of Rust.
fn rust_name(name: &str, types: &Types) -> String {
    const TAKEN: [&str; 2] = ["Error", "PersistentVolumeClaim"];
    let own = camel(name);
    let is_taken =
        || TAKEN.contains(&own.as_str()) || types.keys().filter(|other| camel(other) == own).count() > 1;
    match name.split_once('.') {
        Some((group, _)) if is_taken() => camel(group) + &own,
        _ => own,
    }
}

/// `VMRolloutStrategy` as Rust writes it: `VmRolloutStrategy`. A type of another group goes without the group's name.
fn camel(name: &str) -> String {
    let name = name.rsplit_once('.').map_or(name, |(_, name)| name);
    split(name).iter().map(|w| w[..1].to_uppercase() + &w[1..]).collect()
}

/// `dedicatedCpuPlacement` as Rust writes it: `dedicated_cpu_placement`.
pub(crate) fn snake(name: &str) -> String {
    split(name).join("_")
}

fn variant(value: &str) -> String {
    camel(&value.replace(|c: char| !c.is_ascii_alphanumeric(), ""))
}

/// Words in small letters: a run of capitals is one word, but for its last letter if a small one follows.
fn split(name: &str) -> Vec<String> {
    // Names whose capitals do not tell where a word ends.
    const WHOLE: &[(&str, &str)] = &[
        ("IPs", "Ips"),
        ("GPUs", "Gpus"),
        ("PVCs", "Pvcs"),
        ("IDs", "Ids"),
        ("CPUs", "Cpus"),
        ("ioThread", "iothread"),
        ("IOThread", "Iothread"),
        ("OSInfo", "OsInfo"),
    ];
    let mut name = name.to_owned();
    for (from, to) in WHOLE {
        name = name.replace(from, to);
    }
    let chars: Vec<char> = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let mut words: Vec<String> = Vec::new();
    for (i, &c) in chars.iter().enumerate() {
        let before = i.checked_sub(1).and_then(|j| chars.get(j)).copied();
        let after = chars.get(i + 1).copied();
        let starts = c.is_ascii_uppercase()
            && before
                .is_some_and(|b| !b.is_ascii_uppercase() || after.is_some_and(|a| a.is_ascii_lowercase()));
        match words.last_mut() {
            Some(word) if !starts => word.push(c.to_ascii_lowercase()),
            _ => words.push(c.to_ascii_lowercase().to_string()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{camel, snake};

    #[test]
    fn names_follow_rusts_conventions() {
        assert_eq!(camel("VMRolloutStrategy"), "VmRolloutStrategy");
        assert_eq!(camel("ACPI"), "Acpi");
        assert_eq!(camel("instancetype.CPUPreferences"), "CpuPreferences");
        assert_eq!(camel("pool.VirtualMachinePool"), "VirtualMachinePool");
        assert_eq!(snake("dedicatedCpuPlacement"), "dedicated_cpu_placement");
        assert_eq!(snake("ipAddresses"), "ip_addresses");
        assert_eq!(snake("guestOSInfo"), "guest_os_info");
        assert_eq!(snake("VSOCKCID"), "vsockcid");
    }
}
