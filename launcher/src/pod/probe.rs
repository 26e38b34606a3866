//! Probes that ask the guest's agent, while the guest cannot answer.
//!
//! The kubelet kills a container whose liveness probe fails some times in a row. A guest that is paused does not answer, one that is yet
//! to come from another node has no process here, and one that moves away may stand still for a while. None of them is dead, so a
//! `guestAgentPing` succeeds meanwhile, and as long as the machine's user has paused such probes by an annotation. A program in the
//! guest is asked for all the same, but where the guest is not here yet.
//!
//! | the machine | `guestAgentPing` | `exec` |
//! |---|---|---|
//! | runs | the agent's answer | the program's |
//! | is paused, by a user or by libvirt, or its probes are | succeeds, and the agent is not asked | the program's |
//! | moves away | the agent's answer; a failure succeeds | the program's |
//! | is to come | succeeds | succeeds |

use podvirt_api::VirtualMachineInstance;
use podvirt_api::names::annotation::PAUSE_AGENT_PROBES;
use podvirt_proto::domain::{Domain, Status};
use tracing::{debug, info};

use super::agent::AgentError;
use super::shared::{Facts, Shared};

/// How the guest is to answer probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    /// By its agent.
    Answer,
    /// By its agent, which may fail to: the machine moves away.
    MayAnswer,
    /// Not at all: the machine is paused, or probes of its agent are.
    Paused,
    /// Not at all: the machine is yet to come from another node.
    Absent,
}

impl Shared {
    /// Takes of the VMI whether the probes of the guest's agent are paused.
    pub(super) fn follow_probes(&self, vmi: &VirtualMachineInstance) {
        let paused = vmi.metadata.annotations.get(PAUSE_AGENT_PROBES).is_some_and(|text| text == "true");
        self.facts.send_if_modified(|facts| {
            let changed = std::mem::replace(&mut facts.agent_probes_paused, paused) != paused;
            if changed {
                info!(paused, "probes of the guest's agent");
            }
            changed
        });
    }

    /// How the guest is to answer probes now.
    pub(super) fn probe_duty(&self) -> Duty {
        duty(&self.report.borrow(), &self.facts.borrow())
    }

    /// What a probe by the agent's answer comes to.
    pub(super) fn judge_ping(&self, answer: Result<(), AgentError>) -> Result<(), AgentError> {
        match (self.probe_duty(), answer) {
            (Duty::Answer, answer) => answer,
            (duty, Err(error)) => {
                debug!(
                    ?duty,
                    error = &error as &dyn std::error::Error,
                    "the guest does not have to answer a probe"
                );
                Ok(())
            }
            (_, Ok(())) => Ok(()),
        }
    }
}

fn duty(report: &Domain, facts: &Facts) -> Duty {
    if facts.awaited && facts.started_at.is_none() {
        return Duty::Absent;
    }
    if facts.agent_probes_paused || report.status == Status::Paused {
        return Duty::Paused;
    }
    // One that came to nothing leaves the machine here.
    match &facts.migration {
        Some(migration) if !migration.failed => Duty::MayAnswer,
        _ => Duty::Answer,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use podvirt_proto::cmd::v1::cmd_server::Cmd as _;
    use podvirt_proto::cmd::v1::{ExecRequest, GuestPingRequest, Vmi, VmiRequest};
    use podvirt_proto::migration::Migration;
    use serde_json::json;
    use tokio::sync::mpsc;
    use tokio::time::{Instant, sleep};
    use tonic::Request;

    use super::super::orders::Server;
    use super::super::shared::Identity;
    use super::*;

    /// Failures in a row after which the kubelet kills the container, and the pause between two probes.
    const FAILURE_THRESHOLD: u32 = 3;
    const PROBE_PERIOD: Duration = Duration::from_secs(10);

    /// A machine whose agent does not answer.
    fn server() -> Server {
        Server(Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0)))
    }

    /// Whether the container lives for so long, probed as by the kubelet.
    async fn survives(server: &Server, time: Duration) -> bool {
        let (end, mut failures) = (Instant::now() + time, 0);
        while Instant::now() < end && failures < FAILURE_THRESHOLD {
            let request = GuestPingRequest { domain_name: String::new(), timeout_seconds: 1 };
            let answer = server.guest_ping(Request::new(request)).await.unwrap().into_inner();
            failures = if answer.response.unwrap().success { 0 } else { failures + 1 };
            sleep(PROBE_PERIOD).await;
        }
        failures < FAILURE_THRESHOLD
    }

    #[tokio::test(start_paused = true)]
    async fn a_migration_outlasts_the_patience_of_a_probe_at_both_ends() {
        let hour = Duration::from_secs(3600);
        let source = server();
        assert!(!survives(&source, hour).await, "the agent of a guest that runs here has to answer");
        source.0.facts.send_modify(|facts| facts.migration = Some(Migration::default()));
        assert!(survives(&source, hour).await);
        let failed = Migration { completed: true, failed: true, ..Migration::default() };
        source.0.facts.send_modify(|facts| facts.migration = Some(failed));
        assert!(!survives(&source, hour).await, "the guest is here and does not answer");

        let target = server();
        target.0.facts.send_modify(|facts| facts.awaited = true);
        assert!(survives(&target, hour).await);
        let exec = ExecRequest { command: "/bin/true".into(), timeout_seconds: 1, ..ExecRequest::default() };
        let executed = target.exec(Request::new(exec.clone())).await.unwrap().into_inner();
        assert!(executed.response.unwrap().success && executed.exit_code == 0);
        target.0.facts.send_modify(|facts| facts.started_at = Some(Duration::ZERO));
        assert!(!survives(&target, hour).await, "it has come");
        let executed = target.exec(Request::new(exec)).await.unwrap().into_inner();
        assert!(!executed.response.unwrap().success);
    }

    #[tokio::test(start_paused = true)]
    async fn probes_that_the_user_paused_succeed_until_the_annotation_is_gone() {
        let hour = Duration::from_secs(3600);
        let server = server();
        // No task starts machines here: the order is given up.
        let sync = async |paused: &str| {
            let vmi = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": {"name": "web", "namespace": "shop", "annotations": {PAUSE_AGENT_PROBES: paused}},
                "spec": {"domain": {"devices": {}, "memory": {"guest": "64Mi"}}}});
            let vmi = Vmi { vmi_json: vmi.to_string().into_bytes() };
            let request = VmiRequest { vmi: Some(vmi), options: None };
            let _refused = tokio::time::timeout(PROBE_PERIOD, server.sync(&request)).await;
        };
        sync("true").await;
        assert!(survives(&server, hour).await);
        let exec = ExecRequest { command: "/bin/true".into(), timeout_seconds: 1, ..ExecRequest::default() };
        let executed = server.exec(Request::new(exec)).await.unwrap().into_inner();
        assert!(!executed.response.unwrap().success, "a program is run all the same");
        sync("false").await;
        assert!(!survives(&server, hour).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_machine_is_alive() {
        let server = server();
        server.0.report.send_modify(|report| report.status = Status::Paused);
        assert!(survives(&server, Duration::from_secs(3600)).await);
        server.0.report.send_modify(|report| report.status = Status::Running);
        assert!(!survives(&server, Duration::from_secs(3600)).await);
    }
}
