//! Two nodes, a machine that goes from one to the other, and what may fail on its way.

use super::*;

/// A launcher and the handler of its node.
#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    pub(super) domain: Option<Domain>,
    pub(super) session: Session,
    pub(super) gone: bool,
    /// There are sockets in the pod.
    pub(super) sockets: bool,
    /// All of the machine is here, and waits for the source's word.
    pub(super) held: bool,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) vmi: VirtualMachineInstance,
    pub(super) source: Side,
    pub(super) target: Side,
    pub(super) now: Timestamp,
    /// The source's launcher copies memory.
    pub(super) copies: bool,
    pub(super) steps: Vec<(char, Step)>,
    /// What the source's launcher says to MigrateVirtualMachine.
    pub(super) refuses: bool,
    /// SyncMigrationTarget fails.
    pub(super) unready: bool,
    /// How many reports of the source's launcher are older than MigrateVirtualMachine.
    pub(super) late: usize,
    /// The source's launcher does not hear MigrateVirtualMachine.
    pub(super) deaf: bool,
    /// The source's launcher answers nothing.
    pub(super) silent: bool,
}

pub(super) fn running() -> Option<Domain> {
    Some(Domain { status: Status::Running, ..Domain::default() })
}

impl World {
    pub(super) fn new() -> Self {
        let mut vmi = VirtualMachineInstance::default();
        vmi.status.phase = Some(Phase::Running);
        vmi.status.node_name = Some("a".into());
        vmi.metadata.labels = Some(BTreeMap::from([
            (label::NODE_NAME.to_owned(), "a".to_owned()),
            (label::MIGRATION_TARGET_NODE_NAME.to_owned(), "b".to_owned()),
        ]));
        vmi.status.migration_state = Some(State {
            migration_uid: Some(UID.into()),
            source_node: Some("a".into()),
            target_node: Some("b".into()),
            target_pod: Some("launcher-b".into()),
            ..State::default()
        });
        let source = Side { domain: running(), ..Side::default() };
        let target = Side { domain: Some(Domain::default()), ..Side::default() };
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let (copies, refuses, unready, deaf) = (false, false, false, false);
        Self {
            vmi,
            source,
            target,
            now,
            copies,
            steps: Vec::new(),
            refuses,
            unready,
            late: 0,
            deaf,
            silent: false,
        }
    }

    pub(super) fn state(&self) -> &State {
        self.vmi.status.migration_state.as_ref().unwrap()
    }

    pub(super) fn side(&mut self, node: char) -> &mut Side {
        if node == 'a' { &mut self.source } else { &mut self.target }
    }

    /// One pass of a node's handler. Returns whether anything came of it.
    pub(super) fn pass(&mut self, node: char) -> bool {
        let side = self.side(node).clone();
        let name = node.to_string();
        let labels = self.vmi.metadata.labels.clone().unwrap_or_default();
        let sees = [label::NODE_NAME, label::MIGRATION_TARGET_NODE_NAME]
            .iter()
            .any(|label| labels.get(*label) == Some(&name));
        if !sees {
            // A ghost: what is left here of a machine that has left is ended.
            let left = is_elsewhere(&self.vmi, &name);
            let alive = side.domain.as_ref().is_some_and(|d| d.status.is_active());
            if left && alive {
                self.side(node).domain = None;
            }
            let closed = Side { session: Session::default(), ..self.side(node).clone() };
            *self.side(node) = closed;
            return left && alive;
        }
        let launcher = match side.gone {
            true => Launcher::Gone(self.now),
            false if node == 'a' && self.silent => Launcher::Silent(self.now),
            false => Launcher::Ready,
        };
        let (vmi, now) = (self.vmi.clone(), self.now);
        self.side(node).session.note(&vmi, &name, side.domain.as_ref(), now);
        let mut side = self.side(node).clone();
        if node == 'a' && self.late > 0 && self.copies {
            self.late -= 1;
            side.domain = running();
        }
        let domain = side.domain.as_ref().filter(|d| !side.gone || d.status.is_final());
        let mut new = self.vmi.clone();
        let view =
            View { vmi: &self.vmi, node: &name, launcher, domain, session: &side.session, now: self.now };
        let decision = decide(&view, &mut new);
        let wrote = new != self.vmi;
        self.vmi = new;
        if let Some(step) = decision.step.clone() {
            self.steps.push((node, step.clone()));
            self.carry_out(node, step);
        }
        wrote || decision.step.is_some()
    }

