//! Annotations.

/// Name of the VirtualMachineInstance, uncut: on its launcher pod.
pub const DOMAIN: &str = "kubevirt.io/domain";
/// Container that `kubectl logs` and `kubectl exec` take when none is named.
pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// When virt-handler was last seen alive, RFC 3339: on its node.
pub const HEARTBEAT: &str = "kubevirt.io/heartbeat";
/// The labels of a node that say what QEMU can do there stay as they are: on the node, by its operators.
pub const SKIP_NODE: &str = "node-labeller.kubevirt.io/skip-node";
/// Generation of the VirtualMachine that a VirtualMachineInstance was made from.
pub const VM_GENERATION: &str = "kubevirt.io/vm-generation";
/// Bytes that the launcher pod asks for beside the guest's memory.
pub const MEMORY_OVERHEAD_BYTES: &str = "kubevirt.io/memory-overhead-bytes";
/// Name of the migration that a launcher pod was made for as its target.
pub const MIGRATION_JOB_NAME: &str = "kubevirt.io/migrationJobName";
/// For how many seconds a migration's target pod may wait for a node that has room for it: on the migration.
pub const UNSCHEDULABLE_SECONDS: &str = "kubevirt.io/migrationUnschedulablePodTimeoutSeconds";
/// How many seconds a migration's target pod may take until it runs: on the migration.
pub const PENDING_SECONDS: &str = "kubevirt.io/migrationPendingPodTimeoutSeconds";
/// `true`: no window above 4 GiB for the guest's PCI devices: on the machine.
pub const DISABLE_PCI_HOLE64: &str = "kubevirt.io/disablePCIHole64";
/// The container of a machine that has failed is kept, to be looked into, until its pod is deleted: on the machine.
pub const KEEP_LAUNCHER: &str = "kubevirt.io/keep-launcher-alive-after-failure";
/// `true`: probes of the guest's agent succeed, and the agent is not asked: on the machine.
pub const PAUSE_AGENT_PROBES: &str = "kubevirt.io/pause-guest-agent-probes";
/// virt-launcher ends as soon as it has begun, as if it had crashed: on the machine, by upstream's tests.
pub const FAIL_FAST: &str = "kubevirt.io/func-test-virt-launcher-fail-fast";
/// A migration of the machine fails as soon as virt-launcher is asked for it: on the machine, by upstream's tests.
pub const FORCE_MIGRATION_FAILURE: &str = "kubevirt.io/func-test-force-launcher-migration-failure";
/// The target of a migration of the machine is never prepared: on the machine, by upstream's tests.
pub const BLOCK_MIGRATION_TARGET: &str = "kubevirt.io/func-test-block-migration-target-preparation";
/// An eviction of the pod begins something that takes its time, and is refused until then: on launcher pods, for the descheduler.
pub const EVICT_ONLY: &str = "descheduler.alpha.kubernetes.io/request-evict-only";
/// An eviction of the pod has begun: on the launcher pod of a machine that is to leave its node, for the descheduler.
pub const EVICTION_IN_PROGRESS: &str = "descheduler.alpha.kubernetes.io/eviction-in-progress";
/// Node that a migration empties: on a migration that was made for an eviction.
pub const EVACUATION_MIGRATION: &str = "kubevirt.io/evacuationMigration";
/// UID of the machine that an eviction marked to leave its node: on the migration that was made for the mark, podvirt's own.
pub const EVACUATED_MACHINE_UID: &str = "podvirt.io/evacuated-machine-uid";
/// On a migration that was made for what a machine's pod lacks.
pub const WORKLOAD_UPDATE_MIGRATION: &str = "kubevirt.io/workloadUpdateMigration";
/// Port of the pod at which the netd of a machine's first interface serves metrics: on the machine, podvirt's own.
pub const NETD_METRICS_PORT: &str = "podvirt.io/netd-metrics-port";
/// How many flows each netd of a machine carries at the same time: on the machine, or on the KubeVirt object for machines without it;
/// podvirt's own.
pub const NETD_FLOWS: &str = "podvirt.io/netd-flows";
/// What becomes of connections to listed ports on which the guest does not listen: on the machine, podvirt's own.
pub const CLOSED_PORTS: &str = "podvirt.io/closed-ports";
/// On VirtualMachineSnapshotContents: why its VolumeSnapshots cannot be made at present. They are tried again.
pub const NOT_MADE: &str = "podvirt.io/volume-snapshots-not-made";
/// On VirtualMachineBackupTrackers: the instance, by its UID, and the node for which the checkpoint was defined last, podvirt's own.
pub const DEFINED_FOR: &str = "backup.podvirt.io/defined-for";
/// What carries the binding `masquerade`, netd or the kernel: on the machine and on the KubeVirt object, podvirt's own.
pub const MASQUERADE: &str = "podvirt.io/masquerade";
/// What the network binding plugins of a machine were registered with when it was made, as JSON: podvirt's own, which writes it.
pub const BINDING_PLUGINS: &str = "podvirt.io/binding-plugins";
/// Of a migration's target pod: when the machine was ready there. OVN-Kubernetes turns the traffic to the pod then.
pub const MIGRATION_TARGET_READY: &str = "kubevirt.io/migration-target-ready-timestamp";
/// Of a launcher pod: digest of where its machine's manifest let it run when the pod was made.
pub const PLACEMENT_DIGEST: &str = "podvirt.io/placement-digest";
/// `false`: the DataVolumes of a VirtualMachine's templates are made when it starts first, not at once: on the VirtualMachine.
pub const IMMEDIATE_DATA_VOLUMES: &str = "kubevirt.io/immediate-data-volume-creation";
/// Names of the volumes that were plugged into this instance alone and not into its VirtualMachine, as a JSON list: on a
/// VirtualMachineInstance.
pub const EPHEMERAL_VOLUMES: &str = "kubevirt.io/ephemeral-hotplug-volumes";
/// The pod holds its machine's place on a node until CDI has filled the machine's claims: on such a pod, with the text `true`.
pub const EPHEMERAL_PROVISIONING: &str = "kubevirt.io/ephemeral-provisioning";
/// The hook sidecars of a machine, as a JSON list.
pub const HOOK_SIDECARS: &str = "hooks.kubevirt.io/hookSidecars";
/// A machine that is bound to the pod's network by a bridge may move nonetheless.
pub const MOVE_BRIDGE: &str = "kubevirt.io/allow-pod-bridge-network-live-migration";
/// `true`: the launcher pod has no hooks for backup tools: on the machine and on the KubeVirt object.
pub const SKIP_BACKUP_HOOKS: &str = "kubevirt.io/skip-backup-hooks";
/// Container in which Velero runs [`PRE_BACKUP_COMMAND`]: on pods, as the four below.
pub const PRE_BACKUP_CONTAINER: &str = "pre.hook.backup.velero.io/container";
/// What Velero runs before it takes the pod's volumes, as a JSON list.
pub const PRE_BACKUP_COMMAND: &str = "pre.hook.backup.velero.io/command";
/// How long Velero waits for that.
pub const PRE_BACKUP_TIMEOUT: &str = "pre.hook.backup.velero.io/timeout";
/// Container in which Velero runs [`POST_BACKUP_COMMAND`].
pub const POST_BACKUP_CONTAINER: &str = "post.hook.backup.velero.io/container";
/// What Velero runs after it has taken the pod's volumes, as a JSON list.
pub const POST_BACKUP_COMMAND: &str = "post.hook.backup.velero.io/command";
/// Whether Istio puts its proxy into the pod.
pub const ISTIO_INJECT: &str = "sidecar.istio.io/inject";
/// Interfaces whose traffic Istio takes for a virtual machine's.
pub const ISTIO_INTERFACES: [&str; 2] =
    ["istio.io/reroute-virtual-interfaces", "traffic.sidecar.istio.io/kubevirtInterfaces"];
/// A pod's secondary networks (Kubernetes Network Custom Resource Definition De-facto Standard, section 4.1.1).
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// What a pod is attached to (the same, section 5.2).
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// The resource by which a pod asks for a device of a network: on its NetworkAttachmentDefinition.
pub const RESOURCE_NAME: &str = "k8s.v1.cni.cncf.io/resourceName";
/// What the networks of a machine say of their devices, as JSON: on its launcher pod, for what reads [`super::path::NETWORK_INFO`].
pub const NETWORK_INFO: &str = "kubevirt.io/network-info";
/// What a pod's first network is, for Multus.
pub const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";
/// A machine that says `true` gets nothing of presets.
pub const EXCLUDE_PRESETS: &str = "virtualmachineinstancepresets.admission.kubevirt.io/exclude";
/// Before the name of a preset that is in a machine: on the machine.
pub const PRESET_PREFIX: &str = "virtualmachinepreset.kubevirt.io/";
/// Version of the API that an object was written with.
pub const LATEST_OBSERVED_API_VERSION: &str = "kubevirt.io/latest-observed-api-version";
/// Version of the API that an object was stored with.
pub const STORAGE_OBSERVED_API_VERSION: &str = "kubevirt.io/storage-observed-api-version";
