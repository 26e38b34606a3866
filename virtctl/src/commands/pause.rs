//! `pause` and `unpause`: stop the guest's processors and let them go on. Memory stays as it is.
//!
//! It is always the instance that is paused. Of a virtual machine it is looked up first, so that a machine that does
//! not run is told from one that does not exist.

use anyhow::bail;
use serde::Serialize;

use crate::api::Cluster;
use crate::args::Pause;
use crate::output::say;
use crate::target::{Kind, Object};

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Pause,
    Unpause,
}

/// `kubevirt.io/v1` PauseOptions and UnpauseOptions.
#[derive(Serialize)]
struct PauseOptions {
    #[serde(rename = "dryRun", skip_serializing_if = "Option::is_none")]
    dry_run: Option<[&'static str; 1]>,
}

pub(super) async fn run(cluster: &Cluster, args: &Pause, change: Change) -> anyhow::Result<()> {
    let word = match change {
        Change::Pause => "pause",
        Change::Unpause => "unpause",
    };
    let named = Object::new(args.kind.parse()?, &args.name, cluster.namespace())?;
    let options = PauseOptions { dry_run: args.dry_run.option()? };
    if named.kind == Kind::Vm {
        cluster.get(&named).await.map_err(|error| error.explain(word, &named))?;
    }
    let vmi = Object { kind: Kind::Vmi, ..named.clone() };
    match cluster.put(&vmi, word, &options).await {
        Ok(()) => say(&format!("VMI {} was scheduled to {word}", vmi.name)),
        Err(error) if named.kind == Kind::Vm && error.is_not_found() => bail!(
            "cannot {word} {named}: it does not run\n  To start it: virtctl start {} -n {}",
            named.name,
            named.namespace
        ),
        Err(error) => Err(error.explain(word, &vmi)),
    }
}
