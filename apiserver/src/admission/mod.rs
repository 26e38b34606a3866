//! The admission webhooks: Kubernetes asks before it stores an object of podvirt's kinds.
//!
//! [`HOOKS`] is the one table of webhooks: the server's routes and the configurations in the cluster follow it. What
//! is judged and defaulted stands in [`podvirt_api::admission`]; here is the protocol around it.

pub mod evict;
pub mod look;
pub mod review;

use podvirt_api::admission::{By, Cluster, kubevirt, migration, not_supported, vm, vmi};
use podvirt_api::problem::Problems;

use review::{Request, Response};

/// What a webhook does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// It answers from the request alone.
    Alone(Alone),
    /// It looks at other objects.
    Looking(Looking),
}

/// Tasks that look at other objects first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looking {
    /// Judges a new migration by its machine.
    ValidateMigrationCreate,
    /// Judges the eviction of a launcher pod, and marks its machine.
    Evict,
}

/// Tasks that need the request alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// Sets a VM's defaults.
    MutateVm,
    /// Sets an instance's defaults.
    MutateInstance,
    /// Judges a VM.
    ValidateVm,
    /// Judges a change of a VM's status.
    ValidateVmStatus,
    /// Judges a new instance.
    ValidateInstanceCreate,
    /// Judges a change of an instance.
    ValidateInstanceUpdate,
    /// Judges the cluster's configuration.
    ValidateKubeVirt,
    /// Sets a migration's finalizer and label.
    MutateMigration,
    /// Judges a change of a migration.
    ValidateMigrationUpdate,
    /// Refuses a kind that podvirt does not carry out.
    Refuse,
}

/// A webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Its name, upstream's where upstream has it.
    pub name: &'static str,
    /// Path of the server.
    pub path: &'static str,
    /// Resources about which the API server calls it: `plural` of the group kubevirt.io, `plural.pool` of the group
    /// pool.kubevirt.io, `*.pool` for all of that group.
    pub resources: &'static [&'static str],
    /// Operations it is asked about.
    pub operations: &'static [&'static str],
    /// What it does.
    pub task: Task,
}

impl Hook {
    /// Whether it may change the object.
    pub fn mutates(&self) -> bool {
        let mutating = [Alone::MutateVm, Alone::MutateInstance, Alone::MutateMigration];
        matches!(self.task, Task::Alone(task) if mutating.contains(&task))
    }
}

