//! What the handler's orders come to: each is checked to be about this launcher's machine, then carried out.

use std::sync::Arc;
use std::time::Duration;

use podvirt_api::error::chain;
use podvirt_api::names::path;
use podvirt_api::vmi::InterfaceState;
use podvirt_api::{ParseError, VirtualMachineInstance, defaults, validate};
use podvirt_proto::cmd as versions;
use podvirt_proto::cmd::v1 as cmd;
use serde::Deserialize;
use serde_json::Value;
use tonic::{Response, Status};
use tracing::info;

use super::agent::ANSWER;
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
pub(super) fn outcome<E: std::fmt::Display>(result: Result<(), E>) -> cmd::Response {
    match result {
        Ok(()) => cmd::Response { success: true, message: String::new() },
        Err(error) => cmd::Response { success: false, message: error.to_string() },
    }
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
    pub(super) fn mine(&self, vmi: Option<&cmd::Vmi>) -> Result<(), String> {
        self.named(vmi).map(drop)
    }

    /// What a request says of its VMI, which is this launcher's.
    fn named(&self, vmi: Option<&cmd::Vmi>) -> Result<Metadata, String> {
        let Some(vmi) = vmi.filter(|vmi| !vmi.vmi_json.is_empty()) else { return Ok(Metadata::default()) };
        let named: Named = serde_json::from_slice(&vmi.vmi_json).map_err(|e| format!("vmi: {e}"))?;
        let (theirs, ours) = (&named.metadata.uid, &self.0.identity.uid);
        if theirs != ours {
            return Err(format!(
                "metadata.uid: '{theirs}' is another machine; this launcher is for '{ours}'"
            ));
        }
        Ok(named.metadata)
    }

    /// Carries out an order at the hypervisor.
    pub(super) async fn order(
        &self,
        vmi: Option<&cmd::Vmi>,
        call: impl FnOnce(&dyn Hypervisor) -> Result<(), HypervisorError> + Send + 'static,
    ) -> Answer<cmd::Response> {
        let result = match self.mine(vmi) {
            Ok(()) => self.0.call(call).await.map_err(|e| e.to_string()),
            Err(error) => Err(error),
        };
        Ok(Response::new(outcome(result)))
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
    fn wanted(&self, request: &cmd::VmiRequest, incoming: bool) -> Result<Wanted, String> {
        let vmi = request.vmi.as_ref();
        self.mine(vmi)?;
        let json = vmi.map(|vmi| vmi.vmi_json.as_slice()).unwrap_or_default();
        let value: Value = serde_json::from_slice(json).map_err(|e| format!("vmi: {e}"))?;
        let mut vmi = VirtualMachineInstance::from_value(value).map_err(|error| match error {
            ParseError::Invalid(problems) => problems.to_string(),
            error => error.to_string(),
        })?;
        defaults::set_defaults(&mut vmi);
        validate::validate(&vmi).into_result().map_err(|problems| problems.to_string())?;
        if let Some(ended) = &self.0.facts.borrow().ended {
            return Err(format!("the machine has ended: {}", ended.message));
        }
        if *self.0.wish.borrow() > Wish::Leave {
            return Err("the machine is being ended".into());
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
    pub(super) async fn sync(&self, request: &cmd::VmiRequest) -> Result<(), String> {
        let wanted = self.wanted(request, false)?;
        let (runs, awaited) = {
            let facts = self.0.facts.borrow();
            (facts.started_at.is_some(), facts.awaited)
        };
        if runs {
            return self.change(&wanted).await;
        }
        if awaited {
            return Err("the machine is to come from another node; it is not started here".into());
        }
        self.attempt(wanted).await
    }

    /// Changes the running machine into the one that is wanted, as far as that goes: its interfaces and disks come and go, the
    /// interfaces' cables are plugged and pulled, and its disks grow with their claims.
    async fn change(&self, wanted: &Wanted) -> Result<(), String> {
        let vmi = &wanted.vmi;
        let _one_at_a_time = self.0.changing.lock().await;
        nics::change(&self.0, vmi).await.map_err(|error| chain(&error))?;
        let changes = links(&self.0.facts.borrow().interfaces, vmi);
        for (name, up) in changes {
            info!(interface = name, up, "the link changes");
            let alias = alias_of(&name);
            let changed = self.0.call(move |hypervisor| hypervisor.set_link(&alias, up)).await;
            changed.map_err(|error| format!("interface {name}: {error}"))?;
            self.0.facts.send_modify(|facts| {
                facts.interfaces.iter_mut().filter(|i| i.name == name).for_each(|i| i.up = up);
            });
        }
        volumes::change(&self.0, vmi, &wanted.json).await.map_err(|error| chain(&error))?;
        growth::follow(&self.0, &wanted.json).await.map_err(|error| chain(&error))
    }

    /// Makes ready for the machine to come from another node.
    pub(super) async fn receive(&self, request: &cmd::VmiRequest) -> Result<(), String> {
        let wanted = self.wanted(request, true)?;
        {
            let facts = self.0.facts.borrow();
            match (facts.awaited, facts.started_at) {
                (true, Some(_)) => return Ok(()),
                (true, None) if self.0.has_machine() => return Ok(()),
                (false, Some(_)) => return Err("a machine runs here that was started here".into()),
                (_, None) => {}
            }
        }
        migration::admit(&wanted.json).map_err(|error| chain(&error))?;
        let awaited = volumes::awaited(&self.0, &wanted.vmi, &wanted.json).await;
        awaited.map_err(|error| chain(&error))?;
        self.attempt(wanted).await
    }

    /// Has one attempt made to start the machine, and says how it went.
    async fn attempt(&self, wanted: Wanted) -> Result<(), String> {
        let mut attempts = self.0.attempts.subscribe();
        // A full queue holds one like this: the answer is the same.
        let _ = self.0.sync.try_send(wanted);
        attempts.changed().await.map_err(|_| "the launcher is ending".to_owned())?;
        let attempt = attempts.borrow();
        attempt.clone()
    }

    /// Asks the guest's agent.
    pub(super) async fn agent(&self, command: &str, timeout: Duration) -> Result<Value, String> {
        self.0.agent_command(command, Value::Null, timeout).await.map_err(|e| e.to_string())
    }

    /// Has the guest's file systems frozen, and what is kept of firmware and TPM written out.
    pub(super) async fn freeze(&self, request: &cmd::FreezeRequest) -> Result<(), String> {
        self.mine(request.vmi.as_ref())?;
        let seconds = u64::try_from(request.unfreeze_timeout_seconds).ok().filter(|seconds| *seconds > 0);
        let frozen = self.0.freezes.freeze(Arc::clone(&self.0), seconds.map(Duration::from_secs)).await;
        frozen.map_err(|error| chain(&error))?;
        kept::write_out(&[path::NVRAM, path::SWTPM]).await;
        Ok(())
    }

    /// What the agent answers to a question, as JSON in `to_json`'s words.
    pub(super) async fn question<T: serde::Serialize>(
        &self,
        command: &str,
        read: impl FnOnce(&Value) -> T,
    ) -> (cmd::Response, String) {
        let json = match self.agent(command, ANSWER).await {
            Ok(told) => serde_json::to_string(&read(&told)).map_err(|e| e.to_string()),
            Err(error) => Err(error),
        };
        match json {
            Ok(json) => (outcome(Ok::<_, String>(())), json),
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
