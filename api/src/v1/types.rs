// Written by podvirt-api-generate from api/model. Do not edit.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde::{Deserialize, Serialize};

use super::word::resource;
use super::words::*;

/// `ACPI` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Acpi {
    /// `slicNameRef`.
    #[serde(rename = "slicNameRef", default, skip_serializing_if = "Option::is_none")]
    pub slic_name_ref: Option<String>,
    /// `msdmNameRef`.
    #[serde(rename = "msdmNameRef", default, skip_serializing_if = "Option::is_none")]
    pub msdm_name_ref: Option<String>,
}

/// `AccessCredential` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct AccessCredential {
    /// `sshPublicKey`.
    #[serde(rename = "sshPublicKey", default, skip_serializing_if = "Option::is_none")]
    pub ssh_public_key: Option<SshPublicKeyAccessCredential>,
    /// `userPassword`.
    #[serde(rename = "userPassword", default, skip_serializing_if = "Option::is_none")]
    pub user_password: Option<UserPasswordAccessCredential>,
}

/// `AccessCredentialSecretSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct AccessCredentialSecretSource {
    /// `secretName`.
    #[serde(rename = "secretName", default, deserialize_with = "super::null::as_default")]
    pub secret_name: String,
}

/// `AddVolumeOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct AddVolumeOptions {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `disk`.
    #[serde(rename = "disk", default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// `volumeSource`.
    #[serde(rename = "volumeSource", default, skip_serializing_if = "Option::is_none")]
    pub volume_source: Option<HotplugVolumeSource>,
    /// `dryRun`.
    #[serde(
        rename = "dryRun",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
}

/// `ArchConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ArchConfiguration {
    /// `amd64`.
    #[serde(rename = "amd64", default, skip_serializing_if = "Option::is_none")]
    pub amd64: Option<ArchSpecificConfiguration>,
    /// `arm64`.
    #[serde(rename = "arm64", default, skip_serializing_if = "Option::is_none")]
    pub arm64: Option<ArchSpecificConfiguration>,
    /// `ppc64le`.
    #[serde(rename = "ppc64le", default, skip_serializing_if = "Option::is_none")]
    pub ppc64le: Option<ArchSpecificConfiguration>,
    /// `s390x`.
    #[serde(rename = "s390x", default, skip_serializing_if = "Option::is_none")]
    pub s390x: Option<ArchSpecificConfiguration>,
    /// `defaultArchitecture`.
    #[serde(rename = "defaultArchitecture", default, skip_serializing_if = "Option::is_none")]
    pub default_architecture: Option<String>,
}

/// `ArchSpecificConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ArchSpecificConfiguration {
    /// `ovmfPath`.
    #[serde(rename = "ovmfPath", default, skip_serializing_if = "Option::is_none")]
    pub ovmf_path: Option<String>,
    /// `emulatedMachines`.
    #[serde(
        rename = "emulatedMachines",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub emulated_machines: Vec<String>,
    /// `machineType`.
    #[serde(rename = "machineType", default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
}

/// `BIOS` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Bios {
    /// `useSerial`.
    #[serde(rename = "useSerial", default, skip_serializing_if = "Option::is_none")]
    pub use_serial: Option<bool>,
}

/// `BlockSize` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct BlockSize {
    /// `custom`.
    #[serde(rename = "custom", default, skip_serializing_if = "Option::is_none")]
    pub custom: Option<CustomBlockSize>,
    /// `matchVolume`.
    #[serde(rename = "matchVolume", default, skip_serializing_if = "Option::is_none")]
    pub match_volume: Option<FeatureState>,
}

/// `Bootloader` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Bootloader {
    /// `bios`.
    #[serde(rename = "bios", default, skip_serializing_if = "Option::is_none")]
    pub bios: Option<Bios>,
    /// `efi`.
    #[serde(rename = "efi", default, skip_serializing_if = "Option::is_none")]
    pub efi: Option<Efi>,
}

/// `CDRomTarget` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CdRomTarget {
    /// `bus`.
    #[serde(rename = "bus", default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<DiskBus>,
    /// `readonly`.
    #[serde(rename = "readonly", default, skip_serializing_if = "Option::is_none")]
    pub readonly: Option<bool>,
    /// `tray`.
    #[serde(rename = "tray", default, skip_serializing_if = "Option::is_none")]
    pub tray: Option<TrayState>,
}

/// `CPU` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Cpu {
    /// `cores`.
    #[serde(rename = "cores", default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// `sockets`.
    #[serde(rename = "sockets", default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    /// `maxSockets`.
    #[serde(rename = "maxSockets", default, skip_serializing_if = "Option::is_none")]
    pub max_sockets: Option<u32>,
    /// `threads`.
    #[serde(rename = "threads", default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// `model`.
    #[serde(rename = "model", default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// `features`.
    #[serde(
        rename = "features",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub features: Vec<CpuFeature>,
    /// `dedicatedCpuPlacement`.
    #[serde(rename = "dedicatedCpuPlacement", default, skip_serializing_if = "Option::is_none")]
    pub dedicated_cpu_placement: Option<bool>,
    /// `numa`.
    #[serde(rename = "numa", default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<Numa>,
    /// `isolateEmulatorThread`.
    #[serde(rename = "isolateEmulatorThread", default, skip_serializing_if = "Option::is_none")]
    pub isolate_emulator_thread: Option<bool>,
    /// `realtime`.
    #[serde(rename = "realtime", default, skip_serializing_if = "Option::is_none")]
    pub realtime: Option<Realtime>,
}

/// `CPUFeature` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CpuFeature {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `policy`.
    #[serde(rename = "policy", default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// `CPUTopology` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CpuTopology {
    /// `cores`.
    #[serde(rename = "cores", default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// `sockets`.
    #[serde(rename = "sockets", default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    /// `threads`.
    #[serde(rename = "threads", default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
}

/// `CertConfig` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CertConfig {
    /// `duration`.
    #[serde(rename = "duration", default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// `renewBefore`.
    #[serde(rename = "renewBefore", default, skip_serializing_if = "Option::is_none")]
    pub renew_before: Option<String>,
}

/// `ChangedBlockTrackingSelectors` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ChangedBlockTrackingSelectors {
    /// `namespaceLabelSelector`.
    #[serde(rename = "namespaceLabelSelector", default, skip_serializing_if = "Option::is_none")]
    pub namespace_label_selector: Option<meta::LabelSelector>,
    /// `virtualMachineLabelSelector`.
    #[serde(rename = "virtualMachineLabelSelector", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_label_selector: Option<meta::LabelSelector>,
}

/// `ChangedBlockTrackingStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ChangedBlockTrackingStatus {
    /// `state`.
    #[serde(rename = "state", default, deserialize_with = "super::null::as_default")]
    pub state: ChangedBlockTrackingState,
    /// `backupStatus`.
    #[serde(rename = "backupStatus", default, skip_serializing_if = "Option::is_none")]
    pub backup_status: Option<VirtualMachineInstanceBackupStatus>,
}

/// `Chassis` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Chassis {
    /// `manufacturer`.
    #[serde(rename = "manufacturer", default, skip_serializing_if = "Option::is_none")]
    pub manufacturer: Option<String>,
    /// `version`.
    #[serde(rename = "version", default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `serial`.
    #[serde(rename = "serial", default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// `asset`.
    #[serde(rename = "asset", default, skip_serializing_if = "Option::is_none")]
    pub asset: Option<String>,
    /// `sku`.
    #[serde(rename = "sku", default, skip_serializing_if = "Option::is_none")]
    pub sku: Option<String>,
}

/// `ClientPassthroughDevices` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ClientPassthroughDevices {}

/// `Clock` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Clock {
    /// `utc`.
    #[serde(rename = "utc", default, skip_serializing_if = "Option::is_none")]
    pub utc: Option<ClockOffsetUtc>,
    /// `timezone`.
    #[serde(rename = "timezone", default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// `timer`.
    #[serde(rename = "timer", default, skip_serializing_if = "Option::is_none")]
    pub timer: Option<Timer>,
}

/// `ClockOffset` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ClockOffset {
    /// `utc`.
    #[serde(rename = "utc", default, skip_serializing_if = "Option::is_none")]
    pub utc: Option<ClockOffsetUtc>,
    /// `timezone`.
    #[serde(rename = "timezone", default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
}

/// `ClockOffsetUTC` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ClockOffsetUtc {
    /// `offsetSeconds`.
    #[serde(rename = "offsetSeconds", default, skip_serializing_if = "Option::is_none")]
    pub offset_seconds: Option<i64>,
}

/// `CloudInitConfigDriveSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CloudInitConfigDriveSource {
    /// `secretRef`.
    #[serde(rename = "secretRef", default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<core::LocalObjectReference>,
    /// `userDataBase64`.
    #[serde(rename = "userDataBase64", default, skip_serializing_if = "Option::is_none")]
    pub user_data_base64: Option<String>,
    /// `userData`.
    #[serde(rename = "userData", default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// `networkDataSecretRef`.
    #[serde(rename = "networkDataSecretRef", default, skip_serializing_if = "Option::is_none")]
    pub network_data_secret_ref: Option<core::LocalObjectReference>,
    /// `networkDataBase64`.
    #[serde(rename = "networkDataBase64", default, skip_serializing_if = "Option::is_none")]
    pub network_data_base64: Option<String>,
    /// `networkData`.
    #[serde(rename = "networkData", default, skip_serializing_if = "Option::is_none")]
    pub network_data: Option<String>,
}

/// `CloudInitNoCloudSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CloudInitNoCloudSource {
    /// `secretRef`.
    #[serde(rename = "secretRef", default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<core::LocalObjectReference>,
    /// `userDataBase64`.
    #[serde(rename = "userDataBase64", default, skip_serializing_if = "Option::is_none")]
    pub user_data_base64: Option<String>,
    /// `userData`.
    #[serde(rename = "userData", default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// `networkDataSecretRef`.
    #[serde(rename = "networkDataSecretRef", default, skip_serializing_if = "Option::is_none")]
    pub network_data_secret_ref: Option<core::LocalObjectReference>,
    /// `networkDataBase64`.
    #[serde(rename = "networkDataBase64", default, skip_serializing_if = "Option::is_none")]
    pub network_data_base64: Option<String>,
    /// `networkData`.
    #[serde(rename = "networkData", default, skip_serializing_if = "Option::is_none")]
    pub network_data: Option<String>,
}

/// `CommonInstancetypesDeployment` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CommonInstancetypesDeployment {
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// `ComponentConfig` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ComponentConfig {
    /// `nodePlacement`.
    #[serde(rename = "nodePlacement", default, skip_serializing_if = "Option::is_none")]
    pub node_placement: Option<NodePlacement>,
    /// `replicas`.
    #[serde(rename = "replicas", default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
}

/// `ConfigDriveSSHPublicKeyAccessCredentialPropagation` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ConfigDriveSshPublicKeyAccessCredentialPropagation {}

/// `ConfigMapVolumeSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ConfigMapVolumeSource {
    /// `name`.
    #[serde(rename = "name", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `optional`.
    #[serde(rename = "optional", default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    /// `volumeLabel`.
    #[serde(rename = "volumeLabel", default, skip_serializing_if = "Option::is_none")]
    pub volume_label: Option<String>,
}

/// `ContainerDiskInfo` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ContainerDiskInfo {
    /// `checksum`.
    #[serde(rename = "checksum", default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<u32>,
}

/// `ContainerDiskSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ContainerDiskSource {
    /// `image`.
    #[serde(rename = "image", default, deserialize_with = "super::null::as_default")]
    pub image: String,
    /// `imagePullSecret`.
    #[serde(rename = "imagePullSecret", default, skip_serializing_if = "Option::is_none")]
    pub image_pull_secret: Option<String>,
    /// `path`.
    #[serde(rename = "path", default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `imagePullPolicy`.
    #[serde(rename = "imagePullPolicy", default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
}

/// `ContainerPathVolumeSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ContainerPathVolumeSource {
    /// `path`.
    #[serde(rename = "path", default, deserialize_with = "super::null::as_default")]
    pub path: String,
    /// `readOnly`.
    #[serde(rename = "readOnly", default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// `ControllerRevisionRef` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ControllerRevisionRef {
    /// `name`.
    #[serde(rename = "name", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// `CustomBlockSize` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CustomBlockSize {
    /// `logical`.
    #[serde(rename = "logical", default, skip_serializing_if = "Option::is_none")]
    pub logical: Option<u64>,
    /// `physical`.
    #[serde(rename = "physical", default, skip_serializing_if = "Option::is_none")]
    pub physical: Option<u64>,
    /// `discardGranularity`.
    #[serde(rename = "discardGranularity", default, skip_serializing_if = "Option::is_none")]
    pub discard_granularity: Option<u64>,
}

/// `CustomProfile` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CustomProfile {
    /// `localhostProfile`.
    #[serde(rename = "localhostProfile", default, skip_serializing_if = "Option::is_none")]
    pub localhost_profile: Option<String>,
    /// `runtimeDefaultProfile`.
    #[serde(rename = "runtimeDefaultProfile", default, skip_serializing_if = "Option::is_none")]
    pub runtime_default_profile: Option<bool>,
}

/// `CustomizeComponents` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CustomizeComponents {
    /// `patches`.
    #[serde(
        rename = "patches",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub patches: Vec<CustomizeComponentsPatch>,
    /// `flags`.
    #[serde(rename = "flags", default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<Flags>,
}

/// `CustomizeComponentsPatch` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CustomizeComponentsPatch {
    /// `resourceName`.
    #[serde(rename = "resourceName", default, deserialize_with = "super::null::as_default")]
    pub resource_name: String,
    /// `resourceType`.
    #[serde(rename = "resourceType", default, deserialize_with = "super::null::as_default")]
    pub resource_type: String,
    /// `patch`.
    #[serde(rename = "patch", default, deserialize_with = "super::null::as_default")]
    pub patch: String,
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: PatchType,
}

/// `DHCPOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DhcpOptions {
    /// `bootFileName`.
    #[serde(rename = "bootFileName", default, skip_serializing_if = "Option::is_none")]
    pub boot_file_name: Option<String>,
    /// `tftpServerName`.
    #[serde(rename = "tftpServerName", default, skip_serializing_if = "Option::is_none")]
    pub tftp_server_name: Option<String>,
    /// `ntpServers`.
    #[serde(
        rename = "ntpServers",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub ntp_servers: Vec<String>,
    /// `privateOptions`.
    #[serde(
        rename = "privateOptions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub private_options: Vec<DhcpPrivateOptions>,
}

/// `DHCPPrivateOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DhcpPrivateOptions {
    /// `option`.
    #[serde(rename = "option", default, deserialize_with = "super::null::as_default")]
    pub option: i64,
    /// `value`.
    #[serde(rename = "value", default, deserialize_with = "super::null::as_default")]
    pub value: String,
}

/// `DataVolumeSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DataVolumeSource {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `hotpluggable`.
    #[serde(rename = "hotpluggable", default, skip_serializing_if = "Option::is_none")]
    pub hotpluggable: Option<bool>,
}

/// `DataVolumeTemplateDummyStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DataVolumeTemplateDummyStatus {}

/// `DataVolumeTemplateSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DataVolumeTemplateSpec {
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<meta::ObjectMeta>,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: serde_json::Value,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "Option::is_none")]
    pub status: Option<DataVolumeTemplateDummyStatus>,
}

/// `DeprecatedInterfaceMacvtap` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DeprecatedInterfaceMacvtap {}

/// `DeprecatedInterfacePasst` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DeprecatedInterfacePasst {}

/// `DeprecatedInterfaceSlirp` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DeprecatedInterfaceSlirp {}

/// `DeveloperConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DeveloperConfiguration {
    /// `featureGates`.
    #[serde(
        rename = "featureGates",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub feature_gates: Vec<String>,
    /// `disabledFeatureGates`.
    #[serde(
        rename = "disabledFeatureGates",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub disabled_feature_gates: Vec<String>,
    /// `pvcTolerateLessSpaceUpToPercent`.
    #[serde(rename = "pvcTolerateLessSpaceUpToPercent", default, skip_serializing_if = "Option::is_none")]
    pub pvc_tolerate_less_space_up_to_percent: Option<i64>,
    /// `minimumReservePVCBytes`.
    #[serde(rename = "minimumReservePVCBytes", default, skip_serializing_if = "Option::is_none")]
    pub minimum_reserve_pvc_bytes: Option<u64>,
    /// `memoryOvercommit`.
    #[serde(rename = "memoryOvercommit", default, skip_serializing_if = "Option::is_none")]
    pub memory_overcommit: Option<i64>,
    /// `nodeSelectors`.
    #[serde(
        rename = "nodeSelectors",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub node_selectors: BTreeMap<String, String>,
    /// `useEmulation`.
    #[serde(rename = "useEmulation", default, skip_serializing_if = "Option::is_none")]
    pub use_emulation: Option<bool>,
    /// `cpuAllocationRatio`.
    #[serde(rename = "cpuAllocationRatio", default, skip_serializing_if = "Option::is_none")]
    pub cpu_allocation_ratio: Option<i64>,
    /// `minimumClusterTSCFrequency`.
    #[serde(rename = "minimumClusterTSCFrequency", default, skip_serializing_if = "Option::is_none")]
    pub minimum_cluster_tsc_frequency: Option<i64>,
    /// `diskVerification`.
    #[serde(rename = "diskVerification", default, skip_serializing_if = "Option::is_none")]
    pub disk_verification: Option<DiskVerification>,
    /// `logVerbosity`.
    #[serde(rename = "logVerbosity", default, skip_serializing_if = "Option::is_none")]
    pub log_verbosity: Option<LogVerbosity>,
    /// `clusterProfiler`.
    #[serde(rename = "clusterProfiler", default, skip_serializing_if = "Option::is_none")]
    pub cluster_profiler: Option<bool>,
}

/// `Devices` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Devices {
    /// `useVirtioTransitional`.
    #[serde(rename = "useVirtioTransitional", default, skip_serializing_if = "Option::is_none")]
    pub use_virtio_transitional: Option<bool>,
    /// `disableHotplug`.
    #[serde(rename = "disableHotplug", default, skip_serializing_if = "Option::is_none")]
    pub disable_hotplug: Option<bool>,
    /// `disks`.
    #[serde(
        rename = "disks",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub disks: Vec<Disk>,
    /// `watchdog`.
    #[serde(rename = "watchdog", default, skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Watchdog>,
    /// `interfaces`.
    #[serde(
        rename = "interfaces",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub interfaces: Vec<Interface>,
    /// `inputs`.
    #[serde(
        rename = "inputs",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub inputs: Vec<Input>,
    /// `autoattachPodInterface`.
    #[serde(rename = "autoattachPodInterface", default, skip_serializing_if = "Option::is_none")]
    pub autoattach_pod_interface: Option<bool>,
    /// `autoattachGraphicsDevice`.
    #[serde(rename = "autoattachGraphicsDevice", default, skip_serializing_if = "Option::is_none")]
    pub autoattach_graphics_device: Option<bool>,
    /// `autoattachSerialConsole`.
    #[serde(rename = "autoattachSerialConsole", default, skip_serializing_if = "Option::is_none")]
    pub autoattach_serial_console: Option<bool>,
    /// `logSerialConsole`.
    #[serde(rename = "logSerialConsole", default, skip_serializing_if = "Option::is_none")]
    pub log_serial_console: Option<bool>,
    /// `autoattachMemBalloon`.
    #[serde(rename = "autoattachMemBalloon", default, skip_serializing_if = "Option::is_none")]
    pub autoattach_mem_balloon: Option<bool>,
    /// `autoattachInputDevice`.
    #[serde(rename = "autoattachInputDevice", default, skip_serializing_if = "Option::is_none")]
    pub autoattach_input_device: Option<bool>,
    /// `autoattachVSOCK`.
    #[serde(rename = "autoattachVSOCK", default, skip_serializing_if = "Option::is_none")]
    pub autoattach_vsock: Option<bool>,
    /// `rng`.
    #[serde(rename = "rng", default, skip_serializing_if = "Option::is_none")]
    pub rng: Option<Rng>,
    /// `blockMultiQueue`.
    #[serde(rename = "blockMultiQueue", default, skip_serializing_if = "Option::is_none")]
    pub block_multi_queue: Option<bool>,
    /// `networkInterfaceMultiqueue`.
    #[serde(rename = "networkInterfaceMultiqueue", default, skip_serializing_if = "Option::is_none")]
    pub network_interface_multiqueue: Option<bool>,
    /// `gpus`.
    #[serde(
        rename = "gpus",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub gpus: Vec<Gpu>,
    /// `downwardMetrics`.
    #[serde(rename = "downwardMetrics", default, skip_serializing_if = "Option::is_none")]
    pub downward_metrics: Option<DownwardMetrics>,
    /// `panicDevices`.
    #[serde(
        rename = "panicDevices",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub panic_devices: Vec<PanicDevice>,
    /// `filesystems`.
    #[serde(
        rename = "filesystems",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub filesystems: Vec<Filesystem>,
    /// `hostDevices`.
    #[serde(
        rename = "hostDevices",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub host_devices: Vec<HostDevice>,
    /// `clientPassthrough`.
    #[serde(rename = "clientPassthrough", default, skip_serializing_if = "Option::is_none")]
    pub client_passthrough: Option<ClientPassthroughDevices>,
    /// `sound`.
    #[serde(rename = "sound", default, skip_serializing_if = "Option::is_none")]
    pub sound: Option<SoundDevice>,
    /// `tpm`.
    #[serde(rename = "tpm", default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<TpmDevice>,
    /// `video`.
    #[serde(rename = "video", default, skip_serializing_if = "Option::is_none")]
    pub video: Option<VideoDevice>,
}

/// `Diag288Watchdog` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Diag288Watchdog {
    /// `action`.
    #[serde(rename = "action", default, skip_serializing_if = "Option::is_none")]
    pub action: Option<WatchdogAction>,
}

/// `DisableFreePageReporting` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DisableFreePageReporting {}

/// `DisableSerialConsoleLog` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DisableSerialConsoleLog {}

