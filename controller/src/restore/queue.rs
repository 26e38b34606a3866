//! Which restores a change of something else concerns.

use futures::{Stream, stream};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::runtime::controller::ReconcileRequest;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher;
use podvirt_api::cdi::DataVolume;
use podvirt_api::snapshot::restores;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineRestore as Restore,
    VirtualMachineSnapshot as Snapshot,
};

use super::controller::Context;
use crate::kept::{self, Kept, requests_naming};

type Request = ReconcileRequest<Restore>;

/// An empty cache of restores, and what fills it. A change of what a restore rests on asks who is concerned; thousands may be stored.
pub fn cache() -> (Kept<Restore>, Writer<Restore>) {
    Kept::indexed(names)
}

/// By which texts the cache is indexed: what a restore that is not over names.
fn names(restore: &Restore) -> Vec<String> {
    if !restores(restore) {
        return Vec::new();
    }
    let Restore { spec, status, .. } = restore;
    let noted = status.restores.iter();
    let data = noted.clone().filter_map(|to| to.data_volume_name.clone());
    let claims = noted.map(|to| to.persistent_volume_claim.clone());
    let direct = [spec.target.name.clone(), spec.virtual_machine_snapshot_name.clone()];
    direct.into_iter().chain(claims).chain(data).collect()
}

/// Restores that something has changed for.
pub(super) fn queue(context: &Context) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let all = || context.restores.clone();
    let own = kept::own(&context.restores);
    let cache = all();
    let of_machines =
        kept::heard(context.machines.changes(), move |one: Option<&ObjectRef<VirtualMachine>>| {
            requests_naming(&cache, one, |restore| is_of(restore, one.map(|one| (&one.namespace, &one.name))))
        });
    let cache = all();
    let of_claims = kept::heard(
        context.storage.claims.changes(),
        move |one: Option<&ObjectRef<PersistentVolumeClaim>>| {
            let has = |restore: &Restore, one: &ObjectRef<PersistentVolumeClaim>| {
                let mut noted = restore.status.restores.iter();
                one.namespace == restore.namespace() && noted.any(|to| to.persistent_volume_claim == one.name)
            };
            requests_naming(&cache, one, |restore| {
                restores(restore) && one.is_none_or(|one| has(restore, one))
            })
        },
    );
    let cache = all();
    let of_data = kept::heard(context.data.changes(), move |one: Option<&ObjectRef<DataVolume>>| {
        let has = |restore: &Restore, one: &ObjectRef<DataVolume>| {
            let mut noted = restore.status.restores.iter();
            one.namespace == restore.namespace()
                && noted.any(|to| to.data_volume_name.as_deref() == Some(&one.name))
        };
        requests_naming(&cache, one, |restore| restores(restore) && one.is_none_or(|one| has(restore, one)))
    });
    let cache = all();
    let of_snapshots =
        kept::heard(context.snapshots.snapshots.changes(), move |one: Option<&ObjectRef<Snapshot>>| {
            let has = |restore: &Restore, one: &ObjectRef<Snapshot>| {
                one.namespace == restore.namespace() && one.name == restore.spec.virtual_machine_snapshot_name
            };
            requests_naming(&cache, one, |restore| {
                restores(restore) && one.is_none_or(|one| has(restore, one))
            })
        });
    let cache = all();
    let of_instances = context.view.heard(move |one: Option<&ObjectRef<VirtualMachineInstance>>| {
        requests_naming(&cache, one, |restore| is_of(restore, one.map(|one| (&one.namespace, &one.name))))
    });
    let of_storage = stream::select(of_claims, stream::select(of_data, of_snapshots));
    stream::select(stream::select(own, of_storage), stream::select(of_machines, of_instances))
}

/// Whether a restore that is not over has this machine for its target, if one is given.
fn is_of(restore: &Restore, machine: Option<(&Option<String>, &String)>) -> bool {
    let is = |(namespace, name): (&Option<String>, &String)| {
        *namespace == restore.namespace() && *name == restore.spec.target.name
    };
    restores(restore) && machine.is_none_or(is)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::restore::tests::restore;

    #[test]
    fn restores_are_found_by_what_they_rest_on_until_they_are_over() {
        let noted = json!([{"volumeName": "data", "persistentVolumeClaim": "restore-u-data",
            "dataVolumeName": "new-data", "volumeSnapshotName": "vs"}]);
        let open = restore(json!({"status": {"restores": noted}}));
        assert_eq!(names(&open), ["vm", "s", "restore-u-data", "new-data"]);
        assert_eq!(names(&restore(json!({"status": {"restores": noted, "complete": true}}))), [""; 0]);
    }
}
