//! The admission webhooks: Kubernetes asks before it stores an object of podvirt's kinds.
//!
//! [`HOOKS`] is the one table of webhooks: the server's routes and the configurations in the cluster follow it. What
//! is judged and defaulted stands in [`podvirt_api::admission`]; here is the protocol around it.

pub mod review;

use podvirt_api::admission::{By, kubevirt, not_supported, vm, vmi};
use podvirt_api::problem::Problems;
use podvirt_api::v1::KubeVirtConfiguration;
use serde_json::Value;

use review::{Request, Response};

/// What a webhook does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Sets a VM's defaults.
    MutateVm,
    /// Sets an instance's defaults.
    MutateInstance,
    /// Judges a VM.
    ValidateVm,
    /// Judges a new instance.
    ValidateInstanceCreate,
    /// Judges a change of an instance.
    ValidateInstanceUpdate,
    /// Judges the cluster's configuration.
    ValidateKubeVirt,
    /// Refuses a kind that podvirt does not carry out.
    Refuse(&'static str),
}

/// A webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Its name, upstream's where upstream has it.
    pub name: &'static str,
    /// Path of the server.
    pub path: &'static str,
    /// Plural of the kind it is asked about.
    pub resource: &'static str,
    /// Operations it is asked about.
    pub operations: &'static [&'static str],
    /// What it does.
    pub task: Task,
}

impl Hook {
    /// Whether it may change the object.
    pub fn mutates(&self) -> bool {
        matches!(self.task, Task::MutateVm | Task::MutateInstance)
    }
}

/// All webhooks.
pub const HOOKS: &[Hook] = &[
    Hook {
        name: "virtualmachines-mutator.kubevirt.io",
        path: "/virtualmachines-mutate",
        resource: "virtualmachines",
        operations: &["CREATE", "UPDATE"],
        task: Task::MutateVm,
    },
    Hook {
        name: "virtualmachineinstances-mutator.kubevirt.io",
        path: "/virtualmachineinstances-mutate",
        resource: "virtualmachineinstances",
        operations: &["CREATE", "UPDATE"],
        task: Task::MutateInstance,
    },
    Hook {
        name: "virtualmachine-validator.kubevirt.io",
        path: "/virtualmachines-validate",
        resource: "virtualmachines",
        operations: &["CREATE", "UPDATE"],
        task: Task::ValidateVm,
    },
    Hook {
        name: "virtualmachineinstances-create-validator.kubevirt.io",
        path: "/virtualmachineinstances-validate-create",
        resource: "virtualmachineinstances",
        operations: &["CREATE"],
        task: Task::ValidateInstanceCreate,
    },
    Hook {
        name: "virtualmachineinstances-update-validator.kubevirt.io",
        path: "/virtualmachineinstances-validate-update",
        resource: "virtualmachineinstances",
        operations: &["UPDATE"],
        task: Task::ValidateInstanceUpdate,
    },
    Hook {
        name: "kubevirt-validator.kubevirt.io",
        path: "/kubevirts-validate",
        resource: "kubevirts",
        operations: &["CREATE", "UPDATE"],
        task: Task::ValidateKubeVirt,
    },
    Hook {
        name: "migration-create-validator.kubevirt.io",
        path: "/migration-validate-create",
        resource: "virtualmachineinstancemigrations",
        operations: &["CREATE"],
        task: Task::Refuse("VirtualMachineInstanceMigration"),
    },
    Hook {
        name: "virtualmachinereplicaset-validator.kubevirt.io",
        path: "/virtualmachinereplicaset-validate",
        resource: "virtualmachineinstancereplicasets",
        operations: &["CREATE"],
        task: Task::Refuse("VirtualMachineInstanceReplicaSet"),
    },
];

/// Answers a request. `namespace` is podvirt's own.
pub fn answer(hook: &Hook, request: &Request, config: &KubeVirtConfiguration, namespace: &str) -> Response {
    let by = By::of(&request.user_info.username, namespace);
    let (old, new) = (&request.old_object, &request.object);
    let is_create = request.operation == "CREATE";
    match hook.task {
        Task::MutateVm => {
            let mut object = new.clone();
            vm::mutate(&mut object, config);
            Response::patched(&request.uid, new, &object)
        }
        Task::MutateInstance => {
            let mut object = new.clone();
            if is_create {
                vmi::mutate_create(&mut object, config);
            } else {
                vmi::mutate_update(old, &mut object, by);
            }
            Response::patched(&request.uid, new, &object)
        }
        Task::ValidateVm if !is_create && same_spec(old, new) => Response::allowed(&request.uid),
        Task::ValidateVm => judged(request, vm::validate(new, config, by)),
        Task::ValidateInstanceCreate => judged(request, vmi::validate_create(new, config, by)),
        Task::ValidateInstanceUpdate => judged(request, vmi::validate_update(old, new, by)),
        Task::ValidateKubeVirt if !is_create && same_spec(old, new) => Response::allowed(&request.uid),
        Task::ValidateKubeVirt => judged(request, kubevirt::validate(new)),
        Task::Refuse(kind) => judged(request, not_supported(kind)),
    }
}

/// A change of labels, finalizers or status must pass even where a later version would refuse the spec: the object is
/// there already.
fn same_spec(old: &Value, new: &Value) -> bool {
    old.get("spec") == new.get("spec")
}

fn judged(request: &Request, problems: Problems) -> Response {
    if problems.is_empty() {
        Response::allowed(&request.uid)
    } else {
        Response::refused(&request.uid, &problems)
    }
}

#[cfg(test)]
mod tests;
