// Written by podvirt-api-generate from api/model. Do not edit.

use super::word::open_words;

open_words! {
    /// `ChangedBlockTrackingState` of upstream's API.
    ChangedBlockTrackingState {
        /// `PendingRestart`.
        PendingRestart = "PendingRestart",
        /// `Initializing`.
        Initializing = "Initializing",
        /// `Enabled`.
        Enabled = "Enabled",
        /// `Disabled`.
        Disabled = "Disabled",
        /// `IncrementalBackupFeatureGateDisabled`.
        IncrementalBackupFeatureGateDisabled = "IncrementalBackupFeatureGateDisabled",
    }
}

open_words! {
    /// `DiskBus` of upstream's API.
    DiskBus {
        /// `scsi`.
        Scsi = "scsi",
        /// `sata`.
        Sata = "sata",
        /// `usb`.
        Usb = "usb",
    }
}

open_words! {
    /// `DiskErrorPolicy` of upstream's API.
    DiskErrorPolicy {
        /// `stop`.
        Stop = "stop",
        /// `ignore`.
        Ignore = "ignore",
        /// `report`.
        Report = "report",
        /// `enospace`.
        Enospace = "enospace",
    }
}

open_words! {
    /// `DomainAttachmentType` of upstream's API.
    DomainAttachmentType {
        /// `tap`.
        Tap = "tap",
        /// `managedTap`.
        ManagedTap = "managedTap",
    }
}

open_words! {
    /// `DriverCache` of upstream's API.
    DriverCache {
        /// `none`.
        None = "none",
        /// `writethrough`.
        Writethrough = "writethrough",
        /// `writeback`.
        Writeback = "writeback",
    }
}

open_words! {
    /// `DriverIO` of upstream's API.
    DriverIo {
        /// `threads`.
        Threads = "threads",
        /// `native`.
        Native = "native",
    }
}

open_words! {
    /// `EvictionStrategy` of upstream's API.
    EvictionStrategy {
        /// `None`.
        None = "None",
        /// `LiveMigrate`.
        LiveMigrate = "LiveMigrate",
        /// `LiveMigrateIfPossible`.
        LiveMigrateIfPossible = "LiveMigrateIfPossible",
        /// `External`.
        External = "External",
    }
}

open_words! {
    /// `HPETTickPolicy` of upstream's API.
    HpetTickPolicy {
        /// `delay`.
        Delay = "delay",
        /// `catchup`.
        Catchup = "catchup",
        /// `merge`.
        Merge = "merge",
        /// `discard`.
        Discard = "discard",
    }
}

open_words! {
    /// `HostDiskType` of upstream's API.
    HostDiskType {
        /// `DiskOrCreate`.
        DiskOrCreate = "DiskOrCreate",
        /// `Disk`.
        Disk = "Disk",
    }
}

open_words! {
    /// `IOThreadsPolicy` of upstream's API.
    IothreadsPolicy {
        /// `shared`.
        Shared = "shared",
        /// `auto`.
        Auto = "auto",
        /// `supplementalPool`.
        SupplementalPool = "supplementalPool",
    }
}

open_words! {
    /// `InferFromVolumeFailurePolicy` of upstream's API.
    InferFromVolumeFailurePolicy {
        /// `Reject`.
        Reject = "Reject",
        /// `Ignore`.
        Ignore = "Ignore",
    }
}

open_words! {
    /// `InputBus` of upstream's API.
    InputBus {
        /// `usb`.
        Usb = "usb",
        /// `virtio`.
        Virtio = "virtio",
    }
}

open_words! {
    /// `InputType` of upstream's API.
    InputType {
        /// `tablet`.
        Tablet = "tablet",
        /// `keyboard`.
        Keyboard = "keyboard",
    }
}

open_words! {
    /// `InstancetypeReferencePolicy` of upstream's API.
    InstancetypeReferencePolicy {
        /// `reference`.
        Reference = "reference",
        /// `expand`.
        Expand = "expand",
        /// `expandAll`.
        ExpandAll = "expandAll",
    }
}

