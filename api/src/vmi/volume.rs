//! Volumes: where the disks' contents come from.

use crate::quantity::Quantity;

objects! {
    /// The contents of the disk of the same name.
    Volume {
        /// Name.
        name: String,
        /// A disk image in a container image; what the guest writes is lost when the machine ends.
        container_disk: Option<ContainerDiskSource>,
        /// A disk image that is a file of the node.
        host_disk: Option<HostDisk>,
        /// A disk that configures the guest by cloud-init's NoCloud source.
        cloud_init_no_cloud: Option<CloudInitNoCloudSource>,
        /// An empty disk that is lost when the machine ends.
        empty_disk: Option<EmptyDiskSource>,
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

    /// cloud-init's NoCloud source.
    CloudInitNoCloudSource {
        /// User data.
        user_data: String,
        /// User data in base64.
        user_data_base64: String,
        /// Network configuration.
        network_data: String,
        /// Network configuration in base64.
        network_data_base64: String,
    }

    /// An empty disk.
    EmptyDiskSource {
        /// Size.
        capacity: Option<Quantity>,
    }
}

words! {
    /// Whether a file of the node may be made.
    HostDiskType {
        /// It is made if it is not there.
        DiskOrCreate = "DiskOrCreate",
        /// It must be there.
        Disk = "Disk",
    }
}
