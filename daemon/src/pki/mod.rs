//! The daemons' certificates: made, handed out and renewed without an operator's help and without a restart.
//!
//! # Which daemon does what
//!
//! virt-api runs an [`Issuer`] in every replica, and virt-operator, where there is one, for its own certificate. It keeps one CA in a Secret only virt-api may read, the CA
//! certificates that are trusted at the moment in a ConfigMap, and virt-api's own leaf certificates in Secrets. virt-api
//! follows its Secrets and the ConfigMap through an [`Identity`], whose TLS configurations take the newest key and the
//! newest trust at every handshake.
//!
//! ```text
//!              Secret kubevirt-ca (key)          ConfigMap kubevirt-ca (ca-bundle: new CA, old CAs)
//!                     │ signs                            │ is watched by all daemons
//!   Issuer ───────────┼──> Secret kubevirt-*-certs ──────┼──> Identity ──> rustls configurations
//!   Signer ───────────┴──> CertificateSigningRequest ────┘
//! ```
//!
//! # The nodes' certificates
//!
//! Every virt-handler has the same ServiceAccount, so what one may read all may. A node's key is therefore in no object of
//! the API: virt-handler makes it, keeps it in memory, and asks for a certificate by a `CertificateSigningRequest`
//! ([`watch_node`]), in which the API server notes on which node the token of the asking pod is valid. virt-api's
//! [`Signer`] signs for the name of that node and for nothing else. A client that speaks to a node checks that
//! name ([`node_name`], [`is_node`]). A virt-handler asks anew some time before its certificate ends, and when
//! there is a new CA.
//!
//! # Rotation
//!
//! [`plan`] looks at what is stored and names the one next step; the issuer carries it out, reads again and asks
//! again until nothing is left to do. Every write is a create, or a replacement of the very version that
//! was read, so two replicas that want the same step do it once: the loser reads the winner's work and goes on.
//!
//! ```text
//!  CA near its end ──> new CA ──> bundle = new + old ──(distribution)──> leaves signed by the new CA
//!                                         │                                        │
//!                                         └──── old CA leaves the bundle <── overlap over and no leaf left
//! ```
//!
//! A leaf of a new CA is not made before every reader had time to see the new bundle, and an old CA stays trusted
//! until no leaf of it is left and the overlap is over: at no moment does a daemon meet a certificate it cannot
//! check. A lost or spoilt object is made anew at once.
//!
//! How long certificates live, and how long before the end they are replaced, says the KubeVirt object ([`Policies`]). A
//! change takes effect at once: what lives longer than it should now is replaced, by the same plan. What lives shorter
//! stays until it is due.
//!
//! # Paths of webhooks
//!
//! The CA's key makes the paths of webhooks as well, which no pod can guess ([`WebhookPaths`]): all replicas have it, and it
//! changes.
//!
//! # Secrets
//!
//! Private keys appear in no log, no error and no `Debug` form of this module.

mod certificate;
mod identity;
mod issuer;
mod node;
mod paths;
mod plan;
mod policy;
mod request;
mod signer;
mod tls;

#[cfg(test)]
mod tests;

pub use certificate::{Certificate, CertificateError, KeyPairPem, Purpose, common_name, make_ca, make_leaf};
pub use identity::{Identity, WatchError, watch};
pub use issuer::{IssueError, Issuer, key_pair};
pub use node::{Refused, is_node, node_name, node_of_token};
pub use paths::{PathError, PathKey, WebhookPaths};
pub use plan::{LeafRequest, Observed, Step, next_step};
pub use policy::{Policies, Policy, PolicySource};
pub use request::watch_node;
pub use signer::{SignError, Signer};
pub use tls::{TlsError, TrustedClients, provider};

/// Secret of the CA's certificate and key; virt-api alone may read it.
pub const CA_SECRET: &str = "kubevirt-ca";
/// ConfigMap of the CA certificates that are trusted at the moment.
pub const CA_CONFIG_MAP: &str = "kubevirt-ca";
/// Key of [`CA_CONFIG_MAP`]'s data that holds the certificates.
pub const CA_BUNDLE_KEY: &str = "ca-bundle";
/// Secret of virt-api's server certificate.
pub const API_SERVER_SECRET: &str = "kubevirt-virt-api-certs";
/// Secret of virt-controller's server certificate.
pub const CONTROLLER_SECRET: &str = "kubevirt-controller-certs";
/// Secret of virt-exportproxy's server certificate.
pub const EXPORT_PROXY_SECRET: &str = "kubevirt-exportproxy-certs";
/// Secret of virt-operator's server certificate.
pub const OPERATOR_SECRET: &str = "kubevirt-operator-certs";
/// Secret of the client certificate with which virt-api calls virt-handler.
pub const HANDLER_CLIENT_SECRET: &str = "kubevirt-virt-handler-certs";
/// Common name of every node's certificate; which node it is says the DNS name, see [`node_name`].
pub const NODE_COMMON_NAME: &str = "virt-handler";
/// Name of the signer of the nodes' certificates, in `CertificateSigningRequest`s.
pub const NODE_SIGNER: &str = "kubevirt.io/virt-handler";
/// Common name of the client certificate in [`HANDLER_CLIENT_SECRET`].
pub const HANDLER_CLIENT_NAME: &str = "kubevirt.io:system:client:virt-handler";