/// `Disk` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Disk {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `disk`.
    #[serde(rename = "disk", default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskTarget>,
    /// `lun`.
    #[serde(rename = "lun", default, skip_serializing_if = "Option::is_none")]
    pub lun: Option<LunTarget>,
    /// `cdrom`.
    #[serde(rename = "cdrom", default, skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<CdRomTarget>,
    /// `bootOrder`.
    #[serde(rename = "bootOrder", default, skip_serializing_if = "Option::is_none")]
    pub boot_order: Option<u64>,
    /// `serial`.
    #[serde(rename = "serial", default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// `dedicatedIOThread`.
    #[serde(rename = "dedicatedIOThread", default, skip_serializing_if = "Option::is_none")]
    pub dedicated_iothread: Option<bool>,
    /// `cache`.
    #[serde(rename = "cache", default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<DriverCache>,
    /// `io`.
    #[serde(rename = "io", default, skip_serializing_if = "Option::is_none")]
    pub io: Option<DriverIo>,
    /// `tag`.
    #[serde(rename = "tag", default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// `blockSize`.
    #[serde(rename = "blockSize", default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<BlockSize>,
    /// `shareable`.
    #[serde(rename = "shareable", default, skip_serializing_if = "Option::is_none")]
    pub shareable: Option<bool>,
    /// `errorPolicy`.
    #[serde(rename = "errorPolicy", default, skip_serializing_if = "Option::is_none")]
    pub error_policy: Option<DiskErrorPolicy>,
    /// `changedBlockTracking`.
    #[serde(rename = "changedBlockTracking", default, skip_serializing_if = "Option::is_none")]
    pub changed_block_tracking: Option<bool>,
}

/// `DiskIOThreads` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DiskIothreads {
    /// `supplementalPoolThreadCount`.
    #[serde(rename = "supplementalPoolThreadCount", default, skip_serializing_if = "Option::is_none")]
    pub supplemental_pool_thread_count: Option<u32>,
}

/// `DiskTarget` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DiskTarget {
    /// `bus`.
    #[serde(rename = "bus", default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<DiskBus>,
    /// `readonly`.
    #[serde(rename = "readonly", default, skip_serializing_if = "Option::is_none")]
    pub readonly: Option<bool>,
    /// `pciAddress`.
    #[serde(rename = "pciAddress", default, skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
}

/// `DiskVerification` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DiskVerification {
    /// `memoryLimit`.
    #[serde(rename = "memoryLimit", default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Quantity>,
}

/// `DomainMemoryDumpInfo` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DomainMemoryDumpInfo {
    /// `startTimestamp`.
    #[serde(
        rename = "startTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub start_timestamp: Option<Option<meta::Time>>,
    /// `endTimestamp`.
    #[serde(
        rename = "endTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub end_timestamp: Option<Option<meta::Time>>,
    /// `claimName`.
    #[serde(rename = "claimName", default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// `targetFileName`.
    #[serde(rename = "targetFileName", default, skip_serializing_if = "Option::is_none")]
    pub target_file_name: Option<String>,
}

/// `DomainSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DomainSpec {
    /// `resources`.
    #[serde(rename = "resources", default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// `cpu`.
    #[serde(rename = "cpu", default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// `memory`.
    #[serde(rename = "memory", default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// `machine`.
    #[serde(rename = "machine", default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// `firmware`.
    #[serde(rename = "firmware", default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// `clock`.
    #[serde(rename = "clock", default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// `features`.
    #[serde(rename = "features", default, skip_serializing_if = "Option::is_none")]
    pub features: Option<Features>,
    /// `devices`.
    #[serde(rename = "devices", default, deserialize_with = "super::null::as_default")]
    pub devices: Devices,
    /// `ioThreadsPolicy`.
    #[serde(rename = "ioThreadsPolicy", default, skip_serializing_if = "Option::is_none")]
    pub iothreads_policy: Option<IothreadsPolicy>,
    /// `ioThreads`.
    #[serde(rename = "ioThreads", default, skip_serializing_if = "Option::is_none")]
    pub iothreads: Option<DiskIothreads>,
    /// `chassis`.
    #[serde(rename = "chassis", default, skip_serializing_if = "Option::is_none")]
    pub chassis: Option<Chassis>,
    /// `launchSecurity`.
    #[serde(rename = "launchSecurity", default, skip_serializing_if = "Option::is_none")]
    pub launch_security: Option<LaunchSecurity>,
    /// `rebootPolicy`.
    #[serde(rename = "rebootPolicy", default, skip_serializing_if = "Option::is_none")]
    pub reboot_policy: Option<RebootPolicy>,
}

/// `DownwardAPIVolumeSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DownwardApiVolumeSource {
    /// `fields`.
    #[serde(
        rename = "fields",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub fields: Vec<core::DownwardAPIVolumeFile>,
    /// `volumeLabel`.
    #[serde(rename = "volumeLabel", default, skip_serializing_if = "Option::is_none")]
    pub volume_label: Option<String>,
}

/// `DownwardMetrics` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DownwardMetrics {}

/// `DownwardMetricsVolumeSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DownwardMetricsVolumeSource {}

/// `EFI` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Efi {
    /// `secureBoot`.
    #[serde(rename = "secureBoot", default, skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
    /// `persistent`.
    #[serde(rename = "persistent", default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
}

/// `EmptyDiskSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct EmptyDiskSource {
    /// `capacity`.
    #[serde(rename = "capacity", default, deserialize_with = "super::null::as_default")]
    pub capacity: Quantity,
}

/// `EphemeralVolumeSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct EphemeralVolumeSource {
    /// `persistentVolumeClaim`.
    #[serde(rename = "persistentVolumeClaim", default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<core::PersistentVolumeClaimVolumeSource>,
}

/// `EvacuateCancelOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct EvacuateCancelOptions {
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `dryRun`.
    #[serde(
        rename = "dryRun",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
    /// `evacuationNodeName`.
    #[serde(rename = "evacuationNodeName", default, deserialize_with = "super::null::as_default")]
    pub evacuation_node_name: String,
}

/// `FeatureAPIC` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FeatureApic {
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// `endOfInterrupt`.
    #[serde(rename = "endOfInterrupt", default, skip_serializing_if = "Option::is_none")]
    pub end_of_interrupt: Option<bool>,
}

/// `FeatureHyperv` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FeatureHyperv {
    /// `relaxed`.
    #[serde(rename = "relaxed", default, skip_serializing_if = "Option::is_none")]
    pub relaxed: Option<FeatureState>,
    /// `vapic`.
    #[serde(rename = "vapic", default, skip_serializing_if = "Option::is_none")]
    pub vapic: Option<FeatureState>,
    /// `spinlocks`.
    #[serde(rename = "spinlocks", default, skip_serializing_if = "Option::is_none")]
    pub spinlocks: Option<FeatureSpinlocks>,
    /// `vpindex`.
    #[serde(rename = "vpindex", default, skip_serializing_if = "Option::is_none")]
    pub vpindex: Option<FeatureState>,
    /// `runtime`.
    #[serde(rename = "runtime", default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<FeatureState>,
    /// `synic`.
    #[serde(rename = "synic", default, skip_serializing_if = "Option::is_none")]
    pub synic: Option<FeatureState>,
    /// `synictimer`.
    #[serde(rename = "synictimer", default, skip_serializing_if = "Option::is_none")]
    pub synictimer: Option<SyNicTimer>,
    /// `reset`.
    #[serde(rename = "reset", default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<FeatureState>,
    /// `vendorid`.
    #[serde(rename = "vendorid", default, skip_serializing_if = "Option::is_none")]
    pub vendorid: Option<FeatureVendorId>,
    /// `frequencies`.
    #[serde(rename = "frequencies", default, skip_serializing_if = "Option::is_none")]
    pub frequencies: Option<FeatureState>,
    /// `reenlightenment`.
    #[serde(rename = "reenlightenment", default, skip_serializing_if = "Option::is_none")]
    pub reenlightenment: Option<FeatureState>,
    /// `tlbflush`.
    #[serde(rename = "tlbflush", default, skip_serializing_if = "Option::is_none")]
    pub tlbflush: Option<TlbFlush>,
    /// `ipi`.
    #[serde(rename = "ipi", default, skip_serializing_if = "Option::is_none")]
    pub ipi: Option<FeatureState>,
    /// `evmcs`.
    #[serde(rename = "evmcs", default, skip_serializing_if = "Option::is_none")]
    pub evmcs: Option<FeatureState>,
}

/// `FeatureKVM` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FeatureKvm {
    /// `hidden`.
    #[serde(rename = "hidden", default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<bool>,
}

/// `FeatureSpinlocks` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FeatureSpinlocks {
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// `spinlocks`.
    #[serde(rename = "spinlocks", default, skip_serializing_if = "Option::is_none")]
    pub spinlocks: Option<u32>,
}

/// `FeatureState` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FeatureState {
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// `FeatureVendorID` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FeatureVendorId {
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// `vendorid`.
    #[serde(rename = "vendorid", default, skip_serializing_if = "Option::is_none")]
    pub vendorid: Option<String>,
}

/// `Features` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Features {
    /// `acpi`.
    #[serde(rename = "acpi", default, skip_serializing_if = "Option::is_none")]
    pub acpi: Option<FeatureState>,
    /// `apic`.
    #[serde(rename = "apic", default, skip_serializing_if = "Option::is_none")]
    pub apic: Option<FeatureApic>,
    /// `hypervPassthrough`.
    #[serde(rename = "hypervPassthrough", default, skip_serializing_if = "Option::is_none")]
    pub hyperv_passthrough: Option<HyperVPassthrough>,
    /// `hyperv`.
    #[serde(rename = "hyperv", default, skip_serializing_if = "Option::is_none")]
    pub hyperv: Option<FeatureHyperv>,
    /// `smm`.
    #[serde(rename = "smm", default, skip_serializing_if = "Option::is_none")]
    pub smm: Option<FeatureState>,
    /// `kvm`.
    #[serde(rename = "kvm", default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<FeatureKvm>,
    /// `pvspinlock`.
    #[serde(rename = "pvspinlock", default, skip_serializing_if = "Option::is_none")]
    pub pvspinlock: Option<FeatureState>,
}

/// `Filesystem` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Filesystem {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `virtiofs`.
    #[serde(rename = "virtiofs", default, skip_serializing_if = "Option::is_none")]
    pub virtiofs: Option<FilesystemVirtiofs>,
}

/// `FilesystemVirtiofs` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FilesystemVirtiofs {}

/// `Firmware` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Firmware {
    /// `uuid`.
    #[serde(rename = "uuid", default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// `bootloader`.
    #[serde(rename = "bootloader", default, skip_serializing_if = "Option::is_none")]
    pub bootloader: Option<Bootloader>,
    /// `serial`.
    #[serde(rename = "serial", default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// `kernelBoot`.
    #[serde(rename = "kernelBoot", default, skip_serializing_if = "Option::is_none")]
    pub kernel_boot: Option<KernelBoot>,
    /// `acpi`.
    #[serde(rename = "acpi", default, skip_serializing_if = "Option::is_none")]
    pub acpi: Option<Acpi>,
}

/// `Flags` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Flags {
    /// `api`.
    #[serde(
        rename = "api",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub api: BTreeMap<String, String>,
    /// `controller`.
    #[serde(
        rename = "controller",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub controller: BTreeMap<String, String>,
    /// `handler`.
    #[serde(
        rename = "handler",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub handler: BTreeMap<String, String>,
}

/// `FreezeUnfreezeTimeout` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FreezeUnfreezeTimeout {
    /// `unfreezeTimeout`.
    #[serde(rename = "unfreezeTimeout", default, skip_serializing_if = "Option::is_none")]
    pub unfreeze_timeout: Option<String>,
}

/// `GPU` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Gpu {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `deviceName`.
    #[serde(rename = "deviceName", default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// `claimName`.
    #[serde(rename = "claimName", default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// `requestName`.
    #[serde(rename = "requestName", default, skip_serializing_if = "Option::is_none")]
    pub request_name: Option<String>,
    /// `virtualGPUOptions`.
    #[serde(rename = "virtualGPUOptions", default, skip_serializing_if = "Option::is_none")]
    pub virtual_gpu_options: Option<VgpuOptions>,
    /// `tag`.
    #[serde(rename = "tag", default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// `GenerationStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct GenerationStatus {
    /// `group`.
    #[serde(rename = "group", default, deserialize_with = "super::null::as_default")]
    pub group: String,
    /// `resource`.
    #[serde(rename = "resource", default, deserialize_with = "super::null::as_default")]
    pub resource: String,
    /// `namespace`.
    #[serde(rename = "namespace", default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `lastGeneration`.
    #[serde(rename = "lastGeneration", default, deserialize_with = "super::null::as_default")]
    pub last_generation: i64,
    /// `hash`.
    #[serde(rename = "hash", default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// `GuestAgentCommandInfo` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct GuestAgentCommandInfo {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// `GuestAgentPing` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct GuestAgentPing {}

/// `HPETTimer` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct HpetTimer {
    /// `tickPolicy`.
    #[serde(rename = "tickPolicy", default, skip_serializing_if = "Option::is_none")]
    pub tick_policy: Option<HpetTickPolicy>,
    /// `present`.
    #[serde(rename = "present", default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

/// `HostDevice` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct HostDevice {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `deviceName`.
    #[serde(rename = "deviceName", default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// `claimName`.
    #[serde(rename = "claimName", default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// `requestName`.
    #[serde(rename = "requestName", default, skip_serializing_if = "Option::is_none")]
    pub request_name: Option<String>,
    /// `tag`.
    #[serde(rename = "tag", default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// `HostDisk` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct HostDisk {
    /// `path`.
    #[serde(rename = "path", default, deserialize_with = "super::null::as_default")]
    pub path: String,
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: HostDiskType,
    /// `capacity`.
    #[serde(rename = "capacity", default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,
    /// `shared`.
    #[serde(rename = "shared", default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
}

/// `HotplugVolumeSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct HotplugVolumeSource {
    /// `persistentVolumeClaim`.
    #[serde(rename = "persistentVolumeClaim", default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    /// `dataVolume`.
    #[serde(rename = "dataVolume", default, skip_serializing_if = "Option::is_none")]
    pub data_volume: Option<DataVolumeSource>,
}

/// `HotplugVolumeStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct HotplugVolumeStatus {
    /// `attachPodName`.
    #[serde(rename = "attachPodName", default, skip_serializing_if = "Option::is_none")]
    pub attach_pod_name: Option<String>,
    /// `attachPodUID`.
    #[serde(rename = "attachPodUID", default, skip_serializing_if = "Option::is_none")]
    pub attach_pod_uid: Option<String>,
}

/// `Hugepages` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Hugepages {
    /// `pageSize`.
    #[serde(rename = "pageSize", default, skip_serializing_if = "Option::is_none")]
    pub page_size: Option<String>,
}

/// `HyperVPassthrough` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct HyperVPassthrough {
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// `HypervTimer` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct HypervTimer {
    /// `present`.
    #[serde(rename = "present", default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

/// `HypervisorConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct HypervisorConfiguration {
    /// `name`.
    #[serde(rename = "name", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// `I6300ESBWatchdog` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct I6300EsbWatchdog {
    /// `action`.
    #[serde(rename = "action", default, skip_serializing_if = "Option::is_none")]
    pub action: Option<WatchdogAction>,
}

/// `InitrdInfo` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct InitrdInfo {
    /// `checksum`.
    #[serde(rename = "checksum", default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<u32>,
}

/// `Input` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Input {
    /// `bus`.
    #[serde(rename = "bus", default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<InputBus>,
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: InputType,
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
}

/// `InstancetypeConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct InstancetypeConfiguration {
    /// `referencePolicy`.
    #[serde(rename = "referencePolicy", default, skip_serializing_if = "Option::is_none")]
    pub reference_policy: Option<InstancetypeReferencePolicy>,
}

/// `InstancetypeMatcher` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct InstancetypeMatcher {
    /// `name`.
    #[serde(rename = "name", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `revisionName`.
    #[serde(rename = "revisionName", default, skip_serializing_if = "Option::is_none")]
    pub revision_name: Option<String>,
    /// `inferFromVolume`.
    #[serde(rename = "inferFromVolume", default, skip_serializing_if = "Option::is_none")]
    pub infer_from_volume: Option<String>,
    /// `inferFromVolumeFailurePolicy`.
    #[serde(rename = "inferFromVolumeFailurePolicy", default, skip_serializing_if = "Option::is_none")]
    pub infer_from_volume_failure_policy: Option<InferFromVolumeFailurePolicy>,
}

/// `InstancetypeStatusRef` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct InstancetypeStatusRef {
    /// `name`.
    #[serde(rename = "name", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `controllerRevisionRef`.
    #[serde(rename = "controllerRevisionRef", default, skip_serializing_if = "Option::is_none")]
    pub controller_revision_ref: Option<ControllerRevisionRef>,
    /// `inferFromVolume`.
    #[serde(rename = "inferFromVolume", default, skip_serializing_if = "Option::is_none")]
    pub infer_from_volume: Option<String>,
    /// `inferFromVolumeFailurePolicy`.
    #[serde(rename = "inferFromVolumeFailurePolicy", default, skip_serializing_if = "Option::is_none")]
    pub infer_from_volume_failure_policy: Option<InferFromVolumeFailurePolicy>,
}

/// `Interface` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Interface {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `model`.
    #[serde(rename = "model", default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// `bridge`.
    #[serde(rename = "bridge", default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<InterfaceBridge>,
    /// `slirp`.
    #[serde(rename = "slirp", default, skip_serializing_if = "Option::is_none")]
    pub slirp: Option<DeprecatedInterfaceSlirp>,
    /// `masquerade`.
    #[serde(rename = "masquerade", default, skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<InterfaceMasquerade>,
    /// `sriov`.
    #[serde(rename = "sriov", default, skip_serializing_if = "Option::is_none")]
    pub sriov: Option<InterfaceSriov>,
    /// `macvtap`.
    #[serde(rename = "macvtap", default, skip_serializing_if = "Option::is_none")]
    pub macvtap: Option<DeprecatedInterfaceMacvtap>,
    /// `passt`.
    #[serde(rename = "passt", default, skip_serializing_if = "Option::is_none")]
    pub passt: Option<DeprecatedInterfacePasst>,
    /// `passtBinding`.
    #[serde(rename = "passtBinding", default, skip_serializing_if = "Option::is_none")]
    pub passt_binding: Option<InterfacePasstBinding>,
    /// `binding`.
    #[serde(rename = "binding", default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<PluginBinding>,
    /// `ports`.
    #[serde(
        rename = "ports",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub ports: Vec<Port>,
    /// `macAddress`.
    #[serde(rename = "macAddress", default, skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
    /// `bootOrder`.
    #[serde(rename = "bootOrder", default, skip_serializing_if = "Option::is_none")]
    pub boot_order: Option<u64>,
    /// `pciAddress`.
    #[serde(rename = "pciAddress", default, skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// `dhcpOptions`.
    #[serde(rename = "dhcpOptions", default, skip_serializing_if = "Option::is_none")]
    pub dhcp_options: Option<DhcpOptions>,
    /// `tag`.
    #[serde(rename = "tag", default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// `acpiIndex`.
    #[serde(rename = "acpiIndex", default, skip_serializing_if = "Option::is_none")]
    pub acpi_index: Option<i64>,
    /// `state`.
    #[serde(rename = "state", default, skip_serializing_if = "Option::is_none")]
    pub state: Option<InterfaceState>,
}

/// `InterfaceBindingMigration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct InterfaceBindingMigration {
    /// `method`.
    #[serde(rename = "method", default, skip_serializing_if = "Option::is_none")]
    pub method: Option<MigrationMethod>,
}

/// `InterfaceBindingPlugin` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct InterfaceBindingPlugin {
    /// `sidecarImage`.
    #[serde(rename = "sidecarImage", default, skip_serializing_if = "Option::is_none")]
    pub sidecar_image: Option<String>,
    /// `networkAttachmentDefinition`.
    #[serde(rename = "networkAttachmentDefinition", default, skip_serializing_if = "Option::is_none")]
    pub network_attachment_definition: Option<String>,
    /// `domainAttachmentType`.
    #[serde(rename = "domainAttachmentType", default, skip_serializing_if = "Option::is_none")]
    pub domain_attachment_type: Option<DomainAttachmentType>,
    /// `migration`.
    #[serde(rename = "migration", default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<InterfaceBindingMigration>,
    /// `downwardAPI`.
    #[serde(rename = "downwardAPI", default, skip_serializing_if = "Option::is_none")]
    pub downward_api: Option<NetworkBindingDownwardApiType>,
    /// `computeResourceOverhead`.
    #[serde(rename = "computeResourceOverhead", default, skip_serializing_if = "Option::is_none")]
    pub compute_resource_overhead: Option<ResourceRequirementsWithoutClaims>,
}

/// `InterfaceBridge` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct InterfaceBridge {}

/// `InterfaceMasquerade` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct InterfaceMasquerade {}

/// `InterfacePasstBinding` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct InterfacePasstBinding {}

/// `InterfaceSRIOV` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct InterfaceSriov {}

/// `KSMConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KsmConfiguration {
    /// `nodeLabelSelector`.
    #[serde(rename = "nodeLabelSelector", default, skip_serializing_if = "Option::is_none")]
    pub node_label_selector: Option<meta::LabelSelector>,
}

/// `KVMTimer` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KvmTimer {
    /// `present`.
    #[serde(rename = "present", default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

/// `KernelBoot` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KernelBoot {
    /// `kernelArgs`.
    #[serde(rename = "kernelArgs", default, skip_serializing_if = "Option::is_none")]
    pub kernel_args: Option<String>,
    /// `container`.
    #[serde(rename = "container", default, skip_serializing_if = "Option::is_none")]
    pub container: Option<KernelBootContainer>,
}

/// `KernelBootContainer` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KernelBootContainer {
    /// `image`.
    #[serde(rename = "image", default, deserialize_with = "super::null::as_default")]
    pub image: String,
    /// `imagePullSecret`.
    #[serde(rename = "imagePullSecret", default, skip_serializing_if = "Option::is_none")]
    pub image_pull_secret: Option<String>,
    /// `imagePullPolicy`.
    #[serde(rename = "imagePullPolicy", default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    /// `kernelPath`.
    #[serde(rename = "kernelPath", default, skip_serializing_if = "Option::is_none")]
    pub kernel_path: Option<String>,
    /// `initrdPath`.
    #[serde(rename = "initrdPath", default, skip_serializing_if = "Option::is_none")]
    pub initrd_path: Option<String>,
}

