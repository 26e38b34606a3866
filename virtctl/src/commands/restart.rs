//! `restart`: asks for a virtual machine to end and start anew.

use serde::Serialize;

use crate::api::Cluster;
use crate::args::Restart;
use crate::output::say;
use crate::target::{Kind, Object};

/// `kubevirt.io/v1` RestartOptions.
#[derive(Serialize)]
struct RestartOptions {
    #[serde(rename = "gracePeriodSeconds", skip_serializing_if = "Option::is_none")]
    grace_period_seconds: Option<i64>,
    #[serde(rename = "dryRun", skip_serializing_if = "Option::is_none")]
    dry_run: Option<[&'static str; 1]>,
}

pub(super) async fn run(cluster: &Cluster, args: &Restart) -> anyhow::Result<()> {
    let vm = Object::new(Kind::Vm, &args.name, cluster.namespace())?;
    let grace_period_seconds = args.ending.grace_period()?;
    let options = RestartOptions { grace_period_seconds, dry_run: args.dry_run.option()? };
    cluster.put(&vm, "restart", &options).await.map_err(|error| error.explain("restart", &vm))?;
    say(&format!("VM {} was scheduled to restart", vm.name))
}
