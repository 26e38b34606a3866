//! The node that a machine comes to.
//!
//! Written here: address and ports, until the source has begun; `targetNodeDomainReadyTimestamp`, once the machine
//! runs here and its addresses speak; the hand-over in the source's place, when the source's handler does not write it
//! within [`TAKE_OVER`]; a failure, when the launcher cannot be made ready and the source has not begun; and the end of
//! the label by which the VMI is known here, when nothing is left to do.

use std::time::Duration;

use podvirt_api::names::{annotation, label};
use podvirt_api::v1::{self, VirtualMachineInstanceMigrationState as State};

use super::{
    Decision, LATER, SOON, Step, TAKE_OVER, VERDICT, View, arrived, begun, close, fail, hand_over, is_over,
    passed, state_of, wind_up, written,
};
use crate::vm::{Launcher, SYNC_RETRIES};

pub(super) fn decide(view: &View<'_>, state: &State, new: &mut v1::VirtualMachineInstance) -> Decision {
    let here = view.domain.is_some_and(|domain| domain.status.is_active());
    if is_over(state) {
        return if state.failed == Some(true) {
            failed(view, here, new)
        } else {
            come(view, state, here, new)
        };
    }
    if here {
        return arrive(view, state, new);
    }
    match view.launcher {
        Launcher::Ready => await_machine(view, state, new),
        // The controller sees the pod's end; until the source knows of it, nothing is lost there.
        Launcher::Gone(_) => close(view),
        Launcher::Absent(_) | Launcher::Silent(_) => Decision::again(SOON),
    }
}

fn await_machine(view: &View<'_>, state: &State, new: &mut v1::VirtualMachineInstance) -> Decision {
    let session = view.session;
    if !session.armed {
        return Decision::step(Step::Arm);
    }
    if begun(state).is_some() {
        // Of proxies that are gone the source hears.
        return Decision::again(LATER);
    }
    if !session.prepared {
        return prepare(view, new);
    }
    let Some(open) = &session.open else {
        let wait = !session.trouble.is_empty();
        return Decision { again: wait.then_some(SOON), ..Decision::step(Step::Open(None)) };
    };
    let offer = state_of(new);
    offer.target_node_address = Some(open.address.clone());
    offer.target_direct_migration_node_ports.clone_from(&open.ports);
    Decision::again(LATER)
}

fn prepare(view: &View<'_>, new: &mut v1::VirtualMachineInstance) -> Decision {
    if view.session.preparing || is_blocked(new) {
        return Decision::again(LATER);
    }
    let Some((times, last, why)) = &view.session.unprepared else { return Decision::step(Step::Prepare) };
    let place = usize::try_from(*times).unwrap_or(usize::MAX).max(1) - 1;
    let Some(pause) = SYNC_RETRIES.get(place) else {
        return fail(view, new, &format!("the target's launcher cannot be made ready: {why}"));
    };
    match pause.checked_sub(passed(view, *last)) {
        Some(left) if !left.is_zero() => Decision::again(left),
        _ => Decision::step(Step::Prepare),
    }
}

/// Whether a test of upstream's wants a target that does not get ready.
fn is_blocked(vmi: &v1::VirtualMachineInstance) -> bool {
    let given = vmi.metadata.annotations.as_ref();
    given.is_some_and(|given| given.contains_key(annotation::BLOCK_MIGRATION_TARGET))
}

/// It runs here, and neither handler has written so, or handed it over.
fn arrive(view: &View<'_>, state: &State, new: &mut v1::VirtualMachineInstance) -> Decision {
    let waited = view.session.found.filter(|_| arrived(state).is_none());
    let left = waited.and_then(|since| VERDICT.checked_sub(passed(view, since)));
    if let Some(left) = left.filter(|left| !left.is_zero()) {
        return Decision::again(left);
    }
    if let Some(step) = be_heard(view) {
        return Decision::step(step);
    }
    let Some(since) = arrived(state) else {
        note(view, new);
        return Decision::again(TAKE_OVER);
    };
    match TAKE_OVER.checked_sub(passed(view, since)) {
        Some(left) if !left.is_zero() => Decision::again(left),
        _ => hand_over(view, state, new),
    }
}

/// What is to be done yet before anything is written of a machine that runs here: what reaches the guest again is what its
/// users see of all this.
fn be_heard(view: &View<'_>) -> Option<Step> {
    match view.session {
        // Its connections are here and wait for a helper to let them go.
        session if !session.armed => Some(Step::Arm),
        session if !session.activated => Some(Step::Activate),
        _ => None,
    }
}

/// It runs here, and its addresses speak.
fn note(view: &View<'_>, new: &mut v1::VirtualMachineInstance) {
    let state = state_of(new);
    state.target_node_domain_ready_timestamp = written(view.now);
    state.target_node_domain_detected = Some(true);
}

/// The machine is this node's.
fn come(view: &View<'_>, state: &State, here: bool, new: &mut v1::VirtualMachineInstance) -> Decision {
    let gone = matches!(view.launcher, Launcher::Gone(_));
    if here && arrived(state).is_none() {
        // Handed over unheard of; it runs by the word that finalizing gives.
        if let Some(step) = be_heard(view) {
            return Decision::step(step);
        }
        note(view, new);
        return Decision::again(Duration::ZERO);
    }
    if view.session.finalized && (arrived(state).is_some() || gone) {
        leave_off(new);
        return wind_up(view, state);
    }
    match view.session.settled {
        Some(last) if passed(view, last) < SOON => Decision::again(SOON),
        _ if gone => {
            leave_off(new);
            close(view)
        }
        _ => Decision::step(Step::Finalize),
    }
}

/// The machine stays where it was.
fn failed(view: &View<'_>, here: bool, new: &mut v1::VirtualMachineInstance) -> Decision {
    if matches!(view.launcher, Launcher::Gone(_)) {
        leave_off(new);
        return close(view);
    }
    let due = view.session.settled.is_none_or(|last| passed(view, last) >= SOON);
    let over = view.domain.is_some_and(|domain| domain.status.is_final());
    match due {
        _ if over => {
            leave_off(new);
            close(view)
        }
        true => Decision::step(if here { Step::Kill } else { Step::Leave }),
        false => Decision::again(SOON),
    }
}

/// Nothing is left to do, but to close what is open.
fn leave_off(new: &mut v1::VirtualMachineInstance) {
    if let Some(labels) = &mut new.metadata.labels {
        labels.remove(label::MIGRATION_TARGET_NODE_NAME);
    }
}
