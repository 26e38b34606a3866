//! `evacuate-cancel`: takes off the mark by which an eviction tells a machine, or every machine of a node, to leave its
//! node. virt-controller aborts the migrations that it made for these marks.

use anyhow::bail;
use serde::Serialize;

use crate::api::Cluster;
use crate::args::EvacuateCancel;
use crate::output::say;
use crate::target::{Kind, Object};

const WORD: &str = "evacuate-cancel";
const SUBRESOURCE: &str = "evacuate/cancel";

/// `kubevirt.io/v1` EvacuateCancelOptions.
#[derive(Serialize)]
struct EvacuateCancelOptions {
    #[serde(rename = "dryRun", skip_serializing_if = "Option::is_none")]
    dry_run: Option<[&'static str; 1]>,
    /// The node of the mark; any node where it is absent.
    #[serde(rename = "evacuationNodeName", skip_serializing_if = "Option::is_none")]
    node: Option<String>,
}

pub(super) async fn run(cluster: &Cluster, args: &EvacuateCancel) -> anyhow::Result<()> {
    let is_node = ["node", "nodes"].contains(&args.kind.to_ascii_lowercase().as_str());
    let options =
        EvacuateCancelOptions { dry_run: args.dry_run.option()?, node: is_node.then(|| args.name.clone()) };
    let objects = if is_node {
        leaving(cluster, &args.name).await?
    } else {
        let Ok(kind) = args.kind.parse() else {
            bail!("{:?} is neither a type of machine nor a node: use vm, vmi or node", args.kind);
        };
        vec![Object::new(kind, &args.name, cluster.namespace())?]
    };
    let mut failures = Vec::new();
    for object in &objects {
        if let Err(error) = cluster.put(object, SUBRESOURCE, &options).await {
            // The other machines of the node are let stay all the same.
            failures.push(error.explain(WORD, object).to_string());
            continue;
        }
        say(&format!(
            "{} {}/{} is no longer marked for evacuation",
            object.kind.short().to_ascii_uppercase(),
            object.namespace,
            object.name
        ))?;
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(())
}

/// The machines of all namespaces that are to leave a node.
async fn leaving(cluster: &Cluster, node: &str) -> anyhow::Result<Vec<Object>> {
    // The name becomes part of a URL.
    let node = Object::new(Kind::Vmi, node, cluster.namespace())?.name;
    let selector = format!("kubevirt.io/nodeName={node}");
    let all = cluster
        .list(Kind::Vmi.resource(), None, Some(&selector))
        .await
        .map_err(|error| anyhow::Error::new(error).context(format!("cannot {WORD} node {node}")))?;
    let leaving = all.iter().filter(|vmi| vmi["status"]["evacuationNodeName"] == node.as_str());
    let objects: Result<Vec<_>, _> = leaving
        .map(|vmi| {
            let text = |field: &str| vmi["metadata"][field].as_str().unwrap_or_default();
            Object::new(Kind::Vmi, text("name"), text("namespace"))
        })
        .collect();
    let objects = objects?;
    if objects.is_empty() {
        bail!("no virtual machine instance is to leave node {node}");
    }
    Ok(objects)
}