/// `KernelBootStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KernelBootStatus {
    /// `kernelInfo`.
    #[serde(rename = "kernelInfo", default, skip_serializing_if = "Option::is_none")]
    pub kernel_info: Option<KernelInfo>,
    /// `initrdInfo`.
    #[serde(rename = "initrdInfo", default, skip_serializing_if = "Option::is_none")]
    pub initrd_info: Option<InitrdInfo>,
}

/// `KernelInfo` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KernelInfo {
    /// `checksum`.
    #[serde(rename = "checksum", default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<u32>,
}

/// `KubeVirt` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KubeVirt {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "KubeVirt::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, serialize_with = "super::word::write_api_version")]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: KubeVirtSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: KubeVirtStatus,
}

/// `KubeVirtCertificateRotateStrategy` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KubeVirtCertificateRotateStrategy {
    /// `selfSigned`.
    #[serde(rename = "selfSigned", default, skip_serializing_if = "Option::is_none")]
    pub self_signed: Option<KubeVirtSelfSignConfiguration>,
}

/// `KubeVirtCondition` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KubeVirtCondition {
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: KubeVirtConditionType,
    /// `status`.
    #[serde(rename = "status", default, deserialize_with = "super::null::as_default")]
    pub status: String,
    /// `lastProbeTime`.
    #[serde(
        rename = "lastProbeTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_probe_time: Option<Option<meta::Time>>,
    /// `lastTransitionTime`.
    #[serde(
        rename = "lastTransitionTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Option<meta::Time>>,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `KubeVirtConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KubeVirtConfiguration {
    /// `cpuModel`.
    #[serde(rename = "cpuModel", default, skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// `cpuRequest`.
    #[serde(rename = "cpuRequest", default, skip_serializing_if = "Option::is_none")]
    pub cpu_request: Option<Quantity>,
    /// `developerConfiguration`.
    #[serde(rename = "developerConfiguration", default, skip_serializing_if = "Option::is_none")]
    pub developer_configuration: Option<DeveloperConfiguration>,
    /// `emulatedMachines`.
    #[serde(
        rename = "emulatedMachines",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub emulated_machines: Vec<String>,
    /// `imagePullPolicy`.
    #[serde(rename = "imagePullPolicy", default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    /// `migrations`.
    #[serde(rename = "migrations", default, skip_serializing_if = "Option::is_none")]
    pub migrations: Option<MigrationConfiguration>,
    /// `machineType`.
    #[serde(rename = "machineType", default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// `network`.
    #[serde(rename = "network", default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkConfiguration>,
    /// `ovmfPath`.
    #[serde(rename = "ovmfPath", default, skip_serializing_if = "Option::is_none")]
    pub ovmf_path: Option<String>,
    /// `selinuxLauncherType`.
    #[serde(rename = "selinuxLauncherType", default, skip_serializing_if = "Option::is_none")]
    pub selinux_launcher_type: Option<String>,
    /// `defaultRuntimeClass`.
    #[serde(rename = "defaultRuntimeClass", default, skip_serializing_if = "Option::is_none")]
    pub default_runtime_class: Option<String>,
    /// `smbios`.
    #[serde(rename = "smbios", default, skip_serializing_if = "Option::is_none")]
    pub smbios: Option<SmBiosConfiguration>,
    /// `architectureConfiguration`.
    #[serde(rename = "architectureConfiguration", default, skip_serializing_if = "Option::is_none")]
    pub architecture_configuration: Option<ArchConfiguration>,
    /// `evictionStrategy`.
    #[serde(rename = "evictionStrategy", default, skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<EvictionStrategy>,
    /// `additionalGuestMemoryOverheadRatio`.
    #[serde(rename = "additionalGuestMemoryOverheadRatio", default, skip_serializing_if = "Option::is_none")]
    pub additional_guest_memory_overhead_ratio: Option<String>,
    /// `supportContainerResources`.
    #[serde(
        rename = "supportContainerResources",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub support_container_resources: Vec<SupportContainerResources>,
    /// `supportedGuestAgentVersions`.
    #[serde(
        rename = "supportedGuestAgentVersions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub supported_guest_agent_versions: Vec<String>,
    /// `memBalloonStatsPeriod`.
    #[serde(rename = "memBalloonStatsPeriod", default, skip_serializing_if = "Option::is_none")]
    pub mem_balloon_stats_period: Option<u32>,
    /// `permittedHostDevices`.
    #[serde(rename = "permittedHostDevices", default, skip_serializing_if = "Option::is_none")]
    pub permitted_host_devices: Option<PermittedHostDevices>,
    /// `mediatedDevicesConfiguration`.
    #[serde(rename = "mediatedDevicesConfiguration", default, skip_serializing_if = "Option::is_none")]
    pub mediated_devices_configuration: Option<MediatedDevicesConfiguration>,
    /// `minCPUModel`.
    #[serde(rename = "minCPUModel", default, skip_serializing_if = "Option::is_none")]
    pub min_cpu_model: Option<String>,
    /// `obsoleteCPUModels`.
    #[serde(
        rename = "obsoleteCPUModels",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub obsolete_cpu_models: BTreeMap<String, bool>,
    /// `virtualMachineInstancesPerNode`.
    #[serde(rename = "virtualMachineInstancesPerNode", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_instances_per_node: Option<i64>,
    /// `apiConfiguration`.
    #[serde(rename = "apiConfiguration", default, skip_serializing_if = "Option::is_none")]
    pub api_configuration: Option<ReloadableComponentConfiguration>,
    /// `webhookConfiguration`.
    #[serde(rename = "webhookConfiguration", default, skip_serializing_if = "Option::is_none")]
    pub webhook_configuration: Option<ReloadableComponentConfiguration>,
    /// `controllerConfiguration`.
    #[serde(rename = "controllerConfiguration", default, skip_serializing_if = "Option::is_none")]
    pub controller_configuration: Option<ReloadableComponentConfiguration>,
    /// `handlerConfiguration`.
    #[serde(rename = "handlerConfiguration", default, skip_serializing_if = "Option::is_none")]
    pub handler_configuration: Option<ReloadableComponentConfiguration>,
    /// `tlsConfiguration`.
    #[serde(rename = "tlsConfiguration", default, skip_serializing_if = "Option::is_none")]
    pub tls_configuration: Option<TlsConfiguration>,
    /// `seccompConfiguration`.
    #[serde(rename = "seccompConfiguration", default, skip_serializing_if = "Option::is_none")]
    pub seccomp_configuration: Option<SeccompConfiguration>,
    /// `vmStateStorageClass`.
    #[serde(rename = "vmStateStorageClass", default, skip_serializing_if = "Option::is_none")]
    pub vm_state_storage_class: Option<String>,
    /// `virtualMachineOptions`.
    #[serde(rename = "virtualMachineOptions", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_options: Option<VirtualMachineOptions>,
    /// `ksmConfiguration`.
    #[serde(rename = "ksmConfiguration", default, skip_serializing_if = "Option::is_none")]
    pub ksm_configuration: Option<KsmConfiguration>,
    /// `autoCPULimitNamespaceLabelSelector`.
    #[serde(rename = "autoCPULimitNamespaceLabelSelector", default, skip_serializing_if = "Option::is_none")]
    pub auto_cpu_limit_namespace_label_selector: Option<meta::LabelSelector>,
    /// `liveUpdateConfiguration`.
    #[serde(rename = "liveUpdateConfiguration", default, skip_serializing_if = "Option::is_none")]
    pub live_update_configuration: Option<LiveUpdateConfiguration>,
    /// `vmRolloutStrategy`.
    #[serde(rename = "vmRolloutStrategy", default, skip_serializing_if = "Option::is_none")]
    pub vm_rollout_strategy: Option<VmRolloutStrategy>,
    /// `commonInstancetypesDeployment`.
    #[serde(rename = "commonInstancetypesDeployment", default, skip_serializing_if = "Option::is_none")]
    pub common_instancetypes_deployment: Option<CommonInstancetypesDeployment>,
    /// `virtTemplateDeployment`.
    #[serde(rename = "virtTemplateDeployment", default, skip_serializing_if = "Option::is_none")]
    pub virt_template_deployment: Option<VirtTemplateDeployment>,
    /// `instancetype`.
    #[serde(rename = "instancetype", default, skip_serializing_if = "Option::is_none")]
    pub instancetype: Option<InstancetypeConfiguration>,
    /// `hypervisors`.
    #[serde(
        rename = "hypervisors",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub hypervisors: Vec<HypervisorConfiguration>,
    /// `changedBlockTrackingLabelSelectors`.
    #[serde(rename = "changedBlockTrackingLabelSelectors", default, skip_serializing_if = "Option::is_none")]
    pub changed_block_tracking_label_selectors: Option<ChangedBlockTrackingSelectors>,
    /// `roleAggregationStrategy`.
    #[serde(rename = "roleAggregationStrategy", default, skip_serializing_if = "Option::is_none")]
    pub role_aggregation_strategy: Option<RoleAggregationStrategy>,
}

/// `KubeVirtSelfSignConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KubeVirtSelfSignConfiguration {
    /// `caRotateInterval`.
    #[serde(rename = "caRotateInterval", default, skip_serializing_if = "Option::is_none")]
    pub ca_rotate_interval: Option<String>,
    /// `certRotateInterval`.
    #[serde(rename = "certRotateInterval", default, skip_serializing_if = "Option::is_none")]
    pub cert_rotate_interval: Option<String>,
    /// `caOverlapInterval`.
    #[serde(rename = "caOverlapInterval", default, skip_serializing_if = "Option::is_none")]
    pub ca_overlap_interval: Option<String>,
    /// `ca`.
    #[serde(rename = "ca", default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<CertConfig>,
    /// `server`.
    #[serde(rename = "server", default, skip_serializing_if = "Option::is_none")]
    pub server: Option<CertConfig>,
}

/// `KubeVirtSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KubeVirtSpec {
    /// `imageTag`.
    #[serde(rename = "imageTag", default, skip_serializing_if = "Option::is_none")]
    pub image_tag: Option<String>,
    /// `imageRegistry`.
    #[serde(rename = "imageRegistry", default, skip_serializing_if = "Option::is_none")]
    pub image_registry: Option<String>,
    /// `imagePullPolicy`.
    #[serde(rename = "imagePullPolicy", default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    /// `imagePullSecrets`.
    #[serde(
        rename = "imagePullSecrets",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub image_pull_secrets: Vec<core::LocalObjectReference>,
    /// `monitorNamespace`.
    #[serde(rename = "monitorNamespace", default, skip_serializing_if = "Option::is_none")]
    pub monitor_namespace: Option<String>,
    /// `serviceMonitorNamespace`.
    #[serde(rename = "serviceMonitorNamespace", default, skip_serializing_if = "Option::is_none")]
    pub service_monitor_namespace: Option<String>,
    /// `monitorAccount`.
    #[serde(rename = "monitorAccount", default, skip_serializing_if = "Option::is_none")]
    pub monitor_account: Option<String>,
    /// `workloadUpdateStrategy`.
    #[serde(rename = "workloadUpdateStrategy", default, skip_serializing_if = "Option::is_none")]
    pub workload_update_strategy: Option<KubeVirtWorkloadUpdateStrategy>,
    /// `uninstallStrategy`.
    #[serde(rename = "uninstallStrategy", default, skip_serializing_if = "Option::is_none")]
    pub uninstall_strategy: Option<KubeVirtUninstallStrategy>,
    /// `certificateRotateStrategy`.
    #[serde(rename = "certificateRotateStrategy", default, skip_serializing_if = "Option::is_none")]
    pub certificate_rotate_strategy: Option<KubeVirtCertificateRotateStrategy>,
    /// `productVersion`.
    #[serde(rename = "productVersion", default, skip_serializing_if = "Option::is_none")]
    pub product_version: Option<String>,
    /// `productName`.
    #[serde(rename = "productName", default, skip_serializing_if = "Option::is_none")]
    pub product_name: Option<String>,
    /// `productComponent`.
    #[serde(rename = "productComponent", default, skip_serializing_if = "Option::is_none")]
    pub product_component: Option<String>,
    /// `synchronizationPort`.
    #[serde(rename = "synchronizationPort", default, skip_serializing_if = "Option::is_none")]
    pub synchronization_port: Option<String>,
    /// `configuration`.
    #[serde(rename = "configuration", default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<KubeVirtConfiguration>,
    /// `infra`.
    #[serde(rename = "infra", default, skip_serializing_if = "Option::is_none")]
    pub infra: Option<ComponentConfig>,
    /// `workloads`.
    #[serde(rename = "workloads", default, skip_serializing_if = "Option::is_none")]
    pub workloads: Option<ComponentConfig>,
    /// `customizeComponents`.
    #[serde(rename = "customizeComponents", default, skip_serializing_if = "Option::is_none")]
    pub customize_components: Option<CustomizeComponents>,
}

/// `KubeVirtStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KubeVirtStatus {
    /// `phase`.
    #[serde(rename = "phase", default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<KubeVirtPhase>,
    /// `conditions`.
    #[serde(
        rename = "conditions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<KubeVirtCondition>,
    /// `operatorVersion`.
    #[serde(rename = "operatorVersion", default, skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,
    /// `targetKubeVirtRegistry`.
    #[serde(rename = "targetKubeVirtRegistry", default, skip_serializing_if = "Option::is_none")]
    pub target_kube_virt_registry: Option<String>,
    /// `targetKubeVirtVersion`.
    #[serde(rename = "targetKubeVirtVersion", default, skip_serializing_if = "Option::is_none")]
    pub target_kube_virt_version: Option<String>,
    /// `targetDeploymentConfig`.
    #[serde(rename = "targetDeploymentConfig", default, skip_serializing_if = "Option::is_none")]
    pub target_deployment_config: Option<String>,
    /// `targetDeploymentID`.
    #[serde(rename = "targetDeploymentID", default, skip_serializing_if = "Option::is_none")]
    pub target_deployment_id: Option<String>,
    /// `observedKubeVirtRegistry`.
    #[serde(rename = "observedKubeVirtRegistry", default, skip_serializing_if = "Option::is_none")]
    pub observed_kube_virt_registry: Option<String>,
    /// `observedKubeVirtVersion`.
    #[serde(rename = "observedKubeVirtVersion", default, skip_serializing_if = "Option::is_none")]
    pub observed_kube_virt_version: Option<String>,
    /// `observedDeploymentConfig`.
    #[serde(rename = "observedDeploymentConfig", default, skip_serializing_if = "Option::is_none")]
    pub observed_deployment_config: Option<String>,
    /// `observedDeploymentID`.
    #[serde(rename = "observedDeploymentID", default, skip_serializing_if = "Option::is_none")]
    pub observed_deployment_id: Option<String>,
    /// `outdatedVirtualMachineInstanceWorkloads`.
    #[serde(
        rename = "outdatedVirtualMachineInstanceWorkloads",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub outdated_virtual_machine_instance_workloads: Option<i64>,
    /// `observedGeneration`.
    #[serde(rename = "observedGeneration", default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `defaultArchitecture`.
    #[serde(rename = "defaultArchitecture", default, skip_serializing_if = "Option::is_none")]
    pub default_architecture: Option<String>,
    /// `generations`.
    #[serde(
        rename = "generations",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub generations: Vec<GenerationStatus>,
    /// `synchronizationAddresses`.
    #[serde(
        rename = "synchronizationAddresses",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub synchronization_addresses: Vec<String>,
}

/// `KubeVirtWorkloadUpdateStrategy` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct KubeVirtWorkloadUpdateStrategy {
    /// `workloadUpdateMethods`.
    #[serde(
        rename = "workloadUpdateMethods",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub workload_update_methods: Vec<WorkloadUpdateMethod>,
    /// `batchEvictionSize`.
    #[serde(rename = "batchEvictionSize", default, skip_serializing_if = "Option::is_none")]
    pub batch_eviction_size: Option<i64>,
    /// `batchEvictionInterval`.
    #[serde(rename = "batchEvictionInterval", default, skip_serializing_if = "Option::is_none")]
    pub batch_eviction_interval: Option<String>,
}

/// `LaunchSecurity` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct LaunchSecurity {
    /// `sev`.
    #[serde(rename = "sev", default, skip_serializing_if = "Option::is_none")]
    pub sev: Option<Sev>,
    /// `snp`.
    #[serde(rename = "snp", default, skip_serializing_if = "Option::is_none")]
    pub snp: Option<Sevsnp>,
    /// `tdx`.
    #[serde(rename = "tdx", default, skip_serializing_if = "Option::is_none")]
    pub tdx: Option<Tdx>,
}

/// `LiveUpdateConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct LiveUpdateConfiguration {
    /// `maxHotplugRatio`.
    #[serde(rename = "maxHotplugRatio", default, skip_serializing_if = "Option::is_none")]
    pub max_hotplug_ratio: Option<u32>,
    /// `maxCpuSockets`.
    #[serde(rename = "maxCpuSockets", default, skip_serializing_if = "Option::is_none")]
    pub max_cpu_sockets: Option<u32>,
    /// `maxGuest`.
    #[serde(rename = "maxGuest", default, skip_serializing_if = "Option::is_none")]
    pub max_guest: Option<Quantity>,
}

/// `LogVerbosity` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct LogVerbosity {
    /// `virtAPI`.
    #[serde(rename = "virtAPI", default, skip_serializing_if = "Option::is_none")]
    pub virt_api: Option<u64>,
    /// `virtController`.
    #[serde(rename = "virtController", default, skip_serializing_if = "Option::is_none")]
    pub virt_controller: Option<u64>,
    /// `virtHandler`.
    #[serde(rename = "virtHandler", default, skip_serializing_if = "Option::is_none")]
    pub virt_handler: Option<u64>,
    /// `virtLauncher`.
    #[serde(rename = "virtLauncher", default, skip_serializing_if = "Option::is_none")]
    pub virt_launcher: Option<u64>,
    /// `virtOperator`.
    #[serde(rename = "virtOperator", default, skip_serializing_if = "Option::is_none")]
    pub virt_operator: Option<u64>,
    /// `virtSynchronizationController`.
    #[serde(rename = "virtSynchronizationController", default, skip_serializing_if = "Option::is_none")]
    pub virt_synchronization_controller: Option<u64>,
    /// `nodeVerbosity`.
    #[serde(
        rename = "nodeVerbosity",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub node_verbosity: BTreeMap<String, u64>,
}

/// `LunTarget` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct LunTarget {
    /// `bus`.
    #[serde(rename = "bus", default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<DiskBus>,
    /// `readonly`.
    #[serde(rename = "readonly", default, skip_serializing_if = "Option::is_none")]
    pub readonly: Option<bool>,
    /// `reservation`.
    #[serde(rename = "reservation", default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<bool>,
}

/// `Machine` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Machine {
    /// `type`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub r#type: Option<String>,
}

/// `MediatedDevicesConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MediatedDevicesConfiguration {
    /// `mediatedDevicesTypes`.
    #[serde(
        rename = "mediatedDevicesTypes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub mediated_devices_types: Vec<String>,
    /// `mediatedDeviceTypes`.
    #[serde(
        rename = "mediatedDeviceTypes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub mediated_device_types: Vec<String>,
    /// `nodeMediatedDeviceTypes`.
    #[serde(
        rename = "nodeMediatedDeviceTypes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub node_mediated_device_types: Vec<NodeMediatedDeviceTypesConfig>,
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// `MediatedHostDevice` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MediatedHostDevice {
    /// `mdevNameSelector`.
    #[serde(rename = "mdevNameSelector", default, deserialize_with = "super::null::as_default")]
    pub mdev_name_selector: String,
    /// `resourceName`.
    #[serde(rename = "resourceName", default, deserialize_with = "super::null::as_default")]
    pub resource_name: String,
    /// `externalResourceProvider`.
    #[serde(rename = "externalResourceProvider", default, skip_serializing_if = "Option::is_none")]
    pub external_resource_provider: Option<bool>,
}

/// `Memory` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Memory {
    /// `hugepages`.
    #[serde(rename = "hugepages", default, skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<Hugepages>,
    /// `guest`.
    #[serde(rename = "guest", default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<Quantity>,
    /// `maxGuest`.
    #[serde(rename = "maxGuest", default, skip_serializing_if = "Option::is_none")]
    pub max_guest: Option<Quantity>,
    /// `reservedOverhead`.
    #[serde(rename = "reservedOverhead", default, skip_serializing_if = "Option::is_none")]
    pub reserved_overhead: Option<ReservedOverhead>,
}

/// `MemoryDumpVolumeSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MemoryDumpVolumeSource {
    /// `claimName`.
    #[serde(rename = "claimName", default, deserialize_with = "super::null::as_default")]
    pub claim_name: String,
    /// `readOnly`.
    #[serde(rename = "readOnly", default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// `hotpluggable`.
    #[serde(rename = "hotpluggable", default, skip_serializing_if = "Option::is_none")]
    pub hotpluggable: Option<bool>,
}

/// `MemoryStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MemoryStatus {
    /// `guestAtBoot`.
    #[serde(rename = "guestAtBoot", default, skip_serializing_if = "Option::is_none")]
    pub guest_at_boot: Option<Quantity>,
    /// `guestCurrent`.
    #[serde(rename = "guestCurrent", default, skip_serializing_if = "Option::is_none")]
    pub guest_current: Option<Quantity>,
    /// `guestRequested`.
    #[serde(rename = "guestRequested", default, skip_serializing_if = "Option::is_none")]
    pub guest_requested: Option<Quantity>,
    /// `memoryOverhead`.
    #[serde(rename = "memoryOverhead", default, skip_serializing_if = "Option::is_none")]
    pub memory_overhead: Option<Quantity>,
}

/// `MigrateOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MigrateOptions {
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `dryRun`.
    #[serde(
        rename = "dryRun",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
    /// `addedNodeSelector`.
    #[serde(
        rename = "addedNodeSelector",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub added_node_selector: BTreeMap<String, String>,
}

