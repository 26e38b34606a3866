//! Descriptions: podvirt's own sentences, from the documentation of `podvirt_api::vmi` and a file of others.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::model::Types;

/// Sentences by type, or by type and field (`Disk.serial`), the type in small letters.
#[derive(Debug, Default)]
pub(crate) struct Docs(BTreeMap<String, String>);

impl Docs {
    /// What a type is.
    pub(crate) fn of_type(&self, name: &str) -> Option<&str> {
        self.0.get(&name.to_lowercase()).map(String::as_str)
    }

    /// What a field of a type is.
    pub(crate) fn of_field(&self, name: &str, json: &str) -> Option<&str> {
        self.0.get(&format!("{}.{json}", name.to_lowercase())).map(String::as_str)
    }
}

/// Reads the documentation of the view, then `model/descriptions.json`, which goes before it.
pub(crate) fn read(api: &Path, types: &Types) -> Result<Docs> {
    let mut docs = Docs::default();
    for file in ["devices", "domain", "mod", "network", "volume"] {
        let path = api.join("src/vmi").join(file).with_extension("rs");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        of_rust(&text, &mut docs.0);
    }
    let path = api.join("model/descriptions.json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let own: BTreeMap<String, String> = serde_json::from_str(&text)?;
    for (name, sentence) in own {
        let (ty, field) = name.split_once('.').map_or((name.as_str(), None), |(t, f)| (t, Some(f)));
        let known =
            types.get(ty).is_some_and(|t| field.is_none_or(|field| t.fields.iter().any(|f| f.json == field)));
        if !known {
            bail!("{} describes {name}, which the model does not know", path.display());
        }
        let key = match field {
            Some(field) => format!("{}.{field}", ty.to_lowercase()),
            None => ty.to_lowercase(),
        };
        docs.0.insert(key, sentence);
    }
    Ok(docs)
}

/// Takes the documentation of types and fields from the `objects!` and `words!` of a Rust file.
fn of_rust(text: &str, docs: &mut BTreeMap<String, String>) {
    let mut owner = String::new();
    let mut sentence = String::new();
    let mut renamed = None;
    for line in text.lines() {
        let depth = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some(doc) = line.strip_prefix("/// ") {
            if !sentence.is_empty() {
                sentence.push(' ');
            }
            sentence.push_str(doc);
        } else if let Some(name) = line.strip_prefix("#[serde(rename = \"").and_then(|l| l.split('"').next())
        {
            renamed = Some(name.to_owned());
        } else if depth == 4 && line.contains(" {") {
            owner = line.split(' ').next().unwrap_or_default().to_lowercase();
            docs.insert(owner.clone(), std::mem::take(&mut sentence));
        } else if depth == 8 && !owner.is_empty() && line.contains(": ") {
            let field = line.split(':').next().unwrap_or_default();
            let name = renamed.take().unwrap_or_else(|| json_name(field));
            docs.insert(format!("{owner}.{name}"), std::mem::take(&mut sentence));
        } else {
            sentence.clear();
            renamed = None;
        }
    }
}

/// `boot_order` as JSON has it: `bootOrder`.
fn json_name(field: &str) -> String {
    let mut words = field.split('_');
    let mut name = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        name.extend(letters.next().map(|c| c.to_ascii_uppercase()));
        name.push_str(letters.as_str());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_is_found_under_the_names_of_json() {
        let mut docs = BTreeMap::new();
        of_rust(
            "objects! {\n    /// A disk.\n    Disk {\n        /// Place in the\n        /// order.\n        \
             boot_order: Option<u32>,\n        /// Kind.\n        #[serde(rename = \"type\")]\n        \
             kind: String,\n    }\n}\n",
            &mut docs,
        );
        assert_eq!(docs["disk"], "A disk.");
        assert_eq!(docs["disk.bootOrder"], "Place in the order.");
        assert_eq!(docs["disk.type"], "Kind.");
    }
}
