//! What is held for one VMI, and how its launcher is looked at.

use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use podvirt_api::error::chain;
use podvirt_api::names::{path, pod};
use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstancePhase as Phase};
use podvirt_proto::domain::Domain;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::migrate::Moving;
use super::{Node, pods, volumes};
use crate::launcher::client::{Client, Error};
use crate::launcher::notify::{self, Inbox, Listening};
use crate::launcher::report::{MAX_SENTENCE_BYTES, Newest, cut};
use crate::launcher::watch::Watch;
use crate::migration;
use crate::podnet;
use crate::ports::{Namespace, Steering};
use crate::process::Process;
use crate::record::Record;
use crate::vm::{Exit, Launcher, Memory, wanted_dump};

/// A task that ends with what it belongs to.
#[derive(Debug)]
pub(super) struct Task(AbortHandle);

impl Task {
    pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where a launcher is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    /// In a pod that is the machine's, see [`Machine::pod_uid`].
    Pod,
    /// In a pod that the VMI lists here and that does not exist any more.
    Gone,
    /// In none that the VMI lists here.
    Nowhere,
}

/// The launcher is at its VMI.
#[derive(Debug)]
struct Sync {
    hash: u64,
    answer: oneshot::Receiver<Result<(), Error>>,
    // Aborted when the caller waits for the answer no longer.
    _task: Task,
}

/// The machine of one VMI, as this process knows it.
#[derive(Debug, Default)]
pub struct Machine {
    /// What survives this process.
    pub(super) record: Option<Record>,
    /// What the launcher told last.
    pub(super) newest: Newest,
    /// How the launcher ended.
    pub(super) exit: Exit,
    /// What earlier passes did.
    pub(super) memory: Memory,
    pod_uid: String,
    listening: Option<Listening>,
    watching: Option<Task>,
    link: Option<(Client, Task)>,
    steering: Vec<Steering>,
    sync: Option<Sync>,
    /// What this process has of a migration.
    pub(super) moving: Moving,
    absent_since: Option<Timestamp>,
    gone_since: Option<Timestamp>,
    silent_since: Option<Timestamp>,
    /// See [`View::missing_since`](crate::vm::View::missing_since).
    pub(super) missing_since: Option<Timestamp>,
    /// See [`View::ended_since`](crate::vm::View::ended_since).
    pub(super) ended_since: Option<Timestamp>,
    /// When the status was last written.
    pub(super) written: Option<Timestamp>,
}

impl Machine {
    /// The machine that an earlier process has met.
    pub fn of(record: Record) -> Self {
        let machine = Self { pod_uid: record.pod_uid(), ..Self::default() };
        if let Some(end) = record.end() {
            machine.newest.take(end);
        }
        Self { record: Some(record), ..machine }
    }

    /// Finds the launcher's pod of `vmi` on this node. One that is not known yet must be the machine's by its pod's own
    /// object: the VMI names pods by UIDs, and a client that can write the VMI could name another machine's.
    ///
    /// # Errors
    ///
    /// The API server does not tell, or the pod is another one's.
    pub(super) async fn find_pod(
        &mut self,
        node: &Node,
        vmi: &VirtualMachineInstance,
    ) -> anyhow::Result<Place> {
        let is_here = |uid: &str| vmi.status.active_pods.get(uid).is_some_and(|on| *on == node.name);
        let any_here = vmi.status.active_pods.values().any(|on| *on == node.name);
        // One that has come by a migration is listed some time later.
        if !self.pod_uid.is_empty() && (is_here(&self.pod_uid) || !any_here) {
            return Ok(Place::Pod);
        }
        if !any_here {
            return Ok(Place::Nowhere);
        }
        let Some(pod) = pods::get(node, vmi, &pods::name_of(vmi)).await? else {
            self.take_pod(String::new());
            return Ok(Place::Gone);
        };
        pods::check(&pod, vmi, &node.name)?;
        let Some(uid) = pod.metadata.uid.filter(|uid| is_here(uid)) else { return Ok(Place::Nowhere) };
        self.take_pod(uid);
        Ok(Place::Pod)
    }

