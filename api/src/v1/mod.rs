//! `kubevirt.io/v1` as it stands in the API server: every field of upstream's, nothing judged.
//!
//! The types are written from a model of upstream's API (`api/model`) by `podvirt-api-generate`. They keep
//! what they read: a document that is parsed and written again says the same. Whether podvirt carries a field
//! out is decided by [`crate::fields`], and [`crate::vmi`] holds what is left then.

mod null;
mod templates;
mod types;
mod word;
mod words;

pub use templates::MAX_TEMPLATES_BYTES;
pub use types::*;
pub use words::*;

/// Group of these resources.
pub const GROUP: &str = "kubevirt.io";
/// Version of these resources.
pub const VERSION: &str = "v1";
/// Group and version as `apiVersion` has them.
pub const API_VERSION: &str = "kubevirt.io/v1";

impl Network {
    /// Whether it is the pod's first network, its own or one in its place.
    pub fn is_primary(&self) -> bool {
        self.multus.as_ref().map_or(self.pod.is_some(), |multus| multus.default == Some(true))
    }
}

impl Interface {
    /// Whether it is unplugged: neither the pod nor the guest is to have it.
    pub fn is_absent(&self) -> bool {
        self.state == Some(InterfaceState::Absent)
    }
}