open_words! {
    /// `InterfaceState` of upstream's API.
    InterfaceState {
        /// `absent`.
        Absent = "absent",
        /// `up`.
        Up = "up",
        /// `down`.
        Down = "down",
    }
}

open_words! {
    /// `KubeVirtConditionType` of upstream's API.
    KubeVirtConditionType {
        /// `Synchronized`.
        Synchronized = "Synchronized",
        /// `Created`.
        Created = "Created",
        /// `Available`.
        Available = "Available",
        /// `Progressing`.
        Progressing = "Progressing",
        /// `Degraded`.
        Degraded = "Degraded",
    }
}

open_words! {
    /// `KubeVirtPhase` of upstream's API.
    KubeVirtPhase {
        /// `Deploying`.
        Deploying = "Deploying",
        /// `Deployed`.
        Deployed = "Deployed",
        /// `Deleting`.
        Deleting = "Deleting",
        /// `Deleted`.
        Deleted = "Deleted",
    }
}

open_words! {
    /// `KubeVirtUninstallStrategy` of upstream's API.
    KubeVirtUninstallStrategy {
        /// `RemoveWorkloads`.
        RemoveWorkloads = "RemoveWorkloads",
        /// `BlockUninstallIfWorkloadsExist`.
        BlockUninstallIfWorkloadsExist = "BlockUninstallIfWorkloadsExist",
    }
}

open_words! {
    /// `MemoryDumpPhase` of upstream's API.
    MemoryDumpPhase {
        /// `Associating`.
        Associating = "Associating",
        /// `InProgress`.
        InProgress = "InProgress",
        /// `Unmounting`.
        Unmounting = "Unmounting",
        /// `Completed`.
        Completed = "Completed",
        /// `Dissociating`.
        Dissociating = "Dissociating",
        /// `Failed`.
        Failed = "Failed",
    }
}

open_words! {
    /// `MigrationAbortStatus` of upstream's API.
    MigrationAbortStatus {
        /// `Succeeded`.
        Succeeded = "Succeeded",
        /// `Failed`.
        Failed = "Failed",
        /// `Aborting`.
        Aborting = "Aborting",
    }
}

open_words! {
    /// `MigrationMethod` of upstream's API.
    MigrationMethod {
        /// `link-refresh`.
        Linkrefresh = "link-refresh",
    }
}

open_words! {
    /// `MigrationMode` of upstream's API.
    MigrationMode {
        /// `PreCopy`.
        PreCopy = "PreCopy",
        /// `PostCopy`.
        PostCopy = "PostCopy",
        /// `Paused`.
        Paused = "Paused",
    }
}

open_words! {
    /// `MigrationNetworkType` of upstream's API.
    MigrationNetworkType {
        /// `Pod`.
        Pod = "Pod",
        /// `Migration`.
        Migration = "Migration",
    }
}

open_words! {
    /// `MigrationPriority` of upstream's API.
    MigrationPriority {
        /// `system-critical`.
        Systemcritical = "system-critical",
        /// `user-triggered`.
        Usertriggered = "user-triggered",
        /// `system-maintenance`.
        Systemmaintenance = "system-maintenance",
    }
}

open_words! {
    /// `NetworkBindingDownwardAPIType` of upstream's API.
    NetworkBindingDownwardApiType {
        /// `device-info`.
        Deviceinfo = "device-info",
    }
}

open_words! {
    /// `PITTickPolicy` of upstream's API.
    PitTickPolicy {
        /// `delay`.
        Delay = "delay",
        /// `catchup`.
        Catchup = "catchup",
        /// `discard`.
        Discard = "discard",
    }
}

open_words! {
    /// `PanicDeviceModel` of upstream's API.
    PanicDeviceModel {
        /// `hyperv`.
        Hyperv = "hyperv",
        /// `isa`.
        Isa = "isa",
        /// `pvpanic`.
        Pvpanic = "pvpanic",
    }
}

