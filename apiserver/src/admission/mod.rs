//! The admission webhooks: Kubernetes asks before it stores an object of podvirt's kinds.
//!
//! [`HOOKS`] is the one table of webhooks: the server's routes and the configurations in the cluster follow it. What
//! is judged and defaulted stands in [`podvirt_api::admission`]; here is the protocol around it.

pub mod evict;
pub mod instancetypes;
pub mod lookup;
pub mod review;

use podvirt_api::admission::preset::Effect;
use podvirt_api::admission::{
    By, Cluster, backup, export, instancetype, kubevirt, migration, pool, preset, replica_set, snapshot, vm,
    vmi,
};
use podvirt_api::instancetype::Specs;
use podvirt_api::mesh;
use podvirt_api::names;
use podvirt_api::problem::Problems;
use serde_json::Value;

use review::{Request, Response};

/// What a webhook does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// It answers from the request alone.
    Alone(Alone),
    /// It looks at other objects.
    Lookup(Lookup),
}

/// Tasks that look at other objects first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Judges a new migration by its machine.
    ValidateMigrationCreate,
    /// Judges a new restore by the others of its namespace.
    ValidateRestoreCreate,
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
    /// Judges an instance type.
    ValidateInstancetype,
    /// Judges a preference.
    ValidatePreference,
    /// Judges a new instance.
    ValidateInstanceCreate,
    /// Judges a change of an instance.
    ValidateInstanceUpdate,
    /// Judges a replica set.
    ValidateReplicaSet,
    /// Judges a pool.
    ValidatePool,
    /// Judges a preset.
    ValidatePreset,
    /// Judges the cluster's configuration where podvirt was installed without virt-operator, which judges it else.
    ValidateKubeVirt,
    /// Sets a migration's finalizer and label.
    MutateMigration,
    /// Judges a change of a migration.
    ValidateMigrationUpdate,
    /// Judges a new snapshot.
    ValidateSnapshotCreate,
    /// Judges a change of a snapshot or of a restore.
    ValidateUnchanged,
    /// Judges what a snapshot holds.
    ValidateSnapshotContent,
    /// Sets what a clone makes.
    MutateClone,
    /// Judges a clone.
    ValidateClone,
    /// Judges an export.
    ValidateExport,
    /// Judges a new backup.
    ValidateBackup,
    /// Judges a new tracker of backups.
    ValidateBackupTracker,
}

/// A webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Its name, upstream's where upstream has it.
    pub name: &'static str,
    /// Its plain path; the path that is registered has a token behind it.
    pub path: &'static str,
    /// Resources about which the API server calls it: `plural` of the group kubevirt.io, `plural.instancetype` of the group
    /// instancetype.kubevirt.io.
    pub resources: &'static [&'static str],
    /// Operations it is asked about.
    pub operations: &'static [&'static str],
    /// What it does.
    pub task: Task,
}