    pub(super) fn carry_out(&mut self, node: char, step: Step) {
        let (now, refuses, unready, deaf) = (self.now, self.refuses, self.unready, self.deaf);
        let copies = self.copies;
        let side = self.side(node);
        match step {
            Step::Arm => side.session.armed = true,
            Step::Prepare if unready => {
                let times = side.session.unprepared.as_ref().map_or(0, |(times, ..)| *times);
                side.session.unprepared = Some((times + 1, now, "no image".into()));
            }
            Step::Prepare => side.session.prepared = true,
            Step::Open(Some(there)) => {
                side.session.open = Some(there);
                side.sockets = true;
            }
            Step::Open(None) => {
                let ports = BTreeMap::from([("4711".to_owned(), 0), ("4712".to_owned(), 49152)]);
                side.session.open = Some(Open { address: "10.0.0.2".into(), ports });
            }
            Step::Begin(_) if refuses => side.session.refused = "no".into(),
            Step::Begin(_) if deaf => side.session.asked = true,
            Step::Begin(options) => {
                assert_eq!(options.migration_uid, UID);
                side.session.asked = true;
                assert!(begun(self.vmi.status.migration_state.as_ref().unwrap()).is_some(), "written first");
                let side = self.side(node);
                let domain = side.domain.as_mut().unwrap();
                domain.migration.get_or_insert(Migration {
                    uid: UID.into(),
                    start_timestamp_ms: 1_800_000_000_000,
                    ..Migration::default()
                });
                self.copies = true;
            }
            Step::Cancel => {
                side.session.cancelled = Some(now);
                side.session.asked = copies;
                // It answers when its report tells the same.
                self.late = 0;
                self.fail("aborted", Some(AbortStatus::Succeeded));
            }
            Step::Activate => side.session.activated = true,
            Step::Finalize => {
                side.session.settled = Some(now);
                if std::mem::take(&mut side.held) {
                    side.domain = running();
                }
                side.session.finalized = side.domain.as_ref().is_some_and(|d| d.status.is_active());
            }
            Step::Leave => {
                side.session.settled = Some(now);
                side.gone = true;
            }
            Step::Kill => {
                side.session.settled = Some(now);
                (side.domain, side.gone) = (None, true);
            }
            Step::Shut | Step::Close => {
                side.session.open = None;
                side.session.armed &= step == Step::Shut;
                side.session.swept = true;
                side.sockets = false;
            }
        }
    }

    /// The copying ends without success.
    pub(super) fn fail(&mut self, why: &str, abort: Option<AbortStatus>) {
        if !std::mem::take(&mut self.copies) {
            return;
        }
        let migration = self.source.domain.as_mut().unwrap().migration.as_mut().unwrap();
        (migration.completed, migration.failed) = (true, true);
        migration.failure_reason = why.into();
        migration.abort_status = abort;
    }

    /// The machine moves.
    pub(super) fn arrive(&mut self) {
        if self.leave() {
            self.target.domain = running();
        }
    }

    /// It moves, and the launchers' word is lost on its way.
    pub(super) fn arrive_unheard(&mut self) {
        self.target.held = self.leave();
    }

    pub(super) fn leave(&mut self) -> bool {
        if !std::mem::take(&mut self.copies) {
            return false;
        }
        let domain = self.source.domain.as_mut().unwrap();
        domain.status = Status::Shutoff;
        domain.reason = reason::MIGRATED.into();
        let migration = domain.migration.as_mut().unwrap();
        migration.completed = true;
        migration.end_timestamp_ms = u64::try_from(self.now.as_millisecond()).ok();
        true
    }

    /// A handler dies and another one starts: what it held open is gone.
    pub(super) fn restart(&mut self, node: char) {
        let carried = self.side(node).session.open.is_some();
        self.side(node).session = Session::default();
        if carried && self.copies {
            self.fail("the connection broke", None);
        }
    }

    /// Passes of both until nothing happens any more, and time for what only time brings.
    pub(super) fn settle(&mut self, mut meanwhile: impl FnMut(&mut World, usize)) {
        let mut quiet = 0;
        for round in 0..400 {
            meanwhile(self, round);
            let busy = self.pass('a') | self.pass('b');
            quiet = if busy { 0 } else { quiet + 1 };
            self.now += SignedDuration::from_secs(if busy { 0 } else { 5 });
            if quiet > 12 && !self.copies {
                return;
            }
        }
        panic!("no end: {self:#?}");
    }

    pub(super) fn at(side: &Side) -> bool {
        side.domain.as_ref().is_some_and(|domain| domain.status.is_active())
    }

    /// What must hold at every end.
    pub(super) fn check(&self, what: &str) {
        let at = (World::at(&self.source), World::at(&self.target));
        assert!(at == (true, false) || at == (false, true), "{what}: {at:?} {self:#?}");
        let on = if at.0 { "a" } else { "b" };
        assert_eq!(self.vmi.status.node_name.as_deref(), Some(on), "{what}: {self:#?}");
        let labels = self.vmi.metadata.labels.as_ref().unwrap();
        assert_eq!(labels.get(label::NODE_NAME).map(String::as_str), Some(on), "{what}");
        assert!(!labels.contains_key(label::MIGRATION_TARGET_NODE_NAME), "{what}: {self:#?}");
        assert!(is_over(self.state()), "{what}: {:?}", self.state());
        assert_eq!(self.state().failed == Some(true), at.0, "{what}: {:?}", self.state());
        for side in [&self.source, &self.target] {
            assert!(side.session.open.is_none() && !side.session.armed, "{what}: {side:#?}");
        }
        assert!(at.1 || !self.source.sockets, "{what}: {self:#?}");
        // A target that never had the machine is told to end.
        assert!(at.1 || self.target.gone, "{what}: {self:#?}");
    }
}