open_words! {
    /// `PatchType` of upstream's API.
    PatchType {
        /// `json`.
        Json = "json",
        /// `merge`.
        Merge = "merge",
        /// `strategic`.
        Strategic = "strategic",
    }
}

open_words! {
    /// `RTCTickPolicy` of upstream's API.
    RtcTickPolicy {
        /// `delay`.
        Delay = "delay",
        /// `catchup`.
        Catchup = "catchup",
    }
}

open_words! {
    /// `RTCTimerTrack` of upstream's API.
    RtcTimerTrack {
        /// `guest`.
        Guest = "guest",
        /// `wall`.
        Wall = "wall",
    }
}

open_words! {
    /// `RebootPolicy` of upstream's API.
    RebootPolicy {
        /// `Reboot`.
        Reboot = "Reboot",
        /// `Terminate`.
        Terminate = "Terminate",
    }
}

open_words! {
    /// `RoleAggregationStrategy` of upstream's API.
    RoleAggregationStrategy {
        /// `AggregateToDefault`.
        AggregateToDefault = "AggregateToDefault",
        /// `Manual`.
        Manual = "Manual",
    }
}

open_words! {
    /// `StartStrategy` of upstream's API.
    StartStrategy {
        /// `Paused`.
        Paused = "Paused",
    }
}

open_words! {
    /// `StateChangeRequestAction` of upstream's API.
    StateChangeRequestAction {
        /// `Start`.
        Start = "Start",
        /// `Stop`.
        Stop = "Stop",
    }
}

open_words! {
    /// `SupportContainerType` of upstream's API.
    SupportContainerType {
        /// `hotplug-disk`.
        Hotplugdisk = "hotplug-disk",
        /// `container-disk`.
        Containerdisk = "container-disk",
        /// `virtiofs`.
        Virtiofs = "virtiofs",
        /// `sidecar`.
        Sidecar = "sidecar",
        /// `vmexport`.
        Vmexport = "vmexport",
        /// `guest-console-log`.
        Guestconsolelog = "guest-console-log",
    }
}

open_words! {
    /// `TLSProtocolVersion` of upstream's API.
    TlsProtocolVersion {
        /// `VersionTLS10`.
        VersionTls10 = "VersionTLS10",
        /// `VersionTLS11`.
        VersionTls11 = "VersionTLS11",
        /// `VersionTLS12`.
        VersionTls12 = "VersionTLS12",
        /// `VersionTLS13`.
        VersionTls13 = "VersionTLS13",
    }
}

open_words! {
    /// `TrayState` of upstream's API.
    TrayState {
        /// `open`.
        Open = "open",
        /// `closed`.
        Closed = "closed",
    }
}

open_words! {
    /// `UpdateVolumesStrategy` of upstream's API.
    UpdateVolumesStrategy {
        /// `Migration`.
        Migration = "Migration",
        /// `Replacement`.
        Replacement = "Replacement",
    }
}

open_words! {
    /// `UtilityVolumeType` of upstream's API.
    UtilityVolumeType {
        /// `MemoryDump`.
        MemoryDump = "MemoryDump",
        /// `Backup`.
        Backup = "Backup",
    }
}

open_words! {
    /// `VMRolloutStrategy` of upstream's API.
    VmRolloutStrategy {
        /// `Stage`.
        Stage = "Stage",
        /// `LiveUpdate`.
        LiveUpdate = "LiveUpdate",
    }
}

open_words! {
    /// `VirtualMachineConditionType` of upstream's API.
    VirtualMachineConditionType {
        /// `Failure`.
        Failure = "Failure",
        /// `Ready`.
        Ready = "Ready",
        /// `Paused`.
        Paused = "Paused",
        /// `RestartRequired`.
        RestartRequired = "RestartRequired",
        /// `ManualRecoveryRequired`.
        ManualRecoveryRequired = "ManualRecoveryRequired",
    }
}

