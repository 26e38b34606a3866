//! Conditions of VirtualMachineInstances, VirtualMachines and launcher pods, and their reasons.

/// The launcher pod's readiness gate: set by virt-controller, false while the guest is paused.
pub const VIRTUAL_MACHINE_UNPAUSED: &str = "kubevirt.io/virtual-machine-unpaused";

/// The guest runs and its readiness probe, if there is one, succeeds.
pub const READY: &str = "Ready";
/// The launcher pod was bound to a node; false says why it is not.
pub const POD_SCHEDULED: &str = "PodScheduled";
/// The DataVolumes of the machine are ready.
pub const DATA_VOLUMES_READY: &str = "DataVolumesReady";
/// The claims of the VirtualMachineInstance are being made and filled.
pub const PROVISIONING: &str = "Provisioning";
/// The machine is as its specification says; false says why it is not.
pub const SYNCHRONIZED: &str = "Synchronized";
/// The guest is paused.
pub const PAUSED: &str = "Paused";
/// The machine can be migrated while it runs.
pub const LIVE_MIGRATABLE: &str = "LiveMigratable";
/// The machine is to leave its node, because an eviction of its pod was asked for; its reason is the same word.
pub const EVICTION_REQUESTED: &str = "EvictionRequested";
/// Of a VirtualMachineInstance: what its specification asks for comes with the next migration.
pub const MIGRATION_REQUIRED: &str = "MigrationRequired";
/// Volumes are moving to other claims; false says why they do not.
pub const VOLUMES_CHANGE: &str = "VolumesChange";
/// Of a VirtualMachine: something failed.
pub const FAILURE: &str = "Failure";
/// Of a VirtualMachine: a change takes effect at the next start.
pub const RESTART_REQUIRED: &str = "RestartRequired";

/// Of a VirtualMachine: its claims hold parts of disks, see [`VOLUMES_CHANGE`].
pub const MANUAL_RECOVERY_REQUIRED: &str = "ManualRecoveryRequired";

/// Values of a condition's `status`.
pub const TRUE: &str = "True";
/// See [`TRUE`].
pub const FALSE: &str = "False";
/// See [`TRUE`].
pub const UNKNOWN: &str = "Unknown";