impl Hook {
    /// Whether it may change the object.
    pub fn mutates(&self) -> bool {
        let mutating = [Alone::MutateVm, Alone::MutateInstance, Alone::MutateMigration, Alone::MutateClone];
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
        name: "virtualmachinereplicaset-validator.kubevirt.io",
        path: "/virtualmachinereplicaset-validate",
        resources: &["virtualmachineinstancereplicasets"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::ValidateReplicaSet),
    },
    Hook {
        name: "virtualmachinepool-validator.kubevirt.io",
        path: "/virtualmachinepool-validate",
        resources: &["virtualmachinepools.pool"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::ValidatePool),
    },
    Hook {
        name: "virtualmachinepreset-validator.kubevirt.io",
        path: "/vmipreset-validate",
        resources: &["virtualmachineinstancepresets"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::ValidatePreset),
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
        task: Task::Lookup(Lookup::ValidateMigrationCreate),
    },
    Hook {
        name: "migration-update-validator.kubevirt.io",
        path: "/migration-validate-update",
        resources: &["virtualmachineinstancemigrations"],
        operations: &["UPDATE"],
        task: Task::Alone(Alone::ValidateMigrationUpdate),
    },
    Hook {
        name: "virtualmachineinstancetype-validator.instancetype.kubevirt.io",
        path: "/virtualmachineinstancetypes-validate",
        resources: &["virtualmachineinstancetypes.instancetype"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::ValidateInstancetype),
    },
    Hook {
        name: "virtualmachineclusterinstancetype-validator.instancetype.kubevirt.io",
        path: "/virtualmachineclusterinstancetypes-validate",
        resources: &["virtualmachineclusterinstancetypes.instancetype"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::ValidateInstancetype),
    },
    Hook {
        name: "virtualmachinepreference-validator.instancetype.kubevirt.io",
        path: "/virtualmachinepreferences-validate",
        resources: &["virtualmachinepreferences.instancetype"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::ValidatePreference),
    },
    Hook {
        name: "virtualmachineclusterpreference-validator.instancetype.kubevirt.io",
        path: "/virtualmachineclusterpreferences-validate",
        resources: &["virtualmachineclusterpreferences.instancetype"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::ValidatePreference),
    },
    Hook {
        name: "virt-launcher-eviction-interceptor.kubevirt.io",
        path: "/launcher-eviction-validate",
        resources: &["pods/eviction"],
        operations: &["CREATE"],
        task: Task::Lookup(Lookup::Evict),
    },
    Hook {
        name: "virtualmachinesnapshot-validator.snapshot.kubevirt.io",
        path: "/virtualmachinesnapshots-validate",
        resources: &["virtualmachinesnapshots.snapshot"],
        operations: &["CREATE"],
        task: Task::Alone(Alone::ValidateSnapshotCreate),
    },
    Hook {
        name: "virtualmachinesnapshot-update-validator.snapshot.kubevirt.io",
        path: "/virtualmachinesnapshots-validate-update",
        resources: &["virtualmachinesnapshots.snapshot", "virtualmachinerestores.snapshot"],
        operations: &["UPDATE"],
        task: Task::Alone(Alone::ValidateUnchanged),
    },
    Hook {
        name: "virtualmachinesnapshotcontent-validator.snapshot.kubevirt.io",
        path: "/virtualmachinesnapshotcontents-validate",
        resources: &["virtualmachinesnapshotcontents.snapshot"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::ValidateSnapshotContent),
    },
    Hook {
        name: "virtualmachinerestore-validator.snapshot.kubevirt.io",
        path: "/virtualmachinerestores-validate",
        resources: &["virtualmachinerestores.snapshot"],
        operations: &["CREATE"],
        task: Task::Lookup(Lookup::ValidateRestoreCreate),
    },
    Hook {
        name: "virtualmachineclones-mutator.clone.kubevirt.io",
        path: "/vm-clone-mutate-create",
        resources: &["virtualmachineclones.clone"],
        operations: &["CREATE"],
        task: Task::Alone(Alone::MutateClone),
    },
    Hook {
        name: "vm-clone-validator.kubevirt.io",
        path: "/vm-clone-validate",
        resources: &["virtualmachineclones.clone"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::ValidateClone),
    },
    Hook {
        name: "virtualmachineexport-validator.export.kubevirt.io",
        path: "/virtualmachineexports-validate",
        resources: &["virtualmachineexports.export"],
        operations: &["CREATE", "UPDATE"],
        task: Task::Alone(Alone::ValidateExport),
    },
    Hook {
        name: "virtualmachinebackup-validator.backup.kubevirt.io",
        path: "/virtualmachinebackups-validate",
        resources: &["virtualmachinebackups.backup"],
        operations: &["CREATE"],
        task: Task::Alone(Alone::ValidateBackup),
    },
    Hook {
        name: "virtualmachinebackuptracker-validator.backup.kubevirt.io",
        path: "/virtualmachinebackuptrackers-validate",
        resources: &["virtualmachinebackuptrackers.backup"],
        operations: &["CREATE"],
        task: Task::Alone(Alone::ValidateBackupTracker),
    },
];

/// Answers a request from itself. `namespace` is podvirt's own.
pub fn answer(task: Alone, request: &Request, cluster: &Cluster, namespace: &str) -> Response {
    answer_with(task, request, &request.object, &Specs::default(), cluster, namespace)
}

