//! All migrations by their machines, and those that wait by their turns.
//!
//! Every reconciliation of a migration that waits asks whether it is its turn, again and again, and hundreds may wait.
//! So nothing in here looks through all of them: what a question or a change costs depends on the migrations of one
//! machine and on the limits, not on how many wait.
//!
//! ```text
//!  watch of migrations ──┐            ┌─ Over      new, ended, deleted before its turn, or its machine does not run yet
//!  change of a machine ──┼─ settle ──>│            or a backup holds its machine
//!                        │            ├─ Resting   an evacuation after failed ones, until its time has come
//!  target pod asked for ─┘            ├─ Waiting   has its place among those that leave the same node
//!                                     └─ Running   counts against the limits
//! ```
//!
//! **Turns.** Places are in the order of urgency, then of age. A migration that waits may start when its node has more
//! room than migrations wait before it there, and the cluster has more room than migrations of all nodes may start
//! before it. One whose node is full holds up no other node's: of each node at most as many are looked at as it has
//! room for, and no more in all than the cluster has room for.
//!
//! A migration whose target pod the API server has refused, for a quota as a rule, may be refused for ever: its place is behind all
//! others, and it is tried again where they leave room.
//!
//! **Urgency.** What empties a node goes before what users ask for: an evacuation by its own word, and a user's
//! migration of a machine that an eviction has told to leave. Otherwise the user's migration would hold the
//! drain up from its place in the queue.
//!
//! What was let start counts from that moment on, also while the cache does not show it. After the watch broke, what the
//! new list lacks is gone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use podvirt_api::migration::is_final;
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationPhase as Phase, VirtualMachineInstancePhase as MachinePhase,
};

use super::admit::{Limits, Urgency};
use super::blocked;
use super::others::backoff;
use super::status::phase;
use crate::vmi::View;

/// Namespace and name of a machine.
type Machine = (String, String);
/// A place in the queue: the first in the order is the first to start. Whether its pod was refused comes first.
type Place = (bool, Reverse<Urgency>, Option<Timestamp>, String);

/// All migrations.
#[derive(Debug)]
pub(super) struct Queue {
    view: View,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By machine, then by UID.
    machines: HashMap<Machine, BTreeMap<String, Arc<Migration>>>,
    /// By UID.
    entries: HashMap<String, Entry>,
    nodes: HashMap<String, OfNode>,
    /// The first that waits of each node.
    heads: BTreeMap<Place, String>,
    /// Until when, and the UID.
    resting: BTreeSet<(Timestamp, String)>,
    running: usize,
    /// UIDs of those that were let start.
    started: HashSet<String>,
    /// UIDs of a list that is not complete yet.
    listed: HashSet<String>,
    /// Whether anything was settled since the machines are all known.
    settled: bool,
    /// Migrations and places that were looked at.
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
}

#[derive(Clone, Debug)]
struct Entry {
    machine: Machine,
    /// Node that it leaves.
    node: String,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq)]
enum Stage {
    Over,
    Resting(Timestamp),
    Waiting(Place),
    Running,
}

#[derive(Debug, Default)]
struct OfNode {
    running: usize,
    waiting: BTreeSet<Place>,
}

impl Queue {
    /// An empty one; `view` shows the machines.
    pub(super) fn new(view: View) -> Self {
        Self { view, state: Mutex::default() }
    }