/// `MigrationConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MigrationConfiguration {
    /// `nodeDrainTaintKey`.
    #[serde(rename = "nodeDrainTaintKey", default, skip_serializing_if = "Option::is_none")]
    pub node_drain_taint_key: Option<String>,
    /// `parallelOutboundMigrationsPerNode`.
    #[serde(rename = "parallelOutboundMigrationsPerNode", default, skip_serializing_if = "Option::is_none")]
    pub parallel_outbound_migrations_per_node: Option<u32>,
    /// `parallelMigrationsPerCluster`.
    #[serde(rename = "parallelMigrationsPerCluster", default, skip_serializing_if = "Option::is_none")]
    pub parallel_migrations_per_cluster: Option<u32>,
    /// `allowAutoConverge`.
    #[serde(rename = "allowAutoConverge", default, skip_serializing_if = "Option::is_none")]
    pub allow_auto_converge: Option<bool>,
    /// `bandwidthPerMigration`.
    #[serde(rename = "bandwidthPerMigration", default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_per_migration: Option<Quantity>,
    /// `completionTimeoutPerGiB`.
    #[serde(rename = "completionTimeoutPerGiB", default, skip_serializing_if = "Option::is_none")]
    pub completion_timeout_per_gi_b: Option<i64>,
    /// `progressTimeout`.
    #[serde(rename = "progressTimeout", default, skip_serializing_if = "Option::is_none")]
    pub progress_timeout: Option<i64>,
    /// `utilityVolumesTimeout`.
    #[serde(rename = "utilityVolumesTimeout", default, skip_serializing_if = "Option::is_none")]
    pub utility_volumes_timeout: Option<i64>,
    /// `unsafeMigrationOverride`.
    #[serde(rename = "unsafeMigrationOverride", default, skip_serializing_if = "Option::is_none")]
    pub unsafe_migration_override: Option<bool>,
    /// `allowPostCopy`.
    #[serde(rename = "allowPostCopy", default, skip_serializing_if = "Option::is_none")]
    pub allow_post_copy: Option<bool>,
    /// `allowWorkloadDisruption`.
    #[serde(rename = "allowWorkloadDisruption", default, skip_serializing_if = "Option::is_none")]
    pub allow_workload_disruption: Option<bool>,
    /// `disableTLS`.
    #[serde(rename = "disableTLS", default, skip_serializing_if = "Option::is_none")]
    pub disable_tls: Option<bool>,
    /// `network`.
    #[serde(rename = "network", default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// `matchSELinuxLevelOnMigration`.
    #[serde(rename = "matchSELinuxLevelOnMigration", default, skip_serializing_if = "Option::is_none")]
    pub match_se_linux_level_on_migration: Option<bool>,
}

/// `MultusNetwork` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MultusNetwork {
    /// `networkName`.
    #[serde(rename = "networkName", default, deserialize_with = "super::null::as_default")]
    pub network_name: String,
    /// `default`.
    #[serde(rename = "default", default, skip_serializing_if = "Option::is_none")]
    pub default: Option<bool>,
}

/// `NUMA` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Numa {
    /// `guestMappingPassthrough`.
    #[serde(rename = "guestMappingPassthrough", default, skip_serializing_if = "Option::is_none")]
    pub guest_mapping_passthrough: Option<NumaGuestMappingPassthrough>,
}

/// `NUMAGuestMappingPassthrough` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct NumaGuestMappingPassthrough {}

/// `Network` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Network {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `pod`.
    #[serde(rename = "pod", default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodNetwork>,
    /// `multus`.
    #[serde(rename = "multus", default, skip_serializing_if = "Option::is_none")]
    pub multus: Option<MultusNetwork>,
}

/// `NetworkConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct NetworkConfiguration {
    /// `defaultNetworkInterface`.
    #[serde(rename = "defaultNetworkInterface", default, skip_serializing_if = "Option::is_none")]
    pub default_network_interface: Option<String>,
    /// `permitSlirpInterface`.
    #[serde(rename = "permitSlirpInterface", default, skip_serializing_if = "Option::is_none")]
    pub permit_slirp_interface: Option<bool>,
    /// `permitBridgeInterfaceOnPodNetwork`.
    #[serde(rename = "permitBridgeInterfaceOnPodNetwork", default, skip_serializing_if = "Option::is_none")]
    pub permit_bridge_interface_on_pod_network: Option<bool>,
    /// `binding`.
    #[serde(
        rename = "binding",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub binding: BTreeMap<String, InterfaceBindingPlugin>,
}

/// `NoCloudSSHPublicKeyAccessCredentialPropagation` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct NoCloudSshPublicKeyAccessCredentialPropagation {}

/// `NodeMediatedDeviceTypesConfig` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct NodeMediatedDeviceTypesConfig {
    /// `nodeSelector`.
    #[serde(rename = "nodeSelector", default, deserialize_with = "super::null::as_default")]
    pub node_selector: BTreeMap<String, String>,
    /// `mediatedDevicesTypes`.
    #[serde(
        rename = "mediatedDevicesTypes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub mediated_devices_types: Vec<String>,
    /// `mediatedDeviceTypes`.
    #[serde(
        rename = "mediatedDeviceTypes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub mediated_device_types: Vec<String>,
}

/// `NodePlacement` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct NodePlacement {
    /// `nodeSelector`.
    #[serde(
        rename = "nodeSelector",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub node_selector: BTreeMap<String, String>,
    /// `affinity`.
    #[serde(rename = "affinity", default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<core::Affinity>,
    /// `tolerations`.
    #[serde(
        rename = "tolerations",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub tolerations: Vec<core::Toleration>,
}

/// `PITTimer` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PitTimer {
    /// `tickPolicy`.
    #[serde(rename = "tickPolicy", default, skip_serializing_if = "Option::is_none")]
    pub tick_policy: Option<PitTickPolicy>,
    /// `present`.
    #[serde(rename = "present", default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

/// `PanicDevice` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PanicDevice {
    /// `model`.
    #[serde(rename = "model", default, skip_serializing_if = "Option::is_none")]
    pub model: Option<PanicDeviceModel>,
}

/// `PauseOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PauseOptions {
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `dryRun`.
    #[serde(
        rename = "dryRun",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
}

/// `PciHostDevice` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PciHostDevice {
    /// `pciVendorSelector`.
    #[serde(rename = "pciVendorSelector", default, deserialize_with = "super::null::as_default")]
    pub pci_vendor_selector: String,
    /// `resourceName`.
    #[serde(rename = "resourceName", default, deserialize_with = "super::null::as_default")]
    pub resource_name: String,
    /// `externalResourceProvider`.
    #[serde(rename = "externalResourceProvider", default, skip_serializing_if = "Option::is_none")]
    pub external_resource_provider: Option<bool>,
}

/// `PermittedHostDevices` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PermittedHostDevices {
    /// `pciHostDevices`.
    #[serde(
        rename = "pciHostDevices",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pci_host_devices: Vec<PciHostDevice>,
    /// `mediatedDevices`.
    #[serde(
        rename = "mediatedDevices",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub mediated_devices: Vec<MediatedHostDevice>,
    /// `usb`.
    #[serde(
        rename = "usb",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub usb: Vec<UsbHostDevice>,
}

/// `PersistentVolumeClaimInfo` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PersistentVolumeClaimInfo {
    /// `claimName`.
    #[serde(rename = "claimName", default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// `accessModes`.
    #[serde(
        rename = "accessModes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub access_modes: Vec<String>,
    /// `volumeMode`.
    #[serde(rename = "volumeMode", default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
    /// `capacity`.
    #[serde(rename = "capacity", default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<BTreeMap<String, Quantity>>,
    /// `requests`.
    #[serde(rename = "requests", default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, Quantity>>,
    /// `preallocated`.
    #[serde(rename = "preallocated", default, skip_serializing_if = "Option::is_none")]
    pub preallocated: Option<bool>,
    /// `filesystemOverhead`.
    #[serde(rename = "filesystemOverhead", default, skip_serializing_if = "Option::is_none")]
    pub filesystem_overhead: Option<String>,
}

/// `PersistentVolumeClaimVolumeSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PersistentVolumeClaimVolumeSource {
    /// `claimName`.
    #[serde(rename = "claimName", default, deserialize_with = "super::null::as_default")]
    pub claim_name: String,
    /// `readOnly`.
    #[serde(rename = "readOnly", default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// `hotpluggable`.
    #[serde(rename = "hotpluggable", default, skip_serializing_if = "Option::is_none")]
    pub hotpluggable: Option<bool>,
}

/// `PluginBinding` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PluginBinding {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
}

/// `PodNetwork` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PodNetwork {
    /// `vmNetworkCIDR`.
    #[serde(rename = "vmNetworkCIDR", default, skip_serializing_if = "Option::is_none")]
    pub vm_network_cidr: Option<String>,
    /// `vmIPv6NetworkCIDR`.
    #[serde(rename = "vmIPv6NetworkCIDR", default, skip_serializing_if = "Option::is_none")]
    pub vm_i_pv6_network_cidr: Option<String>,
}

/// `Port` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Port {
    /// `name`.
    #[serde(rename = "name", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `protocol`.
    #[serde(rename = "protocol", default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// `port`.
    #[serde(rename = "port", default, deserialize_with = "super::null::as_default")]
    pub port: i32,
}

/// `PreferenceMatcher` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PreferenceMatcher {
    /// `name`.
    #[serde(rename = "name", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `revisionName`.
    #[serde(rename = "revisionName", default, skip_serializing_if = "Option::is_none")]
    pub revision_name: Option<String>,
    /// `inferFromVolume`.
    #[serde(rename = "inferFromVolume", default, skip_serializing_if = "Option::is_none")]
    pub infer_from_volume: Option<String>,
    /// `inferFromVolumeFailurePolicy`.
    #[serde(rename = "inferFromVolumeFailurePolicy", default, skip_serializing_if = "Option::is_none")]
    pub infer_from_volume_failure_policy: Option<InferFromVolumeFailurePolicy>,
}

/// `Probe` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Probe {
    /// `exec`.
    #[serde(rename = "exec", default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<core::ExecAction>,
    /// `guestAgentPing`.
    #[serde(rename = "guestAgentPing", default, skip_serializing_if = "Option::is_none")]
    pub guest_agent_ping: Option<GuestAgentPing>,
    /// `httpGet`.
    #[serde(rename = "httpGet", default, skip_serializing_if = "Option::is_none")]
    pub http_get: Option<core::HTTPGetAction>,
    /// `tcpSocket`.
    #[serde(rename = "tcpSocket", default, skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<core::TCPSocketAction>,
    /// `initialDelaySeconds`.
    #[serde(rename = "initialDelaySeconds", default, skip_serializing_if = "Option::is_none")]
    pub initial_delay_seconds: Option<i32>,
    /// `timeoutSeconds`.
    #[serde(rename = "timeoutSeconds", default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
    /// `periodSeconds`.
    #[serde(rename = "periodSeconds", default, skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<i32>,
    /// `successThreshold`.
    #[serde(rename = "successThreshold", default, skip_serializing_if = "Option::is_none")]
    pub success_threshold: Option<i32>,
    /// `failureThreshold`.
    #[serde(rename = "failureThreshold", default, skip_serializing_if = "Option::is_none")]
    pub failure_threshold: Option<i32>,
}

/// `QemuGuestAgentSSHPublicKeyAccessCredentialPropagation` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct QemuGuestAgentSshPublicKeyAccessCredentialPropagation {
    /// `users`.
    #[serde(rename = "users", default, deserialize_with = "super::null::as_default")]
    pub users: Vec<String>,
}

/// `QemuGuestAgentUserPasswordAccessCredentialPropagation` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct QemuGuestAgentUserPasswordAccessCredentialPropagation {}

/// `RESTClientConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct RestClientConfiguration {
    /// `rateLimiter`.
    #[serde(rename = "rateLimiter", default, skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<RateLimiter>,
}

/// `RTCTimer` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct RtcTimer {
    /// `tickPolicy`.
    #[serde(rename = "tickPolicy", default, skip_serializing_if = "Option::is_none")]
    pub tick_policy: Option<RtcTickPolicy>,
    /// `present`.
    #[serde(rename = "present", default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
    /// `track`.
    #[serde(rename = "track", default, skip_serializing_if = "Option::is_none")]
    pub track: Option<RtcTimerTrack>,
}

/// `RateLimiter` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct RateLimiter {
    /// `tokenBucketRateLimiter`.
    #[serde(rename = "tokenBucketRateLimiter", default, skip_serializing_if = "Option::is_none")]
    pub token_bucket_rate_limiter: Option<TokenBucketRateLimiter>,
}

/// `Realtime` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Realtime {
    /// `mask`.
    #[serde(rename = "mask", default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
}

/// `ReloadableComponentConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ReloadableComponentConfiguration {
    /// `restClient`.
    #[serde(rename = "restClient", default, skip_serializing_if = "Option::is_none")]
    pub rest_client: Option<RestClientConfiguration>,
}

/// `RemoveVolumeOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct RemoveVolumeOptions {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `dryRun`.
    #[serde(
        rename = "dryRun",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
}

/// `ReservedOverhead` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ReservedOverhead {
    /// `addedOverhead`.
    #[serde(rename = "addedOverhead", default, skip_serializing_if = "Option::is_none")]
    pub added_overhead: Option<Quantity>,
    /// `memLock`.
    #[serde(rename = "memLock", default, skip_serializing_if = "Option::is_none")]
    pub mem_lock: Option<String>,
}

/// `ResourceRequirements` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ResourceRequirements {
    /// `requests`.
    #[serde(rename = "requests", default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, Quantity>>,
    /// `limits`.
    #[serde(rename = "limits", default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, Quantity>>,
    /// `overcommitGuestOverhead`.
    #[serde(rename = "overcommitGuestOverhead", default, skip_serializing_if = "Option::is_none")]
    pub overcommit_guest_overhead: Option<bool>,
}

/// `ResourceRequirementsWithoutClaims` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ResourceRequirementsWithoutClaims {
    /// `limits`.
    #[serde(rename = "limits", default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, Quantity>>,
    /// `requests`.
    #[serde(rename = "requests", default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, Quantity>>,
}

/// `RestartOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct RestartOptions {
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `gracePeriodSeconds`.
    #[serde(rename = "gracePeriodSeconds", default, skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
    /// `dryRun`.
    #[serde(
        rename = "dryRun",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
}

/// `Rng` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Rng {}

/// `SEV` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Sev {
    /// `policy`.
    #[serde(rename = "policy", default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<SevPolicy>,
    /// `attestation`.
    #[serde(rename = "attestation", default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<SevAttestation>,
    /// `session`.
    #[serde(rename = "session", default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// `dhCert`.
    #[serde(rename = "dhCert", default, skip_serializing_if = "Option::is_none")]
    pub dh_cert: Option<String>,
}

/// `SEVAttestation` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SevAttestation {}

/// `SEVPolicy` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SevPolicy {
    /// `encryptedState`.
    #[serde(rename = "encryptedState", default, skip_serializing_if = "Option::is_none")]
    pub encrypted_state: Option<bool>,
}

/// `SEVSNP` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Sevsnp {}

/// `SMBiosConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SmBiosConfiguration {
    /// `manufacturer`.
    #[serde(rename = "manufacturer", default, skip_serializing_if = "Option::is_none")]
    pub manufacturer: Option<String>,
    /// `product`.
    #[serde(rename = "product", default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// `version`.
    #[serde(rename = "version", default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `sku`.
    #[serde(rename = "sku", default, skip_serializing_if = "Option::is_none")]
    pub sku: Option<String>,
    /// `family`.
    #[serde(rename = "family", default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
}

/// `SSHPublicKeyAccessCredential` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SshPublicKeyAccessCredential {
    /// `source`.
    #[serde(rename = "source", default, deserialize_with = "super::null::as_default")]
    pub source: SshPublicKeyAccessCredentialSource,
    /// `propagationMethod`.
    #[serde(rename = "propagationMethod", default, deserialize_with = "super::null::as_default")]
    pub propagation_method: SshPublicKeyAccessCredentialPropagationMethod,
}

/// `SSHPublicKeyAccessCredentialPropagationMethod` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SshPublicKeyAccessCredentialPropagationMethod {
    /// `configDrive`.
    #[serde(rename = "configDrive", default, skip_serializing_if = "Option::is_none")]
    pub config_drive: Option<ConfigDriveSshPublicKeyAccessCredentialPropagation>,
    /// `noCloud`.
    #[serde(rename = "noCloud", default, skip_serializing_if = "Option::is_none")]
    pub no_cloud: Option<NoCloudSshPublicKeyAccessCredentialPropagation>,
    /// `qemuGuestAgent`.
    #[serde(rename = "qemuGuestAgent", default, skip_serializing_if = "Option::is_none")]
    pub qemu_guest_agent: Option<QemuGuestAgentSshPublicKeyAccessCredentialPropagation>,
}

/// `SSHPublicKeyAccessCredentialSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SshPublicKeyAccessCredentialSource {
    /// `secret`.
    #[serde(rename = "secret", default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<AccessCredentialSecretSource>,
}

/// `SeccompConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SeccompConfiguration {
    /// `virtualMachineInstanceProfile`.
    #[serde(rename = "virtualMachineInstanceProfile", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_instance_profile: Option<VirtualMachineInstanceProfile>,
}

/// `SecretVolumeSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SecretVolumeSource {
    /// `secretName`.
    #[serde(rename = "secretName", default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
    /// `optional`.
    #[serde(rename = "optional", default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    /// `volumeLabel`.
    #[serde(rename = "volumeLabel", default, skip_serializing_if = "Option::is_none")]
    pub volume_label: Option<String>,
}

/// `ServiceAccountVolumeSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ServiceAccountVolumeSource {
    /// `serviceAccountName`.
    #[serde(rename = "serviceAccountName", default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}

/// `SoundDevice` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SoundDevice {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `model`.
    #[serde(rename = "model", default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// `StartOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct StartOptions {
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `paused`.
    #[serde(rename = "paused", default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// `dryRun`.
    #[serde(
        rename = "dryRun",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
}

/// `StopOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct StopOptions {
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `gracePeriod`.
    #[serde(rename = "gracePeriod", default, skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<i64>,
    /// `dryRun`.
    #[serde(
        rename = "dryRun",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
}

/// `StorageMigratedVolumeInfo` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct StorageMigratedVolumeInfo {
    /// `volumeName`.
    #[serde(rename = "volumeName", default, deserialize_with = "super::null::as_default")]
    pub volume_name: String,
    /// `sourcePVCInfo`.
    #[serde(rename = "sourcePVCInfo", default, skip_serializing_if = "Option::is_none")]
    pub source_pvc_info: Option<PersistentVolumeClaimInfo>,
    /// `destinationPVCInfo`.
    #[serde(rename = "destinationPVCInfo", default, skip_serializing_if = "Option::is_none")]
    pub destination_pvc_info: Option<PersistentVolumeClaimInfo>,
}

/// `SupportContainerResources` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SupportContainerResources {
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: SupportContainerType,
    /// `resources`.
    #[serde(rename = "resources", default, deserialize_with = "super::null::as_default")]
    pub resources: ResourceRequirementsWithoutClaims,
}

/// `SyNICTimer` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SyNicTimer {
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// `direct`.
    #[serde(rename = "direct", default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<FeatureState>,
}

/// `SysprepSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SysprepSource {
    /// `secret`.
    #[serde(rename = "secret", default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<core::LocalObjectReference>,
    /// `configMap`.
    #[serde(rename = "configMap", default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<core::LocalObjectReference>,
}

/// `TDX` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Tdx {}

/// `TLBFlush` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct TlbFlush {
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// `direct`.
    #[serde(rename = "direct", default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<FeatureState>,
    /// `extended`.
    #[serde(rename = "extended", default, skip_serializing_if = "Option::is_none")]
    pub extended: Option<FeatureState>,
}

/// `TLSConfiguration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct TlsConfiguration {
    /// `minTLSVersion`.
    #[serde(rename = "minTLSVersion", default, skip_serializing_if = "Option::is_none")]
    pub min_tls_version: Option<TlsProtocolVersion>,
    /// `ciphers`.
    #[serde(
        rename = "ciphers",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub ciphers: Vec<String>,
}

/// `TPMDevice` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct TpmDevice {
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// `persistent`.
    #[serde(rename = "persistent", default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
}

/// `Timer` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Timer {
    /// `hpet`.
    #[serde(rename = "hpet", default, skip_serializing_if = "Option::is_none")]
    pub hpet: Option<HpetTimer>,
    /// `kvm`.
    #[serde(rename = "kvm", default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmTimer>,
    /// `pit`.
    #[serde(rename = "pit", default, skip_serializing_if = "Option::is_none")]
    pub pit: Option<PitTimer>,
    /// `rtc`.
    #[serde(rename = "rtc", default, skip_serializing_if = "Option::is_none")]
    pub rtc: Option<RtcTimer>,
    /// `hyperv`.
    #[serde(rename = "hyperv", default, skip_serializing_if = "Option::is_none")]
    pub hyperv: Option<HypervTimer>,
}

/// `TokenBucketRateLimiter` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct TokenBucketRateLimiter {
    /// `qps`.
    #[serde(rename = "qps", default, deserialize_with = "super::null::as_default")]
    pub qps: f64,
    /// `burst`.
    #[serde(rename = "burst", default, deserialize_with = "super::null::as_default")]
    pub burst: i64,
}

/// `TopologyHints` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct TopologyHints {
    /// `tscFrequency`.
    #[serde(rename = "tscFrequency", default, skip_serializing_if = "Option::is_none")]
    pub tsc_frequency: Option<i64>,
}

/// `USBHostDevice` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct UsbHostDevice {
    /// `resourceName`.
    #[serde(rename = "resourceName", default, deserialize_with = "super::null::as_default")]
    pub resource_name: String,
    /// `selectors`.
    #[serde(
        rename = "selectors",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub selectors: Vec<UsbSelector>,
    /// `externalResourceProvider`.
    #[serde(rename = "externalResourceProvider", default, skip_serializing_if = "Option::is_none")]
    pub external_resource_provider: Option<bool>,
}

/// `USBSelector` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct UsbSelector {
    /// `vendor`.
    #[serde(rename = "vendor", default, deserialize_with = "super::null::as_default")]
    pub vendor: String,
    /// `product`.
    #[serde(rename = "product", default, deserialize_with = "super::null::as_default")]
    pub product: String,
}

/// `UnpauseOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct UnpauseOptions {
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `dryRun`.
    #[serde(
        rename = "dryRun",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
}

/// `UserPasswordAccessCredential` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct UserPasswordAccessCredential {
    /// `source`.
    #[serde(rename = "source", default, deserialize_with = "super::null::as_default")]
    pub source: UserPasswordAccessCredentialSource,
    /// `propagationMethod`.
    #[serde(rename = "propagationMethod", default, deserialize_with = "super::null::as_default")]
    pub propagation_method: UserPasswordAccessCredentialPropagationMethod,
}

