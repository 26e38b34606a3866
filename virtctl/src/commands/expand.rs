//! `expand`: prints a virtual machine with its instance type and its preference in its template. Nothing is stored.

use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use crate::api::Cluster;
use crate::args::{Expand, Format};
use crate::output::say;
use crate::target::{Kind, Object};

pub(super) async fn run(cluster: &Cluster, args: &Expand) -> anyhow::Result<()> {
    let expanded = if let Some(name) = &args.vm {
        let vm = Object::new(Kind::Vm, name, cluster.namespace())?;
        cluster.expanded(&vm).await.map_err(|error| error.explain("expand", &vm))?
    } else {
        let file = args.file.as_deref().unwrap_or(Path::new("-"));
        let manifest = read(file)?;
        cluster
            .expand(&manifest)
            .await
            .map_err(|error| error.explain_plain(&format!("expand the VM in {}", file.display())))?
    };
    let text = match args.output {
        Format::Json => serde_json::to_string_pretty(&expanded)?,
        Format::Yaml => serde_saphyr::to_string(&expanded)?,
    };
    say(text.trim_end())
}

/// The manifest in a file; JSON is YAML as well.
fn read(file: &Path) -> anyhow::Result<Value> {
    let mut text = String::new();
    let name = file.display();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("cannot read the standard input")?;
    } else {
        text = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    }
    serde_saphyr::from_str(&text).with_context(|| format!("{name} is no manifest"))
}