/// All webhooks.
pub const HOOKS: &[Hook] = &[
    Hook {
        name: "virtualmachines-mutator.kubevirt.io",
        path: "/virtualmachines-mutate",
        resources: &["virtualmachines"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::MutateVm),
    },
    Hook {
        name: "virtualmachineinstances-mutator.kubevirt.io",
        path: "/virtualmachineinstances-mutate",
        resources: &["virtualmachineinstances"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::MutateInstance),
    },
    Hook {
        name: "migrations-mutator.kubevirt.io",
        path: "/migration-mutate-create",
        resources: &["virtualmachineinstancemigrations"],
        operations: &["CREATE"],
        task: Task::Alone(Alone::MutateMigration),
    },
    Hook {
        name: "virtualmachine-validator.kubevirt.io",
        path: "/virtualmachines-validate",
        resources: &["virtualmachines"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::ValidateVm),
    },
    Hook {
        name: "kubevirt-crd-status-validator.kubevirt.io",
        path: "/status-validate",
        resources: &["virtualmachines/status"],
        operations: &["UPDATE"],
        task: Task::Alone(Alone::ValidateVmStatus),
    },
    Hook {
        name: "virtualmachineinstances-create-validator.kubevirt.io",
        path: "/virtualmachineinstances-validate-create",
        resources: &["virtualmachineinstances"],
        operations: &["CREATE"],
        task: Task::Alone(Alone::ValidateInstanceCreate),
    },
    Hook {
        name: "virtualmachineinstances-update-validator.kubevirt.io",
        path: "/virtualmachineinstances-validate-update",
        resources: &["virtualmachineinstances"],
        operations: &["UPDATE"],
        task: Task::Alone(Alone::ValidateInstanceUpdate),
    },
    Hook {
        name: "kubevirt-validator.kubevirt.io",
        path: "/kubevirts-validate",
        resources: &["kubevirts"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::ValidateKubeVirt),
    },
    Hook {
        name: "migration-create-validator.kubevirt.io",
        path: "/migration-validate-create",
        resources: &["virtualmachineinstancemigrations"],
        operations: &["CREATE"],
        task: Task::Looking(Looking::ValidateMigrationCreate),
    },
    Hook {
        name: "migration-update-validator.kubevirt.io",
        path: "/migration-validate-update",
        resources: &["virtualmachineinstancemigrations"],
        operations: &["UPDATE"],
        task: Task::Alone(Alone::ValidateMigrationUpdate),
    },
    Hook {
        name: "virt-launcher-eviction-interceptor.kubevirt.io",
        path: "/launcher-eviction-validate",
        resources: &["pods/eviction"],
        operations: &["CREATE"],
        task: Task::Looking(Looking::Evict),
    },
    Hook {
        name: "not-carried-out.kubevirt.io",
        path: "/not-carried-out-validate",
        resources: &[
            "virtualmachineinstancereplicasets",
            "virtualmachineinstancepresets",
            "*.backup",
            "*.clone",
            "*.export",
            "*.instancetype",
            "*.pool",
            "*.snapshot",
        ],
        operations: &["CREATE"],
        task: Task::Alone(Alone::Refuse),
    },
];

/// Answers a request from itself. `namespace` is podvirt's own.
pub fn answer(task: Alone, request: &Request, cluster: &Cluster, namespace: &str) -> Response {
    let config = &cluster.configuration;
    let by = By::of(&request.user_info.username, namespace);
    let (old, new) = (&request.old_object, &request.object);
    let is_create = request.operation == "CREATE";
    match task {
        Alone::MutateVm => {
            let mut object = new.clone();
            vm::mutate(&mut object, config);
            Response::patched(&request.uid, new, &object)
        }
        Alone::MutateInstance => {
            let mut object = new.clone();
            if is_create {
                vmi::mutate_create(&mut object, config);
                vmi::mutate_revision(&mut object, new, by);
                vmi::mutate_masquerade(&mut object, cluster.masquerade.as_deref());
                vmi::mutate_plugins(&mut object, &cluster.configuration);
            } else {
                vmi::mutate_update(old, &mut object, by);
            }
            Response::patched(&request.uid, new, &object)
        }
        Alone::ValidateVm if is_create => judged(request, vm::validate(new, config, by)),
        Alone::ValidateVm => judged(request, vm::validate_update(old, new, config, by)),
        Alone::ValidateVmStatus => judged(request, vm::validate_status(old, new, by)),
        Alone::ValidateInstanceCreate => judged(request, vmi::validate_create(new, config, by)),
        Alone::ValidateInstanceUpdate => judged(request, vmi::validate_update(old, new, by)),
        Alone::ValidateKubeVirt if is_create => judged(request, kubevirt::validate(new)),
        Alone::ValidateKubeVirt => judged(request, kubevirt::validate_update(old, new)),
        Alone::MutateMigration => {
            let mut object = new.clone();
            migration::mutate_create(&mut object);
            Response::patched(&request.uid, new, &object)
        }
        Alone::ValidateMigrationUpdate => judged(request, migration::validate_update(old, new, by)),
        Alone::Refuse => judged(request, not_supported(&request.kind.kind)),
    }
}

pub(crate) fn judged(request: &Request, problems: Problems) -> Response {
    if problems.is_empty() {
        Response::allowed(&request.uid)
    } else {
        Response::refused(&request.uid, &problems)
    }
}

#[cfg(test)]
mod tests;