    /// The launcher is that of this pod.
    pub(super) fn take_pod(&mut self, pod_uid: String) {
        if self.pod_uid != pod_uid {
            *self = Self { pod_uid, ..Self::default() };
        }
    }

    /// UID of the launcher's pod; empty while it is not known.
    pub(super) fn pod_uid(&self) -> &str {
        &self.pod_uid
    }

    /// Whether the launcher was reached before, by this process or by an earlier one.
    pub(super) fn met(&self) -> bool {
        self.record.is_some()
    }

    /// Namespace and name of its VMI, as its record has them.
    pub(super) fn name(&self) -> Option<(String, String)> {
        self.record.as_ref().map(Record::name)
    }

    /// The launcher, if it was reached by the last [`Machine::look`].
    pub(super) fn client(&self) -> Option<&Client> {
        self.link.as_ref().map(|(client, _)| client)
    }

    /// Looks at the launcher and takes its report.
    ///
    /// # Errors
    ///
    /// Something that says nothing about the launcher; the next pass may have more luck.
    pub(super) async fn look(
        &mut self,
        node: &Node,
        vmi: &VirtualMachineInstance,
        now: Timestamp,
    ) -> Result<(Launcher, Option<Domain>), Error> {
        let uid = vmi.metadata.uid.clone().unwrap_or_default();
        if self.pod_uid.is_empty() {
            return Ok(match self.expected(vmi, &node.name) {
                true => (Launcher::Gone(*self.gone_since.get_or_insert(now)), self.end()),
                false => (Launcher::Absent(*self.absent_since.get_or_insert(now)), None),
            });
        }
        self.listen(node, vmi, &uid);
        if self.silent_since.is_some() {
            // What does not answer may be the connection alone.
            self.link = None;
        }
        // A connection that broke is made anew once: whether the launcher listens tells which end broke it.
        for _ in 0..2 {
            let client = match self.reach(node, vmi, &uid).await {
                Ok(client) => client,
                Err(Error::Socket(error))
                    if error.kind() == io::ErrorKind::NotFound && !self.expected(vmi, &node.name) =>
                {
                    self.watch(node, &uid);
                    return Ok((Launcher::Absent(*self.absent_since.get_or_insert(now)), None));
                }
                Err(Error::Socket(error))
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
                {
                    return Ok((Launcher::Gone(*self.gone_since.get_or_insert(now)), self.end()));
                }
                // Its backlog is full: it listens and does not come to it.
                Err(Error::Socket(error)) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            match client.domain(&uid).await {
                Ok(domain) => {
                    self.silent_since = None;
                    match domain {
                        Some(domain) => drop(self.newest.take(domain)),
                        None if self.end().is_none() => self.newest.clear(),
                        None => {}
                    }
                    let domain = self.newest.get();
                    let told = domain.as_ref().map(|domain| domain.status);
                    if told.is_some_and(|status| status.is_active() || status.is_final()) {
                        self.missing_since = None;
                    } else {
                        self.missing_since.get_or_insert(now);
                    }
                    return Ok((Launcher::Ready, domain));
                }
                Err(Error::Silent(_)) => {
                    let since = *self.silent_since.get_or_insert(now);
                    return Ok((Launcher::Silent(since), self.newest.get()));
                }
                Err(error) if error.is_broken() => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "connecting to the launcher again"
                    );
                    self.link = None;
                }
                Err(error) => return Err(error),
            }
        }
        // A process listens and takes no connection, or breaks every one: as good as silent.
        Ok((Launcher::Silent(*self.silent_since.get_or_insert(now)), self.newest.get()))
    }

    /// Gives the launcher the VMI; the answer comes by [`Machine::synced`], and triggers a pass.
    pub(super) fn sync(&mut self, node: &Node, vmi: &Arc<VirtualMachineInstance>, client: Client, hash: u64) {
        let (tell, answer) = oneshot::channel();
        let (triggers, vmi) = (node.triggers.clone(), Arc::clone(vmi));
        let (network, options) = (Arc::clone(&node.means.network), node.options.clone());
        let held = self.newest.get().map(|domain| domain.volumes).unwrap_or_default();
        let (node, pod_uid) = (node.clone(), self.pod_uid.clone());
        let task = Task::spawn(async move {
            let runs = vmi.status.phase == Some(Phase::Running);
            let given = async {
                let wanted = if runs { podnet::attached(&vmi) } else { podnet::wanted(&vmi) };
                network.make(&client.process, wanted).await?;
                let mut delivered = volumes::deliver(&node, &vmi, &pod_uid, &held).await;
                if !runs {
                    // A machine starts with all of its disks.
                    std::mem::replace(&mut delivered, Ok(()))?;
                }
                // A disk that does not come keeps nothing else of a running machine from being changed.
                client.sync(&vmi, options.get().await).await?;
                // The guest has let go of all of these.
                network.clear(&client.process, podnet::unplugged(&vmi)).await?;
                delivered?;
                if let Some(file) = wanted_dump(&vmi).filter(|_| runs) {
                    client.memory_dump(&vmi, file).await?;
                }
                Ok(())
            };
            // The caller waits no longer, or this process is ending.
            let _unheard = tell.send(given.await);
            let _ending = triggers.send(vmi.metadata.uid.clone().unwrap_or_default()).await;
        });
        self.memory.syncing = true;
        self.sync = Some(Sync { hash, answer, _task: task });
    }

    /// The launcher's answer to [`Machine::sync`], once, with what it was given: `Ok(true)` for the first VMI.
    pub(super) fn synced(&mut self, now: Timestamp) -> Option<Result<bool, Error>> {
        let sync = self.sync.as_mut()?;
        let hash = sync.hash;
        let answer = match sync.answer.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => return None,
            Err(oneshot::error::TryRecvError::Closed) => Err(Error::Broken("the call was given up".into())),
            Ok(answer) => answer,
        };
        self.sync = None;
        let memory = &mut self.memory;
        memory.syncing = false;
        Some(match answer {
            Ok(()) => {
                memory.sync_error.clear();
                memory.sync_failures = None;
                Ok(memory.synced.replace(hash).is_none())
            }
            Err(error) => {
                // A connection that broke is no word of the launcher's: what broke it is seen elsewhere.
                memory.sync_error = if error.is_broken() { String::new() } else { chain(&error) };
                cut(&mut memory.sync_error, MAX_SENTENCE_BYTES);
                let failures = memory.sync_failures.map_or(0, |(failures, _)| failures).saturating_add(1);
                memory.sync_failures = Some((failures, now));
                Err(error)
            }
        })
    }

    /// Lets go of everything that a living launcher needs. The record stays.
    pub(super) fn release(&mut self) {
        self.listening = None;
        self.watching = None;
        self.link = None;
        self.sync = None;
        self.memory.syncing = false;
        self.steering.clear();
        self.moving = Moving::default();
    }

    /// The report of the machine's end, which stays true when its launcher is gone.
    fn end(&self) -> Option<Domain> {
        self.newest.get().filter(|domain| domain.status.is_final())
    }

    /// Whether a missing socket means a launcher that went, rather than one to come.
    fn expected(&self, vmi: &VirtualMachineInstance, on: &str) -> bool {
        let comes = migration::is_awaited(vmi, on);
        self.met() || (vmi.status.phase == Some(Phase::Running) && !comes)
    }

    async fn reach(&mut self, node: &Node, vmi: &VirtualMachineInstance, uid: &str) -> Result<Client, Error> {
        if let Some((client, _)) = &self.link {
            return Ok(client.clone());
        }
        let (client, ended) = Client::connect(&node.volumes, &self.pod_uid).await?;
        if self.record.is_none() {
            let record = self.make_record(node, vmi, uid);
            record.save()?;
            self.record = Some(record);
        }
        tracing::info!(pid = client.process.pid(), pod_uid = self.pod_uid, "launcher found");
        let (triggers, uid) = (node.triggers.clone(), uid.to_owned());
        let lifeline = Task::spawn(async move {
            ended.await;
            // A closed channel: this process is ending.
            let _ending = triggers.send(uid).await;
        });
        self.watching = None;
        (self.absent_since, self.gone_since) = (None, None);
        self.link = Some((client.clone(), lifeline));
        self.steer(node, vmi, &client.process);
        Ok(client)
    }

    fn make_record(&self, node: &Node, vmi: &VirtualMachineInstance, uid: &str) -> Record {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let (namespace, name) = (text(&vmi.metadata.namespace), text(&vmi.metadata.name));
        node.records.make(&namespace, &name, uid, &self.pod_uid)
    }

    /// Listens for what the launcher tells, as soon as its pod's volume is there.
    fn listen(&mut self, node: &Node, vmi: &VirtualMachineInstance, uid: &str) {
        if self.listening.is_some() {
            return;
        }
        let record = self.record.clone().unwrap_or_else(|| self.make_record(node, vmi, uid));
        let inbox = Inbox {
            vmi_uid: uid.to_owned(),
            newest: self.newest.clone(),
            record,
            triggers: node.triggers.clone(),
            events: node.told.clone(),
        };
        match notify::listen(&node.volumes, &self.pod_uid, inbox) {
            Ok(listening) => self.listening = Some(listening),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Passes ask instead; the launcher tries again until this handler listens.
            Err(error) => tracing::warn!(%error, "the launcher cannot tell its events"),
        }
    }

    /// Triggers a pass when something appears among the launcher's sockets.
    fn watch(&mut self, node: &Node, uid: &str) {
        if self.watching.as_ref().is_some_and(|task| !task.0.is_finished()) {
            return;
        }
        let directory = node.volumes.path(&self.pod_uid, pod::volume::SOCKETS);
        // A directory that is not there yet is looked for by the next pass.
        let Ok(watch) = Watch::on(&directory) else { return };
        let (triggers, uid) = (node.triggers.clone(), uid.to_owned());
        self.watching = Some(Task::spawn(async move {
            // Once more at once: it may have appeared while the watch was made.
            while triggers.send(uid.clone()).await.is_ok() && watch.changed().await.is_ok() {}
        }));
    }

    /// Steers every port of the pod to netd where the VMI lists none.
    fn steer(&mut self, node: &Node, vmi: &VirtualMachineInstance, launcher: &Process) {
        if !self.steering.is_empty() {
            return;
        }
        for index in all_ports(vmi) {
            let directory = node.volumes.path(&self.pod_uid, pod::volume::NETD);
            let socket = path::netd_ports(index);
            let Some(name) = socket.file_name() else { continue };
            let started = Namespace::of(launcher)
                .map_err(io::Error::other)
                .and_then(|namespace| Steering::start(namespace, directory.join(name)));
            match started {
                Ok(steering) => self.steering.push(steering),
                // netd falls back to listeners.
                Err(error) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    index,
                    "the pod's ports are not steered"
                ),
            }
        }
    }
}

/// Indices of the interfaces whose every port is the guest's.
fn all_ports(vmi: &VirtualMachineInstance) -> Vec<usize> {
    let interfaces = vmi.spec.domain.devices.interfaces.iter().enumerate();
    interfaces.filter(|(_, i)| vmi.by_netd(i) && i.ports.is_empty()).map(|(index, _)| index).collect()
}

/// A VMI that says no more than which one it is, for a launcher whose VMI is gone.
pub(super) fn vmi_of_record(record: &Record) -> Arc<VirtualMachineInstance> {
    let (namespace, name) = record.name();
    let mut vmi = VirtualMachineInstance::default();
    vmi.metadata.namespace = Some(namespace);
    vmi.metadata.name = Some(name);
    vmi.metadata.uid = Some(record.uid());
    Arc::new(vmi)
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
