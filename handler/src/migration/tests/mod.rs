//! Both ends of a migration against a world without libvirt: whatever fails and whichever handler dies, at the end the
//! machine is at exactly one place, the VMI says which, and nothing is left open.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use podvirt_api::v1::{MigrationAbortStatus, VirtualMachineInstance, VirtualMachineInstancePhase as Phase};
use podvirt_proto::domain::{Status, reason};
use podvirt_proto::migration::{AbortStatus, Migration};

use super::*;
use world::{World, running};

mod world;

const UID: &str = "mig";

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
fn whichever_handler_dies_whenever_the_machine_is_at_one_place() {
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
fn a_target_that_a_test_blocks_is_not_prepared_and_the_migration_waits() {
    let mut world = World::new();
    let blocked = podvirt_api::names::annotation::BLOCK_MIGRATION_TARGET;
    world.vmi.metadata.annotations = Some(BTreeMap::from([(blocked.to_owned(), String::new())]));
    world.settle(|_, _| {});
    assert!(!world.steps.iter().any(|(_, step)| *step == Step::Prepare), "{:?}", world.steps);
    assert!(begun(world.state()).is_none() && !is_over(world.state()));
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
            // Too late; or later than its end, when no handler looks any more.
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
fn of_two_nodes_that_believe_to_have_it_the_first_to_say_so_has_it() {
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
fn what_the_controller_gave_up_before_it_began_never_begins() {
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

    // The machine is there, and the handler dies that would let its connections go.
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
