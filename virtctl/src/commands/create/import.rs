//! Volumes that CDI fills: templates of DataVolumes.

use podvirt_api::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::draft::Draft;
use super::params::{Params, flag_error, split_prefixed};
use crate::args::CreateVm;
use crate::random;

const FLAG: &str = "volume-import";
/// Random letters of a name that is made.
const LETTERS: usize = 5;
/// Ways in which an image comes from a registry.
const PULL_METHODS: [&str; 2] = ["pod", "node"];

/// A parameter: its name, its field of the source, and whether it must be given.
type Field = (&'static str, &'static str, bool);

/// Parameters that several sources have.
const URL: Field = ("url", "url", true);
const SECRET: Field = ("secretref", "secretRef", false);
const CERTIFICATES: Field = ("certconfigmap", "certConfigMap", false);

/// Sources that an address names: the word of the flag, which is the field of the source as well, and their parameters.
const ADDRESSED: [(&str, &[Field]); 6] = [
    ("gcs", &[URL, SECRET]),
    ("http", &[URL, SECRET, CERTIFICATES]),
    ("imageio", &[URL, ("diskid", "diskId", true), SECRET, CERTIFICATES]),
    (
        "registry",
        &[
            ("url", "url", false),
            ("imagestream", "imageStream", false),
            ("pullmethod", "pullMethod", false),
            SECRET,
            CERTIFICATES,
        ],
    ),
    ("s3", &[URL, SECRET, CERTIFICATES]),
    (
        "vddk",
        &[
            URL,
            ("uuid", "uuid", true),
            ("thumbprint", "thumbprint", true),
            ("secretref", "secretRef", true),
            ("backingfile", "backingFile", true),
            ("initimageurl", "initImageURL", false),
        ],
    ),
];
/// Parameters of [`ADDRESSED`] that are lists, with semicolons: their names and fields.
const HEADERS: [(&str, &str); 2] =
    [("extraheaders", "extraHeaders"), ("secretextraheaders", "secretExtraHeaders")];

/// Adds the volumes of `--volume-import`, and of the older flags, which say the type.
pub(super) fn volumes(draft: &mut Draft, flags: &CreateVm) -> anyhow::Result<()> {
    for (flag, kind, given) in [
        ("volume-datasource", "ds", &flags.volume_datasource),
        ("volume-clone-pvc", "pvc", &flags.volume_clone_pvc),
        ("volume-blank", "blank", &flags.volume_blank),
    ] {
        if !given.is_empty() {
            draft.warnings.push(format!("Flag --{flag} has been deprecated, use flag --{FLAG} instead"));
        }
        for text in given {
            volume(draft, &mut Params::read(FLAG, text)?, kind)?;
        }
    }
    for text in &flags.volume_import {
        let mut params = Params::read(FLAG, text)?;
        let kind = params.text("type").ok_or_else(|| params.error("type must be specified"))?;
        volume(draft, &mut params, kind)?;
    }
    Ok(())
}

fn volume(draft: &mut Draft, params: &mut Params<'_>, kind: &str) -> anyhow::Result<()> {
    // The older flags may say it again.
    params.text("type");
    let (name, size, order) = (params.text("name"), params.text("size"), params.boot_order()?);
    let mut spec = match kind {
        "blank" => json!({"source": {"blank": {}}}),
        "pvc" | "snapshot" => {
            let (namespace, name) = source(params)?;
            let Some(namespace) = namespace else {
                return Err(params.error(format!("namespace of {kind} \"{name}\" must be specified")));
            };
            json!({"source": {kind: {"namespace": namespace, "name": name}}})
        }
        "ds" => {
            let (namespace, name) = source(params)?;
            let mut reference = json!({"kind": "DataSource", "name": name});
            if let Some(namespace) = namespace {
                reference["namespace"] = json!(namespace);
            }
            json!({ "sourceRef": reference })
        }
        other => addressed(params, other)?,
    };
    params.done()?;
    spec["storage"] = match size {
        Some(size) => {
            size.parse::<Quantity>().map_err(|error| params.error(format!("size \"{size}\": {error}")))?;
            json!({"resources": {"requests": {"storage": size}}})
        }
        // The source says it.
        None if matches!(kind, "pvc" | "snapshot" | "ds") => json!({}),
        None => return Err(params.error("size must be specified")),
    };
    let name = name.map_or_else(|| random::name("imported-volume-", LETTERS), str::to_owned);
    draft.add_disk(FLAG, &name, order, "dataVolume", json!({ "name": name }))?;
    draft.data_volumes.push(json!({"metadata": {"name": name}, "spec": spec}));
    Ok(())
}

/// The parameter `src`: the namespace, where it is given, and the name.
fn source<'a>(params: &mut Params<'a>) -> anyhow::Result<(Option<&'a str>, &'a str)> {
    let source = params.text("src").ok_or_else(|| params.error("src must be specified"))?;
    split_prefixed(source).map_err(|error| params.error(format!("src invalid: {error}")))
}

fn addressed(params: &mut Params<'_>, kind: &str) -> anyhow::Result<Value> {
    let Some((word, fields)) = ADDRESSED.iter().find(|(word, _)| *word == kind) else {
        let words: Vec<&str> =
            ["blank", "ds", "pvc", "snapshot"].into_iter().chain(ADDRESSED.map(|one| one.0)).collect();
        let why =
            format!("invalid volume import type \"{kind}\", supported values are: {}", words.join(", "));
        return Err(flag_error(FLAG, why));
    };
    let mut source = Map::new();
    for (name, field, required) in *fields {
        match params.text(name) {
            Some(text) => drop(source.insert((*field).into(), text.into())),
            None if *required && *word == "imageio" => {
                return Err(params.error("url and diskid are both required with imageio volume source"));
            }
            None if *required => {
                return Err(params.error(format!("{name} is required with {word} volume source")));
            }
            None => {}
        }
    }
    if *word == "http" {
        for (name, field) in HEADERS {
            if let Some(text) = params.text(name) {
                source.insert(field.into(), text.split(';').collect());
            }
        }
    }
    if *word == "registry" {
        if source.contains_key("url") == source.contains_key("imageStream") {
            return Err(params.error("exactly one of url or imagestream must be defined"));
        }
        let method = source.get("pullMethod").and_then(Value::as_str);
        if method.is_some_and(|method| !PULL_METHODS.contains(&method)) {
            return Err(params.error("pullmethod must be set to pod or node"));
        }
    }
    Ok(json!({"source": {*word: source}}))
}
