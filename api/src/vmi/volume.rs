//! Volumes: where the disks' contents come from.

use crate::names::path::Config;
use crate::quantity::Quantity;

objects! {
    /// The contents of the disk of the same name, or of the file system.
    Volume {
        /// Name.
        name: String,
        /// A disk image in a container image; what the guest writes is lost when the machine ends.
        container_disk: Option<ContainerDiskSource>,
        /// A disk image that is a file of the node.
        host_disk: Option<HostDisk>,
        /// A disk that configures the guest by cloud-init's NoCloud source.
        cloud_init_no_cloud: Option<CloudInitSource>,
        /// A disk that configures the guest by cloud-init's ConfigDrive source.
        cloud_init_config_drive: Option<CloudInitSource>,
        /// A disk image on a claim.
        persistent_volume_claim: Option<PersistentVolumeClaimSource>,
        /// A disk image on the claim of a DataVolume.
        data_volume: Option<DataVolumeSource>,
        /// A disk image on a claim that is only read: what the guest writes is lost when the machine ends.
        ephemeral: Option<EphemeralSource>,
        /// An empty disk that is lost when the machine ends.
        empty_disk: Option<EmptyDiskSource>,
        /// A disk with the files of a ConfigMap.
        config_map: Option<ConfigMapSource>,
        /// A disk with the files of a Secret.
        secret: Option<SecretSource>,
        /// A disk with what Kubernetes tells a pod of itself.
        #[serde(rename = "downwardAPI")]
        downward_api: Option<DownwardApiSource>,
        /// A disk with the token of a ServiceAccount.
        service_account: Option<ServiceAccountSource>,
        /// A disk with the answers of Windows' set-up.
        sysprep: Option<SysprepSource>,
        /// A claim that a dump of the machine's memory is written to: no disk.
        memory_dump: Option<PersistentVolumeClaimSource>,
        /// A disk with what the guest's node and the guest use.
        downward_metrics: Option<DownwardMetricsSource>,
    }

    /// A disk with what the guest's node and the guest use.
    DownwardMetricsSource {}

    /// A disk with the files of a ConfigMap.
    ConfigMapSource {
        /// Its name.
        name: String,
        /// Whether it may be missing: the disk is empty then.
        optional: Option<bool>,
        /// Label of the disk.
        volume_label: String,
    }

    /// A disk with the files of a Secret.
    SecretSource {
        /// Its name.
        secret_name: String,
        /// Whether it may be missing: the disk is empty then.
        optional: Option<bool>,
        /// Label of the disk.
        volume_label: String,
    }

    /// A disk with what Kubernetes tells a pod of itself.
    DownwardApiSource {
        /// Label of the disk.
        volume_label: String,
    }

    /// A disk with the token of a ServiceAccount.
    ServiceAccountSource {
        /// Its name.
        service_account_name: String,
    }

    /// A disk with the answers of Windows' set-up, in a file `autounattend.xml` or `unattend.xml`.
    SysprepSource {
        /// A Secret with it.
        secret: Option<LocalObjectReference>,
        /// A ConfigMap with it.
        config_map: Option<LocalObjectReference>,
    }

    /// A disk image in a container image.
    ContainerDiskSource {
        /// Image name.
        image: String,
        /// The disk image's path; when not set, the one file in `/disk`.
        path: String,
    }

    /// A disk image that is a file of the node.
    HostDisk {
        /// Path.
        path: String,
        /// Whether it may be made.
        #[serde(rename = "type")]
        kind: Option<HostDiskType>,
        /// Size of a disk image that is made.
        capacity: Option<Quantity>,
        /// Whether other machines use it at the same time.
        shared: Option<bool>,
    }

    /// A disk image on a claim.
    PersistentVolumeClaimSource {
        /// The claim's name.
        claim_name: String,
        /// Whether the guest may only read.
        read_only: Option<bool>,
        /// Whether the disk is plugged once the machine runs, and may be unplugged.
        hotpluggable: Option<bool>,
    }

    /// A disk image that CDI has put on a claim.
    DataVolumeSource {
        /// Name of the DataVolume and of its claim.
        name: String,
        /// Whether the disk is plugged once the machine runs, and may be unplugged.
        hotpluggable: Option<bool>,
    }

    /// A disk image that is only read.
    EphemeralSource {
        /// Where it is.
        persistent_volume_claim: Option<PersistentVolumeClaimSource>,
    }

    /// What cloud-init gets: texts of the manifest, or Secrets that are mounted at
    /// [`crate::names::path::cloud_init_secret`] and [`crate::names::path::cloud_init_network_secret`].
    CloudInitSource {
        /// A Secret with the user data.
        secret_ref: Option<LocalObjectReference>,
        /// A Secret with the network configuration.
        network_data_secret_ref: Option<LocalObjectReference>,
        /// User data.
        user_data: String,
        /// User data in base64.
        user_data_base64: String,
        /// Network configuration.
        network_data: String,
        /// Network configuration in base64.
        network_data_base64: String,
    }

    /// An object of the same namespace.
    LocalObjectReference {
        /// Name.
        name: String,
    }

    /// An empty disk.
    EmptyDiskSource {
        /// Size.
        capacity: Option<Quantity>,
    }
}

impl Volume {
    /// Whether the disk is plugged once the machine runs, and may be unplugged; also of a volume that is no disk but for a dump.
    pub fn is_hotpluggable(&self) -> bool {
        if self.memory_dump.is_some() {
            return true;
        }
        let claim = self.persistent_volume_claim.as_ref().and_then(|claim| claim.hotpluggable);
        let data = self.data_volume.as_ref().and_then(|data| data.hotpluggable);
        claim == Some(true) || data == Some(true)
    }

    /// Name of the claim that the disk image is on, also below an overlay.
    pub fn claim_name(&self) -> Option<&str> {
        let below = self.ephemeral.as_ref().and_then(|source| source.persistent_volume_claim.as_ref());
        let claim = self.persistent_volume_claim.as_ref().or(below).map(|claim| claim.claim_name.as_str());
        claim.or_else(|| self.data_volume.as_ref().map(|data| data.name.as_str()))
    }

    /// Whether it is on a claim that the machine may write.
    pub fn is_claim(&self) -> bool {
        self.persistent_volume_claim.is_some() || self.data_volume.is_some()
    }

    /// What virt-launcher makes the disk from, and the disk's label: the manifest's, or upstream's where the manifest names none.
    /// None for a volume that is no disk of configuration.
    pub fn config(&self) -> Option<(Config, &str)> {
        let (kind, given) = if let Some(source) = &self.config_map {
            (Config::ConfigMap, source.volume_label.as_str())
        } else if let Some(source) = &self.secret {
            (Config::Secret, source.volume_label.as_str())
        } else if let Some(source) = &self.downward_api {
            (Config::DownwardApi, source.volume_label.as_str())
        } else if self.service_account.is_some() {
            (Config::ServiceAccount, "")
        } else {
            return self.sysprep.as_ref().map(|_| (Config::Sysprep, "unattendCD"));
        };
        Some((kind, if given.is_empty() { "cfgdata" } else { given }))
    }
}

/// cloud-init's NoCloud source.
pub type CloudInitNoCloudSource = CloudInitSource;

words! {
    /// Whether a file of the node may be made.
    HostDiskType {
        /// It is made if it is not there.
        DiskOrCreate = "DiskOrCreate",
        /// It must be there.
        Disk = "Disk",
    }
}
