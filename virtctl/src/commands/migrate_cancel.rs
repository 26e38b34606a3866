//! `migrate-cancel`: ends the migration of a virtual machine by deleting its object.

use anyhow::bail;

use crate::api::Cluster;
use crate::args::MigrateCancel;
use crate::output::say;
use crate::target::{Kind, Object};

const MIGRATIONS: &str = "virtualmachineinstancemigrations";
const WORD: &str = "migrate-cancel";

pub(super) async fn run(cluster: &Cluster, args: &MigrateCancel) -> anyhow::Result<()> {
    let vm = Object::new(Kind::Vm, &args.name, cluster.namespace())?;
    let dry_run = args.dry_run.option()?.is_some();
    let all = cluster
        .list(MIGRATIONS, Some(&vm.namespace), None)
        .await
        .map_err(|error| error.explain(WORD, &vm))?;
    // What is being cancelled already is asked for again, which does no harm.
    let open = all.iter().find(|migration| {
        let phase = migration["status"]["phase"].as_str().unwrap_or_default();
        migration["spec"]["vmiName"] == vm.name.as_str() && !["Succeeded", "Failed"].contains(&phase)
    });
    let Some(name) = open.and_then(|migration| migration["metadata"]["name"].as_str()) else {
        bail!("Found no migration to cancel for {}", vm.name);
    };
    cluster
        .delete(MIGRATIONS, &vm.namespace, name, dry_run)
        .await
        .map_err(|error| error.explain(WORD, &vm))?;
    say(&format!("VM {} was scheduled to {WORD}", vm.name))
}
