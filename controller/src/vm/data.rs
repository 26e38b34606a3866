//! The shell's part with DataVolumes: what is seen of them, and the ones that templates ask for.

use std::collections::BTreeMap;

use futures::{Stream, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use podvirt_api::cdi::DataVolume;
use podvirt_api::snapshot;
use podvirt_api::storage::claim;
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstancePhase as Phase};
use tokio::sync::broadcast::error::RecvError;

use super::act::Target;
use super::decide::Instance;
use super::moves::{self, Cdi, Moves};
use super::reconcile::{Error, Shell};
use super::{Strategy, is_final};
use crate::data::look::name_of;
use crate::data::make::make;
use crate::data::{Look, look};
use crate::kept;
use crate::storage::Storage;

/// The machines that a DataVolume's change concerns: those with a volume or a template of its name. `None`: there will be no
/// more changes.
pub(super) fn machines_with(
    change: Result<Option<ObjectRef<DataVolume>>, RecvError>,
    known: &Store<VirtualMachine>,
) -> Option<Vec<Result<ObjectRef<VirtualMachine>, watcher::Error>>> {
    let changed = match change {
        Ok(changed) => changed,
        Err(RecvError::Lagged(_)) => None,
        Err(RecvError::Closed) => return None,
    };
    let names = |vm: &VirtualMachine, data: &ObjectRef<DataVolume>| {
        let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
        let mut volumes = spec.into_iter().flat_map(|spec| &spec.volumes);
        vm.metadata.namespace == data.namespace
            && (vm.spec.data_volume_templates.iter().any(|template| name_of(template) == data.name)
                || volumes.any(|volume| claim(volume).is_some_and(|claim| claim.name == data.name)))
    };
    let machines = known.state();
    let concerned = machines.iter().filter(|vm| changed.as_ref().is_none_or(|data| names(vm, data)));
    Some(concerned.map(|vm| Ok(ObjectRef::from_obj(&**vm))).collect())
}

/// The machines whose status tells of volumes by what has changed of the storage: those with a volume on a claim that changed, and
/// all with claims where a class did.
pub(super) fn machines_on(
    storage: &Storage,
    machines: &Store<VirtualMachine>,
) -> impl Stream<Item = Result<ObjectRef<VirtualMachine>, watcher::Error>> + use<> {
    let with = |machines: &Store<VirtualMachine>, claim: Option<(Option<&str>, &str)>| {
        let names = |vm: &VirtualMachine| {
            let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
            let mut named = spec.into_iter().flat_map(|spec| &spec.volumes).filter_map(snapshot::claim);
            named.any(|name| {
                claim.is_none_or(|(namespace, claim)| {
                    vm.metadata.namespace.as_deref() == namespace && name == claim
                })
            })
        };
        let all = machines.state();
        all.iter().filter(|vm| names(vm)).map(|vm| Ok(ObjectRef::from_obj(&**vm))).collect::<Vec<_>>()
    };
    let [of_claims, of_classes, of_profiles, of_snapshots] = [(); 4].map(|()| machines.clone());
    let claims =
        kept::heard(storage.claims.changes(), move |one: Option<&ObjectRef<PersistentVolumeClaim>>| {
            with(&of_claims, one.map(|one| (one.namespace.as_deref(), one.name.as_str())))
        });
    let classes = kept::heard(storage.classes.changes(), move |_| with(&of_classes, None));
    let profiles = kept::heard(storage.profiles.changes(), move |_| with(&of_profiles, None));
    let snapshots = kept::heard(storage.snapshot_classes.changes(), move |_| with(&of_snapshots, None));
    stream::select(claims, stream::select(classes, stream::select(profiles, snapshots)))
}

impl Shell {
    /// Looks at the DataVolumes of a machine's shape. Claims of others are asked for only while they may hold up a start.
    pub(super) async fn look_at_data(
        &self,
        shape: &VirtualMachine,
        vmi: Option<&VirtualMachineInstance>,
    ) -> Result<Look, Error> {
        let mut look = look(shape, &self.data);
        let begins =
            |vmi: &VirtualMachineInstance| !is_final(vmi) && vmi.status.phase != Some(Phase::Running);
        if vmi.is_some_and(begins) && Strategy::of(shape) != Ok(Strategy::Halted) {
            let claims: Api<PersistentVolumeClaim> =
                Api::namespaced(self.client.clone(), &shape.namespace().unwrap_or_default());
            for name in &look.claims {
                let Some(claim) = claims.get_opt(name).await.map_err(Error::Ask)? else { continue };
                let phase = claim.status.and_then(|status| status.phase);
                look.unbound |= phase.as_deref() != Some("Bound");
            }
        }
        Ok(look)
    }

    /// Judges volumes of the instance that are to move to other claims.
    pub(super) async fn look_at_moves(
        &self,
        shape: &VirtualMachine,
        instance: Instance<'_>,
    ) -> Result<Moves, Error> {
        let Instance::Own(vmi) = instance else { return Ok(Moves::None) };
        let namespace = shape.namespace().unwrap_or_default();
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
        let mut claims = BTreeMap::new();
        for name in moves::claims_to_know(shape, vmi) {
            let claim = api.get_opt(&name).await.map_err(Error::Ask)?;
            claims.insert(name, claim);
        }
        let cdi = Cdi { data: &self.data, settings: &self.storage.data_settings };
        Ok(moves::judge(shape, vmi, &claims, cdi, Timestamp::now()))
    }

    /// Makes DataVolumes of the templates at these places.
    pub(super) async fn make_data_volumes(
        &self,
        target: Target<'_>,
        shape: &VirtualMachine,
        places: &[usize],
    ) -> Result<bool, Error> {
        for template in places.iter().filter_map(|place| shape.spec.data_volume_templates.get(*place)) {
            if let Err(error) = make(&self.client, &self.recorder, shape, template).await {
                let what = format!("DataVolume {} not made", name_of(template));
                return self.failed(target, error.reason(), &what, &error.told()).await;
            }
        }
        Ok(true)
    }
}
