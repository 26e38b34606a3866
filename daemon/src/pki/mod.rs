//! The daemons' certificates: made, handed out and renewed without anybody's help and without a restart.
//!
//! # Who does what
//!
//! virt-api runs an [`Issuer`] in every replica. It keeps one CA in a Secret only virt-api may read, the CA
//! certificates that are trusted at the moment in a ConfigMap, and one leaf certificate per purpose in a Secret
//! that the daemon concerned may read. Every daemon follows its Secret and the ConfigMap through an [`Identity`],
//! whose TLS configurations take the newest key and the newest trust at every handshake.
//!
//! ```text
//!              Secret kubevirt-ca (key)          ConfigMap kubevirt-ca (ca-bundle: new CA, old CAs)
//!                     │ signs                            │ is watched by everybody
//!   Issuer ───────────┴──> Secret kubevirt-*-certs ──────┴──> Identity ──> rustls configurations
//! ```
//!
//! # Rotation
//!
//! [`plan`] looks at what is stored and names the one next step; the issuer carries it out, reads again and asks
//! again until nothing is left to do. Every write is a create, or a replacement of the very version that
//! was read, so two replicas that want the same step do it once: the loser reads the winner's work and goes on.
//!
//! ```text
//!  CA 80 % old ──> new CA ──> bundle = new + old ──(distribution)──> leaves signed by the new CA
//!                                     │                                        │
//!                                     └──── old CA leaves the bundle <── overlap over and no leaf left
//! ```
//!
//! A leaf of a new CA is not made before every reader had time to see the new bundle, and an old CA stays trusted
//! until no leaf of it is left and the overlap is over: at no moment does a daemon meet a certificate it cannot
//! check. A lost or spoilt object is made anew at once.
//!
//! # Secrets
//!
//! Private keys appear in no log, no error and no `Debug` form of this module.

mod certificate;
mod identity;
mod issuer;
mod plan;
mod tls;

#[cfg(test)]
mod tests;

pub use certificate::{Certificate, CertificateError, KeyPairPem, Purpose, common_name, make_ca, make_leaf};
pub use identity::{Identity, WatchError, watch};
pub use issuer::{IssueError, Issuer};
pub use plan::{LeafRequest, Observed, Policy, Step, next_step};
pub use tls::{TlsError, TrustedClients, provider};

/// Secret of the CA's certificate and key; virt-api alone may read it.
pub const CA_SECRET: &str = "kubevirt-ca";
/// ConfigMap of the CA certificates that are trusted at the moment.
pub const CA_CONFIG_MAP: &str = "kubevirt-ca";
/// Key of [`CA_CONFIG_MAP`]'s data that holds the certificates.
pub const CA_BUNDLE_KEY: &str = "ca-bundle";
/// Secret of virt-api's server certificate.
pub const API_SERVER_SECRET: &str = "kubevirt-virt-api-certs";
/// Secret of virt-handler's server certificate.
pub const HANDLER_SERVER_SECRET: &str = "kubevirt-virt-handler-server-certs";
/// Secret of the client certificate with which virt-api calls virt-handler.
pub const HANDLER_CLIENT_SECRET: &str = "kubevirt-virt-handler-certs";
/// Secret of the client certificate with which virt-handler calls another one for a migration.
pub const MIGRATION_CLIENT_SECRET: &str = "kubevirt-migration-client-certs";
/// Common name of the client certificate in [`MIGRATION_CLIENT_SECRET`].
pub const MIGRATION_CLIENT_NAME: &str = "kubevirt.io:system:client:migration";
/// DNS name in virt-handler's server certificate, whatever the pod's address is.
pub const HANDLER_SERVER_NAME: &str = "virt-handler";
/// Common name of the client certificate in [`HANDLER_CLIENT_SECRET`].
pub const HANDLER_CLIENT_NAME: &str = "kubevirt.io:system:client:virt-handler";
