//! `reset` and `soft-reboot`: the machine starts anew, by its reset button or by its guest.

use serde_json::json;

use crate::api::Cluster;
use crate::args::Instance;
use crate::output::say;
use crate::target::{Kind, Object};

/// How it starts anew.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// At once: what the guest has not written is lost.
    Reset,
    /// The guest is asked to reboot.
    SoftReboot,
}

pub(super) async fn run(cluster: &Cluster, args: &Instance, way: Way) -> anyhow::Result<()> {
    let (subresource, command, doing) = match way {
        Way::Reset => ("reset", "reset", "reset"),
        Way::SoftReboot => ("softreboot", "soft-reboot", "soft reboot"),
    };
    let vmi = Object::new(Kind::Vmi, &args.name, cluster.namespace())?;
    cluster.put(&vmi, subresource, &json!({})).await.map_err(|error| error.explain(doing, &vmi))?;
    say(&format!("VMI {} was scheduled to {command}", vmi.name))
}
