//! The claim with the state of a machine's firmware and TPM, while the machine moves.
//!
//! | the machine's claim | the target has | once the machine is there | when the migration fails |
//! |---|---|---|---|
//! | of several nodes | the same one | | |
//! | of one node | one of its own, labelled with the migration's name | it gets the machine's label, the source's is deleted | it is deleted |
//!
//! What is on the claims is the hypervisor's to carry over. The migration's status names both claims from before the target pod is
//! made, as the machine's does from the hand-over on. What becomes of them at the end is done by what the cache shows, and the
//! migration's finalizer stays until nothing is left to do.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use podvirt_api::migration::is_at_target;
use podvirt_api::names::label::MIGRATION_NAME;
use podvirt_api::state;
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationPhase as Phase, VirtualMachineInstanceMigrationState as State,
};

use super::decide::{Action, Decision, Observed};
use super::status::phase;
use crate::settings::Settings;
use crate::storage::{Storage, backend};

/// The claims, as the cache has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claims {
    /// The machine's.
    pub source: Option<Arc<PersistentVolumeClaim>>,
    /// The target's, of its own.
    pub target: Option<Arc<PersistentVolumeClaim>>,
    /// The one that the target needs and that is not there; or why it cannot be made.
    pub wanted: Option<Result<Box<PersistentVolumeClaim>, String>>,
}

/// The claims of a machine that moves.
pub(super) fn look(
    migration: &Migration,
    vmi: Option<&VirtualMachineInstance>,
    storage: &Storage,
    settings: &Settings,
) -> Claims {
    let namespace = migration.metadata.namespace.as_deref().unwrap_or_default();
    let named = |name: &Option<String>| {
        storage.claims.get(namespace, name.as_deref().filter(|name| !name.is_empty())?)
    };
    let told = migration.status.migration_state.as_ref();
    if let Some(told) = told.filter(|told| told.target_persistent_state_pvc_name.is_some()) {
        let own = told.target_persistent_state_pvc_name != told.source_persistent_state_pvc_name;
        return Claims {
            source: named(&told.source_persistent_state_pvc_name),
            target: named(&told.target_persistent_state_pvc_name).filter(|_| own),
            wanted: None,
        };
    }
    let Some(vmi) = vmi.filter(|vmi| state::has_claim(vmi) && phase(migration) == Phase::Pending) else {
        return Claims::default();
    };
    let source = backend::of_machine(vmi, storage);
    let wanted = source.as_ref().filter(|source| !backend::is_shared(source)).map(|source| {
        let made = backend::for_target(vmi, migration, source, storage, &settings.configuration);
        made.map(Box::new).map_err(ToOwned::to_owned)
    });
    Claims { source, target: None, wanted }
}

/// The machine as its target pod is to have it, and the claims in the migration's status. The target's own claim is made first.
///
/// # Errors
///
/// Why the migration fails.
pub(super) fn prepare(
    seen: &Observed<'_>,
    vmi: &VirtualMachineInstance,
    decision: &mut Decision,
) -> Result<VirtualMachineInstance, String> {
    let mut moved = vmi.clone();
    if !state::has_claim(vmi) {
        return Ok(moved);
    }
    let Claims { source, target, wanted } = &seen.kept;
    let source = source.as_ref().ok_or("no backend-storage PVC found in VMI volume status")?;
    let target = match (wanted, target) {
        (Some(wanted), _) => {
            let claim = wanted.clone()?;
            decision.actions.push(Action::CreateClaim(claim.clone()));
            *claim
        }
        (None, Some(target)) => target.as_ref().clone(),
        (None, None) => source.as_ref().clone(),
    };
    let before = state::claim(vmi).map(ToOwned::to_owned);
    let all = &mut moved.status.volume_status;
    all.retain(|told| Some(&told.name) != before.as_ref());
    all.push(backend::entry(&target));
    let told = decision.migration.status.migration_state.get_or_insert_default();
    told.source_persistent_state_pvc_name.clone_from(&source.metadata.name);
    told.target_persistent_state_pvc_name.clone_from(&target.metadata.name);
    Ok(moved)
}

/// What the migration's status says of the claims, for the machine's.
pub(super) fn hand_over(migration: &Migration, state: &mut State) {
    let Some(told) = &migration.status.migration_state else { return };
    state.source_persistent_state_pvc_name.clone_from(&told.source_persistent_state_pvc_name);
    state.target_persistent_state_pvc_name.clone_from(&told.target_persistent_state_pvc_name);
}

/// What is left to do with the claims, now that the machine is at the target, or will not be.
pub(super) fn settle(seen: &Observed<'_>) -> Vec<Action> {
    let Claims { source, target: Some(target), .. } = &seen.kept else { return Vec::new() };
    let own = seen.vmi.and_then(|vmi| vmi.status.migration_state.as_ref());
    let own = own.filter(|state| state.migration_uid == seen.migration.metadata.uid);
    let told = own.or(seen.migration.status.migration_state.as_ref());
    let delete = |claim: &PersistentVolumeClaim| Action::DeleteClaim {
        name: claim.metadata.name.clone().unwrap_or_default(),
        uid: claim.metadata.uid.clone().unwrap_or_default(),
    };
    let goes = |claim: &PersistentVolumeClaim| claim.metadata.deletion_timestamp.is_some();
    let is_migrations = backend::label_of(target, MIGRATION_NAME).is_some();
    if !(phase(seen.migration) == Phase::Succeeded || told.is_some_and(is_at_target)) {
        return (is_migrations && !goes(target)).then(|| delete(target)).into_iter().collect();
    }
    // The machine's label first: without the source's claim the machine would get an empty one.
    if is_migrations {
        return vec![Action::KeepClaim {
            name: target.metadata.name.clone().unwrap_or_default(),
            uid: target.metadata.uid.clone().unwrap_or_default(),
            machine: seen.migration.spec.vmi_name.clone().unwrap_or_default(),
        }];
    }
    source.iter().filter(|claim| !goes(claim)).map(|claim| delete(claim)).collect()
}
