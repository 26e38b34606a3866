//! What the cluster's administrator says of the containers beside machines: `supportContainerResources` of the KubeVirt object.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;

use crate::quantity::Quantity;
use crate::v1::{KubeVirtConfiguration, SupportContainerType};

/// What virtiofsd and the kernel need for each file of its directory that the guest knows of, bytes: the file is open as long.
pub(super) const OPEN_FILE: u64 = 2 << 10;
/// Files that virtiofsd may have open where there is little memory.
const OPEN_FILES_MIN: u64 = 1024;

/// The resources of the pod that holds claims of plugged volumes: upstream's, as far as the cluster says nothing else.
pub fn attachment(config: &KubeVirtConfiguration) -> ResourceRequirements {
    told(amounts(["10m", "2M"], ["100m", "80M"]), config, SupportContainerType::Hotplugdisk, false)
}

/// The resources of the pod that serves an export: upstream's, as far as the cluster says nothing else.
pub fn exporter(config: &KubeVirtConfiguration) -> ResourceRequirements {
    told(amounts(["100m", "200Mi"], ["1", "1024Mi"]), config, SupportContainerType::Vmexport, false)
}

/// Processor and memory: asked for, and the most that may be taken.
fn amounts(requests: [&str; 2], limits: [&str; 2]) -> ResourceRequirements {
    let named = |amounts: [&str; 2]| {
        let named = ["cpu", "memory"].into_iter().zip(amounts);
        Some(named.map(|(name, amount)| (name.to_owned(), K8sQuantity(amount.to_owned()))).collect())
    };
    ResourceRequirements { requests: named(requests), limits: named(limits), claims: None }
}

/// The resources `of` a container of this kind, as far as the cluster says nothing else. `guaranteed`: requests are to equal
/// limits.
pub(super) fn told(
    mut of: ResourceRequirements,
    config: &KubeVirtConfiguration,
    kind: SupportContainerType,
    guaranteed: bool,
) -> ResourceRequirements {
    let Some(told) = config.support_container_resources.iter().find(|told| told.r#type == kind) else {
        return of;
    };
    let amount = |map: &Option<BTreeMap<String, K8sQuantity>>, name: &str| {
        let amount = map.as_ref()?.get(name)?.0.parse::<Quantity>().ok()?;
        amount.is_positive().then_some(amount)
    };
    for name in ["cpu", "memory"] {
        let (wanted, most) = (amount(&told.resources.requests, name), amount(&told.resources.limits, name));
        // What the cluster says goes before what is podvirt's own, where the two do not fit.
        let own =
            amount(&of.limits, name).map(|own| wanted.clone().map_or(own.clone(), |wanted| wanted.max(own)));
        let limit = most.or(own);
        let request = wanted.or_else(|| amount(&of.requests, name));
        let request = match limit.clone() {
            Some(limit) if guaranteed => Some(limit),
            Some(limit) => request.map(|request| request.min(limit)),
            None => request,
        };
        for (amounts, amount) in [(&mut of.requests, request), (&mut of.limits, limit)] {
            if let Some(amount) = amount {
                amounts.get_or_insert_default().insert(name.to_owned(), K8sQuantity(amount.to_string()));
            }
        }
    }
    of
}

/// How many files virtiofsd may have open with these resources. A guest that knows of more gets errors, and forgets some;
/// without the bound the kernel would end virtiofsd, and the guest's file system would hang.
pub fn open_files(of: &ResourceRequirements) -> u64 {
    let limit = of.limits.as_ref().and_then(|limits| limits.get("memory"));
    let limit = limit.and_then(|limit| limit.0.parse::<Quantity>().ok()).map_or(0, |limit| limit.value());
    (limit / OPEN_FILE).max(OPEN_FILES_MIN)
}
