//! `objectgraph`: prints what a machine depends on.

use std::collections::BTreeMap;

use anyhow::bail;
use serde_json::json;

use crate::api::Cluster;
use crate::args::{Format, ObjectGraph};
use crate::output::{indented, say};
use crate::target::{Kind, Object};

pub(super) async fn run(cluster: &Cluster, args: &ObjectGraph) -> anyhow::Result<()> {
    let kind = if args.vmi { Kind::Vmi } else { Kind::Vm };
    let object = Object::new(kind, &args.name, cluster.namespace())?;
    let mut options = json!({"includeOptionalNodes": !args.exclude_optional});
    let labels = labels(&args.selector)?;
    if !labels.is_empty() {
        options["labelSelector"] = json!({ "matchLabels": labels });
    }
    let told = cluster
        .ask_with(&object, "objectgraph", &options)
        .await
        .map_err(|error| error.explain("list the object graph of", &object))?;
    match args.output {
        Format::Json => say(&indented(&told)),
        Format::Yaml => {
            let graph: serde_json::Value = serde_json::from_str(&told)?;
            say(serde_saphyr::to_string(&graph)?.trim_end())
        }
    }
}

/// Labels as --selector gives them.
fn labels(selector: &[String]) -> anyhow::Result<BTreeMap<&str, &str>> {
    let mut labels = BTreeMap::new();
    for pair in selector {
        match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() => labels.insert(key, value),
            _ => bail!("--selector={pair} is not possible: KEY=VALUE is"),
        };
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_pairs() {
        let given = ["kubevirt.io/dependency-type=storage".to_owned(), "a=".to_owned()];
        let expected = BTreeMap::from([("kubevirt.io/dependency-type", "storage"), ("a", "")]);
        assert_eq!(labels(&given).unwrap(), expected);
        for wrong in ["storage", "=storage"] {
            let error = labels(&[wrong.to_owned()]).unwrap_err().to_string();
            assert_eq!(error, format!("--selector={wrong} is not possible: KEY=VALUE is"));
        }
    }
}
