//! The shell's part with DataVolumes: what is seen of them, and the ones that templates ask for.

use std::collections::BTreeMap;

use futures::{Stream, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use podvirt_api::cdi::DataVolume;
use podvirt_api::snapshot;
use podvirt_api::storage::claim;
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstancePhase as Phase, Volume};
use tokio::sync::broadcast::error::RecvError;

use super::act::Target;
use super::decide::Instance;
use super::moves::{self, Cdi, Moves};
use super::reconcile::{Error, Shell};
use super::view::Reference;
use super::{Machines, Strategy, is_final};
use crate::data::look::name_of;
use crate::data::make::make;
use crate::data::{Look, look};
use crate::kept;
use crate::storage::Storage;

/// The machines that a DataVolume's change concerns: those with a volume or a template of its name. `None`: there will be no
/// more changes.
pub(super) fn machines_with(
    change: Result<Option<ObjectRef<DataVolume>>, RecvError>,
    known: &Machines,
) -> Option<Vec<Reference>> {
    let changed = match change {
        Ok(changed) => changed,
        Err(RecvError::Lagged(_)) => None,
        Err(RecvError::Closed) => return None,
    };
    let names = |vm: &VirtualMachine, data: &str| {
        let mut templates = vm.spec.data_volume_templates.iter();
        templates.any(|template| name_of(template) == data)
            || volumes(vm).any(|volume| claim(volume).is_some_and(|claim| claim.name == data))
    };
    let data = changed.as_ref();
    Some(known.naming(data, |vm| data.is_none_or(|data| names(vm, &data.name))))
}

/// The volumes of a machine's template.
fn volumes(vm: &VirtualMachine) -> impl Iterator<Item = &Volume> {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    spec.into_iter().flat_map(|spec| &spec.volumes)
}

/// The machines whose status tells of volumes by what has changed of the storage: those with a volume on a claim that changed, and
/// all with claims where a class did.
pub(super) fn machines_on(storage: &Storage, machines: &Machines) -> impl Stream<Item = Reference> + use<> {
    let with = |machines: &Machines, changed: Option<&ObjectRef<PersistentVolumeClaim>>| {
        let is = |name: &str| changed.is_none_or(|claim| claim.name == name);
        machines.naming(changed, |vm| volumes(vm).filter_map(snapshot::claim).any(is))
    };
    let [of_claims, of_classes, of_profiles, of_snapshots] = [(); 4].map(|()| machines.clone());
    let claims =
        kept::heard(storage.claims.changes(), move |one: Option<&ObjectRef<PersistentVolumeClaim>>| {
            with(&of_claims, one)
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