/// `UserPasswordAccessCredentialPropagationMethod` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct UserPasswordAccessCredentialPropagationMethod {
    /// `qemuGuestAgent`.
    #[serde(rename = "qemuGuestAgent", default, skip_serializing_if = "Option::is_none")]
    pub qemu_guest_agent: Option<QemuGuestAgentUserPasswordAccessCredentialPropagation>,
}

/// `UserPasswordAccessCredentialSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct UserPasswordAccessCredentialSource {
    /// `secret`.
    #[serde(rename = "secret", default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<AccessCredentialSecretSource>,
}

/// `UtilityVolume` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct UtilityVolume {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `claimName`.
    #[serde(rename = "claimName", default, deserialize_with = "super::null::as_default")]
    pub claim_name: String,
    /// `readOnly`.
    #[serde(rename = "readOnly", default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// `type`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub r#type: Option<UtilityVolumeType>,
}

/// `VGPUDisplayOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VgpuDisplayOptions {
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// `ramFB`.
    #[serde(rename = "ramFB", default, skip_serializing_if = "Option::is_none")]
    pub ram_fb: Option<FeatureState>,
}

/// `VGPUOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VgpuOptions {
    /// `display`.
    #[serde(rename = "display", default, skip_serializing_if = "Option::is_none")]
    pub display: Option<VgpuDisplayOptions>,
}

/// `VideoDevice` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VideoDevice {
    /// `type`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub r#type: Option<String>,
}

/// `VirtTemplateDeployment` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtTemplateDeployment {
    /// `enabled`.
    #[serde(rename = "enabled", default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// `VirtualMachine` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachine {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachine::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, serialize_with = "super::word::write_api_version")]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: VirtualMachineSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: VirtualMachineStatus,
}

/// `VirtualMachineCondition` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineCondition {
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: VirtualMachineConditionType,
    /// `status`.
    #[serde(rename = "status", default, deserialize_with = "super::null::as_default")]
    pub status: String,
    /// `lastProbeTime`.
    #[serde(
        rename = "lastProbeTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_probe_time: Option<Option<meta::Time>>,
    /// `lastTransitionTime`.
    #[serde(
        rename = "lastTransitionTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Option<meta::Time>>,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `VirtualMachineInstance` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstance {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachineInstance::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, serialize_with = "super::word::write_api_version")]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: VirtualMachineInstanceSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: VirtualMachineInstanceStatus,
}

/// `VirtualMachineInstanceBackupStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceBackupStatus {
    /// `backupName`.
    #[serde(rename = "backupName", default, skip_serializing_if = "Option::is_none")]
    pub backup_name: Option<String>,
    /// `startTimestamp`.
    #[serde(
        rename = "startTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub start_timestamp: Option<Option<meta::Time>>,
    /// `endTimestamp`.
    #[serde(
        rename = "endTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub end_timestamp: Option<Option<meta::Time>>,
    /// `completed`.
    #[serde(rename = "completed", default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<bool>,
    /// `failed`.
    #[serde(rename = "failed", default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<bool>,
    /// `backupMsg`.
    #[serde(rename = "backupMsg", default, skip_serializing_if = "Option::is_none")]
    pub backup_msg: Option<String>,
    /// `checkpointName`.
    #[serde(rename = "checkpointName", default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_name: Option<String>,
    /// `volumes`.
    #[serde(
        rename = "volumes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volumes: Vec<serde_json::Value>,
}

/// `VirtualMachineInstanceCondition` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceCondition {
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: VirtualMachineInstanceConditionType,
    /// `status`.
    #[serde(rename = "status", default, deserialize_with = "super::null::as_default")]
    pub status: String,
    /// `lastProbeTime`.
    #[serde(
        rename = "lastProbeTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_probe_time: Option<Option<meta::Time>>,
    /// `lastTransitionTime`.
    #[serde(
        rename = "lastTransitionTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Option<meta::Time>>,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `VirtualMachineInstanceFileSystem` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceFileSystem {
    /// `diskName`.
    #[serde(rename = "diskName", default, deserialize_with = "super::null::as_default")]
    pub disk_name: String,
    /// `mountPoint`.
    #[serde(rename = "mountPoint", default, deserialize_with = "super::null::as_default")]
    pub mount_point: String,
    /// `fileSystemType`.
    #[serde(rename = "fileSystemType", default, deserialize_with = "super::null::as_default")]
    pub file_system_type: String,
    /// `usedBytes`.
    #[serde(rename = "usedBytes", default, deserialize_with = "super::null::as_default")]
    pub used_bytes: i64,
    /// `totalBytes`.
    #[serde(rename = "totalBytes", default, deserialize_with = "super::null::as_default")]
    pub total_bytes: i64,
    /// `disk`.
    #[serde(
        rename = "disk",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub disk: Vec<VirtualMachineInstanceFileSystemDisk>,
}

/// `VirtualMachineInstanceFileSystemDisk` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceFileSystemDisk {
    /// `serial`.
    #[serde(rename = "serial", default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// `busType`.
    #[serde(rename = "busType", default, deserialize_with = "super::null::as_default")]
    pub bus_type: String,
}

/// `VirtualMachineInstanceFileSystemInfo` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceFileSystemInfo {
    /// `disks`.
    #[serde(rename = "disks", default, deserialize_with = "super::null::as_default")]
    pub disks: Vec<VirtualMachineInstanceFileSystem>,
}

/// `VirtualMachineInstanceFileSystemList` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceFileSystemList {
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<meta::ListMeta>,
    /// `items`.
    #[serde(rename = "items", default, deserialize_with = "super::null::as_default")]
    pub items: Vec<VirtualMachineInstanceFileSystem>,
}

/// `VirtualMachineInstanceGuestAgentInfo` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceGuestAgentInfo {
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `guestAgentVersion`.
    #[serde(rename = "guestAgentVersion", default, skip_serializing_if = "Option::is_none")]
    pub guest_agent_version: Option<String>,
    /// `supportedCommands`.
    #[serde(
        rename = "supportedCommands",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub supported_commands: Vec<GuestAgentCommandInfo>,
    /// `hostname`.
    #[serde(rename = "hostname", default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// `os`.
    #[serde(rename = "os", default, skip_serializing_if = "Option::is_none")]
    pub os: Option<VirtualMachineInstanceGuestOsInfo>,
    /// `timezone`.
    #[serde(rename = "timezone", default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// `userList`.
    #[serde(
        rename = "userList",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub user_list: Vec<VirtualMachineInstanceGuestOsUser>,
    /// `fsInfo`.
    #[serde(rename = "fsInfo", default, skip_serializing_if = "Option::is_none")]
    pub fs_info: Option<VirtualMachineInstanceFileSystemInfo>,
    /// `fsFreezeStatus`.
    #[serde(rename = "fsFreezeStatus", default, skip_serializing_if = "Option::is_none")]
    pub fs_freeze_status: Option<String>,
}

/// `VirtualMachineInstanceGuestOSInfo` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceGuestOsInfo {
    /// `name`.
    #[serde(rename = "name", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `kernelRelease`.
    #[serde(rename = "kernelRelease", default, skip_serializing_if = "Option::is_none")]
    pub kernel_release: Option<String>,
    /// `version`.
    #[serde(rename = "version", default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `prettyName`.
    #[serde(rename = "prettyName", default, skip_serializing_if = "Option::is_none")]
    pub pretty_name: Option<String>,
    /// `versionId`.
    #[serde(rename = "versionId", default, skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    /// `kernelVersion`.
    #[serde(rename = "kernelVersion", default, skip_serializing_if = "Option::is_none")]
    pub kernel_version: Option<String>,
    /// `machine`.
    #[serde(rename = "machine", default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// `id`.
    #[serde(rename = "id", default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// `VirtualMachineInstanceGuestOSUser` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceGuestOsUser {
    /// `userName`.
    #[serde(rename = "userName", default, deserialize_with = "super::null::as_default")]
    pub user_name: String,
    /// `domain`.
    #[serde(rename = "domain", default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// `loginTime`.
    #[serde(rename = "loginTime", default, skip_serializing_if = "Option::is_none")]
    pub login_time: Option<f64>,
}

/// `VirtualMachineInstanceGuestOSUserList` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceGuestOsUserList {
    /// `kind`.
    #[serde(rename = "kind", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<meta::ListMeta>,
    /// `items`.
    #[serde(rename = "items", default, deserialize_with = "super::null::as_default")]
    pub items: Vec<VirtualMachineInstanceGuestOsUser>,
}

/// `VirtualMachineInstanceMigration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceMigration {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachineInstanceMigration::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, serialize_with = "super::word::write_api_version")]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: VirtualMachineInstanceMigrationSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: VirtualMachineInstanceMigrationStatus,
}

/// `VirtualMachineInstanceMigrationCondition` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceMigrationCondition {
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: VirtualMachineInstanceMigrationConditionType,
    /// `status`.
    #[serde(rename = "status", default, deserialize_with = "super::null::as_default")]
    pub status: String,
    /// `lastProbeTime`.
    #[serde(
        rename = "lastProbeTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_probe_time: Option<Option<meta::Time>>,
    /// `lastTransitionTime`.
    #[serde(
        rename = "lastTransitionTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Option<meta::Time>>,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `VirtualMachineInstanceMigrationPhaseTransitionTimestamp` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceMigrationPhaseTransitionTimestamp {
    /// `phase`.
    #[serde(rename = "phase", default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<VirtualMachineInstanceMigrationPhase>,
    /// `phaseTransitionTimestamp`.
    #[serde(
        rename = "phaseTransitionTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub phase_transition_timestamp: Option<Option<meta::Time>>,
}

/// `VirtualMachineInstanceMigrationSource` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceMigrationSource {
    /// `migrationID`.
    #[serde(rename = "migrationID", default, deserialize_with = "super::null::as_default")]
    pub migration_id: String,
    /// `connectURL`.
    #[serde(rename = "connectURL", default, deserialize_with = "super::null::as_default")]
    pub connect_url: String,
}

/// `VirtualMachineInstanceMigrationSourceState` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceMigrationSourceState {
    /// `node`.
    #[serde(rename = "node", default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// `pod`.
    #[serde(rename = "pod", default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// `migrationUID`.
    #[serde(rename = "migrationUID", default, skip_serializing_if = "Option::is_none")]
    pub migration_uid: Option<String>,
    /// `domainName`.
    #[serde(rename = "domainName", default, skip_serializing_if = "Option::is_none")]
    pub domain_name: Option<String>,
    /// `domainNamespace`.
    #[serde(rename = "domainNamespace", default, skip_serializing_if = "Option::is_none")]
    pub domain_namespace: Option<String>,
    /// `syncAddress`.
    #[serde(rename = "syncAddress", default, skip_serializing_if = "Option::is_none")]
    pub sync_address: Option<String>,
    /// `persistentStatePVCName`.
    #[serde(rename = "persistentStatePVCName", default, skip_serializing_if = "Option::is_none")]
    pub persistent_state_pvc_name: Option<String>,
    /// `selinuxContext`.
    #[serde(rename = "selinuxContext", default, skip_serializing_if = "Option::is_none")]
    pub selinux_context: Option<String>,
    /// `virtualMachineInstanceUID`.
    #[serde(rename = "virtualMachineInstanceUID", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_instance_uid: Option<String>,
    /// `nodeSelectors`.
    #[serde(
        rename = "nodeSelectors",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub node_selectors: BTreeMap<String, String>,
}

/// `VirtualMachineInstanceMigrationSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceMigrationSpec {
    /// `vmiName`.
    #[serde(rename = "vmiName", default, skip_serializing_if = "Option::is_none")]
    pub vmi_name: Option<String>,
    /// `addedNodeSelector`.
    #[serde(
        rename = "addedNodeSelector",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub added_node_selector: BTreeMap<String, String>,
    /// `sendTo`.
    #[serde(rename = "sendTo", default, skip_serializing_if = "Option::is_none")]
    pub send_to: Option<VirtualMachineInstanceMigrationSource>,
    /// `receive`.
    #[serde(rename = "receive", default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<VirtualMachineInstanceMigrationTarget>,
    /// `priority`.
    #[serde(rename = "priority", default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<MigrationPriority>,
}

/// `VirtualMachineInstanceMigrationState` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceMigrationState {
    /// `startTimestamp`.
    #[serde(
        rename = "startTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub start_timestamp: Option<Option<meta::Time>>,
    /// `endTimestamp`.
    #[serde(
        rename = "endTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub end_timestamp: Option<Option<meta::Time>>,
    /// `targetNodeDomainReadyTimestamp`.
    #[serde(
        rename = "targetNodeDomainReadyTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub target_node_domain_ready_timestamp: Option<Option<meta::Time>>,
    /// `targetNodeDomainDetected`.
    #[serde(rename = "targetNodeDomainDetected", default, skip_serializing_if = "Option::is_none")]
    pub target_node_domain_detected: Option<bool>,
    /// `targetNodeAddress`.
    #[serde(rename = "targetNodeAddress", default, skip_serializing_if = "Option::is_none")]
    pub target_node_address: Option<String>,
    /// `targetDirectMigrationNodePorts`.
    #[serde(
        rename = "targetDirectMigrationNodePorts",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub target_direct_migration_node_ports: BTreeMap<String, i64>,
    /// `targetNode`.
    #[serde(rename = "targetNode", default, skip_serializing_if = "Option::is_none")]
    pub target_node: Option<String>,
    /// `targetPod`.
    #[serde(rename = "targetPod", default, skip_serializing_if = "Option::is_none")]
    pub target_pod: Option<String>,
    /// `targetAttachmentPodUID`.
    #[serde(rename = "targetAttachmentPodUID", default, skip_serializing_if = "Option::is_none")]
    pub target_attachment_pod_uid: Option<String>,
    /// `sourceNode`.
    #[serde(rename = "sourceNode", default, skip_serializing_if = "Option::is_none")]
    pub source_node: Option<String>,
    /// `sourcePod`.
    #[serde(rename = "sourcePod", default, skip_serializing_if = "Option::is_none")]
    pub source_pod: Option<String>,
    /// `completed`.
    #[serde(rename = "completed", default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<bool>,
    /// `failed`.
    #[serde(rename = "failed", default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<bool>,
    /// `abortRequested`.
    #[serde(rename = "abortRequested", default, skip_serializing_if = "Option::is_none")]
    pub abort_requested: Option<bool>,
    /// `abortStatus`.
    #[serde(rename = "abortStatus", default, skip_serializing_if = "Option::is_none")]
    pub abort_status: Option<MigrationAbortStatus>,
    /// `failureReason`.
    #[serde(rename = "failureReason", default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// `migrationUid`.
    #[serde(rename = "migrationUid", default, skip_serializing_if = "Option::is_none")]
    pub migration_uid: Option<String>,
    /// `mode`.
    #[serde(rename = "mode", default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<MigrationMode>,
    /// `migrationPolicyName`.
    #[serde(rename = "migrationPolicyName", default, skip_serializing_if = "Option::is_none")]
    pub migration_policy_name: Option<String>,
    /// `migrationConfiguration`.
    #[serde(rename = "migrationConfiguration", default, skip_serializing_if = "Option::is_none")]
    pub migration_configuration: Option<MigrationConfiguration>,
    /// `targetCPUSet`.
    #[serde(
        rename = "targetCPUSet",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub target_cpu_set: Vec<i64>,
    /// `targetNodeTopology`.
    #[serde(rename = "targetNodeTopology", default, skip_serializing_if = "Option::is_none")]
    pub target_node_topology: Option<String>,
    /// `sourcePersistentStatePVCName`.
    #[serde(rename = "sourcePersistentStatePVCName", default, skip_serializing_if = "Option::is_none")]
    pub source_persistent_state_pvc_name: Option<String>,
    /// `targetPersistentStatePVCName`.
    #[serde(rename = "targetPersistentStatePVCName", default, skip_serializing_if = "Option::is_none")]
    pub target_persistent_state_pvc_name: Option<String>,
    /// `sourceState`.
    #[serde(rename = "sourceState", default, skip_serializing_if = "Option::is_none")]
    pub source_state: Option<VirtualMachineInstanceMigrationSourceState>,
    /// `targetState`.
    #[serde(rename = "targetState", default, skip_serializing_if = "Option::is_none")]
    pub target_state: Option<VirtualMachineInstanceMigrationTargetState>,
    /// `migrationNetworkType`.
    #[serde(rename = "migrationNetworkType", default, skip_serializing_if = "Option::is_none")]
    pub migration_network_type: Option<MigrationNetworkType>,
    /// `targetMemoryOverhead`.
    #[serde(rename = "targetMemoryOverhead", default, skip_serializing_if = "Option::is_none")]
    pub target_memory_overhead: Option<Quantity>,
}

/// `VirtualMachineInstanceMigrationStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceMigrationStatus {
    /// `phase`.
    #[serde(rename = "phase", default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<VirtualMachineInstanceMigrationPhase>,
    /// `conditions`.
    #[serde(
        rename = "conditions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<VirtualMachineInstanceMigrationCondition>,
    /// `phaseTransitionTimestamps`.
    #[serde(
        rename = "phaseTransitionTimestamps",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub phase_transition_timestamps: Vec<VirtualMachineInstanceMigrationPhaseTransitionTimestamp>,
    /// `migrationState`.
    #[serde(rename = "migrationState", default, skip_serializing_if = "Option::is_none")]
    pub migration_state: Option<VirtualMachineInstanceMigrationState>,
    /// `synchronizationAddresses`.
    #[serde(
        rename = "synchronizationAddresses",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub synchronization_addresses: Vec<String>,
}

/// `VirtualMachineInstanceMigrationTarget` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceMigrationTarget {
    /// `migrationID`.
    #[serde(rename = "migrationID", default, deserialize_with = "super::null::as_default")]
    pub migration_id: String,
}

/// `VirtualMachineInstanceMigrationTargetState` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceMigrationTargetState {
    /// `node`.
    #[serde(rename = "node", default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// `pod`.
    #[serde(rename = "pod", default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// `migrationUID`.
    #[serde(rename = "migrationUID", default, skip_serializing_if = "Option::is_none")]
    pub migration_uid: Option<String>,
    /// `domainName`.
    #[serde(rename = "domainName", default, skip_serializing_if = "Option::is_none")]
    pub domain_name: Option<String>,
    /// `domainNamespace`.
    #[serde(rename = "domainNamespace", default, skip_serializing_if = "Option::is_none")]
    pub domain_namespace: Option<String>,
    /// `syncAddress`.
    #[serde(rename = "syncAddress", default, skip_serializing_if = "Option::is_none")]
    pub sync_address: Option<String>,
    /// `persistentStatePVCName`.
    #[serde(rename = "persistentStatePVCName", default, skip_serializing_if = "Option::is_none")]
    pub persistent_state_pvc_name: Option<String>,
    /// `selinuxContext`.
    #[serde(rename = "selinuxContext", default, skip_serializing_if = "Option::is_none")]
    pub selinux_context: Option<String>,
    /// `virtualMachineInstanceUID`.
    #[serde(rename = "virtualMachineInstanceUID", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_instance_uid: Option<String>,
    /// `domainReadyTimestamp`.
    #[serde(
        rename = "domainReadyTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub domain_ready_timestamp: Option<Option<meta::Time>>,
    /// `domainDetected`.
    #[serde(rename = "domainDetected", default, skip_serializing_if = "Option::is_none")]
    pub domain_detected: Option<bool>,
    /// `nodeAddress`.
    #[serde(rename = "nodeAddress", default, skip_serializing_if = "Option::is_none")]
    pub node_address: Option<String>,
    /// `directMigrationNodePorts`.
    #[serde(
        rename = "directMigrationNodePorts",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub direct_migration_node_ports: BTreeMap<String, i64>,
    /// `attachmentPodUID`.
    #[serde(rename = "attachmentPodUID", default, skip_serializing_if = "Option::is_none")]
    pub attachment_pod_uid: Option<String>,
    /// `cpuSet`.
    #[serde(
        rename = "cpuSet",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub cpu_set: Vec<i64>,
    /// `nodeTopology`.
    #[serde(rename = "nodeTopology", default, skip_serializing_if = "Option::is_none")]
    pub node_topology: Option<String>,
}

/// `VirtualMachineInstanceNetworkInterface` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceNetworkInterface {
    /// `ipAddress`.
    #[serde(rename = "ipAddress", default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<String>,
    /// `mac`.
    #[serde(rename = "mac", default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// `name`.
    #[serde(rename = "name", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `ipAddresses`.
    #[serde(
        rename = "ipAddresses",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub ip_addresses: Vec<String>,
    /// `podInterfaceName`.
    #[serde(rename = "podInterfaceName", default, skip_serializing_if = "Option::is_none")]
    pub pod_interface_name: Option<String>,
    /// `interfaceName`.
    #[serde(rename = "interfaceName", default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<String>,
    /// `infoSource`.
    #[serde(rename = "infoSource", default, skip_serializing_if = "Option::is_none")]
    pub info_source: Option<String>,
    /// `queueCount`.
    #[serde(rename = "queueCount", default, skip_serializing_if = "Option::is_none")]
    pub queue_count: Option<i32>,
    /// `linkState`.
    #[serde(rename = "linkState", default, skip_serializing_if = "Option::is_none")]
    pub link_state: Option<String>,
}

/// `VirtualMachineInstancePhaseTransitionTimestamp` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstancePhaseTransitionTimestamp {
    /// `phase`.
    #[serde(rename = "phase", default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<VirtualMachineInstancePhase>,
    /// `phaseTransitionTimestamp`.
    #[serde(
        rename = "phaseTransitionTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub phase_transition_timestamp: Option<Option<meta::Time>>,
}

/// `VirtualMachineInstancePreset` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstancePreset {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachineInstancePreset::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, serialize_with = "super::word::write_api_version")]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<VirtualMachineInstancePresetSpec>,
}

/// `VirtualMachineInstancePresetSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstancePresetSpec {
    /// `selector`.
    #[serde(rename = "selector", default, deserialize_with = "super::null::as_default")]
    pub selector: meta::LabelSelector,
    /// `domain`.
    #[serde(rename = "domain", default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainSpec>,
}

