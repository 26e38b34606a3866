//! VMs that do not come up, and are replaced by others.

use std::time::Duration;

use jiff::Timestamp;
use podvirt_api::duration;
use podvirt_api::names::condition;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineConditionType, VirtualMachinePoolAutohealingStrategy as Healing,
    VirtualMachinePrintableStatus as Printable,
};

/// Starts that fail in a row until a VM is replaced, when the pool says none.
const FAILURES: u32 = 3;
/// How long a VM may fail, when the pool does not say.
const FAILING: Duration = Duration::from_secs(300);

/// Whether a VM is to be replaced; else in how long it will be, if it goes on like that.
pub(super) fn verdict(
    vm: &VirtualMachine,
    healing: &Healing,
    now: Timestamp,
) -> Result<(), Option<Duration>> {
    let failures = vm.status.start_failure.as_ref().and_then(|failure| failure.consecutive_fail_count);
    let most = healing.start_up_failure_threshold.unwrap_or(FAILURES);
    if failures.is_some_and(|failures| failures >= i64::from(most)) {
        return Ok(());
    }
    let fails = matches!(
        vm.status.printable_status,
        Some(
            Printable::CrashLoopBackOff
                | Printable::ErrorUnschedulable
                | Printable::DataVolumeError
                | Printable::ErrorPvcNotFound
                | Printable::ErrImagePull
                | Printable::ImagePullBackOff
        )
    );
    let since = unready_since(vm).filter(|_| fails).ok_or(None)?;
    let given = healing.min_failing_to_start_duration.as_deref().and_then(duration::parse);
    let limit = given.unwrap_or(FAILING);
    let spent = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    match limit.checked_sub(spent) {
        Some(left) if !left.is_zero() => Err(Some(left)),
        _ => Ok(()),
    }
}

/// Since when a VM is not ready.
fn unready_since(vm: &VirtualMachine) -> Option<Timestamp> {
    let ready = vm.status.conditions.iter().find(|one| one.r#type == VirtualMachineConditionType::Ready)?;
    let since = ready.last_transition_time.as_ref()?.as_ref()?.0;
    (ready.status == condition::FALSE).then_some(since)
}
