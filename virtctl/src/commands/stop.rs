//! `stop`: asks for a virtual machine not to run.

use serde::Serialize;

use crate::api::Cluster;
use crate::args::Stop;
use crate::output::say;
use crate::target::{Kind, Object};

/// `kubevirt.io/v1` StopOptions.
#[derive(Serialize)]
struct StopOptions {
    #[serde(rename = "gracePeriod", skip_serializing_if = "Option::is_none")]
    grace_period: Option<i64>,
    #[serde(rename = "dryRun", skip_serializing_if = "Option::is_none")]
    dry_run: Option<[&'static str; 1]>,
}

pub(super) async fn run(cluster: &Cluster, args: &Stop) -> anyhow::Result<()> {
    let vm = Object::new(Kind::Vm, &args.name, cluster.namespace())?;
    let grace_period = args.ending.grace_period()?;
    let options = StopOptions { grace_period, dry_run: args.dry_run.option()? };
    cluster.put(&vm, "stop", &options).await.map_err(|error| error.explain("stop", &vm))?;
    say(&format!("VM {} was scheduled to stop", vm.name))
}
