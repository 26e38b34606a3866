//! The shell's part with DataVolumes: what is seen of them, and the ones that templates ask for.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use podvirt_api::cdi::DataVolume;
use podvirt_api::storage::claim;
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstancePhase as Phase};
use tokio::sync::broadcast::error::RecvError;

use super::reconcile::{Error, Shell};
use super::{Strategy, is_final};
use crate::data::look::name_of;
use crate::data::make::make;
use crate::data::{Look, look};

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

    /// Makes DataVolumes of the templates at these places.
    pub(super) async fn make_data_volumes(
        &self,
        machines: &Api<VirtualMachine>,
        vm: &VirtualMachine,
        shape: &VirtualMachine,
        places: &[usize],
    ) -> Result<bool, Error> {
        for template in places.iter().filter_map(|place| shape.spec.data_volume_templates.get(*place)) {
            if let Err(error) = make(&self.client, &self.recorder, shape, template).await {
                let what = format!("DataVolume {} not made", name_of(template));
                return self.failed(machines, vm, error.reason(), &what, &error.told()).await;
            }
        }
        Ok(true)
    }
}