open_words! {
    /// `VirtualMachineInstanceConditionType` of upstream's API.
    VirtualMachineInstanceConditionType {
        /// `Provisioning`.
        Provisioning = "Provisioning",
        /// `Ready`.
        Ready = "Ready",
        /// `Synchronized`.
        Synchronized = "Synchronized",
        /// `Paused`.
        Paused = "Paused",
        /// `AgentConnected`.
        AgentConnected = "AgentConnected",
        /// `AccessCredentialsSynchronized`.
        AccessCredentialsSynchronized = "AccessCredentialsSynchronized",
        /// `AgentVersionNotSupported`.
        AgentVersionNotSupported = "AgentVersionNotSupported",
        /// `LiveMigratable`.
        LiveMigratable = "LiveMigratable",
        /// `HotVCPUChange`.
        HotVcpuChange = "HotVCPUChange",
        /// `HotMemoryChange`.
        HotMemoryChange = "HotMemoryChange",
        /// `VolumesChange`.
        VolumesChange = "VolumesChange",
        /// `DataVolumesReady`.
        DataVolumesReady = "DataVolumesReady",
        /// `StorageLiveMigratable`.
        StorageLiveMigratable = "StorageLiveMigratable",
        /// `DecentralizedLiveMigrationFailure`.
        DecentralizedLiveMigrationFailure = "DecentralizedLiveMigrationFailure",
        /// `MigrationRequired`.
        MigrationRequired = "MigrationRequired",
        /// `EvictionRequested`.
        EvictionRequested = "EvictionRequested",
    }
}

open_words! {
    /// `VirtualMachineInstanceMigrationConditionType` of upstream's API.
    VirtualMachineInstanceMigrationConditionType {
        /// `migrationAbortRequested`.
        MigrationAbortRequested = "migrationAbortRequested",
        /// `migrationRejectedByResourceQuota`.
        MigrationRejectedByResourceQuota = "migrationRejectedByResourceQuota",
        /// `migrationBlockedByUtilityVolumes`.
        MigrationBlockedByUtilityVolumes = "migrationBlockedByUtilityVolumes",
        /// `decentralizedMigrationBlocked`.
        DecentralizedMigrationBlocked = "decentralizedMigrationBlocked",
        /// `migrationBlockedByBackup`.
        MigrationBlockedByBackup = "migrationBlockedByBackup",
    }
}

open_words! {
    /// `VirtualMachineInstanceMigrationMethod` of upstream's API.
    VirtualMachineInstanceMigrationMethod {
        /// `BlockMigration`.
        BlockMigration = "BlockMigration",
        /// `LiveMigration`.
        LiveMigration = "LiveMigration",
    }
}

open_words! {
    /// `VirtualMachineInstanceMigrationPhase` of upstream's API.
    VirtualMachineInstanceMigrationPhase {
        /// `Pending`.
        Pending = "Pending",
        /// `Scheduling`.
        Scheduling = "Scheduling",
        /// `Scheduled`.
        Scheduled = "Scheduled",
        /// `PreparingTarget`.
        PreparingTarget = "PreparingTarget",
        /// `TargetReady`.
        TargetReady = "TargetReady",
        /// `Running`.
        Running = "Running",
        /// `Succeeded`.
        Succeeded = "Succeeded",
        /// `Failed`.
        Failed = "Failed",
        /// `WaitingForSync`.
        WaitingForSync = "WaitingForSync",
        /// `Synchronizing`.
        Synchronizing = "Synchronizing",
    }
}

open_words! {
    /// `VirtualMachineInstanceMigrationTransport` of upstream's API.
    VirtualMachineInstanceMigrationTransport {
        /// `Unix`.
        Unix = "Unix",
    }
}

open_words! {
    /// `VirtualMachineInstancePhase` of upstream's API.
    VirtualMachineInstancePhase {
        /// `Pending`.
        Pending = "Pending",
        /// `Scheduling`.
        Scheduling = "Scheduling",
        /// `Scheduled`.
        Scheduled = "Scheduled",
        /// `Running`.
        Running = "Running",
        /// `Succeeded`.
        Succeeded = "Succeeded",
        /// `Failed`.
        Failed = "Failed",
        /// `WaitingForSync`.
        WaitingForSync = "WaitingForSync",
        /// `Unknown`.
        Unknown = "Unknown",
    }
}

