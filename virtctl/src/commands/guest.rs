//! `guestosinfo`, `userlist`, `fslist`: what the guest's agent tells, as JSON.

use crate::api::Cluster;
use crate::args::Instance;
use crate::output::{indented, say};
use crate::target::{Kind, Object};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    /// The operating system, and all the rest.
    OsInfo,
    /// The users who are logged in.
    Users,
    /// The file systems.
    Filesystems,
}

pub(super) async fn run(cluster: &Cluster, args: &Instance, question: Question) -> anyhow::Result<()> {
    let (subresource, doing) = match question {
        Question::OsInfo => ("guestosinfo", "get the guestosinfo of"),
        Question::Users => ("userlist", "list the users of"),
        Question::Filesystems => ("filesystemlist", "list the filesystems of"),
    };
    let vmi = Object::new(Kind::Vmi, &args.name, cluster.namespace())?;
    let told = cluster.ask(&vmi, subresource).await.map_err(|error| error.explain(doing, &vmi))?;
    say(&indented(&told))
}
