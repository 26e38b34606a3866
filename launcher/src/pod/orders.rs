//! What the handler's orders come to: each is checked to be about this launcher's machine, then carried out.

use std::sync::Arc;
use std::time::Duration;

use podvirt_api::error::chain;
use podvirt_api::names::path;
use podvirt_api::vmi::InterfaceState;
use podvirt_api::{VirtualMachineInstance, defaults, validate};
use podvirt_proto::cmd as versions;
use podvirt_proto::cmd::v1 as cmd;
use serde::Deserialize;
use serde_json::Value;
use tonic::{Response, Status};
use tracing::info;

use super::agent::{ANSWER, AgentError};
use super::refused::{OrderError, read};
use super::shared::{ManifestInterface, Shared, Wanted};
use super::{growth, kept, migration, nics, volumes};
use crate::domain::alias_of;
use crate::hypervisor::{Hypervisor, HypervisorError};
use crate::life::runner::Wish;

/// The command interface of this launcher.
#[derive(Clone)]
pub(super) struct Server(pub(super) Arc<Shared>);

/// What a method answers.
pub(super) type Answer<T> = Result<Response<T>, Status>;

/// How an order went, as cmd.v1 says it.
pub(super) fn outcome<E: std::error::Error>(result: Result<(), E>) -> cmd::Response {
    match result {
        Ok(()) => done(),
        Err(error) => cmd::Response { success: false, message: chain(&error) },
    }
}

/// That an order went well.
pub(super) fn done() -> cmd::Response {
    cmd::Response { success: true, message: String::new() }
}

/// The part of a VMI by which it is known.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    uid: String,
    deletion_timestamp: Option<String>,
}

impl Server {
    /// Refuses a request about another VMI.
    pub(super) fn mine(&self, vmi: Option<&cmd::Vmi>) -> Result<(), OrderError> {
        self.named(vmi).map(drop)
    }

    /// What a request says of its VMI, which is this launcher's.
    fn named(&self, vmi: Option<&cmd::Vmi>) -> Result<Metadata, OrderError> {
        let Some(vmi) = vmi.filter(|vmi| !vmi.vmi_json.is_empty()) else { return Ok(Metadata::default()) };
        let Named { metadata } = read("vmi", &vmi.vmi_json)?;
        let ours = &self.0.identity.uid;
        if metadata.uid != *ours {
            return Err(OrderError::OtherMachine { theirs: metadata.uid, ours: ours.clone() });
        }
        Ok(metadata)
    }

    /// Carries out an order at the hypervisor.
    pub(super) async fn order(
        &self,
        vmi: Option<&cmd::Vmi>,
        call: impl FnOnce(&dyn Hypervisor) -> Result<(), HypervisorError> + Send + 'static,
    ) -> Answer<cmd::Response> {
        let ordered = async {
            self.mine(vmi)?;
            Ok::<_, OrderError>(self.0.call(call).await?)
        };
        Ok(Response::new(outcome(ordered.await)))
    }

    /// Wishes something of the machine's life.
    pub(super) fn wish(&self, vmi: Option<&cmd::Vmi>, wish: Wish) -> Answer<cmd::Response> {
        let result = self.named(vmi).map(|named| {
            info!(?wish, "the handler wishes");
            let deleted = named.deletion_timestamp.is_some();
            // Before the wish: the machine may be gone in a moment, and its end is told by this.
            self.0.facts.send_if_modified(|facts| deleted && !std::mem::replace(&mut facts.deleted, true));
            self.0.wish_for(wish);
        });
        Ok(Response::new(outcome(result)))
    }

    /// The VMI of a request, with its defaults and found valid; the machine is not being ended.
    fn wanted(&self, request: &cmd::VmiRequest, incoming: bool) -> Result<Wanted, OrderError> {
        let vmi = request.vmi.as_ref();
        self.mine(vmi)?;
        let json = vmi.map(|vmi| vmi.vmi_json.as_slice()).unwrap_or_default();
        let mut vmi = VirtualMachineInstance::from_value(read("vmi", json)?)?;
        defaults::set_defaults(&mut vmi);
        validate::validate(&vmi).into_result()?;
        if let Some(ended) = &self.0.facts.borrow().ended {
            return Err(OrderError::Ended(ended.message.clone()));
        }
        if *self.0.wish.borrow() > Wish::Leave {
            return Err(OrderError::Ending);
        }
        // A virt-handler of an earlier release says nothing of it.
        let options = request.options.as_ref();
        let balloon_period =
            options.map_or(versions::BALLOON_PERIOD, |options| options.mem_balloon_stats_period);
        let smbios = options.and_then(|options| options.virtual_machine_sm_bios.clone());
        let smbios = smbios.unwrap_or_else(versions::default_smbios);
        Ok(Wanted { vmi: Box::new(vmi), json: json.to_vec(), incoming, balloon_period, smbios })
    }

