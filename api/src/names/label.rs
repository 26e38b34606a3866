//! Labels.

/// Which daemon, or `virt-launcher`: on pods, services and workloads.
pub const APP: &str = "kubevirt.io";
/// Value of [`APP`] on a launcher pod.
pub const APP_LAUNCHER: &str = "virt-launcher";
/// Value of [`APP`] on a pod that holds the claims of volumes that are plugged.
pub const APP_HOTPLUG: &str = "hotplug-disk";
/// Value of [`APP`] on virt-handler's pods.
pub const APP_HANDLER: &str = "virt-handler";
/// Value of [`APP`] on virt-controller's pods.
pub const APP_CONTROLLER: &str = "virt-controller";
/// Value of [`APP`] on virt-api's pods.
pub const APP_API: &str = "virt-api";
/// UID of the VirtualMachineInstance that a launcher pod was made for.
pub const CREATED_BY: &str = "kubevirt.io/created-by";
/// Name of the VirtualMachineInstance, on its launcher pod, by [`super::label_value`].
pub const VM_NAME: &str = "vm.kubevirt.io/name";
/// Name of the VirtualMachineInstance for selectors, on its launcher pod, by [`super::label_value`]: the pods of a machine and
/// of no other have it, also while it migrates.
pub const VMI_ID: &str = "vmi.kubevirt.io/id";
/// Node that a VirtualMachineInstance runs on: on the VMI and its launcher pod.
pub const NODE_NAME: &str = "kubevirt.io/nodeName";
/// Node that a VirtualMachineInstance is migrating to.
pub const MIGRATION_TARGET_NODE_NAME: &str = "kubevirt.io/migrationTargetNodeName";
/// UID of a migration: on the target's launcher pod.
pub const MIGRATION_JOB: &str = "kubevirt.io/migrationJobUID";
/// Name of the VirtualMachineInstance whose volumes a migration takes to other claims, or its UID where the name is longer than
/// 63 characters: on the migration.
pub const VOLUME_UPDATE_MIGRATION: &str = "kubevirt.io/volume-update-migration";
/// Name of a migration: on the claim that its target keeps the machine's state on, until that is the machine's.
pub const MIGRATION_NAME: &str = "kubevirt.io/migrationName";
/// Name of the VirtualMachineInstance that a migration moves: on the migration, by [`super::label_value`].
pub const MIGRATION_VMI: &str = "kubevirt.io/vmi-name";
/// How much of what a machine's pod asks for its limit of memory is, where a quota wants one: on a namespace.
pub const MEMORY_LIMIT_RATIO: &str = "alpha.kubevirt.io/auto-memory-limits-ratio";
/// Image of the launcher is not the installed one.
pub const OUTDATED_LAUNCHER_IMAGE: &str = "kubevirt.io/outdatedLauncherImage";
/// Revision of a VirtualMachinePool that a VirtualMachine, or its instance, was made from.
pub const POOL_REVISION: &str = "kubevirt.io/vm-pool-revision-name";
/// How much the launcher of a VirtualMachineInstance logs, from 0 to 9: on the VMI.
pub const LOG_VERBOSITY: &str = "logVerbosity";
/// `true` on a node whose virt-handler is alive.
pub const SCHEDULABLE: &str = "kubevirt.io/schedulable";
/// Architecture of a node, in Go's words.
pub const ARCH: &str = "kubernetes.io/arch";

/// Before a model of a processor that a guest can have: on a node.
pub const CPU_MODEL: &str = "cpu-model.node.kubevirt.io/";
/// Before a model of a processor that libvirt knows: on a node, for guests that come with the model of another.
pub const CPU_MODEL_MIGRATION: &str = "cpu-model-migration.node.kubevirt.io/";
/// Before a feature of processors that a guest can have: on a node.
pub const CPU_FEATURE: &str = "cpu-feature.node.kubevirt.io/";
/// Before what is known of the time stamp counter: on a node.
pub const CPU_TIMER: &str = "cpu-timer.node.kubevirt.io/";
/// Before the vendor of a node's processor.
pub const CPU_VENDOR: &str = "cpu-vendor.node.kubevirt.io/";
/// Before the model that is nearest to a node's processor.
pub const HOST_MODEL_CPU: &str = "host-model-cpu.node.kubevirt.io/";
/// Before a feature that a node's processor has beyond that model.
pub const HOST_MODEL_REQUIRED_FEATURES: &str = "host-model-required-features.node.kubevirt.io/";
/// Before a machine type that QEMU has: on a node.
pub const MACHINE_TYPE: &str = "machine-type.node.kubevirt.io/";
/// The model that is nearest to a node's processor is obsolete.
pub const OBSOLETE_HOST_MODEL: &str = "node-labeller.kubevirt.io/obsolete-host-model";
/// What the labels of a node begin with that say what QEMU can do there.
pub const OF_NODES: &[&str] = &[
    CPU_MODEL,
    CPU_MODEL_MIGRATION,
    CPU_FEATURE,
    CPU_TIMER,
    CPU_VENDOR,
    HOST_MODEL_CPU,
    HOST_MODEL_REQUIRED_FEATURES,
    MACHINE_TYPE,
    OBSOLETE_HOST_MODEL,
];

/// Labels of a VirtualMachineInstance that only podvirt's daemons may set or change.
pub const RESERVED: &[&str] = &[
    CREATED_BY,
    MIGRATION_JOB,
    NODE_NAME,
    MIGRATION_TARGET_NODE_NAME,
    "kubevirt.io/install-strategy",
    SCHEDULABLE,
];

/// Whether users may not set `label` on a VirtualMachineInstance.
pub fn is_reserved(label: &str) -> bool {
    RESERVED.contains(&label)
}