    /// Takes a change in; returns UIDs of migrations that are gone.
    pub(super) fn apply(&self, event: &Event<Migration>, now: Timestamp) -> Vec<String> {
        let mut state = self.lock();
        let gone = match event {
            Event::Apply(migration) => {
                state.insert(migration, &self.view, now);
                return Vec::new();
            }
            Event::InitApply(migration) => {
                state.listed.insert(migration.uid().unwrap_or_default());
                state.insert(migration, &self.view, now);
                return Vec::new();
            }
            Event::Delete(migration) => vec![migration.uid().unwrap_or_default()],
            Event::Init => {
                state.listed.clear();
                return Vec::new();
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut state.listed);
                state.entries.keys().filter(|uid| !listed.contains(*uid)).cloned().collect()
            }
        };
        for uid in &gone {
            state.remove(uid, &self.view, now);
        }
        gone
    }

    /// The migrations of a machine that has changed; `None`: of all machines.
    pub(super) fn changed(&self, machine: Option<(&str, &str)>, now: Timestamp) -> Vec<Arc<Migration>> {
        let mut state = self.lock();
        let machines: Vec<Machine> = match machine {
            Some((namespace, name)) => vec![(namespace.to_owned(), name.to_owned())],
            None => state.machines.keys().cloned().collect(),
        };
        let mut found = Vec::new();
        for machine in machines {
            state.settle_all(&machine, &self.view, now);
            found.extend(state.of(&machine));
        }
        found
    }

    /// All migrations of the same machine, `migration` among them.
    pub(super) fn siblings(&self, migration: &Migration) -> Vec<Arc<Migration>> {
        self.lock().of(&machine_of(migration))
    }

    /// Whether the migration may start. To be asked once the view is complete.
    pub(super) fn is_turn(&self, uid: &str, limits: Limits, now: Timestamp) -> bool {
        if !std::mem::replace(&mut self.lock().settled, true) {
            // Where machines are was not known when these came.
            self.changed(None, now);
        }
        let mut state = self.lock();
        while let Some((_, rested)) = state.resting.first().filter(|(until, _)| *until <= now).cloned() {
            state.settle(&rested, &self.view, now);
        }
        state.settle(uid, &self.view, now);
        state.is_turn(uid, limits)
    }

    /// Notes that a migration was let start.
    pub(super) fn start(&self, uid: &str, now: Timestamp) {
        let mut state = self.lock();
        state.started.insert(uid.to_owned());
        state.settle(uid, &self.view, now);
    }

    /// Notes that a migration has ended, or did not start after all.
    pub(super) fn stop(&self, uid: &str, now: Timestamp) {
        let mut state = self.lock();
        state.started.remove(uid);
        state.settle(uid, &self.view, now);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn machine_of(migration: &Migration) -> Machine {
    (migration.namespace().unwrap_or_default(), migration.spec.vmi_name.clone().unwrap_or_default())
}

/// Whether an eviction has told the machine to leave the node that it is on. What a tainted node's machines are asked
/// for by users keeps the users' place.
fn is_leaving(machine: &VirtualMachineInstance) -> bool {
    let status = &machine.status;
    status.node_name.is_some() && status.evacuation_node_name == status.node_name
}

/// Whether the machine cannot move now: it does not run yet, or a backup holds it.
fn must_stay(machine: &VirtualMachineInstance) -> bool {
    machine.status.phase != Some(MachinePhase::Running) || blocked::why(machine).is_some()
}

impl State {
    fn insert(&mut self, migration: &Migration, view: &View, now: Timestamp) {
        let (uid, machine) = (migration.uid().unwrap_or_default(), machine_of(migration));
        if self.entries.get(&uid).is_some_and(|entry| entry.machine != machine) {
            self.remove(&uid, view, now);
        }
        self.machines.entry(machine.clone()).or_default().insert(uid.clone(), Arc::new(migration.clone()));
        let new = Entry { machine: machine.clone(), node: String::new(), stage: Stage::Over };
        self.entries.entry(uid.clone()).or_insert(new);
        if is_final(migration) {
            self.started.remove(&uid);
        }
        self.settle_all(&machine, view, now);
    }

    fn remove(&mut self, uid: &str, view: &View, now: Timestamp) {
        self.started.remove(uid);
        let Some(entry) = self.entries.remove(uid) else { return };
        self.take_out(uid, &entry);
        if let Some(others) = self.machines.get_mut(&entry.machine) {
            others.remove(uid);
            if others.is_empty() {
                self.machines.remove(&entry.machine);
            }
        }
        self.settle_all(&entry.machine, view, now);
    }

    fn of(&self, machine: &Machine) -> Vec<Arc<Migration>> {
        let found: Vec<_> =
            self.machines.get(machine).into_iter().flat_map(|m| m.values().cloned()).collect();
        self.look(found.len());
        found
    }

    /// Settles all migrations of a machine: how one of them ended says when the next may be tried.
    fn settle_all(&mut self, machine: &Machine, view: &View, now: Timestamp) {
        let siblings = self.of(machine);
        let machine = view.machine(&machine.0, &machine.1);
        for migration in &siblings {
            self.put(migration, &siblings, machine.as_deref(), now);
        }
    }

    /// Settles the migration with this UID and the others of its machine.
    fn settle(&mut self, uid: &str, view: &View, now: Timestamp) {
        if let Some(machine) = self.entries.get(uid).map(|entry| entry.machine.clone()) {
            self.settle_all(&machine, view, now);
        }
    }

    /// Puts a migration where it belongs by what is known now.
    fn put(
        &mut self,
        migration: &Migration,
        siblings: &[Arc<Migration>],
        machine: Option<&VirtualMachineInstance>,
        now: Timestamp,
    ) {
        let uid = migration.metadata.uid.as_deref().unwrap_or_default();
        let Some(old) = self.entries.get(uid).cloned() else { return };
        let state = migration.status.migration_state.as_ref();
        let node = match state.and_then(|state| state.source_node.clone()) {
            Some(source) => source,
            // Its machine may be on the other node already.
            None if old.stage == Stage::Running && !old.node.is_empty() => old.node.clone(),
            None => machine.and_then(|m| m.status.node_name.clone()).unwrap_or_default(),
        };
        let stage = match phase(migration) {
            _ if is_final(migration) => Stage::Over,
            _ if self.started.contains(uid) => Stage::Running,
            Phase::Pending if migration.metadata.deletion_timestamp.is_some() => Stage::Over,
            // This migration cannot start yet. With a place in the queue it would hold up migrations that can.
            Phase::Pending if machine.is_some_and(must_stay) => Stage::Over,
            Phase::Pending => match backoff(migration, siblings, now) {
                Some(left) => Stage::Resting(now + left),
                None => {
                    let leaving = machine.is_some_and(is_leaving);
                    let urgency = if leaving { Urgency::Critical } else { Urgency::of(migration) };
                    let since = migration.metadata.creation_timestamp.as_ref().map(|t| t.0);
                    Stage::Waiting((blocked::is_refused(migration), Reverse(urgency), since, uid.to_owned()))
                }
            },
            other if other.is_empty() => Stage::Over,
            _ => Stage::Running,
        };
        if (&node, &stage) == (&old.node, &old.stage) {
            return;
        }
        self.take_out(uid, &old);
        let new = Entry { node, stage, ..old };
        self.put_in(uid, &new);
        self.entries.insert(uid.to_owned(), new);
    }

    fn take_out(&mut self, uid: &str, entry: &Entry) {
        match &entry.stage {
            Stage::Over => {}
            Stage::Resting(until) => drop(self.resting.remove(&(*until, uid.to_owned()))),
            Stage::Waiting(place) => self.at_node(&entry.node, |node| {
                node.waiting.remove(place);
            }),
            Stage::Running => {
                self.running -= 1;
                self.at_node(&entry.node, |node| node.running -= 1);
            }
        }
    }

    fn put_in(&mut self, uid: &str, entry: &Entry) {
        match &entry.stage {
            Stage::Over => {}
            Stage::Resting(until) => drop(self.resting.insert((*until, uid.to_owned()))),
            Stage::Waiting(place) => self.at_node(&entry.node, |node| {
                node.waiting.insert(place.clone());
            }),
            Stage::Running => {
                self.running += 1;
                self.at_node(&entry.node, |node| node.running += 1);
            }
        }
    }

    /// Changes what is known of a node.
    fn at_node(&mut self, name: &str, change: impl FnOnce(&mut OfNode)) {
        let node = self.nodes.entry(name.to_owned()).or_default();
        let before = node.waiting.first().cloned();
        change(node);
        let after = node.waiting.first().cloned();
        if node.running == 0 && after.is_none() {
            self.nodes.remove(name);
        }
        if before != after {
            before.iter().for_each(|head| drop(self.heads.remove(head)));
            after.into_iter().for_each(|head| drop(self.heads.insert(head, name.to_owned())));
        }
    }

    fn is_turn(&self, uid: &str, limits: Limits) -> bool {
        let Some(Entry { node, stage, .. }) = self.entries.get(uid) else { return false };
        let place = match stage {
            Stage::Running => return true,
            Stage::Waiting(place) => place,
            Stage::Over | Stage::Resting(_) => return false,
        };
        // How many migrations of a node may start and stand before `place`.
        let before = |node: &OfNode, most: usize| {
            let room = limits.node.saturating_sub(node.running).min(most);
            let count = node.waiting.range(..place).take(room).count();
            self.look(count + 1);
            count
        };
        let Some(own) = self.nodes.get(node) else { return false };
        if before(own, usize::MAX) >= limits.node.saturating_sub(own.running) {
            return false;
        }
        let room = limits.cluster.saturating_sub(self.running);
        let mut ahead = 0;
        for name in self.heads.range(..place).map(|(_, name)| name) {
            if ahead >= room {
                break;
            }
            ahead += self.nodes.get(name).map_or(0, |node| before(node, room - ahead));
        }
        ahead < room
    }

    /// Counts what a test bounds.
    fn look(&self, _at: usize) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + _at);
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
