//! gRPC contracts between podvirt's processes.
//!
//! The contracts are the `.proto` files beside this crate; each module here is one of their packages. Within a
//! version (`v1`) fields are only ever added: both ends of a call may be of different releases.

/// The control interface of netd, package `podvirt.netd.v1`.
pub mod netd {
    /// Version 1.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
    #[allow(clippy::large_futures, clippy::uninlined_format_args, rust_2018_idioms)]
    pub mod v1 {
        tonic::include_proto!("podvirt.netd.v1");
    }
}
