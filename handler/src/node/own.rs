//! The VirtualMachineInstances of this node, as virt-api gives them to its virt-handler.
//!
//! A virt-handler has no right to read VirtualMachineInstances: there is none that is for one node's alone. virt-api lists
//! and watches those of the node that asks, and tells of any other where it is, by a resource of its own.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use podvirt_api::names::{NODE_MACHINES, SUBRESOURCES_GROUP};
use podvirt_api::v1::VirtualMachineInstance;
use serde::Deserialize;

/// A VirtualMachineInstance that is read from virt-api. Got by its name it has no more than its names, UID, nodes and the
/// labels of these.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Own(pub(super) VirtualMachineInstance);

impl Resource for Own {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VirtualMachineInstance".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        SUBRESOURCES_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        NODE_MACHINES.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}
