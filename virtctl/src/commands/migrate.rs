//! `migrate`: asks for a virtual machine's instance to move to another node while it runs.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::api::Cluster;
use crate::args::Migrate;
use crate::output::say;
use crate::target::{Kind, Object};

/// `kubevirt.io/v1` MigrateOptions.
#[derive(Serialize)]
struct MigrateOptions<'a> {
    #[serde(rename = "dryRun", skip_serializing_if = "Option::is_none")]
    dry_run: Option<[&'static str; 1]>,
    #[serde(rename = "addedNodeSelector", skip_serializing_if = "BTreeMap::is_empty")]
    added_node_selector: BTreeMap<&'a str, &'a str>,
}

pub(super) async fn run(cluster: &Cluster, args: &Migrate) -> anyhow::Result<()> {
    let vm = Object::new(Kind::Vm, &args.name, cluster.namespace())?;
    let added_node_selector = selector(&args.added_node_selector)?;
    let options = MigrateOptions { dry_run: args.dry_run.option()?, added_node_selector };
    cluster.put(&vm, "migrate", &options).await.map_err(|error| error.explain("migrate", &vm))?;
    say(&format!("VM {} was scheduled to migrate", vm.name))
}

fn selector(words: &[String]) -> anyhow::Result<BTreeMap<&str, &str>> {
    let pairs = words.iter().map(|word| {
        let pair = word.split_once('=').filter(|(key, _)| !key.is_empty());
        pair.ok_or_else(|| anyhow::anyhow!("--addedNodeSelector={word} must have the form KEY=VALUE"))
    });
    pairs.collect()
}