/// Reasons that conditions carry.
pub mod reason {
    /// The machine is to move for what its specification asks for.
    pub const AUTO_MIGRATION_DUE_TO_LIVE_UPDATE: &str = "AutoMigrationDueToLiveUpdate";
    /// It may come without a migration still.
    pub const AUTO_MIGRATION_PENDING: &str = "AutoMigrationPending";
    /// [`super::VOLUMES_CHANGE`] is false: the VirtualMachine names the former claims again.
    pub const VOLUMES_CHANGE_CANCELLATION: &str = "VolumesChangeCancellation";
    /// [`super::READY`] is false: there is no guest yet.
    pub const GUEST_NOT_RUNNING: &str = "GuestNotRunning";
    /// [`super::READY`] is false: the launcher pod is being deleted.
    pub const POD_TERMINATING: &str = "PodTerminating";
    /// [`super::READY`] is false: there is no launcher pod.
    pub const POD_NOT_EXISTS: &str = "PodNotExists";
    /// [`super::READY`] is false: the launcher pod has no such condition.
    pub const POD_CONDITION_MISSING: &str = "PodConditionMissing";
    /// `status.reason` of an instance that has succeeded: its guest shut down because its pod was ended (an eviction, a
    /// deletion), and not by its own will.
    pub const SHUT_DOWN_WITH_POD: &str = "ShutDownWithPod";
    /// [`super::PAUSED`]: a user asked for it.
    pub const PAUSED_BY_USER: &str = "PausedByUser";
    /// [`super::PAUSED`]: a disk failed.
    pub const PAUSED_IO_ERROR: &str = "PausedIOError";
    /// [`super::PAUSED`]: a migration watches.
    pub const PAUSED_BY_MIGRATION_MONITOR: &str = "PausedByMigrationMonitor";
    /// Pod condition [`super::VIRTUAL_MACHINE_UNPAUSED`]: the guest is not paused.
    pub const NOT_PAUSED: &str = "NotPaused";
    /// Pod condition [`super::VIRTUAL_MACHINE_UNPAUSED`]: the guest is paused.
    pub const PAUSED: &str = "Paused";
    /// [`super::LIVE_MIGRATABLE`] is false: a disk cannot be reached from another node.
    pub const DISKS_NOT_LIVE_MIGRATABLE: &str = "DisksNotLiveMigratable";
    /// [`super::LIVE_MIGRATABLE`] is false: an interface cannot be moved.
    pub const INTERFACE_NOT_LIVE_MIGRATABLE: &str = "InterfaceNotLiveMigratable";
    /// [`super::SYNCHRONIZED`] is false: the launcher pod could not be made.
    pub const FAILED_CREATE: &str = "FailedCreate";
    /// [`super::SYNCHRONIZED`] is false: the launcher pod could not be deleted.
    pub const FAILED_DELETE: &str = "FailedDelete";
    /// [`super::DATA_VOLUMES_READY`] is true.
    pub const ALL_DATA_VOLUMES_READY: &str = "AllDVsReady";
    /// [`super::DATA_VOLUMES_READY`] is not true.
    pub const NOT_ALL_DATA_VOLUMES_READY: &str = "NotAllDVsReady";
    /// [`super::SYNCHRONIZED`] is false: a DataVolume is not filled.
    pub const FAILED_DATA_VOLUME_IMPORT: &str = "FailedDataVolumeImport";
    /// [`super::SYNCHRONIZED`] is false: a volume's claim does not exist.
    pub const FAILED_PVC_NOT_FOUND: &str = "FailedPvcNotFound";
    /// [`super::SYNCHRONIZED`] is false: the claim for the machine's state cannot be made.
    pub const FAILED_BACKEND_STORAGE_CREATE: &str = "FailedBackendStorageCreate";
    /// [`super::SYNCHRONIZED`] is false: the claim for the machine's state cannot be used.
    pub const FAILED_BACKEND_STORAGE_PROBE: &str = "FailedBackendStorageProbe";
    /// [`super::SYNCHRONIZED`] is false: the claim for the machine's state has no volume yet.
    pub const BACKEND_STORAGE_NOT_READY: &str = "BackendStorageNotReady";
    /// [`super::SYNCHRONIZED`] is false: an image cannot be pulled.
    pub const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
    /// [`super::SYNCHRONIZED`] is false: an image could not be pulled.
    pub const ERR_IMAGE_PULL: &str = "ErrImagePull";
    /// [`super::SYNCHRONIZED`] is false: virt-handler could not carry out the specification.
    pub const SYNCHRONIZING_FAILED: &str = "Synchronizing with the Domain failed.";
    /// [`super::SYNCHRONIZED`] is false: a container of the launcher pod ends again and again.
    pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
    /// [`super::SYNCHRONIZED`] is false: the kubelet has not begun a container of the launcher pod for a while.
    pub const CONTAINER_CREATING: &str = "ContainerCreating";
    /// [`super::SYNCHRONIZED`] is false: something is waited for.
    pub const WAITING: &str = "Waiting";

    /// Reasons of [`super::SYNCHRONIZED`] that speak of the launcher pod's containers: why one does not start, in the
    /// kubelet's words. virt-controller, which sees the pod, writes and removes a condition with one of them;
    /// virt-handler lets it stand until the guest runs.
    pub const OF_CONTAINERS: &[&str] = &[
        ERR_IMAGE_PULL,
        IMAGE_PULL_BACK_OFF,
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        CRASH_LOOP_BACK_OFF,
        CONTAINER_CREATING,
    ];

    /// [`super::POD_SCHEDULED`] is false: no node fits.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
}
