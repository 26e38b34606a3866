//! `scp`: the local scp, connected as `ssh` is.

use super::ssh::{become_program, destination, options, program, proxy_command};
use crate::api::Cluster;
use crate::args::{Global, Scp};
use crate::target::Copy;

pub(super) async fn run(cluster: &Cluster, global: &Global, args: &Scp) -> anyhow::Result<()> {
    let copy = Copy::parse(&args.source, &args.destination)?;
    let guest = cluster.resolve(&copy.login.target).await?;
    let mut words = options(&proxy_command(&program(), global, &guest, args.flags.port)?, &args.flags);
    if args.recursive {
        words.push("-r".into());
    }
    if args.preserve {
        words.push("-p".into());
    }
    let remote = format!("{}:{}", destination(&args.flags, copy.login.user, &guest), copy.remote_path);
    words.extend(if copy.to_guest { [copy.local_path, remote] } else { [remote, copy.local_path] });
    become_program("scp", &words)
}
