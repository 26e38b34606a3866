//! `start`: asks for a virtual machine to run.

use serde::Serialize;

use crate::api::Cluster;
use crate::args::Start;
use crate::output::say;
use crate::target::{Kind, Object};

/// `kubevirt.io/v1` StartOptions.
#[derive(Serialize)]
struct StartOptions {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    paused: bool,
    #[serde(rename = "dryRun", skip_serializing_if = "Option::is_none")]
    dry_run: Option<[&'static str; 1]>,
}

pub(super) async fn run(cluster: &Cluster, args: &Start) -> anyhow::Result<()> {
    let vm = Object::new(Kind::Vm, &args.name, cluster.namespace())?;
    let options = StartOptions { paused: args.paused, dry_run: args.dry_run.option()? };
    cluster.put(&vm, "start", &options).await.map_err(|error| error.explain("start", &vm))?;
    say(&format!("VM {} was scheduled to start", vm.name))
}
