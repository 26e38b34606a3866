//! Both ends of a migration against a world without libvirt: whatever fails and whoever dies, at the end the machine
//! is at exactly one place, the VMI says which, and nothing is left open.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use podvirt_api::v1::{MigrationAbortStatus, VirtualMachineInstance, VirtualMachineInstancePhase as Phase};
use podvirt_proto::domain::{Status, reason};
use podvirt_proto::migration::{AbortStatus, Migration};

use super::*;

const UID: &str = "mig";

/// A launcher and the handler of its node.
#[derive(Clone, Debug, Default)]
struct Side {
    domain: Option<Domain>,
    session: Session,
    gone: bool,
    /// There are sockets in the pod.
    sockets: bool,
    /// All of the machine is here, and waits for the source's word.
    held: bool,
}

#[derive(Clone, Debug)]
struct World {
    vmi: VirtualMachineInstance,
    source: Side,
    target: Side,
    now: Timestamp,
    /// The source's launcher copies memory.
    copies: bool,
    steps: Vec<(char, Step)>,
    /// What the source's launcher says to MigrateVirtualMachine.
    refuses: bool,
    /// SyncMigrationTarget fails.
    unready: bool,
    /// How many reports of the source's launcher are older than MigrateVirtualMachine.
    late: usize,
    /// The source's launcher does not hear MigrateVirtualMachine.
    deaf: bool,
    /// The source's launcher answers nothing.
    silent: bool,
}

fn running() -> Option<Domain> {
    Some(Domain { status: Status::Running, ..Domain::default() })
}

