//! Contracts between podvirt's processes.
//!
//! The gRPC contracts are the `.proto` files beside this crate; each module here is one of their packages. Within a
//! version (`v1`) fields are only ever added: both ends of a call may be of different releases. What those
//! interfaces carry as JSON is typed in [`domain`], [`migration`] and [`stats`].

pub mod acceptance;

pub mod bounded;

pub mod capabilities;

pub mod descriptors;

pub mod domain;

pub mod hold;

pub mod migration;

pub mod repair;

pub mod stats;

pub mod steering;

pub mod volumes;

/// The control interface of netd, package `podvirt.netd.v1`.
pub mod netd {
    /// Version 1.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
    #[allow(clippy::large_futures, clippy::uninlined_format_args, rust_2018_idioms)]
    pub mod v1 {
        tonic::include_proto!("podvirt.netd.v1");
    }
}

/// The launcher's command interface, packages `kubevirt.cmd.*`: virt-handler calls, virt-launcher serves.
pub mod cmd {
    /// The version that is spoken, as [`info`] and [`v1`] name it.
    pub const VERSION: &str = "v1";

    /// Seconds between two reports of a guest about its memory, where the cluster's configuration does not say it.
    pub const BALLOON_PERIOD: u32 = 10;

    /// What a machine's SMBIOS tables say of its maker, where the cluster's configuration does not say it; upstream's words.
    pub fn default_smbios() -> v1::SmBios {
        v1::SmBios {
            manufacturer: "KubeVirt".into(),
            product: "None".into(),
            family: "KubeVirt".into(),
            ..v1::SmBios::default()
        }
    }

    /// Largest picture of a screen, in bytes.
    pub const MAX_PICTURE: usize = 16 << 20;

    /// Version 1.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
    #[allow(clippy::large_futures, clippy::uninlined_format_args, rust_2018_idioms)]
    pub mod v1 {
        tonic::include_proto!("kubevirt.cmd.v1");
    }

    /// Negotiation of the version.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
    #[allow(clippy::large_futures, clippy::uninlined_format_args, rust_2018_idioms)]
    pub mod info {
        tonic::include_proto!("kubevirt.cmd.info");
    }
}

/// What a launcher tells by itself, packages `kubevirt.notify.*`: virt-launcher calls, virt-handler serves.
pub mod notify {
    /// The version that is spoken, as [`info`] and [`v1`] name it.
    pub const VERSION: &str = "v1";

    /// Version 1.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
    #[allow(clippy::large_futures, clippy::uninlined_format_args, rust_2018_idioms)]
    pub mod v1 {
        tonic::include_proto!("kubevirt.notify.v1");
    }

    /// Negotiation of the version.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
    #[allow(clippy::large_futures, clippy::uninlined_format_args, rust_2018_idioms)]
    pub mod info {
        tonic::include_proto!("kubevirt.notify.info");
    }
}

/// Hook sidecars, packages `kubevirt.hooks.*`: virt-launcher calls, a sidecar serves.
pub mod hooks {
    /// What a sidecar is and wants to be asked.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
    #[allow(clippy::large_futures, clippy::uninlined_format_args, rust_2018_idioms)]
    pub mod info {
        tonic::include_proto!("kubevirt.hooks.info");
    }

    /// Version v1alpha1.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
    #[allow(clippy::large_futures, clippy::uninlined_format_args, rust_2018_idioms)]
    pub mod v1alpha1 {
        tonic::include_proto!("kubevirt.hooks.v1alpha1");
    }

    /// Version v1alpha2.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
    #[allow(clippy::large_futures, clippy::uninlined_format_args, rust_2018_idioms)]
    pub mod v1alpha2 {
        tonic::include_proto!("kubevirt.hooks.v1alpha2");
    }

    /// Version v1alpha3.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
    #[allow(clippy::large_futures, clippy::uninlined_format_args, rust_2018_idioms)]
    pub mod v1alpha3 {
        tonic::include_proto!("kubevirt.hooks.v1alpha3");
    }
}