/// Answers a request about `object`, which is the request's with what was changed of it already, and about the VM's instance
/// type and preference.
fn answer_with(
    task: Alone,
    request: &Request,
    object: &Value,
    specs: &Specs,
    cluster: &Cluster,
    namespace: &str,
) -> Response {
    let config = &cluster.configuration;
    let by = By::of(&request.user_info.username, namespace);
    let (old, new) = (&request.old_object, &request.object);
    let is_create = request.operation == "CREATE";
    match task {
        Alone::MutateVm => {
            let mut object = object.clone();
            vm::mutate(&mut object, config);
            Response::patched(&request.uid, new, &object)
        }
        Alone::MutateInstance if is_create => new_instance(request, cluster, namespace, []),
        Alone::MutateInstance => {
            let mut object = new.clone();
            vmi::mutate_update(old, &mut object, by);
            Response::patched(&request.uid, new, &object)
        }
        Alone::ValidateVm => {
            let problems = if is_create {
                vm::validate_with(new, specs, config, by)
            } else {
                vm::validate_update_with(old, new, specs, config, by)
            };
            judged(request, problems).warning(mesh::warnings(&new["spec"]["template"], "spec.template.spec"))
        }
        Alone::ValidateVmStatus => judged(request, vm::validate_status(old, new, by)),
        Alone::ValidateInstancetype => judged(request, instancetype::validate_instancetype(new)),
        Alone::ValidatePreference => {
            let (problems, warnings) = instancetype::validate_preference(new);
            judged(request, problems).warning(warnings)
        }
        Alone::ValidateInstanceCreate => {
            judged(request, vmi::validate_create(new, config, by)).warning(mesh::warnings(new, "spec"))
        }
        Alone::ValidateInstanceUpdate => judged(request, vmi::validate_update(old, new, by)),
        Alone::ValidateReplicaSet if is_create => judged(request, replica_set::validate(new, config, by)),
        Alone::ValidateReplicaSet => judged(request, replica_set::validate_update(old, new, config, by)),
        Alone::ValidatePool if is_create => judged(request, pool::validate(new, config, by)),
        Alone::ValidatePool => judged(request, pool::validate_update(old, new, config, by)),
        Alone::ValidatePreset if is_create => {
            judged(request, preset::validate(new)).warning(preset::warnings(new))
        }
        Alone::ValidatePreset => {
            judged(request, preset::validate_update(old, new)).warning(preset::warnings(new))
        }
        Alone::ValidateKubeVirt => {
            judged(request, kubevirt::validate_plain((!is_create).then_some(old), new))
        }
        Alone::MutateMigration => {
            let mut object = new.clone();
            migration::mutate_create(&mut object);
            Response::patched(&request.uid, new, &object)
        }
        Alone::ValidateMigrationUpdate => judged(request, migration::validate_update(old, new, by)),
        Alone::ValidateSnapshotCreate => judged(request, snapshot::validate_snapshot(new)),
        Alone::ValidateUnchanged => judged(request, snapshot::validate_unchanged(old, new)),
        Alone::ValidateSnapshotContent if is_create => judged(request, snapshot::validate_content(new)),
        Alone::ValidateSnapshotContent => judged(request, snapshot::validate_content_update(old, new)),
        Alone::MutateClone => {
            let mut object = new.clone();
            snapshot::mutate_clone(&mut object, &suffix(&request.uid));
            Response::patched(&request.uid, new, &object)
        }
        Alone::ValidateClone if is_create => judged(request, snapshot::validate_clone(new)),
        Alone::ValidateClone => judged(request, snapshot::validate_clone_update(old, new)),
        Alone::ValidateExport if is_create => judged(request, export::validate_create(new, config)),
        Alone::ValidateExport => judged(request, export::validate_update(old, new)),
        Alone::ValidateBackup => judged(request, backup::validate_backup(new, config)),
        Alone::ValidateBackupTracker => judged(request, backup::validate_tracker(new, config)),
    }
}

/// Letters at the end of a name that is made for a request, which no other request has.
fn suffix(uid: &str) -> String {
    names::short_name("", uid)
}

/// Makes of a new instance what is stored: with what the presets of its namespace say, and its defaults.
pub fn new_instance<'a>(
    request: &Request,
    cluster: &Cluster,
    namespace: &str,
    presets: impl IntoIterator<Item = &'a Effect>,
) -> Response {
    let by = By::of(&request.user_info.username, namespace);
    let new = &request.object;
    let mut object = new.clone();
    let warnings = match preset::apply(&mut object, presets) {
        Ok(warnings) => warnings,
        Err(problems) => return judged(request, problems),
    };
    vmi::mutate_create(&mut object, &cluster.configuration);
    vmi::mutate_told(&mut object, new, by);
    vmi::mutate_masquerade(&mut object, cluster.masquerade.as_deref());
    vmi::mutate_plugins(&mut object, &cluster.configuration);
    Response::patched(&request.uid, new, &object).warning(warnings)
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