impl World {
    fn new() -> Self {
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

    fn state(&self) -> &State {
        self.vmi.status.migration_state.as_ref().unwrap()
    }

    fn side(&mut self, node: char) -> &mut Side {
        if node == 'a' { &mut self.source } else { &mut self.target }
    }

    /// One pass of a node's handler. Returns whether anything came of it.
    fn pass(&mut self, node: char) -> bool {
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

    fn carry_out(&mut self, node: char, step: Step) {
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
    fn fail(&mut self, why: &str, abort: Option<AbortStatus>) {
        if !std::mem::take(&mut self.copies) {
            return;
        }
        let migration = self.source.domain.as_mut().unwrap().migration.as_mut().unwrap();
        (migration.completed, migration.failed) = (true, true);
        migration.failure_reason = why.into();
        migration.abort_status = abort;
    }

    /// The machine moves.
    fn arrive(&mut self) {
        if self.leave() {
            self.target.domain = running();
        }
    }

    /// It moves, and the launchers' word is lost on its way.
    fn arrive_unheard(&mut self) {
        self.target.held = self.leave();
    }

    fn leave(&mut self) -> bool {
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
    fn restart(&mut self, node: char) {
        let carried = self.side(node).session.open.is_some();
        self.side(node).session = Session::default();
        if carried && self.copies {
            self.fail("the connection broke", None);
        }
    }

    /// Passes of both until nothing happens any more, and time for what only time brings.
    fn settle(&mut self, mut meanwhile: impl FnMut(&mut World, usize)) {
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

    fn at(side: &Side) -> bool {
        side.domain.as_ref().is_some_and(|domain| domain.status.is_active())
    }

    /// What must hold at every end.
    fn check(&self, what: &str) {
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

#[test]
fn a_machine_moves() {
    let mut world = World::new();
    world.settle(|world, round| {
        if round == 20 {
            world.arrive();
        }
    });
    world.check("success");
    let state = world.state();
    assert_eq!(state.target_node_address.as_deref(), Some("10.0.0.2"));
    assert_eq!(state.target_direct_migration_node_ports.get("4712"), Some(&49152));
    assert!(begun(state).is_some() && arrived(state).is_some() && time(&state.end_timestamp).is_some());
    let kinds: Vec<(char, &Step)> = world.steps.iter().map(|(node, step)| (*node, step)).collect();
    let place = |wanted: &dyn Fn(&(char, &Step)) -> bool| kinds.iter().position(wanted).unwrap();
    let begins = place(&|(_, step)| matches!(step, Step::Begin(_)));
    assert!(place(&|(node, step)| *node == 'a' && **step == Step::Arm) < begins);
    assert!(place(&|(node, step)| *node == 'b' && **step == Step::Arm) < begins);
    assert_eq!(kinds.iter().filter(|(_, step)| matches!(step, Step::Begin(_))).count(), 1, "{kinds:?}");
    assert!(world.steps.contains(&('b', Step::Finalize)));
}

#[test]
fn whoever_dies_whenever_the_machine_is_at_one_place() {
    for node in ['a', 'b'] {
        for moment in 0..40 {
            let mut world = World::new();
            world.settle(|world, round| {
                if round == moment {
                    world.restart(node);
                }
                if round == 20 {
                    world.arrive();
                }
            });
            world.check(&format!("the handler of {node} dies in round {moment}"));
        }
    }
}

#[test]
fn a_word_that_is_lost_on_its_way_comes_by_the_vmi() {
    for dies in [None, Some('a'), Some('b')] {
        for moment in 20..40 {
            let mut world = World::new();
            world.settle(|world, round| {
                if round == 20 {
                    world.arrive_unheard();
                }
                if round == moment {
                    dies.into_iter().for_each(|node| world.restart(node));
                }
            });
            world.check(&format!("unheard, {dies:?} in round {moment}"));
            assert_eq!(world.vmi.status.node_name.as_deref(), Some("b"));
            let state = world.state();
            assert!(state.failed.is_none() && arrived(state).is_some(), "{state:?}");
            let place =
                |wanted: Step| world.steps.iter().position(|step| *step == ('b', wanted.clone())).unwrap();
            assert!(place(Step::Finalize) < place(Step::Activate));
        }
    }
}

#[test]
fn a_machine_that_is_held_and_fails_is_told_to_leave() {
    let mut world = World::new();
    world.settle(|world, round| {
        if round == 20 {
            world.target.held = true;
            world.fail("the network was cut", None);
        }
    });
    world.check("held, and the source goes on");
    let told = |step| world.steps.contains(&('b', step));
    assert!(told(Step::Leave) && !told(Step::Finalize) && !told(Step::Activate));
}

#[test]
fn a_source_handler_that_stays_away_does_not_keep_the_machine_between_nodes() {
    let mut world = World::new();
    for _ in 0..20 {
        world.pass('a');
        world.pass('b');
    }
    world.arrive();
    for _ in 0..20 {
        world.pass('b');
        world.now += SignedDuration::from_secs(5);
    }
    assert_eq!(world.vmi.status.node_name.as_deref(), Some("b"));
    world.settle(|_, _| {});
    world.check("the source's handler is away");
}

#[test]
fn a_migration_that_fails_leaves_the_machine_and_tells_why() {
    let mut world = World::new();
    world.settle(|world, round| {
        if round == 20 {
            world.fail("no progress", None);
        }
    });
    world.check("failure");
    assert_eq!(world.state().failure_reason.as_deref(), Some("no progress"));
    assert!(world.steps.contains(&('b', Step::Leave)));

    let mut world = World { refuses: true, ..World::new() };
    world.settle(|_, _| {});
    world.check("refusal");
    assert_eq!(world.state().failure_reason.as_deref(), Some("no"));

    let mut world = World { unready: true, ..World::new() };
    world.settle(|_, _| {});
    world.check("the target is not ready");
    let prepares = world.steps.iter().filter(|(_, step)| *step == Step::Prepare).count();
    assert_eq!(prepares, crate::vm::SYNC_RETRIES.len() + 1);
}

#[test]
fn an_abort_comes_at_any_time() {
    for moment in 0..30 {
        let mut world = World::new();
        world.settle(|world, round| {
            if round == moment {
                world.vmi.status.migration_state.as_mut().unwrap().abort_requested = Some(true);
            }
            if round == 15 {
                world.arrive();
            }
        });
        world.check(&format!("abort in round {moment}"));
        let expected = match world.state().failed {
            Some(true) => Some(MigrationAbortStatus::Succeeded),
            // Too late; or later than its end, when nobody looks any more.
            _ => world.state().abort_status.clone().map(|_| MigrationAbortStatus::Failed),
        };
        assert_eq!(world.state().abort_status, expected, "{moment}");
    }
}

#[test]
fn an_abort_finds_a_migration_that_the_launcher_has_begun_and_not_reported() {
    for deaf in [false, true] {
        let mut world = World { late: 3, deaf, ..World::new() };
        world.settle(|world, _| {
            if world.source.session.asked {
                world.vmi.status.migration_state.as_mut().unwrap().abort_requested = Some(true);
            }
        });
        world.check("the abort overtakes the report");
        assert!(world.steps.contains(&('a', Step::Cancel)), "{:?}", world.steps);
        let state = world.state();
        assert_eq!(state.abort_status, Some(MigrationAbortStatus::Succeeded));
        let why = if deaf { "it was aborted before it began" } else { "aborted" };
        assert_eq!(state.failure_reason.as_deref(), Some(why));
    }
}

#[test]
fn an_abort_waits_for_a_launcher_that_is_silent_and_may_have_begun() {
    let mut world = World { late: usize::MAX, ..World::new() };
    while !world.source.session.asked {
        world.pass('a');
        world.pass('b');
    }
    world.silent = true;
    world.vmi.status.migration_state.as_mut().unwrap().abort_requested = Some(true);
    for _ in 0..20 {
        world.pass('a');
        world.pass('b');
    }
    assert!(!is_over(world.state()) && world.copies, "{:?}", world.state());
    world.silent = false;
    world.settle(|_, _| {});
    world.check("the launcher answers again");
    assert_eq!(world.state().failure_reason.as_deref(), Some("aborted"));
}

#[test]
fn of_two_that_believe_to_have_it_who_said_so_first_has_it() {
    // The network is cut while libvirt tells the source that the machine is there: it goes on at both ends.
    for first in ['a', 'b'] {
        let mut world = World::new();
        for _ in 0..20 {
            world.pass('a');
            world.pass('b');
        }
        world.fail("lost the connection", None);
        world.target.domain = running();
        if first == 'a' {
            world.pass('a');
        } else {
            world.pass('b');
            world.pass('b');
        }
        world.settle(|_, _| {});
        world.check(&format!("{first} is first"));
        let on = if first == 'a' { "a" } else { "b" };
        assert_eq!(world.vmi.status.node_name.as_deref(), Some(on));
    }
}

#[test]
fn what_somebody_gave_up_before_it_began_never_begins() {
    for moment in 0..12 {
        let mut world = World::new();
        world.settle(|world, round| {
            // The controller's word, which it gives only before the beginning.
            let state = world.vmi.status.migration_state.as_mut().unwrap();
            if round == moment && state.start_timestamp.is_none() {
                (state.failed, state.completed) = (Some(true), Some(true));
            }
            if round == 15 {
                world.arrive();
            }
        });
        world.check(&format!("given up in round {moment}"));
        let began = world.steps.iter().any(|(_, step)| matches!(step, Step::Begin(_)));
        assert_eq!(began, world.state().start_timestamp.is_some());
    }
}

#[test]
fn a_machine_that_ends_on_its_way_ends_the_migration() {
    let mut world = World::new();
    for _ in 0..20 {
        world.pass('a');
        world.pass('b');
    }
    let domain = world.source.domain.as_mut().unwrap();
    (domain.status, domain.reason) = (Status::Shutoff, reason::SHUTDOWN.into());
    world.copies = false;
    world.settle(|_, _| {});
    assert_eq!(world.state().failed, Some(true));
    assert!(world.target.gone);
}

#[test]
fn a_launcher_that_leaves_without_a_word_is_no_end_while_its_machine_may_have_moved() {
    let mut world = World::new();
    for _ in 0..20 {
        world.pass('a');
        world.pass('b');
    }
    assert!(is_under_way(&world.vmi));
    world.arrive();
    (world.source.gone, world.source.domain) = (true, None);
    world.settle(|_, _| {});
    assert_eq!(world.vmi.status.node_name.as_deref(), Some("b"));
    assert!(!is_under_way(&world.vmi));
}

#[test]
fn what_another_node_offers_is_read_with_care() {
    let open = |address: &str, tcp: &str, logical| Open {
        address: address.into(),
        ports: BTreeMap::from([(tcp.to_owned(), logical)]),
    };
    let good = proxy::addresses(&open("fd00::2", "4711", 49152)).unwrap();
    assert_eq!(good[&49152], "[fd00::2]:4711".parse().unwrap());
    for bad in [open("node2", "1", 0), open("10.0.0.2", "70000", 0), open("10.0.0.2", "1", 80)] {
        proxy::addresses(&bad).unwrap_err();
    }
}

#[test]
fn repair_is_offered_again_after_a_handlers_death_for_as_long_as_it_is_asked_for() {
    let arms = |world: &World, node, from: usize| world.steps[from..].contains(&(node, Step::Arm));
    let under_way = || {
        let mut world = World::new();
        for _ in 0..20 {
            world.pass('a');
            world.pass('b');
        }
        world
    };
    // Connections are frozen, and the handler dies that froze them: the copying fails with it.
    let mut world = under_way();
    world.restart('a');
    let before = world.steps.len();
    world.pass('a');
    assert_eq!(world.state().failed, Some(true));
    for _ in 0..4 {
        world.pass('a');
    }
    assert!(arms(&world, 'a', before) && world.source.session.armed && !world.source.sockets);
    world.settle(|_, _| {});
    world.check("the source's handler dies");

    // The machine is there, and who would let its connections go dies.
    let mut world = under_way();
    world.arrive();
    world.restart('b');
    let before = world.steps.len();
    world.settle(|_, _| {});
    let place =
        |wanted| world.steps[before..].iter().position(|(node, step)| *node == 'b' && *step == wanted);
    assert!(place(Step::Arm).unwrap() < place(Step::Activate).unwrap());
    world.check("the target's handler dies");
    assert_eq!(world.vmi.status.node_name.as_deref(), Some("b"));
}

#[test]
fn a_target_that_did_not_carry_the_machine_hears_the_source_first() {
    // The target's handler dies at the switch-over: the machine runs there, and the source has not heard so.
    let mut world = World::new();
    for _ in 0..20 {
        world.pass('a');
        world.pass('b');
    }
    world.target.domain = running();
    world.restart('b');
    for _ in 0..4 {
        world.pass('b');
    }
    assert!(arrived(world.state()).is_none() && !world.target.session.activated);
    world.settle(|_, _| {});
    world.check("the source goes on");
    assert_eq!(world.vmi.status.node_name.as_deref(), Some("a"));
}
