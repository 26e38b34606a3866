//! `virt-freezer`: what backup tools run in the container `compute` before they take a machine's volumes, and after it.
//!
//! ```text
//!  Velero ──exec──> virt-freezer ──gRPC, launcher's socket──> virt-launcher ──libvirt──> the guest's agent
//! ```
//!
//! It has the launcher freeze the guest's file systems, or thaw them. virt-launcher thaws them by itself after a time limit: a backup
//! tool that dies in between leaves no guest frozen. A guest that does not run, or that has no agent, is left as it is, and the program
//! succeeds: its volumes are backed up as they are.
//!
//! The name, the flags and their meaning are those of upstream's virt-freezer, a program of its own there. Here it is virt-launcher
//! under another name: the launcher's image has a link to it. The annotations that name it are virt-controller's.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use podvirt_proto::cmd::v1::cmd_client::CmdClient;
use podvirt_proto::cmd::v1::{EmptyRequest, FreezeRequest, VmiRequest};
use podvirt_proto::domain::{Domain, Status};
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::program::{judge, launcher};

/// The name under which virt-launcher is this program.
pub const NAME: &str = "virt-freezer";
/// What all may take. The launcher gives the agent a minute for a freeze, and a minute for the thaw after one that failed.
const LIMIT: Duration = Duration::from_secs(130);

/// Have the guest's agent freeze the guest's file systems, or thaw them
///
/// Exit codes: 0 it is done, or there is no guest to do it in; 1 it is not done.
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct VirtFreezer {
    /// Socket of virt-launcher; the pod's when not given
    #[arg(long, value_name = "SOCKET")]
    pub socket: Option<PathBuf>,
    /// Freeze the file systems
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    pub freeze: bool,
    /// Thaw the file systems
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    pub unfreeze: bool,
    /// Name of the machine
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Namespace of the machine
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: String,
    /// Seconds after which virt-launcher thaws the file systems by itself; 0: never
    #[arg(
        long = "unfreezeTimeoutSeconds",
        value_name = "SECONDS",
        default_value_t = 300,
        value_parser = clap::value_parser!(i32).range(0..)
    )]
    pub unfreeze_timeout_seconds: i32,
}

/// Freezes or thaws the guest's file systems, where a guest with an agent runs.
///
/// # Errors
///
/// The launcher cannot be asked or is another machine's, or the file systems were not frozen or thawed.
pub async fn run(args: &VirtFreezer) -> Result<ExitCode> {
    if !args.freeze && !args.unfreeze {
        bail!("--freeze or --unfreeze is required");
    }
    match timeout(LIMIT, ask(args)).await {
        Ok(answer) => answer?,
        Err(_) => bail!("virt-launcher did not answer within {LIMIT:?}"),
    }
    Ok(ExitCode::SUCCESS)
}

async fn ask(args: &VirtFreezer) -> Result<()> {
    let mut launcher = launcher(args.socket.as_deref()).await?;
    let answer = launcher.get_domain(EmptyRequest {}).await.context("asking virt-launcher")?.into_inner();
    judge(answer.response)?;
    let domain: Domain = serde_json::from_str(&answer.domain).context("reading virt-launcher's report")?;
    let (is, asked) = ((&domain.namespace, &domain.name), (&args.namespace, &args.name));
    if is != asked {
        bail!("this virt-launcher is for {}/{}, not for {}/{}", is.0, is.1, asked.0, asked.1);
    }
    if let Some(why) = idle(&domain) {
        println!("{why}: nothing is done");
        return Ok(());
    }
    if !args.freeze {
        return thaw(&mut launcher).await.context("thawing the guest's file systems");
    }
    let request = FreezeRequest { vmi: None, unfreeze_timeout_seconds: args.unfreeze_timeout_seconds };
    let frozen = async {
        let answer = launcher.freeze_virtual_machine(request).await.context("asking virt-launcher")?;
        judge(Some(answer.into_inner()))
    };
    let frozen = frozen.await;
    if frozen.is_err() {
        // An agent that gave no answer in time may have frozen them. The tool goes without its backup, so nothing else thaws soon.
        let _ = thaw(&mut launcher).await;
    }
    frozen.context("freezing the guest's file systems")
}

async fn thaw(launcher: &mut CmdClient<Channel>) -> Result<()> {
    let request = VmiRequest { vmi: None, options: None };
    let answer = launcher.unfreeze_virtual_machine(request).await.context("asking virt-launcher")?;
    judge(Some(answer.into_inner()))
}

/// Why there is nothing to freeze or to thaw.
fn idle(domain: &Domain) -> Option<&'static str> {
    if domain.status != Status::Running {
        Some("the guest does not run")
    } else if !domain.agent_connected {
        Some("the guest's agent is not connected")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(more: &[&str]) -> Result<VirtFreezer, clap::Error> {
        VirtFreezer::try_parse_from([NAME].iter().chain(more))
    }

    #[test]
    fn flags_have_upstreams_names() {
        VirtFreezer::command().debug_assert();
        let machine = ["--name", "web", "--namespace", "shop"];
        let with = |more: &[&str]| parsed(&[more, &machine].concat()).unwrap();
        let freeze = with(&["--freeze"]);
        assert_eq!((freeze.freeze, freeze.unfreeze, freeze.unfreeze_timeout_seconds), (true, false, 300));
        assert_eq!((freeze.name.as_str(), freeze.namespace.as_str()), ("web", "shop"));
        let thaw = with(&["--unfreeze=true", "--freeze=false", "--unfreezeTimeoutSeconds", "7"]);
        assert_eq!((thaw.freeze, thaw.unfreeze, thaw.unfreeze_timeout_seconds), (false, true, 7));
        for lacking in
            [&["--freeze"][..], &["--freeze", "--name", "web"], &["--freeze", "--namespace", "shop"]]
        {
            assert!(parsed(lacking).is_err(), "{lacking:?}");
        }
        let negative = [&machine[..], &["--unfreezeTimeoutSeconds=-1"]].concat();
        assert!(parsed(&negative).is_err());
    }

    #[test]
    fn only_a_guest_that_runs_and_has_an_agent_is_frozen() {
        let domain = |status, agent_connected| Domain { status, agent_connected, ..Domain::default() };
        assert_eq!(idle(&domain(Status::Running, true)), None);
        assert_eq!(idle(&domain(Status::Running, false)), Some("the guest's agent is not connected"));
        for status in [Status::Paused, Status::Shutoff, Status::NoState] {
            assert_eq!(idle(&domain(status, true)), Some("the guest does not run"), "{status:?}");
        }
    }

    #[tokio::test]
    async fn without_a_wish_and_without_a_launcher_it_fails() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("none");
        let machine = ["--name", "web", "--namespace", "shop", "--socket", socket.to_str().unwrap()];
        let error = run(&parsed(&machine).unwrap()).await.unwrap_err();
        assert_eq!(error.to_string(), "--freeze or --unfreeze is required");
        let error = run(&parsed(&[&machine[..], &["--freeze"]].concat()).unwrap()).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot reach "), "{error:#}");
    }
}