open_words! {
    /// `VirtualMachineInstanceReplicaSetConditionType` of upstream's API.
    VirtualMachineInstanceReplicaSetConditionType {
        /// `ReplicaFailure`.
        ReplicaFailure = "ReplicaFailure",
        /// `ReplicaPaused`.
        ReplicaPaused = "ReplicaPaused",
    }
}

open_words! {
    /// `VirtualMachinePrintableStatus` of upstream's API.
    VirtualMachinePrintableStatus {
        /// `Stopped`.
        Stopped = "Stopped",
        /// `Provisioning`.
        Provisioning = "Provisioning",
        /// `Starting`.
        Starting = "Starting",
        /// `Running`.
        Running = "Running",
        /// `Paused`.
        Paused = "Paused",
        /// `Stopping`.
        Stopping = "Stopping",
        /// `Terminating`.
        Terminating = "Terminating",
        /// `CrashLoopBackOff`.
        CrashLoopBackOff = "CrashLoopBackOff",
        /// `Migrating`.
        Migrating = "Migrating",
        /// `Unknown`.
        Unknown = "Unknown",
        /// `ErrorUnschedulable`.
        ErrorUnschedulable = "ErrorUnschedulable",
        /// `ErrImagePull`.
        ErrImagePull = "ErrImagePull",
        /// `ImagePullBackOff`.
        ImagePullBackOff = "ImagePullBackOff",
        /// `ErrorPvcNotFound`.
        ErrorPvcNotFound = "ErrorPvcNotFound",
        /// `DataVolumeError`.
        DataVolumeError = "DataVolumeError",
        /// `WaitingForVolumeBinding`.
        WaitingForVolumeBinding = "WaitingForVolumeBinding",
        /// `WaitingForReceiver`.
        WaitingForReceiver = "WaitingForReceiver",
    }
}

open_words! {
    /// `VirtualMachineRunStrategy` of upstream's API.
    VirtualMachineRunStrategy {
        /// `Always`.
        Always = "Always",
        /// `Halted`.
        Halted = "Halted",
        /// `Manual`.
        Manual = "Manual",
        /// `RerunOnFailure`.
        RerunOnFailure = "RerunOnFailure",
        /// `Once`.
        Once = "Once",
        /// `WaitAsReceiver`.
        WaitAsReceiver = "WaitAsReceiver",
    }
}

open_words! {
    /// `VolumePhase` of upstream's API.
    VolumePhase {
        /// `Pending`.
        Pending = "Pending",
        /// `Bound`.
        Bound = "Bound",
        /// `AttachedToNode`.
        AttachedToNode = "AttachedToNode",
        /// `MountedToPod`.
        MountedToPod = "MountedToPod",
        /// `Ready`.
        Ready = "Ready",
        /// `Detaching`.
        Detaching = "Detaching",
        /// `UnMountedFromPod`.
        UnMountedFromPod = "UnMountedFromPod",
        /// `MemoryDumpCompleted`.
        MemoryDumpCompleted = "MemoryDumpCompleted",
        /// `MemoryDumpInProgress`.
        MemoryDumpInProgress = "MemoryDumpInProgress",
        /// `MemoryDumpFailed`.
        MemoryDumpFailed = "MemoryDumpFailed",
    }
}

open_words! {
    /// `WatchdogAction` of upstream's API.
    WatchdogAction {
        /// `poweroff`.
        Poweroff = "poweroff",
        /// `reset`.
        Reset = "reset",
        /// `shutdown`.
        Shutdown = "shutdown",
    }
}

open_words! {
    /// `WorkloadUpdateMethod` of upstream's API.
    WorkloadUpdateMethod {
        /// `LiveMigrate`.
        LiveMigrate = "LiveMigrate",
        /// `Evict`.
        Evict = "Evict",
    }
}

open_words! {
    /// `backup.BackupMode` of upstream's API.
    BackupMode {
        /// `Push`.
        Push = "Push",
        /// `Pull`.
        Pull = "Pull",
    }
}

