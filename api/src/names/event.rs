//! Reasons of events.

/// A pod, or an instance of a VirtualMachine, was made.
pub const SUCCESSFUL_CREATE: &str = "SuccessfulCreate";
/// A pod, or an instance of a VirtualMachine, was deleted.
pub const SUCCESSFUL_DELETE: &str = "SuccessfulDelete";
/// A pod, or an instance of a VirtualMachine, could not be made.
pub const FAILED_CREATE: &str = "FailedCreate";
/// A pod, or an instance of a VirtualMachine, could not be deleted.
pub const FAILED_DELETE: &str = "FailedDelete";
/// A VirtualMachine became the controller of an instance of its name.
pub const SUCCESSFUL_ADOPT: &str = "SuccessfulAdopt";
/// A VirtualMachine could not become the controller of an instance of its name.
pub const FAILED_ADOPT: &str = "FailedAdopt";
/// A claim that a volume names does not exist.
pub const FAILED_PVC_NOT_FOUND: &str = "FailedPvcNotFound";
/// A DataVolume was made for a VirtualMachine.
pub const SUCCESSFUL_DATA_VOLUME_CREATE: &str = "SuccessfulDataVolumeCreate";
/// A DataVolume could not be made for a VirtualMachine.
pub const FAILED_DATA_VOLUME_CREATE: &str = "FailedDataVolumeCreate";
/// A DataVolume was not made: the machine's service account may not copy the source.
pub const UNAUTHORIZED_DATA_VOLUME_CREATE: &str = "UnauthorizedDataVolumeCreate";
/// A DataVolume is not filled.
pub const FAILED_DATA_VOLUME_IMPORT: &str = "FailedDataVolumeImport";
/// A DataVolume copies a claim that does not exist yet.
pub const SOURCE_CLAIM_NOT_AVAILABLE: &str = "SourcePVCNotAvailabe";
/// An object was changed.
pub const SUCCESSFUL_UPDATE: &str = "SuccessfulUpdate";
/// An object could not be changed.
pub const FAILED_UPDATE: &str = "FailedUpdate";
/// A replica set or a pool rests, as it was asked to.
pub const SUCCESSFUL_PAUSED: &str = "SuccessfulPaused";
/// A pool goes on.
pub const SUCCESSFUL_RESUME: &str = "SuccessfulResume";
/// A replica set goes on.
pub const SUCCESSFUL_RESUMED: &str = "SuccessfulResumed";
/// The guest was defined.
pub const CREATED: &str = "Created";
/// The guest runs.
pub const STARTED: &str = "Started";
/// The guest ended.
pub const STOPPED: &str = "Stopped";
/// The guest was asked to shut down.
pub const SHUTTING_DOWN: &str = "ShuttingDown";
/// The guest was ended by force.
pub const DELETED: &str = "Deleted";
/// The machine could not be made as its specification says.
pub const SYNC_FAILED: &str = "SyncFailed";
/// The guest has the disk of a volume that was plugged.
pub const VOLUME_READY: &str = "VolumeReady";
/// The machine's launcher has the disk of a volume that is to be plugged.
pub const VOLUME_MOUNTED: &str = "VolumeMountedToPod";
/// The machine's launcher has closed the disk of a volume that was unplugged.
pub const VOLUME_UNMOUNTED: &str = "VolumeUnMountedFromPod";
/// The guest's memory could not be dumped.
pub const MEMORY_DUMP_ERROR: &str = "MemoryDumpError";
/// The guest's agent has set the credentials of the guest's users.
pub const CREDENTIALS_SYNCED: &str = "AccessCredentialsSyncSuccess";
/// The guest's agent has not set the credentials of the guest's users.
pub const CREDENTIALS_SYNC_FAILED: &str = "AccessCredentialsSyncFailed";
/// The machine's launcher has not answered its node for a while.
pub const LAUNCHER_SILENT: &str = "LauncherSilent";
/// A netd of the machine refuses new flows because it carries as many as it may.
pub const FLOW_LIMIT: &str = "FlowLimit";
/// The guest was paused.
pub const PAUSED: &str = "Paused";
/// The guest goes on.
pub const UNPAUSED: &str = "Unpaused";
/// The machine's node no longer answers.
pub const NODE_UNRESPONSIVE: &str = "NodeUnresponsive";
/// A VirtualMachine was asked to start.
pub const STARTING: &str = "Starting";
/// A VirtualMachine's instance failed and is started again later.
pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
/// A migration moved its machine.
pub const SUCCESSFUL_MIGRATION: &str = "SuccessfulMigration";
/// A migration did not move its machine, which runs on where it was.
pub const FAILED_MIGRATION: &str = "FailedMigration";
/// A migration was ended on request.
pub const SUCCESSFUL_ABORT_MIGRATION: &str = "SuccessfulAbortMigration";
/// A migration's target pod was handed to its node's virt-handler.
pub const SUCCESSFUL_HAND_OVER: &str = "SuccessfulHandOver";
/// No node fits the target pod of a migration.
pub const MIGRATION_TARGET_UNSCHEDULABLE: &str = "migrationTargetPodUnschedulable";
/// A migration waits because its machine does not run yet.
pub const MACHINE_NOT_RUNNING: &str = "MachineNotRunning";
/// A migration waits for a backup of its machine, or for a claim that backups write to; upstream's word.
pub const MIGRATION_BLOCKED: &str = "UtilityVolumeMigrationPending";
/// A migration waits because earlier ones of its machine failed.
pub const MIGRATION_BACKOFF: &str = "MigrationBackoff";
/// No node but its own can give a machine the model of a processor that it has.
pub const NO_NODES_FOR_HOST_MODEL: &str = "NoSuitableNodesForHostModelMigration";
/// The model nearest to a node's processor is obsolete.
pub const HOST_MODEL_IS_OBSOLETE: &str = "HostModelIsObsolete";
/// Something that was asked of a migration is not done, and it goes on without it.
pub const MIGRATION_RESTRICTED: &str = "MigrationRestricted";
/// A machine that is to leave its node cannot be migrated.
pub const EVACUATION_BLOCKED: &str = "EvacuationBlocked";
/// A machine with an older launcher was evicted.
pub const SUCCESSFUL_EVICT: &str = "SuccessfulEvict";
/// A machine with an older launcher could not be evicted.
pub const FAILED_EVICT: &str = "FailedEvict";
/// Interfaces of a running machine come or go.
pub const INTERFACES_CHANGED: &str = "InterfacesChanged";
/// Volumes of a VirtualMachine's running instance were changed.
pub const VOLUMES_CHANGED: &str = "VolumesChanged";
/// Where a VirtualMachine's running instance may run was changed.
pub const PLACEMENT_CHANGED: &str = "PlacementChanged";
/// What the specification asks for comes with a migration.
pub const MIGRATION_REQUIRED: &str = "MigrationRequired";
/// A change takes effect at the next start.
pub const RESTART_REQUIRED: &str = "RestartRequired";
/// The instance type that a VirtualMachine names is not there.
pub const FAILED_FIND_INSTANCETYPE: &str = "FailedFindInstancetype";
/// The preference that a VirtualMachine names is not there.
pub const FAILED_FIND_PREFERENCE: &str = "FailedFindPreference";
/// The content of a snapshot of a VirtualMachine was made.
pub const CONTENT_CREATED: &str = "SuccessfulVirtualMachineSnapshotContentCreate";
/// A VolumeSnapshot of a claim was made.
pub const VOLUME_SNAPSHOT_CREATED: &str = "SuccessfulVolumeSnapshotCreate";
/// A VolumeSnapshot that a content names is not there any more.
pub const VOLUME_SNAPSHOT_MISSING: &str = "VolumeSnapshotMissing";
/// A restore of a VirtualMachine is complete.
pub const RESTORE_COMPLETE: &str = "VirtualMachineRestoreComplete";
/// A restore of a VirtualMachine does not go on.
pub const RESTORE_ERROR: &str = "VirtualMachineRestoreError";
/// A restore of a VirtualMachine has failed for good (upstream's reason).
pub const RESTORE_FAILED: &str = "Operation failed";
/// The VirtualMachine that is to be restored runs.
pub const RESTORE_TARGET_NOT_READY: &str = "RestoreTargetNotReady";
/// A DataVolume could not be made for a restore.
pub const RESTORE_DATA_VOLUME_CREATE_ERROR: &str = "RestoreDataVolumeCreateError";
/// A clone has made a snapshot of its source.
pub const CLONE_SNAPSHOT_CREATED: &str = "SnapshotCreated";
/// The snapshot of a clone is ready.
pub const CLONE_SNAPSHOT_READY: &str = "SnapshotReady";
/// A clone has made a restore.
pub const CLONE_RESTORE_CREATED: &str = "RestoreCreated";
/// The restore of a clone could not be made, or has failed.
pub const CLONE_RESTORE_FAILED: &str = "RestoreCreationFailed";
/// The restore of a clone is complete.
pub const CLONE_RESTORE_READY: &str = "RestoreReady";
/// The machine of a clone is there.
pub const CLONE_TARGET_CREATED: &str = "TargetVMCreated";
/// The claims of a clone's machine are bound.
pub const CLONE_CLAIMS_BOUND: &str = "PVCBound";
/// The snapshot of a clone has gone.
pub const CLONE_SNAPSHOT_DELETED: &str = "SnapshotDeleted";
/// The snapshot of a clone lacks volumes, or has failed.
pub const CLONE_CONTENT_INVALID: &str = "SnapshotContentInvalid";
/// The source of a clone is not there.
pub const CLONE_SOURCE_MISSING: &str = "SourceDoesNotExist";
/// Of volumes of a clone's source no snapshot can be taken.
pub const CLONE_VOLUMES_INVALID: &str = "VMVolumeSnapshotsInvalid";
/// The Service of an export was made.
pub const SERVICE_CREATED: &str = "ServiceCreated";
/// A Secret of an export was made: its certificate, or its token.
pub const SECRET_CREATED: &str = "SecretCreated";
/// The pod of an export was made.
pub const EXPORTER_CREATED: &str = "ExporterPodCreated";
/// The pod of an export has ended.
pub const EXPORTER_ENDED: &str = "ExporterPodFailedOrCompleted";
/// The pod of an export was deleted, as its source is in use.
pub const EXPORT_PAUSED: &str = "ExportPaused";
/// The pod of an export was deleted, as the lives of certificates have changed.
pub const CERTIFICATE_CHANGED: &str = "CertificateParametersChanged";
/// What the manifests of an export are made of was stored.
pub const MANIFEST_CREATED: &str = "DataManifestCreated";
/// A backup has all of its disks.
pub const BACKUP_COMPLETED: &str = "VirtualMachineBackupCompletedSuccessfully";
/// A backup has all of its disks, and there is something to know of it.
pub const BACKUP_COMPLETED_WITH_WARNING: &str = "VirtualMachineBackupCompletedWithWarning";
/// A backup has failed.
pub const BACKUP_FAILED: &str = "VirtualMachineBackupFailed";
/// A backup is ended before it is complete.
pub const BACKUP_ABORTING: &str = "VirtualMachineBackupAborting";
/// The export that a backup is read from is made.
pub const BACKUP_PREPARING_EXPORT: &str = "VirtualMachineBackupPreparingExport";
/// The machine of a backup has been told of the export.
pub const BACKUP_EXPORT_INITIATED: &str = "VirtualMachineBackupExportInitiated";
/// The machine of a backup does not reach the export's pod: the backup cannot be read.
pub const BACKUP_EXPORT_UNREACHED: &str = "VirtualMachineBackupExportUnreached";
/// A backup can be read from its export.
pub const BACKUP_EXPORT_READY: &str = "VirtualMachineBackupExportReady";
/// The checkpoint of a tracker is gone in its machine.
pub const CHECKPOINT_REDEFINITION_FAILED: &str = "CheckpointRedefinitionFailed";
/// The checkpoint of a tracker was removed, as changed blocks of its machine are not tracked any more.
pub const CHECKPOINT_REMOVED: &str = "CheckpointRemoved";
/// Of a clone: its source keeps the state of its firmware or TPM.
pub const CLONE_STATE_INVALID: &str = "SourceVMWithBackendStorageInvalid";