    /// Starts the machine that is wanted, or changes the running one into it.
    pub(super) async fn sync(&self, request: &cmd::VmiRequest) -> Result<(), OrderError> {
        let wanted = self.wanted(request, false)?;
        self.0.follow_probes(&wanted.vmi);
        let (runs, awaited) = {
            let facts = self.0.facts.borrow();
            (facts.started_at.is_some(), facts.awaited)
        };
        if runs {
            return self.change(&wanted).await;
        }
        if awaited {
            return Err(OrderError::Awaited);
        }
        self.attempt(wanted).await
    }

    /// Changes the running machine into the one that is wanted, as far as that goes: its interfaces and disks come and go, the
    /// interfaces' cables are plugged and pulled, and its disks grow with their claims.
    async fn change(&self, wanted: &Wanted) -> Result<(), OrderError> {
        let vmi = &wanted.vmi;
        let _one_at_a_time = self.0.changing.lock().await;
        nics::change(&self.0, vmi).await?;
        let changes = links(&self.0.facts.borrow().interfaces, vmi);
        for (name, up) in changes {
            info!(interface = name, up, "the link changes");
            let alias = alias_of(&name);
            let changed = self.0.call(move |hypervisor| hypervisor.set_link(&alias, up)).await;
            changed.map_err(|source| OrderError::Link { interface: name.clone(), source })?;
            self.0.facts.send_modify(|facts| {
                facts.interfaces.iter_mut().filter(|i| i.name == name).for_each(|i| i.up = up);
            });
        }
        volumes::change(&self.0, vmi, &wanted.json).await?;
        Ok(growth::follow(&self.0, &wanted.json).await?)
    }

    /// Makes ready for the machine to come from another node.
    pub(super) async fn receive(&self, request: &cmd::VmiRequest) -> Result<(), OrderError> {
        let wanted = self.wanted(request, true)?;
        self.0.follow_probes(&wanted.vmi);
        {
            let facts = self.0.facts.borrow();
            match (facts.awaited, facts.started_at) {
                (true, Some(_)) => return Ok(()),
                (true, None) if self.0.has_machine() => return Ok(()),
                (false, Some(_)) => return Err(OrderError::StartedHere),
                (_, None) => {}
            }
        }
        migration::admit(&wanted.json)?;
        volumes::awaited(&self.0, &wanted.vmi, &wanted.json).await?;
        self.attempt(wanted).await
    }

    /// Has one attempt made to start the machine, and says how it went.
    async fn attempt(&self, wanted: Wanted) -> Result<(), OrderError> {
        let mut attempts = self.0.attempts.subscribe();
        // A full queue holds one like this: the answer is the same.
        let _ = self.0.sync.try_send(wanted);
        attempts.changed().await.map_err(|_| OrderError::LauncherEnds)?;
        let attempt = attempts.borrow();
        attempt.clone().map_err(OrderError::NotStarted)
    }

    /// Asks the guest's agent.
    pub(super) async fn agent(&self, command: &str, timeout: Duration) -> Result<Value, AgentError> {
        self.0.agent_command(command, Value::Null, timeout).await
    }

    /// Has the guest's file systems frozen, and what is kept of firmware and TPM written out.
    pub(super) async fn freeze(&self, request: &cmd::FreezeRequest) -> Result<(), OrderError> {
        self.mine(request.vmi.as_ref())?;
        let seconds = u64::try_from(request.unfreeze_timeout_seconds).ok().filter(|seconds| *seconds > 0);
        self.0.freezes.freeze(Arc::clone(&self.0), seconds.map(Duration::from_secs)).await?;
        kept::write_out(&[path::NVRAM, path::SWTPM]).await;
        Ok(())
    }

    /// What the agent answers to a question, as JSON in `words`.
    pub(super) async fn question<T: serde::Serialize>(
        &self,
        command: &str,
        words: impl FnOnce(&Value) -> T,
    ) -> (cmd::Response, String) {
        let json = async {
            let told = self.agent(command, ANSWER).await?;
            serde_json::to_string(&words(&told)).map_err(OrderError::Answer)
        };
        match json.await {
            Ok(json) => (done(), json),
            Err(error) => (outcome(Err(error)), String::new()),
        }
    }
}

/// Interfaces whose link is to be another one than it is: name, and whether it is to be up.
fn links(present: &[ManifestInterface], vmi: &VirtualMachineInstance) -> Vec<(String, bool)> {
    let wanted = |name: &str| {
        let found = vmi.spec.domain.devices.interfaces.iter().find(|interface| interface.name == name)?;
        Some(found.state != Some(InterfaceState::Down))
    };
    present
        .iter()
        .filter(|interface| !interface.unplugged)
        .filter_map(|interface| {
            let up = wanted(&interface.name).filter(|up| *up != interface.up)?;
            Some((interface.name.clone(), up))
        })
        .collect()
}