open_words! {
    /// `backup.BackupType` of upstream's API.
    BackupType {
        /// `Full`.
        Full = "Full",
        /// `Incremental`.
        Incremental = "Incremental",
    }
}

open_words! {
    /// `backup.ConditionType` of upstream's API.
    BackupConditionType {
        /// `Done`.
        Done = "Done",
        /// `Progressing`.
        Progressing = "Progressing",
        /// `Initializing`.
        Initializing = "Initializing",
        /// `ExportInitiated`.
        ExportInitiated = "ExportInitiated",
        /// `ExportReady`.
        ExportReady = "ExportReady",
        /// `Deleting`.
        Deleting = "Deleting",
        /// `Aborting`.
        Aborting = "Aborting",
    }
}

open_words! {
    /// `clone.ConditionType` of upstream's API.
    CloneConditionType {
        /// `Ready`.
        Ready = "Ready",
        /// `Progressing`.
        Progressing = "Progressing",
    }
}

open_words! {
    /// `clone.VirtualMachineClonePhase` of upstream's API.
    VirtualMachineClonePhase {
        /// `SnapshotInProgress`.
        SnapshotInProgress = "SnapshotInProgress",
        /// `CreatingTargetVM`.
        CreatingTargetVm = "CreatingTargetVM",
        /// `RestoreInProgress`.
        RestoreInProgress = "RestoreInProgress",
        /// `Succeeded`.
        Succeeded = "Succeeded",
        /// `Failed`.
        Failed = "Failed",
        /// `Unknown`.
        Unknown = "Unknown",
    }
}

open_words! {
    /// `clone.VolumeNamePolicy` of upstream's API.
    VolumeNamePolicy {
        /// `RandomizeNames`.
        RandomizeNames = "RandomizeNames",
        /// `PrefixTargetName`.
        PrefixTargetName = "PrefixTargetName",
    }
}

open_words! {
    /// `export.ConditionType` of upstream's API.
    ExportConditionType {
        /// `Ready`.
        Ready = "Ready",
        /// `PVCReady`.
        PvcReady = "PVCReady",
        /// `VolumesCreated`.
        VolumesCreated = "VolumesCreated",
    }
}

open_words! {
    /// `export.ExportBackupEndpoint` of upstream's API.
    ExportBackupEndpoint {
        /// `map`.
        Map = "map",
        /// `data`.
        Data = "data",
    }
}

open_words! {
    /// `export.ExportManifestType` of upstream's API.
    ExportManifestType {
        /// `all`.
        All = "all",
        /// `auth-header-secret`.
        Authheadersecret = "auth-header-secret",
    }
}

open_words! {
    /// `export.ExportVolumeFormat` of upstream's API.
    ExportVolumeFormat {
        /// `raw`.
        Raw = "raw",
        /// `gzip`.
        Gzip = "gzip",
        /// `dir`.
        Dir = "dir",
        /// `tar.gz`.
        Targz = "tar.gz",
    }
}

open_words! {
    /// `export.VirtualMachineExportPhase` of upstream's API.
    VirtualMachineExportPhase {
        /// `Pending`.
        Pending = "Pending",
        /// `Ready`.
        Ready = "Ready",
        /// `Terminated`.
        Terminated = "Terminated",
        /// `Skipped`.
        Skipped = "Skipped",
    }
}

open_words! {
    /// `instancetype.PreferredCPUTopology` of upstream's API.
    PreferredCpuTopology {
        /// `preferCores`.
        PreferCores = "preferCores",
        /// `preferSockets`.
        PreferSockets = "preferSockets",
        /// `preferThreads`.
        PreferThreads = "preferThreads",
        /// `preferSpread`.
        PreferSpread = "preferSpread",
        /// `preferAny`.
        PreferAny = "preferAny",
        /// `cores`.
        Cores = "cores",
        /// `sockets`.
        Sockets = "sockets",
        /// `threads`.
        Threads = "threads",
        /// `spread`.
        Spread = "spread",
        /// `any`.
        Any = "any",
    }
}