/// `VirtualMachineInstanceProfile` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceProfile {
    /// `customProfile`.
    #[serde(rename = "customProfile", default, skip_serializing_if = "Option::is_none")]
    pub custom_profile: Option<CustomProfile>,
}

/// `VirtualMachineInstanceReplicaSet` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceReplicaSet {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachineInstanceReplicaSet::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, serialize_with = "super::word::write_api_version")]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: VirtualMachineInstanceReplicaSetSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: VirtualMachineInstanceReplicaSetStatus,
}

/// `VirtualMachineInstanceReplicaSetCondition` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceReplicaSetCondition {
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: VirtualMachineInstanceReplicaSetConditionType,
    /// `status`.
    #[serde(rename = "status", default, deserialize_with = "super::null::as_default")]
    pub status: String,
    /// `lastProbeTime`.
    #[serde(
        rename = "lastProbeTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_probe_time: Option<Option<meta::Time>>,
    /// `lastTransitionTime`.
    #[serde(
        rename = "lastTransitionTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Option<meta::Time>>,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `VirtualMachineInstanceReplicaSetSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceReplicaSetSpec {
    /// `replicas`.
    #[serde(rename = "replicas", default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// `selector`.
    #[serde(rename = "selector", default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<meta::LabelSelector>,
    /// `template`.
    #[serde(rename = "template", default, skip_serializing_if = "Option::is_none")]
    pub template: Option<VirtualMachineInstanceTemplateSpec>,
    /// `paused`.
    #[serde(rename = "paused", default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// `VirtualMachineInstanceReplicaSetStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceReplicaSetStatus {
    /// `replicas`.
    #[serde(rename = "replicas", default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// `readyReplicas`.
    #[serde(rename = "readyReplicas", default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// `conditions`.
    #[serde(
        rename = "conditions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<VirtualMachineInstanceReplicaSetCondition>,
    /// `labelSelector`.
    #[serde(rename = "labelSelector", default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
}

/// `VirtualMachineInstanceSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceSpec {
    /// `priorityClassName`.
    #[serde(rename = "priorityClassName", default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// `domain`.
    #[serde(rename = "domain", default, deserialize_with = "super::null::as_default")]
    pub domain: DomainSpec,
    /// `nodeSelector`.
    #[serde(
        rename = "nodeSelector",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub node_selector: BTreeMap<String, String>,
    /// `affinity`.
    #[serde(rename = "affinity", default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<core::Affinity>,
    /// `schedulerName`.
    #[serde(rename = "schedulerName", default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// `tolerations`.
    #[serde(
        rename = "tolerations",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub tolerations: Vec<core::Toleration>,
    /// `topologySpreadConstraints`.
    #[serde(
        rename = "topologySpreadConstraints",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub topology_spread_constraints: Vec<core::TopologySpreadConstraint>,
    /// `evictionStrategy`.
    #[serde(rename = "evictionStrategy", default, skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<EvictionStrategy>,
    /// `startStrategy`.
    #[serde(rename = "startStrategy", default, skip_serializing_if = "Option::is_none")]
    pub start_strategy: Option<StartStrategy>,
    /// `terminationGracePeriodSeconds`.
    #[serde(rename = "terminationGracePeriodSeconds", default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// `volumes`.
    #[serde(
        rename = "volumes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volumes: Vec<Volume>,
    /// `livenessProbe`.
    #[serde(rename = "livenessProbe", default, skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Probe>,
    /// `readinessProbe`.
    #[serde(rename = "readinessProbe", default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Probe>,
    /// `hostname`.
    #[serde(rename = "hostname", default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// `subdomain`.
    #[serde(rename = "subdomain", default, skip_serializing_if = "Option::is_none")]
    pub subdomain: Option<String>,
    /// `networks`.
    #[serde(
        rename = "networks",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub networks: Vec<Network>,
    /// `dnsPolicy`.
    #[serde(rename = "dnsPolicy", default, skip_serializing_if = "Option::is_none")]
    pub dns_policy: Option<String>,
    /// `dnsConfig`.
    #[serde(rename = "dnsConfig", default, skip_serializing_if = "Option::is_none")]
    pub dns_config: Option<core::PodDNSConfig>,
    /// `accessCredentials`.
    #[serde(
        rename = "accessCredentials",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub access_credentials: Vec<AccessCredential>,
    /// `architecture`.
    #[serde(rename = "architecture", default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// `resourceClaims`.
    #[serde(
        rename = "resourceClaims",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub resource_claims: Vec<core::PodResourceClaim>,
    /// `utilityVolumes`.
    #[serde(
        rename = "utilityVolumes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub utility_volumes: Vec<UtilityVolume>,
}

/// `VirtualMachineInstanceStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceStatus {
    /// `nodeName`.
    #[serde(rename = "nodeName", default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `conditions`.
    #[serde(
        rename = "conditions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<VirtualMachineInstanceCondition>,
    /// `phase`.
    #[serde(rename = "phase", default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<VirtualMachineInstancePhase>,
    /// `phaseTransitionTimestamps`.
    #[serde(
        rename = "phaseTransitionTimestamps",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub phase_transition_timestamps: Vec<VirtualMachineInstancePhaseTransitionTimestamp>,
    /// `interfaces`.
    #[serde(
        rename = "interfaces",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub interfaces: Vec<VirtualMachineInstanceNetworkInterface>,
    /// `guestOSInfo`.
    #[serde(rename = "guestOSInfo", default, skip_serializing_if = "Option::is_none")]
    pub guest_os_info: Option<VirtualMachineInstanceGuestOsInfo>,
    /// `migrationState`.
    #[serde(rename = "migrationState", default, skip_serializing_if = "Option::is_none")]
    pub migration_state: Option<VirtualMachineInstanceMigrationState>,
    /// `migrationMethod`.
    #[serde(rename = "migrationMethod", default, skip_serializing_if = "Option::is_none")]
    pub migration_method: Option<VirtualMachineInstanceMigrationMethod>,
    /// `migrationTransport`.
    #[serde(rename = "migrationTransport", default, skip_serializing_if = "Option::is_none")]
    pub migration_transport: Option<VirtualMachineInstanceMigrationTransport>,
    /// `qosClass`.
    #[serde(rename = "qosClass", default, skip_serializing_if = "Option::is_none")]
    pub qos_class: Option<String>,
    /// `launcherContainerImageVersion`.
    #[serde(rename = "launcherContainerImageVersion", default, skip_serializing_if = "Option::is_none")]
    pub launcher_container_image_version: Option<String>,
    /// `evacuationNodeName`.
    #[serde(rename = "evacuationNodeName", default, skip_serializing_if = "Option::is_none")]
    pub evacuation_node_name: Option<String>,
    /// `activePods`.
    #[serde(
        rename = "activePods",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub active_pods: BTreeMap<String, String>,
    /// `volumeStatus`.
    #[serde(
        rename = "volumeStatus",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volume_status: Vec<VolumeStatus>,
    /// `kernelBootStatus`.
    #[serde(rename = "kernelBootStatus", default, skip_serializing_if = "Option::is_none")]
    pub kernel_boot_status: Option<KernelBootStatus>,
    /// `fsFreezeStatus`.
    #[serde(rename = "fsFreezeStatus", default, skip_serializing_if = "Option::is_none")]
    pub fs_freeze_status: Option<String>,
    /// `topologyHints`.
    #[serde(rename = "topologyHints", default, skip_serializing_if = "Option::is_none")]
    pub topology_hints: Option<TopologyHints>,
    /// `virtualMachineRevisionName`.
    #[serde(rename = "virtualMachineRevisionName", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_revision_name: Option<String>,
    /// `runtimeUser`.
    #[serde(rename = "runtimeUser", default, skip_serializing_if = "Option::is_none")]
    pub runtime_user: Option<u64>,
    /// `VSOCKCID`.
    #[serde(rename = "VSOCKCID", default, skip_serializing_if = "Option::is_none")]
    pub vsockcid: Option<u32>,
    /// `selinuxContext`.
    #[serde(rename = "selinuxContext", default, skip_serializing_if = "Option::is_none")]
    pub selinux_context: Option<String>,
    /// `machine`.
    #[serde(rename = "machine", default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// `currentCPUTopology`.
    #[serde(rename = "currentCPUTopology", default, skip_serializing_if = "Option::is_none")]
    pub current_cpu_topology: Option<CpuTopology>,
    /// `memory`.
    #[serde(rename = "memory", default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    /// `migratedVolumes`.
    #[serde(
        rename = "migratedVolumes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub migrated_volumes: Vec<StorageMigratedVolumeInfo>,
    /// `changedBlockTracking`.
    #[serde(rename = "changedBlockTracking", default, skip_serializing_if = "Option::is_none")]
    pub changed_block_tracking: Option<ChangedBlockTrackingStatus>,
}

/// `VirtualMachineInstanceTemplateSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstanceTemplateSpec {
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<meta::ObjectMeta>,
    /// `spec`.
    #[serde(rename = "spec", default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<VirtualMachineInstanceSpec>,
}

/// `VirtualMachineMemoryDumpRequest` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineMemoryDumpRequest {
    /// `claimName`.
    #[serde(rename = "claimName", default, deserialize_with = "super::null::as_default")]
    pub claim_name: String,
    /// `phase`.
    #[serde(rename = "phase", default, deserialize_with = "super::null::as_default")]
    pub phase: MemoryDumpPhase,
    /// `remove`.
    #[serde(rename = "remove", default, skip_serializing_if = "Option::is_none")]
    pub remove: Option<bool>,
    /// `startTimestamp`.
    #[serde(
        rename = "startTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub start_timestamp: Option<Option<meta::Time>>,
    /// `endTimestamp`.
    #[serde(
        rename = "endTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub end_timestamp: Option<Option<meta::Time>>,
    /// `fileName`.
    #[serde(rename = "fileName", default, skip_serializing_if = "Option::is_none")]
    pub file_name: Option<String>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `VirtualMachineOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineOptions {
    /// `disableFreePageReporting`.
    #[serde(rename = "disableFreePageReporting", default, skip_serializing_if = "Option::is_none")]
    pub disable_free_page_reporting: Option<DisableFreePageReporting>,
    /// `disableSerialConsoleLog`.
    #[serde(rename = "disableSerialConsoleLog", default, skip_serializing_if = "Option::is_none")]
    pub disable_serial_console_log: Option<DisableSerialConsoleLog>,
}

/// `VirtualMachineSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineSpec {
    /// `running`.
    #[serde(rename = "running", default, skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// `runStrategy`.
    #[serde(rename = "runStrategy", default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<VirtualMachineRunStrategy>,
    /// `instancetype`.
    #[serde(rename = "instancetype", default, skip_serializing_if = "Option::is_none")]
    pub instancetype: Option<InstancetypeMatcher>,
    /// `preference`.
    #[serde(rename = "preference", default, skip_serializing_if = "Option::is_none")]
    pub preference: Option<PreferenceMatcher>,
    /// `template`.
    #[serde(rename = "template", default, skip_serializing_if = "Option::is_none")]
    pub template: Option<VirtualMachineInstanceTemplateSpec>,
    /// `dataVolumeTemplates`.
    #[serde(
        rename = "dataVolumeTemplates",
        default,
        deserialize_with = "super::templates::bounded",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub data_volume_templates: Vec<DataVolumeTemplateSpec>,
    /// `updateVolumesStrategy`.
    #[serde(rename = "updateVolumesStrategy", default, skip_serializing_if = "Option::is_none")]
    pub update_volumes_strategy: Option<UpdateVolumesStrategy>,
}

/// `VirtualMachineStartFailure` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineStartFailure {
    /// `consecutiveFailCount`.
    #[serde(rename = "consecutiveFailCount", default, skip_serializing_if = "Option::is_none")]
    pub consecutive_fail_count: Option<i64>,
    /// `lastFailedVMIUID`.
    #[serde(rename = "lastFailedVMIUID", default, skip_serializing_if = "Option::is_none")]
    pub last_failed_vmiuid: Option<String>,
    /// `retryAfterTimestamp`.
    #[serde(
        rename = "retryAfterTimestamp",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub retry_after_timestamp: Option<Option<meta::Time>>,
}

/// `VirtualMachineStateChangeRequest` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineStateChangeRequest {
    /// `action`.
    #[serde(rename = "action", default, deserialize_with = "super::null::as_default")]
    pub action: StateChangeRequestAction,
    /// `data`.
    #[serde(
        rename = "data",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub data: BTreeMap<String, String>,
    /// `uid`.
    #[serde(rename = "uid", default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// `VirtualMachineStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineStatus {
    /// `snapshotInProgress`.
    #[serde(rename = "snapshotInProgress", default, skip_serializing_if = "Option::is_none")]
    pub snapshot_in_progress: Option<String>,
    /// `restoreInProgress`.
    #[serde(rename = "restoreInProgress", default, skip_serializing_if = "Option::is_none")]
    pub restore_in_progress: Option<String>,
    /// `created`.
    #[serde(rename = "created", default, skip_serializing_if = "Option::is_none")]
    pub created: Option<bool>,
    /// `ready`.
    #[serde(rename = "ready", default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// `printableStatus`.
    #[serde(rename = "printableStatus", default, skip_serializing_if = "Option::is_none")]
    pub printable_status: Option<VirtualMachinePrintableStatus>,
    /// `conditions`.
    #[serde(
        rename = "conditions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<VirtualMachineCondition>,
    /// `stateChangeRequests`.
    #[serde(
        rename = "stateChangeRequests",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub state_change_requests: Vec<VirtualMachineStateChangeRequest>,
    /// `volumeRequests`.
    #[serde(
        rename = "volumeRequests",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volume_requests: Vec<VirtualMachineVolumeRequest>,
    /// `volumeSnapshotStatuses`.
    #[serde(
        rename = "volumeSnapshotStatuses",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volume_snapshot_statuses: Vec<VolumeSnapshotStatus>,
    /// `startFailure`.
    #[serde(rename = "startFailure", default, skip_serializing_if = "Option::is_none")]
    pub start_failure: Option<VirtualMachineStartFailure>,
    /// `memoryDumpRequest`.
    #[serde(rename = "memoryDumpRequest", default, skip_serializing_if = "Option::is_none")]
    pub memory_dump_request: Option<VirtualMachineMemoryDumpRequest>,
    /// `observedGeneration`.
    #[serde(rename = "observedGeneration", default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `desiredGeneration`.
    #[serde(rename = "desiredGeneration", default, skip_serializing_if = "Option::is_none")]
    pub desired_generation: Option<i64>,
    /// `runStrategy`.
    #[serde(rename = "runStrategy", default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<VirtualMachineRunStrategy>,
    /// `volumeUpdateState`.
    #[serde(rename = "volumeUpdateState", default, skip_serializing_if = "Option::is_none")]
    pub volume_update_state: Option<VolumeUpdateState>,
    /// `changedBlockTracking`.
    #[serde(rename = "changedBlockTracking", default, skip_serializing_if = "Option::is_none")]
    pub changed_block_tracking: Option<ChangedBlockTrackingStatus>,
    /// `instancetypeRef`.
    #[serde(rename = "instancetypeRef", default, skip_serializing_if = "Option::is_none")]
    pub instancetype_ref: Option<InstancetypeStatusRef>,
    /// `preferenceRef`.
    #[serde(rename = "preferenceRef", default, skip_serializing_if = "Option::is_none")]
    pub preference_ref: Option<InstancetypeStatusRef>,
}

/// `VirtualMachineVolumeRequest` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineVolumeRequest {
    /// `addVolumeOptions`.
    #[serde(rename = "addVolumeOptions", default, skip_serializing_if = "Option::is_none")]
    pub add_volume_options: Option<AddVolumeOptions>,
    /// `removeVolumeOptions`.
    #[serde(rename = "removeVolumeOptions", default, skip_serializing_if = "Option::is_none")]
    pub remove_volume_options: Option<RemoveVolumeOptions>,
}

/// `Volume` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Volume {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `hostDisk`.
    #[serde(rename = "hostDisk", default, skip_serializing_if = "Option::is_none")]
    pub host_disk: Option<HostDisk>,
    /// `persistentVolumeClaim`.
    #[serde(rename = "persistentVolumeClaim", default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    /// `cloudInitNoCloud`.
    #[serde(rename = "cloudInitNoCloud", default, skip_serializing_if = "Option::is_none")]
    pub cloud_init_no_cloud: Option<CloudInitNoCloudSource>,
    /// `cloudInitConfigDrive`.
    #[serde(rename = "cloudInitConfigDrive", default, skip_serializing_if = "Option::is_none")]
    pub cloud_init_config_drive: Option<CloudInitConfigDriveSource>,
    /// `sysprep`.
    #[serde(rename = "sysprep", default, skip_serializing_if = "Option::is_none")]
    pub sysprep: Option<SysprepSource>,
    /// `containerDisk`.
    #[serde(rename = "containerDisk", default, skip_serializing_if = "Option::is_none")]
    pub container_disk: Option<ContainerDiskSource>,
    /// `ephemeral`.
    #[serde(rename = "ephemeral", default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<EphemeralVolumeSource>,
    /// `emptyDisk`.
    #[serde(rename = "emptyDisk", default, skip_serializing_if = "Option::is_none")]
    pub empty_disk: Option<EmptyDiskSource>,
    /// `dataVolume`.
    #[serde(rename = "dataVolume", default, skip_serializing_if = "Option::is_none")]
    pub data_volume: Option<DataVolumeSource>,
    /// `configMap`.
    #[serde(rename = "configMap", default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolumeSource>,
    /// `secret`.
    #[serde(rename = "secret", default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolumeSource>,
    /// `downwardAPI`.
    #[serde(rename = "downwardAPI", default, skip_serializing_if = "Option::is_none")]
    pub downward_api: Option<DownwardApiVolumeSource>,
    /// `serviceAccount`.
    #[serde(rename = "serviceAccount", default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccountVolumeSource>,
    /// `downwardMetrics`.
    #[serde(rename = "downwardMetrics", default, skip_serializing_if = "Option::is_none")]
    pub downward_metrics: Option<DownwardMetricsVolumeSource>,
    /// `memoryDump`.
    #[serde(rename = "memoryDump", default, skip_serializing_if = "Option::is_none")]
    pub memory_dump: Option<MemoryDumpVolumeSource>,
    /// `containerPath`.
    #[serde(rename = "containerPath", default, skip_serializing_if = "Option::is_none")]
    pub container_path: Option<ContainerPathVolumeSource>,
}

/// `VolumeMigrationState` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VolumeMigrationState {
    /// `migratedVolumes`.
    #[serde(
        rename = "migratedVolumes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub migrated_volumes: Vec<StorageMigratedVolumeInfo>,
}

/// `VolumeSnapshotStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VolumeSnapshotStatus {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `enabled`.
    #[serde(rename = "enabled", default, deserialize_with = "super::null::as_default")]
    pub enabled: bool,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `VolumeStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VolumeStatus {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `target`.
    #[serde(rename = "target", default, deserialize_with = "super::null::as_default")]
    pub target: String,
    /// `phase`.
    #[serde(rename = "phase", default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<VolumePhase>,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `persistentVolumeClaimInfo`.
    #[serde(rename = "persistentVolumeClaimInfo", default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_info: Option<PersistentVolumeClaimInfo>,
    /// `hotplugVolume`.
    #[serde(rename = "hotplugVolume", default, skip_serializing_if = "Option::is_none")]
    pub hotplug_volume: Option<HotplugVolumeStatus>,
    /// `size`.
    #[serde(rename = "size", default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// `memoryDumpVolume`.
    #[serde(rename = "memoryDumpVolume", default, skip_serializing_if = "Option::is_none")]
    pub memory_dump_volume: Option<DomainMemoryDumpInfo>,
    /// `containerDiskVolume`.
    #[serde(rename = "containerDiskVolume", default, skip_serializing_if = "Option::is_none")]
    pub container_disk_volume: Option<ContainerDiskInfo>,
}

/// `VolumeUpdateState` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VolumeUpdateState {
    /// `volumeMigrationState`.
    #[serde(rename = "volumeMigrationState", default, skip_serializing_if = "Option::is_none")]
    pub volume_migration_state: Option<VolumeMigrationState>,
}

/// `Watchdog` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Watchdog {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `i6300esb`.
    #[serde(rename = "i6300esb", default, skip_serializing_if = "Option::is_none")]
    pub i6300esb: Option<I6300EsbWatchdog>,
    /// `diag288`.
    #[serde(rename = "diag288", default, skip_serializing_if = "Option::is_none")]
    pub diag288: Option<Diag288Watchdog>,
}

/// `backup.BackupCheckpoint` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct BackupCheckpoint {
    /// `name`.
    #[serde(rename = "name", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `creationTime`.
    #[serde(
        rename = "creationTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub creation_time: Option<Option<meta::Time>>,
    /// `volumes`.
    #[serde(
        rename = "volumes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volumes: Vec<BackupVolumeInfo>,
}

/// `backup.BackupVolumeInfo` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct BackupVolumeInfo {
    /// `volumeName`.
    #[serde(rename = "volumeName", default, deserialize_with = "super::null::as_default")]
    pub volume_name: String,
    /// `diskTarget`.
    #[serde(rename = "diskTarget", default, deserialize_with = "super::null::as_default")]
    pub disk_target: String,
    /// `dataEndpoint`.
    #[serde(rename = "dataEndpoint", default, skip_serializing_if = "Option::is_none")]
    pub data_endpoint: Option<String>,
    /// `mapEndpoint`.
    #[serde(rename = "mapEndpoint", default, skip_serializing_if = "Option::is_none")]
    pub map_endpoint: Option<String>,
}

/// `backup.Condition` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct BackupCondition {
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: BackupConditionType,
    /// `status`.
    #[serde(rename = "status", default, deserialize_with = "super::null::as_default")]
    pub status: String,
    /// `lastProbeTime`.
    #[serde(
        rename = "lastProbeTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_probe_time: Option<Option<meta::Time>>,
    /// `lastTransitionTime`.
    #[serde(
        rename = "lastTransitionTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Option<meta::Time>>,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `backup.VirtualMachineBackup` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineBackup {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachineBackup::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, serialize_with = "VirtualMachineBackup::write_api_version")]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: VirtualMachineBackupSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: VirtualMachineBackupStatus,
}

/// `backup.VirtualMachineBackupSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineBackupSpec {
    /// `source`.
    #[serde(rename = "source", default, deserialize_with = "super::null::as_default")]
    pub source: core::TypedLocalObjectReference,
    /// `mode`.
    #[serde(rename = "mode", default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<BackupMode>,
    /// `pvcName`.
    #[serde(rename = "pvcName", default, skip_serializing_if = "Option::is_none")]
    pub pvc_name: Option<String>,
    /// `skipQuiesce`.
    #[serde(rename = "skipQuiesce", default, skip_serializing_if = "Option::is_none")]
    pub skip_quiesce: Option<bool>,
    /// `forceFullBackup`.
    #[serde(rename = "forceFullBackup", default, skip_serializing_if = "Option::is_none")]
    pub force_full_backup: Option<bool>,
    /// `tokenSecretRef`.
    #[serde(rename = "tokenSecretRef", default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<String>,
    /// `ttlDuration`.
    #[serde(rename = "ttlDuration", default, skip_serializing_if = "Option::is_none")]
    pub ttl_duration: Option<String>,
}

