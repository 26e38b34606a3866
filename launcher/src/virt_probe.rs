//! `virt-probe`: what the kubelet runs in the container `compute` for the probes `exec` and `guestAgentPing`.
//!
//! ```text
//!  kubelet ──exec──> virt-probe ──gRPC, launcher's socket──> virt-launcher ──libvirt──> the guest's agent
//! ```
//!
//! Only the launcher has a way to the agent, so it is asked: by `GuestPing`, or by `Exec`, which runs a program in the guest,
//! waits for its end and tells its output and exit code. This program ends with that code, and with 1 where there is none. The
//! name, the flags and their meaning are those of upstream's virt-probe, a program of its own there. Here it is virt-launcher under
//! another name: the launcher's image has a link to it.
//!
//! The time limit is the program's in the guest. The call has [`BESIDE`] more, so that it is the launcher that says what was not
//! done in time; the kubelet gives one second more than the manifest says.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use podvirt_proto::cmd::v1::{ExecRequest, GuestPingRequest};
use tokio::time::timeout;

use crate::program::{judge, launcher};

/// The name under which virt-launcher is this program.
pub const NAME: &str = "virt-probe";
/// What a call may take beside what is done in the guest.
const BESIDE: Duration = Duration::from_secs(5);

/// Ask the guest's agent whether it answers, or have it run a program
///
/// Exit codes: 0 it answers, or the program's own; 1 it does not, or the program was not run or did not end in time.
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct VirtProbe {
    /// Socket of virt-launcher; the pod's when not given
    #[arg(long, value_name = "SOCKET")]
    pub socket: Option<PathBuf>,
    /// Name of the machine's domain: NAMESPACE_NAME
    #[arg(long = "domainName", value_name = "NAME", default_value = "")]
    pub domain_name: String,
    /// Path of the program in the guest; its arguments stand behind --
    #[arg(long, value_name = "PROGRAM", default_value = "")]
    pub command: String,
    /// Seconds that the guest has
    #[arg(long = "timeoutSeconds", value_name = "SECONDS", default_value_t = 1)]
    pub timeout_seconds: i32,
    /// Ask whether the agent answers, and run nothing
    #[arg(long = "guestAgentPing", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    pub guest_agent_ping: bool,
    /// Arguments of the program
    #[arg(last = true, value_name = "ARGUMENT")]
    pub arguments: Vec<String>,
}

/// Asks and tells by the exit code; what the program in the guest has written is written.
///
/// # Errors
///
/// The launcher cannot be asked, the agent does not answer, the program was not run or did not end in time.
pub async fn run(args: &VirtProbe) -> Result<ExitCode> {
    let limit = Duration::from_secs(u64::try_from(args.timeout_seconds).unwrap_or(0)) + BESIDE;
    match timeout(limit, ask(args)).await {
        Ok(answer) => answer,
        Err(_) => bail!("virt-launcher did not answer within {limit:?}"),
    }
}

async fn ask(args: &VirtProbe) -> Result<ExitCode> {
    let mut launcher = launcher(args.socket.as_deref()).await?;
    let domain_name = args.domain_name.clone();
    if args.guest_agent_ping {
        let request = GuestPingRequest { domain_name, timeout_seconds: args.timeout_seconds };
        let answer = launcher.guest_ping(request).await.context("asking virt-launcher")?.into_inner();
        judge(answer.response)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.command.is_empty() {
        bail!("--command or --guestAgentPing is required");
    }
    let request = ExecRequest {
        domain_name,
        command: args.command.clone(),
        args: args.arguments.clone(),
        timeout_seconds: args.timeout_seconds,
    };
    let answer = launcher.exec(request).await.context("asking virt-launcher")?.into_inner();
    if !answer.std_out.is_empty() {
        println!("{}", answer.std_out);
    }
    judge(answer.response)?;
    Ok(code(answer.exit_code))
}

/// The exit code as a process can have it: what does not fit is a failure all the same.
fn code(of_guest: i32) -> ExitCode {
    ExitCode::from(u8::try_from(of_guest).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(line: &[&str]) -> VirtProbe {
        VirtProbe::try_parse_from(line).unwrap()
    }

    #[test]
    fn flags_have_upstreams_names_and_the_programs_arguments_stand_behind_two_dashes() {
        VirtProbe::command().debug_assert();
        let exec = parsed(&[
            NAME,
            "--domainName",
            "shop_web",
            "--timeoutSeconds",
            "5",
            "--command",
            "/bin/test",
            "--",
            "-e",
            "/run/ready",
        ]);
        assert_eq!((exec.domain_name.as_str(), exec.timeout_seconds), ("shop_web", 5));
        assert_eq!(
            (exec.command.as_str(), exec.arguments),
            ("/bin/test", vec!["-e".into(), "/run/ready".into()])
        );
        assert!(!exec.guest_agent_ping);
        assert_eq!(parsed(&[NAME, "--command=true"]).timeout_seconds, 1);
        for (flag, asked) in
            [("--guestAgentPing", true), ("--guestAgentPing=true", true), ("--guestAgentPing=false", false)]
        {
            assert_eq!(parsed(&[NAME, flag]).guest_agent_ping, asked, "{flag}");
        }
    }
}