open_words! {
    /// `instancetype.SpreadAcross` of upstream's API.
    SpreadAcross {
        /// `SocketsCoresThreads`.
        SocketsCoresThreads = "SocketsCoresThreads",
        /// `SocketsCores`.
        SocketsCores = "SocketsCores",
        /// `CoresThreads`.
        CoresThreads = "CoresThreads",
    }
}

open_words! {
    /// `pool.StatePreservation` of upstream's API.
    StatePreservation {
        /// `Disabled`.
        Disabled = "Disabled",
        /// `Offline`.
        Offline = "Offline",
        /// `Online`.
        Online = "Online",
    }
}

open_words! {
    /// `pool.VirtualMachinePoolConditionType` of upstream's API.
    VirtualMachinePoolConditionType {
        /// `ReplicaFailure`.
        ReplicaFailure = "ReplicaFailure",
        /// `ReplicaPaused`.
        ReplicaPaused = "ReplicaPaused",
    }
}

open_words! {
    /// `pool.VirtualMachinePoolSortPolicy` of upstream's API.
    VirtualMachinePoolSortPolicy {
        /// `AscendingOrder`.
        AscendingOrder = "AscendingOrder",
        /// `DescendingOrder`.
        DescendingOrder = "DescendingOrder",
        /// `Newest`.
        Newest = "Newest",
        /// `Oldest`.
        Oldest = "Oldest",
        /// `Random`.
        Random = "Random",
    }
}

open_words! {
    /// `snapshot.ConditionType` of upstream's API.
    SnapshotConditionType {
        /// `Ready`.
        Ready = "Ready",
        /// `Progressing`.
        Progressing = "Progressing",
        /// `Failure`.
        Failure = "Failure",
    }
}

open_words! {
    /// `snapshot.DeletionPolicy` of upstream's API.
    DeletionPolicy {
        /// `Delete`.
        Delete = "Delete",
        /// `Retain`.
        Retain = "Retain",
    }
}

open_words! {
    /// `snapshot.Indication` of upstream's API.
    Indication {
        /// `Online`.
        Online = "Online",
        /// `NoGuestAgent`.
        NoGuestAgent = "NoGuestAgent",
        /// `GuestAgent`.
        GuestAgent = "GuestAgent",
        /// `QuiesceTimeout`.
        QuiesceTimeout = "QuiesceTimeout",
        /// `Paused`.
        Paused = "Paused",
    }
}

open_words! {
    /// `snapshot.TargetReadinessPolicy` of upstream's API.
    TargetReadinessPolicy {
        /// `StopTarget`.
        StopTarget = "StopTarget",
        /// `WaitGracePeriod`.
        WaitGracePeriod = "WaitGracePeriod",
        /// `FailImmediate`.
        FailImmediate = "FailImmediate",
        /// `WaitEventually`.
        WaitEventually = "WaitEventually",
    }
}

open_words! {
    /// `snapshot.VirtualMachineSnapshotPhase` of upstream's API.
    VirtualMachineSnapshotPhase {
        /// `InProgress`.
        InProgress = "InProgress",
        /// `Succeeded`.
        Succeeded = "Succeeded",
        /// `Failed`.
        Failed = "Failed",
        /// `Deleting`.
        Deleting = "Deleting",
        /// `Unknown`.
        Unknown = "Unknown",
    }
}

open_words! {
    /// `snapshot.VolumeOwnershipPolicy` of upstream's API.
    VolumeOwnershipPolicy {
        /// `Vm`.
        Vm = "Vm",
        /// `None`.
        None = "None",
    }
}

open_words! {
    /// `snapshot.VolumeRestorePolicy` of upstream's API.
    VolumeRestorePolicy {
        /// `RandomizeNames`.
        RandomizeNames = "RandomizeNames",
        /// `InPlace`.
        InPlace = "InPlace",
        /// `PrefixTargetName`.
        PrefixTargetName = "PrefixTargetName",
    }
}