/// `backup.VirtualMachineBackupStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineBackupStatus {
    /// `type`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub r#type: Option<BackupType>,
    /// `conditions`.
    #[serde(
        rename = "conditions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<BackupCondition>,
    /// `checkpointName`.
    #[serde(rename = "checkpointName", default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_name: Option<String>,
    /// `endpointCert`.
    #[serde(rename = "endpointCert", default, skip_serializing_if = "Option::is_none")]
    pub endpoint_cert: Option<String>,
    /// `includedVolumes`.
    #[serde(
        rename = "includedVolumes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub included_volumes: Vec<BackupVolumeInfo>,
}

/// `backup.VirtualMachineBackupTracker` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineBackupTracker {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachineBackupTracker::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(
        rename = "apiVersion",
        default,
        serialize_with = "VirtualMachineBackupTracker::write_api_version"
    )]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: VirtualMachineBackupTrackerSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: VirtualMachineBackupTrackerStatus,
}

/// `backup.VirtualMachineBackupTrackerSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineBackupTrackerSpec {
    /// `source`.
    #[serde(rename = "source", default, deserialize_with = "super::null::as_default")]
    pub source: core::TypedLocalObjectReference,
}

/// `backup.VirtualMachineBackupTrackerStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineBackupTrackerStatus {
    /// `latestCheckpoint`.
    #[serde(rename = "latestCheckpoint", default, skip_serializing_if = "Option::is_none")]
    pub latest_checkpoint: Option<BackupCheckpoint>,
    /// `checkpointRedefinitionRequired`.
    #[serde(rename = "checkpointRedefinitionRequired", default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_redefinition_required: Option<bool>,
}

/// `clone.Condition` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CloneCondition {
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: CloneConditionType,
    /// `status`.
    #[serde(rename = "status", default, deserialize_with = "super::null::as_default")]
    pub status: String,
    /// `lastProbeTime`.
    #[serde(
        rename = "lastProbeTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_probe_time: Option<Option<meta::Time>>,
    /// `lastTransitionTime`.
    #[serde(
        rename = "lastTransitionTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Option<meta::Time>>,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `clone.VirtualMachineClone` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineClone {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachineClone::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, serialize_with = "VirtualMachineClone::write_api_version")]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: VirtualMachineCloneSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: VirtualMachineCloneStatus,
}

/// `clone.VirtualMachineCloneSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineCloneSpec {
    /// `source`.
    #[serde(rename = "source", default, skip_serializing_if = "Option::is_none")]
    pub source: Option<core::TypedLocalObjectReference>,
    /// `target`.
    #[serde(rename = "target", default, skip_serializing_if = "Option::is_none")]
    pub target: Option<core::TypedLocalObjectReference>,
    /// `annotationFilters`.
    #[serde(
        rename = "annotationFilters",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub annotation_filters: Vec<String>,
    /// `labelFilters`.
    #[serde(
        rename = "labelFilters",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub label_filters: Vec<String>,
    /// `template`.
    #[serde(rename = "template", default, skip_serializing_if = "Option::is_none")]
    pub template: Option<VirtualMachineCloneTemplateFilters>,
    /// `newMacAddresses`.
    #[serde(
        rename = "newMacAddresses",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub new_mac_addresses: BTreeMap<String, String>,
    /// `newSMBiosSerial`.
    #[serde(rename = "newSMBiosSerial", default, skip_serializing_if = "Option::is_none")]
    pub new_sm_bios_serial: Option<String>,
    /// `patches`.
    #[serde(
        rename = "patches",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub patches: Vec<String>,
    /// `volumeNamePolicy`.
    #[serde(rename = "volumeNamePolicy", default, skip_serializing_if = "Option::is_none")]
    pub volume_name_policy: Option<VolumeNamePolicy>,
}

/// `clone.VirtualMachineCloneStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineCloneStatus {
    /// `creationTime`.
    #[serde(
        rename = "creationTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub creation_time: Option<Option<meta::Time>>,
    /// `phase`.
    #[serde(rename = "phase", default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<VirtualMachineClonePhase>,
    /// `conditions`.
    #[serde(
        rename = "conditions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<CloneCondition>,
    /// `snapshotName`.
    #[serde(rename = "snapshotName", default, skip_serializing_if = "Option::is_none")]
    pub snapshot_name: Option<String>,
    /// `restoreName`.
    #[serde(rename = "restoreName", default, skip_serializing_if = "Option::is_none")]
    pub restore_name: Option<String>,
    /// `targetName`.
    #[serde(rename = "targetName", default, skip_serializing_if = "Option::is_none")]
    pub target_name: Option<String>,
}

/// `clone.VirtualMachineCloneTemplateFilters` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineCloneTemplateFilters {
    /// `annotationFilters`.
    #[serde(
        rename = "annotationFilters",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub annotation_filters: Vec<String>,
    /// `labelFilters`.
    #[serde(
        rename = "labelFilters",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub label_filters: Vec<String>,
}

/// `export.Condition` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ExportCondition {
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: ExportConditionType,
    /// `status`.
    #[serde(rename = "status", default, deserialize_with = "super::null::as_default")]
    pub status: String,
    /// `lastProbeTime`.
    #[serde(
        rename = "lastProbeTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_probe_time: Option<Option<meta::Time>>,
    /// `lastTransitionTime`.
    #[serde(
        rename = "lastTransitionTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Option<meta::Time>>,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `export.VirtualMachineExport` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineExport {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachineExport::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, serialize_with = "VirtualMachineExport::write_api_version")]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: VirtualMachineExportSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: VirtualMachineExportStatus,
}

/// `export.VirtualMachineExportBackup` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineExportBackup {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `endpoints`.
    #[serde(
        rename = "endpoints",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub endpoints: Vec<VirtualMachineExportBackupEndpoint>,
}

/// `export.VirtualMachineExportBackupEndpoint` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineExportBackupEndpoint {
    /// `endpoint`.
    #[serde(rename = "endpoint", default, deserialize_with = "super::null::as_default")]
    pub endpoint: ExportBackupEndpoint,
    /// `url`.
    #[serde(rename = "url", default, deserialize_with = "super::null::as_default")]
    pub url: String,
}

/// `export.VirtualMachineExportLink` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineExportLink {
    /// `cert`.
    #[serde(rename = "cert", default, deserialize_with = "super::null::as_default")]
    pub cert: String,
    /// `volumes`.
    #[serde(
        rename = "volumes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volumes: Vec<VirtualMachineExportVolume>,
    /// `backups`.
    #[serde(
        rename = "backups",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub backups: Vec<VirtualMachineExportBackup>,
    /// `manifests`.
    #[serde(
        rename = "manifests",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub manifests: Vec<VirtualMachineExportManifest>,
}

/// `export.VirtualMachineExportLinks` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineExportLinks {
    /// `internal`.
    #[serde(rename = "internal", default, skip_serializing_if = "Option::is_none")]
    pub internal: Option<VirtualMachineExportLink>,
    /// `external`.
    #[serde(rename = "external", default, skip_serializing_if = "Option::is_none")]
    pub external: Option<VirtualMachineExportLink>,
}

/// `export.VirtualMachineExportManifest` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineExportManifest {
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: ExportManifestType,
    /// `url`.
    #[serde(rename = "url", default, deserialize_with = "super::null::as_default")]
    pub url: String,
}

/// `export.VirtualMachineExportSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineExportSpec {
    /// `source`.
    #[serde(rename = "source", default, deserialize_with = "super::null::as_default")]
    pub source: core::TypedLocalObjectReference,
    /// `tokenSecretRef`.
    #[serde(rename = "tokenSecretRef", default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<String>,
    /// `ttlDuration`.
    #[serde(rename = "ttlDuration", default, skip_serializing_if = "Option::is_none")]
    pub ttl_duration: Option<String>,
}

/// `export.VirtualMachineExportStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineExportStatus {
    /// `phase`.
    #[serde(rename = "phase", default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<VirtualMachineExportPhase>,
    /// `links`.
    #[serde(rename = "links", default, skip_serializing_if = "Option::is_none")]
    pub links: Option<VirtualMachineExportLinks>,
    /// `tokenSecretRef`.
    #[serde(rename = "tokenSecretRef", default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<String>,
    /// `ttlExpirationTime`.
    #[serde(
        rename = "ttlExpirationTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub ttl_expiration_time: Option<Option<meta::Time>>,
    /// `serviceName`.
    #[serde(rename = "serviceName", default, skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// `virtualMachineName`.
    #[serde(rename = "virtualMachineName", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_name: Option<String>,
    /// `conditions`.
    #[serde(
        rename = "conditions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<ExportCondition>,
}

/// `export.VirtualMachineExportVolume` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineExportVolume {
    /// `name`.
    #[serde(rename = "name", default, deserialize_with = "super::null::as_default")]
    pub name: String,
    /// `formats`.
    #[serde(
        rename = "formats",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub formats: Vec<VirtualMachineExportVolumeFormat>,
}

/// `export.VirtualMachineExportVolumeFormat` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineExportVolumeFormat {
    /// `format`.
    #[serde(rename = "format", default, deserialize_with = "super::null::as_default")]
    pub format: ExportVolumeFormat,
    /// `url`.
    #[serde(rename = "url", default, deserialize_with = "super::null::as_default")]
    pub url: String,
}

/// `instancetype.CPUInstancetype` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CpuInstancetype {
    /// `guest`.
    #[serde(rename = "guest", default, deserialize_with = "super::null::as_default")]
    pub guest: u32,
    /// `model`.
    #[serde(rename = "model", default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// `dedicatedCPUPlacement`.
    #[serde(rename = "dedicatedCPUPlacement", default, skip_serializing_if = "Option::is_none")]
    pub dedicated_cpu_placement: Option<bool>,
    /// `numa`.
    #[serde(rename = "numa", default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<Numa>,
    /// `isolateEmulatorThread`.
    #[serde(rename = "isolateEmulatorThread", default, skip_serializing_if = "Option::is_none")]
    pub isolate_emulator_thread: Option<bool>,
    /// `realtime`.
    #[serde(rename = "realtime", default, skip_serializing_if = "Option::is_none")]
    pub realtime: Option<Realtime>,
    /// `maxSockets`.
    #[serde(rename = "maxSockets", default, skip_serializing_if = "Option::is_none")]
    pub max_sockets: Option<u32>,
}

/// `instancetype.CPUPreferenceRequirement` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CpuPreferenceRequirement {
    /// `guest`.
    #[serde(rename = "guest", default, deserialize_with = "super::null::as_default")]
    pub guest: u32,
}

/// `instancetype.CPUPreferences` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CpuPreferences {
    /// `preferredCPUTopology`.
    #[serde(rename = "preferredCPUTopology", default, skip_serializing_if = "Option::is_none")]
    pub preferred_cpu_topology: Option<PreferredCpuTopology>,
    /// `spreadOptions`.
    #[serde(rename = "spreadOptions", default, skip_serializing_if = "Option::is_none")]
    pub spread_options: Option<SpreadOptions>,
    /// `preferredCPUFeatures`.
    #[serde(
        rename = "preferredCPUFeatures",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub preferred_cpu_features: Vec<CpuFeature>,
}

/// `instancetype.ClockPreferences` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ClockPreferences {
    /// `preferredClockOffset`.
    #[serde(rename = "preferredClockOffset", default, skip_serializing_if = "Option::is_none")]
    pub preferred_clock_offset: Option<ClockOffset>,
    /// `preferredTimer`.
    #[serde(rename = "preferredTimer", default, skip_serializing_if = "Option::is_none")]
    pub preferred_timer: Option<Timer>,
}

/// `instancetype.DevicePreferences` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DevicePreferences {
    /// `preferredAutoattachGraphicsDevice`.
    #[serde(rename = "preferredAutoattachGraphicsDevice", default, skip_serializing_if = "Option::is_none")]
    pub preferred_autoattach_graphics_device: Option<bool>,
    /// `preferredAutoattachMemBalloon`.
    #[serde(rename = "preferredAutoattachMemBalloon", default, skip_serializing_if = "Option::is_none")]
    pub preferred_autoattach_mem_balloon: Option<bool>,
    /// `preferredAutoattachPodInterface`.
    #[serde(rename = "preferredAutoattachPodInterface", default, skip_serializing_if = "Option::is_none")]
    pub preferred_autoattach_pod_interface: Option<bool>,
    /// `preferredAutoattachSerialConsole`.
    #[serde(rename = "preferredAutoattachSerialConsole", default, skip_serializing_if = "Option::is_none")]
    pub preferred_autoattach_serial_console: Option<bool>,
    /// `preferredAutoattachInputDevice`.
    #[serde(rename = "preferredAutoattachInputDevice", default, skip_serializing_if = "Option::is_none")]
    pub preferred_autoattach_input_device: Option<bool>,
    /// `preferredDisableHotplug`.
    #[serde(rename = "preferredDisableHotplug", default, skip_serializing_if = "Option::is_none")]
    pub preferred_disable_hotplug: Option<bool>,
    /// `preferredVirtualGPUOptions`.
    #[serde(rename = "preferredVirtualGPUOptions", default, skip_serializing_if = "Option::is_none")]
    pub preferred_virtual_gpu_options: Option<VgpuOptions>,
    /// `preferredSoundModel`.
    #[serde(rename = "preferredSoundModel", default, skip_serializing_if = "Option::is_none")]
    pub preferred_sound_model: Option<String>,
    /// `preferredUseVirtioTransitional`.
    #[serde(rename = "preferredUseVirtioTransitional", default, skip_serializing_if = "Option::is_none")]
    pub preferred_use_virtio_transitional: Option<bool>,
    /// `preferredInputBus`.
    #[serde(rename = "preferredInputBus", default, skip_serializing_if = "Option::is_none")]
    pub preferred_input_bus: Option<InputBus>,
    /// `preferredInputType`.
    #[serde(rename = "preferredInputType", default, skip_serializing_if = "Option::is_none")]
    pub preferred_input_type: Option<InputType>,
    /// `preferredDiskBus`.
    #[serde(rename = "preferredDiskBus", default, skip_serializing_if = "Option::is_none")]
    pub preferred_disk_bus: Option<DiskBus>,
    /// `preferredLunBus`.
    #[serde(rename = "preferredLunBus", default, skip_serializing_if = "Option::is_none")]
    pub preferred_lun_bus: Option<DiskBus>,
    /// `preferredCdromBus`.
    #[serde(rename = "preferredCdromBus", default, skip_serializing_if = "Option::is_none")]
    pub preferred_cdrom_bus: Option<DiskBus>,
    /// `preferredDiskDedicatedIoThread`.
    #[serde(rename = "preferredDiskDedicatedIoThread", default, skip_serializing_if = "Option::is_none")]
    pub preferred_disk_dedicated_io_thread: Option<bool>,
    /// `preferredDiskCache`.
    #[serde(rename = "preferredDiskCache", default, skip_serializing_if = "Option::is_none")]
    pub preferred_disk_cache: Option<DriverCache>,
    /// `preferredDiskIO`.
    #[serde(rename = "preferredDiskIO", default, skip_serializing_if = "Option::is_none")]
    pub preferred_disk_io: Option<DriverIo>,
    /// `preferredDiskBlockSize`.
    #[serde(rename = "preferredDiskBlockSize", default, skip_serializing_if = "Option::is_none")]
    pub preferred_disk_block_size: Option<BlockSize>,
    /// `preferredInterfaceModel`.
    #[serde(rename = "preferredInterfaceModel", default, skip_serializing_if = "Option::is_none")]
    pub preferred_interface_model: Option<String>,
    /// `preferredRng`.
    #[serde(rename = "preferredRng", default, skip_serializing_if = "Option::is_none")]
    pub preferred_rng: Option<Rng>,
    /// `preferredBlockMultiQueue`.
    #[serde(rename = "preferredBlockMultiQueue", default, skip_serializing_if = "Option::is_none")]
    pub preferred_block_multi_queue: Option<bool>,
    /// `preferredNetworkInterfaceMultiQueue`.
    #[serde(
        rename = "preferredNetworkInterfaceMultiQueue",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub preferred_network_interface_multi_queue: Option<bool>,
    /// `preferredTPM`.
    #[serde(rename = "preferredTPM", default, skip_serializing_if = "Option::is_none")]
    pub preferred_tpm: Option<TpmDevice>,
    /// `preferredInterfaceMasquerade`.
    #[serde(rename = "preferredInterfaceMasquerade", default, skip_serializing_if = "Option::is_none")]
    pub preferred_interface_masquerade: Option<InterfaceMasquerade>,
    /// `preferredPanicDeviceModel`.
    #[serde(rename = "preferredPanicDeviceModel", default, skip_serializing_if = "Option::is_none")]
    pub preferred_panic_device_model: Option<PanicDeviceModel>,
}

/// `instancetype.FeaturePreferences` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FeaturePreferences {
    /// `preferredAcpi`.
    #[serde(rename = "preferredAcpi", default, skip_serializing_if = "Option::is_none")]
    pub preferred_acpi: Option<FeatureState>,
    /// `preferredApic`.
    #[serde(rename = "preferredApic", default, skip_serializing_if = "Option::is_none")]
    pub preferred_apic: Option<FeatureApic>,
    /// `preferredHyperv`.
    #[serde(rename = "preferredHyperv", default, skip_serializing_if = "Option::is_none")]
    pub preferred_hyperv: Option<FeatureHyperv>,
    /// `preferredKvm`.
    #[serde(rename = "preferredKvm", default, skip_serializing_if = "Option::is_none")]
    pub preferred_kvm: Option<FeatureKvm>,
    /// `preferredPvspinlock`.
    #[serde(rename = "preferredPvspinlock", default, skip_serializing_if = "Option::is_none")]
    pub preferred_pvspinlock: Option<FeatureState>,
    /// `preferredSmm`.
    #[serde(rename = "preferredSmm", default, skip_serializing_if = "Option::is_none")]
    pub preferred_smm: Option<FeatureState>,
}

/// `instancetype.FirmwarePreferences` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FirmwarePreferences {
    /// `preferredUseBios`.
    #[serde(rename = "preferredUseBios", default, skip_serializing_if = "Option::is_none")]
    pub preferred_use_bios: Option<bool>,
    /// `preferredUseBiosSerial`.
    #[serde(rename = "preferredUseBiosSerial", default, skip_serializing_if = "Option::is_none")]
    pub preferred_use_bios_serial: Option<bool>,
    /// `preferredUseEfi`.
    #[serde(rename = "preferredUseEfi", default, skip_serializing_if = "Option::is_none")]
    pub preferred_use_efi: Option<bool>,
    /// `preferredUseSecureBoot`.
    #[serde(rename = "preferredUseSecureBoot", default, skip_serializing_if = "Option::is_none")]
    pub preferred_use_secure_boot: Option<bool>,
    /// `preferredEfi`.
    #[serde(rename = "preferredEfi", default, skip_serializing_if = "Option::is_none")]
    pub preferred_efi: Option<Efi>,
}

/// `instancetype.MachinePreferences` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MachinePreferences {
    /// `preferredMachineType`.
    #[serde(rename = "preferredMachineType", default, skip_serializing_if = "Option::is_none")]
    pub preferred_machine_type: Option<String>,
}

/// `instancetype.MemoryInstancetype` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MemoryInstancetype {
    /// `guest`.
    #[serde(rename = "guest", default, deserialize_with = "super::null::as_default")]
    pub guest: Quantity,
    /// `hugepages`.
    #[serde(rename = "hugepages", default, skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<Hugepages>,
    /// `overcommitPercent`.
    #[serde(rename = "overcommitPercent", default, skip_serializing_if = "Option::is_none")]
    pub overcommit_percent: Option<i64>,
    /// `maxGuest`.
    #[serde(rename = "maxGuest", default, skip_serializing_if = "Option::is_none")]
    pub max_guest: Option<Quantity>,
}

/// `instancetype.MemoryPreferenceRequirement` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MemoryPreferenceRequirement {
    /// `guest`.
    #[serde(rename = "guest", default, deserialize_with = "super::null::as_default")]
    pub guest: Quantity,
}

/// `instancetype.PreferenceRequirements` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PreferenceRequirements {
    /// `cpu`.
    #[serde(rename = "cpu", default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuPreferenceRequirement>,
    /// `memory`.
    #[serde(rename = "memory", default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryPreferenceRequirement>,
    /// `architecture`.
    #[serde(rename = "architecture", default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
}

/// `instancetype.SpreadOptions` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SpreadOptions {
    /// `across`.
    #[serde(rename = "across", default, skip_serializing_if = "Option::is_none")]
    pub across: Option<SpreadAcross>,
    /// `ratio`.
    #[serde(rename = "ratio", default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<u32>,
}

/// `instancetype.VirtualMachineInstancetypeSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineInstancetypeSpec {
    /// `nodeSelector`.
    #[serde(
        rename = "nodeSelector",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub node_selector: BTreeMap<String, String>,
    /// `schedulerName`.
    #[serde(rename = "schedulerName", default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// `cpu`.
    #[serde(rename = "cpu", default, deserialize_with = "super::null::as_default")]
    pub cpu: CpuInstancetype,
    /// `memory`.
    #[serde(rename = "memory", default, deserialize_with = "super::null::as_default")]
    pub memory: MemoryInstancetype,
    /// `gpus`.
    #[serde(
        rename = "gpus",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub gpus: Vec<Gpu>,
    /// `hostDevices`.
    #[serde(
        rename = "hostDevices",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub host_devices: Vec<HostDevice>,
    /// `ioThreadsPolicy`.
    #[serde(rename = "ioThreadsPolicy", default, skip_serializing_if = "Option::is_none")]
    pub iothreads_policy: Option<IothreadsPolicy>,
    /// `ioThreads`.
    #[serde(rename = "ioThreads", default, skip_serializing_if = "Option::is_none")]
    pub iothreads: Option<DiskIothreads>,
    /// `launchSecurity`.
    #[serde(rename = "launchSecurity", default, skip_serializing_if = "Option::is_none")]
    pub launch_security: Option<LaunchSecurity>,
    /// `annotations`.
    #[serde(
        rename = "annotations",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
}

/// `instancetype.VirtualMachinePreferenceSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePreferenceSpec {
    /// `clock`.
    #[serde(rename = "clock", default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockPreferences>,
    /// `cpu`.
    #[serde(rename = "cpu", default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuPreferences>,
    /// `devices`.
    #[serde(rename = "devices", default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DevicePreferences>,
    /// `features`.
    #[serde(rename = "features", default, skip_serializing_if = "Option::is_none")]
    pub features: Option<FeaturePreferences>,
    /// `firmware`.
    #[serde(rename = "firmware", default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<FirmwarePreferences>,
    /// `machine`.
    #[serde(rename = "machine", default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachinePreferences>,
    /// `volumes`.
    #[serde(rename = "volumes", default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<VolumePreferences>,
    /// `preferredSubdomain`.
    #[serde(rename = "preferredSubdomain", default, skip_serializing_if = "Option::is_none")]
    pub preferred_subdomain: Option<String>,
    /// `preferredTerminationGracePeriodSeconds`.
    #[serde(
        rename = "preferredTerminationGracePeriodSeconds",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub preferred_termination_grace_period_seconds: Option<i64>,
    /// `requirements`.
    #[serde(rename = "requirements", default, skip_serializing_if = "Option::is_none")]
    pub requirements: Option<PreferenceRequirements>,
    /// `annotations`.
    #[serde(
        rename = "annotations",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
    /// `preferSpreadSocketToCoreRatio`.
    #[serde(rename = "preferSpreadSocketToCoreRatio", default, skip_serializing_if = "Option::is_none")]
    pub prefer_spread_socket_to_core_ratio: Option<u32>,
    /// `preferredArchitecture`.
    #[serde(rename = "preferredArchitecture", default, skip_serializing_if = "Option::is_none")]
    pub preferred_architecture: Option<String>,
}

/// `instancetype.VolumePreferences` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VolumePreferences {
    /// `preferredStorageClassName`.
    #[serde(rename = "preferredStorageClassName", default, skip_serializing_if = "Option::is_none")]
    pub preferred_storage_class_name: Option<String>,
}

/// `pool.VirtualMachineOpportunisticUpdateStrategy` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineOpportunisticUpdateStrategy {}

/// `pool.VirtualMachinePool` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePool {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachinePool::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, serialize_with = "VirtualMachinePool::write_api_version")]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: VirtualMachinePoolSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: VirtualMachinePoolStatus,
}

/// `pool.VirtualMachinePoolAutohealingStrategy` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolAutohealingStrategy {
    /// `startUpFailureThreshold`.
    #[serde(rename = "startUpFailureThreshold", default, skip_serializing_if = "Option::is_none")]
    pub start_up_failure_threshold: Option<u32>,
    /// `minFailingToStartDuration`.
    #[serde(rename = "minFailingToStartDuration", default, skip_serializing_if = "Option::is_none")]
    pub min_failing_to_start_duration: Option<String>,
}

/// `pool.VirtualMachinePoolCondition` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolCondition {
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: VirtualMachinePoolConditionType,
    /// `status`.
    #[serde(rename = "status", default, deserialize_with = "super::null::as_default")]
    pub status: String,
    /// `lastProbeTime`.
    #[serde(
        rename = "lastProbeTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_probe_time: Option<Option<meta::Time>>,
    /// `lastTransitionTime`.
    #[serde(
        rename = "lastTransitionTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Option<meta::Time>>,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `pool.VirtualMachinePoolNameGeneration` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolNameGeneration {
    /// `appendIndexToConfigMapRefs`.
    #[serde(rename = "appendIndexToConfigMapRefs", default, skip_serializing_if = "Option::is_none")]
    pub append_index_to_config_map_refs: Option<bool>,
    /// `appendIndexToSecretRefs`.
    #[serde(rename = "appendIndexToSecretRefs", default, skip_serializing_if = "Option::is_none")]
    pub append_index_to_secret_refs: Option<bool>,
}

/// `pool.VirtualMachinePoolOpportunisticScaleInStrategy` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolOpportunisticScaleInStrategy {
    /// `statePreservation`.
    #[serde(rename = "statePreservation", default, skip_serializing_if = "Option::is_none")]
    pub state_preservation: Option<StatePreservation>,
}

/// `pool.VirtualMachinePoolProactiveScaleInStrategy` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolProactiveScaleInStrategy {
    /// `selectionPolicy`.
    #[serde(rename = "selectionPolicy", default, skip_serializing_if = "Option::is_none")]
    pub selection_policy: Option<VirtualMachinePoolSelectionPolicy>,
    /// `statePreservation`.
    #[serde(rename = "statePreservation", default, skip_serializing_if = "Option::is_none")]
    pub state_preservation: Option<StatePreservation>,
}

/// `pool.VirtualMachinePoolProactiveUpdateStrategy` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolProactiveUpdateStrategy {
    /// `selectionPolicy`.
    #[serde(rename = "selectionPolicy", default, skip_serializing_if = "Option::is_none")]
    pub selection_policy: Option<VirtualMachinePoolSelectionPolicy>,
}

/// `pool.VirtualMachinePoolScaleInStrategy` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolScaleInStrategy {
    /// `unmanaged`.
    #[serde(rename = "unmanaged", default, skip_serializing_if = "Option::is_none")]
    pub unmanaged: Option<VirtualMachinePoolUnmanagedStrategy>,
    /// `opportunistic`.
    #[serde(rename = "opportunistic", default, skip_serializing_if = "Option::is_none")]
    pub opportunistic: Option<VirtualMachinePoolOpportunisticScaleInStrategy>,
    /// `proactive`.
    #[serde(rename = "proactive", default, skip_serializing_if = "Option::is_none")]
    pub proactive: Option<VirtualMachinePoolProactiveScaleInStrategy>,
}

/// `pool.VirtualMachinePoolSelectionPolicy` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolSelectionPolicy {
    /// `sortPolicy`.
    #[serde(rename = "sortPolicy", default, skip_serializing_if = "Option::is_none")]
    pub sort_policy: Option<VirtualMachinePoolSortPolicy>,
    /// `selectors`.
    #[serde(rename = "selectors", default, skip_serializing_if = "Option::is_none")]
    pub selectors: Option<VirtualMachinePoolSelectors>,
}

/// `pool.VirtualMachinePoolSelectors` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolSelectors {
    /// `labelSelector`.
    #[serde(rename = "labelSelector", default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<meta::LabelSelector>,
    /// `nodeSelectorRequirementMatcher`.
    #[serde(rename = "nodeSelectorRequirementMatcher", default, skip_serializing_if = "Option::is_none")]
    pub node_selector_requirement_matcher: Option<Vec<core::NodeSelectorRequirement>>,
}

/// `pool.VirtualMachinePoolSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolSpec {
    /// `replicas`.
    #[serde(rename = "replicas", default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// `selector`.
    #[serde(rename = "selector", default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<meta::LabelSelector>,
    /// `virtualMachineTemplate`.
    #[serde(rename = "virtualMachineTemplate", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_template: Option<VirtualMachineTemplateSpec>,
    /// `paused`.
    #[serde(rename = "paused", default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// `nameGeneration`.
    #[serde(rename = "nameGeneration", default, skip_serializing_if = "Option::is_none")]
    pub name_generation: Option<VirtualMachinePoolNameGeneration>,
    /// `maxUnavailable`.
    #[serde(rename = "maxUnavailable", default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<k8s_openapi::apimachinery::pkg::util::intstr::IntOrString>,
    /// `scaleInStrategy`.
    #[serde(rename = "scaleInStrategy", default, skip_serializing_if = "Option::is_none")]
    pub scale_in_strategy: Option<VirtualMachinePoolScaleInStrategy>,
    /// `updateStrategy`.
    #[serde(rename = "updateStrategy", default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<VirtualMachinePoolUpdateStrategy>,
    /// `autohealing`.
    #[serde(rename = "autohealing", default, skip_serializing_if = "Option::is_none")]
    pub autohealing: Option<VirtualMachinePoolAutohealingStrategy>,
}

/// `pool.VirtualMachinePoolStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolStatus {
    /// `replicas`.
    #[serde(rename = "replicas", default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// `readyReplicas`.
    #[serde(rename = "readyReplicas", default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// `conditions`.
    #[serde(
        rename = "conditions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<VirtualMachinePoolCondition>,
    /// `labelSelector`.
    #[serde(rename = "labelSelector", default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
}

/// `pool.VirtualMachinePoolUnmanagedStrategy` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolUnmanagedStrategy {}

/// `pool.VirtualMachinePoolUpdateStrategy` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachinePoolUpdateStrategy {
    /// `unmanaged`.
    #[serde(rename = "unmanaged", default, skip_serializing_if = "Option::is_none")]
    pub unmanaged: Option<VirtualMachinePoolUnmanagedStrategy>,
    /// `opportunistic`.
    #[serde(rename = "opportunistic", default, skip_serializing_if = "Option::is_none")]
    pub opportunistic: Option<VirtualMachineOpportunisticUpdateStrategy>,
    /// `proactive`.
    #[serde(rename = "proactive", default, skip_serializing_if = "Option::is_none")]
    pub proactive: Option<VirtualMachinePoolProactiveUpdateStrategy>,
}

/// `pool.VirtualMachineTemplateSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineTemplateSpec {
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<meta::ObjectMeta>,
    /// `spec`.
    #[serde(rename = "spec", default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<VirtualMachineSpec>,
}

/// `snapshot.Condition` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SnapshotCondition {
    /// `type`.
    #[serde(rename = "type", default, deserialize_with = "super::null::as_default")]
    pub r#type: SnapshotConditionType,
    /// `status`.
    #[serde(rename = "status", default, deserialize_with = "super::null::as_default")]
    pub status: String,
    /// `lastProbeTime`.
    #[serde(
        rename = "lastProbeTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_probe_time: Option<Option<meta::Time>>,
    /// `lastTransitionTime`.
    #[serde(
        rename = "lastTransitionTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Option<meta::Time>>,
    /// `reason`.
    #[serde(rename = "reason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `snapshot.Error` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SnapshotError {
    /// `time`.
    #[serde(
        rename = "time",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub time: Option<Option<meta::Time>>,
    /// `message`.
    #[serde(rename = "message", default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `snapshot.PersistentVolumeClaim` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SnapshotPersistentVolumeClaim {
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<meta::ObjectMeta>,
    /// `spec`.
    #[serde(rename = "spec", default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<core::PersistentVolumeClaimSpec>,
}

/// `snapshot.SnapshotVolumesLists` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SnapshotVolumesLists {
    /// `includedVolumes`.
    #[serde(
        rename = "includedVolumes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub included_volumes: Vec<String>,
    /// `excludedVolumes`.
    #[serde(
        rename = "excludedVolumes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub excluded_volumes: Vec<String>,
}

/// `snapshot.SourceIndication` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SourceIndication {
    /// `indication`.
    #[serde(rename = "indication", default, deserialize_with = "super::null::as_default")]
    pub indication: Indication,
    /// `message`.
    #[serde(rename = "message", default, deserialize_with = "super::null::as_default")]
    pub message: String,
}

/// `snapshot.SourceSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SourceSpec {
    /// `virtualMachine`.
    #[serde(rename = "virtualMachine", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine: Option<SnapshotVirtualMachine>,
}

/// `snapshot.VirtualMachine` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SnapshotVirtualMachine {
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<meta::ObjectMeta>,
    /// `spec`.
    #[serde(rename = "spec", default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<VirtualMachineSpec>,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "Option::is_none")]
    pub status: Option<VirtualMachineStatus>,
}

/// `snapshot.VirtualMachineRestore` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineRestore {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachineRestore::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, serialize_with = "VirtualMachineRestore::write_api_version")]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: VirtualMachineRestoreSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: VirtualMachineRestoreStatus,
}

/// `snapshot.VirtualMachineRestoreSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineRestoreSpec {
    /// `target`.
    #[serde(rename = "target", default, deserialize_with = "super::null::as_default")]
    pub target: core::TypedLocalObjectReference,
    /// `virtualMachineSnapshotName`.
    #[serde(rename = "virtualMachineSnapshotName", default, deserialize_with = "super::null::as_default")]
    pub virtual_machine_snapshot_name: String,
    /// `targetReadinessPolicy`.
    #[serde(rename = "targetReadinessPolicy", default, skip_serializing_if = "Option::is_none")]
    pub target_readiness_policy: Option<TargetReadinessPolicy>,
    /// `volumeRestorePolicy`.
    #[serde(rename = "volumeRestorePolicy", default, skip_serializing_if = "Option::is_none")]
    pub volume_restore_policy: Option<VolumeRestorePolicy>,
    /// `volumeOwnershipPolicy`.
    #[serde(rename = "volumeOwnershipPolicy", default, skip_serializing_if = "Option::is_none")]
    pub volume_ownership_policy: Option<VolumeOwnershipPolicy>,
    /// `volumeRestoreOverrides`.
    #[serde(
        rename = "volumeRestoreOverrides",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volume_restore_overrides: Vec<VolumeRestoreOverride>,
    /// `patches`.
    #[serde(
        rename = "patches",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub patches: Vec<String>,
}

/// `snapshot.VirtualMachineRestoreStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineRestoreStatus {
    /// `restores`.
    #[serde(
        rename = "restores",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub restores: Vec<VolumeRestore>,
    /// `restoreTime`.
    #[serde(
        rename = "restoreTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub restore_time: Option<Option<meta::Time>>,
    /// `deletedDataVolumes`.
    #[serde(
        rename = "deletedDataVolumes",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub deleted_data_volumes: Vec<String>,
    /// `complete`.
    #[serde(rename = "complete", default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<bool>,
    /// `conditions`.
    #[serde(
        rename = "conditions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<SnapshotCondition>,
}

/// `snapshot.VirtualMachineSnapshot` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineSnapshot {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachineSnapshot::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(rename = "apiVersion", default, serialize_with = "VirtualMachineSnapshot::write_api_version")]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: VirtualMachineSnapshotSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: VirtualMachineSnapshotStatus,
}

/// `snapshot.VirtualMachineSnapshotContent` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineSnapshotContent {
    /// `kind`.
    #[serde(rename = "kind", default, serialize_with = "VirtualMachineSnapshotContent::write_kind")]
    pub kind: String,
    /// `apiVersion`.
    #[serde(
        rename = "apiVersion",
        default,
        serialize_with = "VirtualMachineSnapshotContent::write_api_version"
    )]
    pub api_version: String,
    /// `metadata`.
    #[serde(rename = "metadata", default, skip_serializing_if = "super::null::is_default")]
    pub metadata: meta::ObjectMeta,
    /// `spec`.
    #[serde(rename = "spec", default, deserialize_with = "super::null::as_default")]
    pub spec: VirtualMachineSnapshotContentSpec,
    /// `status`.
    #[serde(rename = "status", default, skip_serializing_if = "super::null::is_default")]
    pub status: VirtualMachineSnapshotContentStatus,
}

/// `snapshot.VirtualMachineSnapshotContentSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineSnapshotContentSpec {
    /// `virtualMachineSnapshotName`.
    #[serde(rename = "virtualMachineSnapshotName", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_snapshot_name: Option<String>,
    /// `source`.
    #[serde(rename = "source", default, deserialize_with = "super::null::as_default")]
    pub source: SourceSpec,
    /// `volumeBackups`.
    #[serde(
        rename = "volumeBackups",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volume_backups: Vec<VolumeBackup>,
}

/// `snapshot.VirtualMachineSnapshotContentStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineSnapshotContentStatus {
    /// `creationTime`.
    #[serde(
        rename = "creationTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub creation_time: Option<Option<meta::Time>>,
    /// `readyToUse`.
    #[serde(rename = "readyToUse", default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// `error`.
    #[serde(rename = "error", default, skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
    /// `volumeSnapshotStatus`.
    #[serde(
        rename = "volumeSnapshotStatus",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volume_snapshot_status: Vec<SnapshotVolumeSnapshotStatus>,
}

/// `snapshot.VirtualMachineSnapshotSpec` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineSnapshotSpec {
    /// `source`.
    #[serde(rename = "source", default, deserialize_with = "super::null::as_default")]
    pub source: core::TypedLocalObjectReference,
    /// `deletionPolicy`.
    #[serde(rename = "deletionPolicy", default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,
    /// `failureDeadline`.
    #[serde(rename = "failureDeadline", default, skip_serializing_if = "Option::is_none")]
    pub failure_deadline: Option<String>,
}

/// `snapshot.VirtualMachineSnapshotStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VirtualMachineSnapshotStatus {
    /// `sourceUID`.
    #[serde(rename = "sourceUID", default, skip_serializing_if = "Option::is_none")]
    pub source_uid: Option<String>,
    /// `virtualMachineSnapshotContentName`.
    #[serde(rename = "virtualMachineSnapshotContentName", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_snapshot_content_name: Option<String>,
    /// `creationTime`.
    #[serde(
        rename = "creationTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub creation_time: Option<Option<meta::Time>>,
    /// `phase`.
    #[serde(rename = "phase", default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<VirtualMachineSnapshotPhase>,
    /// `readyToUse`.
    #[serde(rename = "readyToUse", default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// `error`.
    #[serde(rename = "error", default, skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
    /// `conditions`.
    #[serde(
        rename = "conditions",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<SnapshotCondition>,
    /// `indications`.
    #[serde(
        rename = "indications",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub indications: Vec<Indication>,
    /// `sourceIndications`.
    #[serde(
        rename = "sourceIndications",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub source_indications: Vec<SourceIndication>,
    /// `snapshotVolumes`.
    #[serde(rename = "snapshotVolumes", default, skip_serializing_if = "Option::is_none")]
    pub snapshot_volumes: Option<SnapshotVolumesLists>,
}

/// `snapshot.VolumeBackup` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VolumeBackup {
    /// `volumeName`.
    #[serde(rename = "volumeName", default, deserialize_with = "super::null::as_default")]
    pub volume_name: String,
    /// `persistentVolumeClaim`.
    #[serde(rename = "persistentVolumeClaim", default, deserialize_with = "super::null::as_default")]
    pub persistent_volume_claim: SnapshotPersistentVolumeClaim,
    /// `volumeSnapshotName`.
    #[serde(rename = "volumeSnapshotName", default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_name: Option<String>,
}

/// `snapshot.VolumeRestore` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VolumeRestore {
    /// `volumeName`.
    #[serde(rename = "volumeName", default, deserialize_with = "super::null::as_default")]
    pub volume_name: String,
    /// `persistentVolumeClaim`.
    #[serde(rename = "persistentVolumeClaim", default, deserialize_with = "super::null::as_default")]
    pub persistent_volume_claim: String,
    /// `volumeSnapshotName`.
    #[serde(rename = "volumeSnapshotName", default, deserialize_with = "super::null::as_default")]
    pub volume_snapshot_name: String,
    /// `dataVolumeName`.
    #[serde(rename = "dataVolumeName", default, skip_serializing_if = "Option::is_none")]
    pub data_volume_name: Option<String>,
}

/// `snapshot.VolumeRestoreOverride` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VolumeRestoreOverride {
    /// `volumeName`.
    #[serde(rename = "volumeName", default, skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<String>,
    /// `restoreName`.
    #[serde(rename = "restoreName", default, skip_serializing_if = "Option::is_none")]
    pub restore_name: Option<String>,
    /// `labels`.
    #[serde(
        rename = "labels",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<String, String>,
    /// `annotations`.
    #[serde(
        rename = "annotations",
        default,
        deserialize_with = "super::null::as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
}

/// `snapshot.VolumeSnapshotStatus` of upstream's API.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SnapshotVolumeSnapshotStatus {
    /// `volumeSnapshotName`.
    #[serde(rename = "volumeSnapshotName", default, deserialize_with = "super::null::as_default")]
    pub volume_snapshot_name: String,
    /// `creationTime`.
    #[serde(
        rename = "creationTime",
        default,
        deserialize_with = "super::null::kept",
        skip_serializing_if = "Option::is_none"
    )]
    pub creation_time: Option<Option<meta::Time>>,
    /// `readyToUse`.
    #[serde(rename = "readyToUse", default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// `error`.
    #[serde(rename = "error", default, skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
}

resource!(VirtualMachine, "virtualmachines");

resource!(VirtualMachineInstance, "virtualmachineinstances");

resource!(VirtualMachineInstanceMigration, "virtualmachineinstancemigrations");

resource!(VirtualMachineInstanceReplicaSet, "virtualmachineinstancereplicasets");

resource!(VirtualMachineInstancePreset, "virtualmachineinstancepresets");

resource!(KubeVirt, "kubevirts");

resource!(VirtualMachinePool, "virtualmachinepools", "pool.kubevirt.io", "v1beta1");

resource!(VirtualMachineSnapshot, "virtualmachinesnapshots", "snapshot.kubevirt.io", "v1beta1");

resource!(VirtualMachineSnapshotContent, "virtualmachinesnapshotcontents", "snapshot.kubevirt.io", "v1beta1");

resource!(VirtualMachineRestore, "virtualmachinerestores", "snapshot.kubevirt.io", "v1beta1");

resource!(VirtualMachineClone, "virtualmachineclones", "clone.kubevirt.io", "v1beta1");

resource!(VirtualMachineExport, "virtualmachineexports", "export.kubevirt.io", "v1beta1");

resource!(VirtualMachineBackup, "virtualmachinebackups", "backup.kubevirt.io", "v1alpha1");

resource!(VirtualMachineBackupTracker, "virtualmachinebackuptrackers", "backup.kubevirt.io", "v1alpha1");
