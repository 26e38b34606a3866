//! What every daemon of podvirt needs, so that they all log, report their health, lead and write alike.
//!
//! | module | for |
//! |---|---|
//! | [`telemetry`] | logs |
//! | [`http`] | `/healthz`, `/readyz`, `/metrics` |
//! | [`health`] | `/healthz` in upstream's form, by HTTPS |
//! | [`serve`] | a bounded HTTP/1.1 server, plain or by TLS |
//! | [`connections`] | how many connections a server holds, and from where |
//! | [`settings`] | what of the KubeVirt object is a daemon's own |
//! | [`shutdown`] | one future for SIGTERM and SIGINT, for many tasks |
//! | [`crypto`] | the process's one provider of cryptography |
//! | [`leader`] | one working replica among several, by a Lease |
//! | [`events`] | Kubernetes events |
//! | [`net`] | listening, also where there is no IPv6 |
//! | [`pki`] | the daemons' certificates, and TLS that follows their renewal |
//! | [`registration`] | keeping a daemon's webhooks known to the API server |
//! | [`follow`] | each version of one object |
//! | [`patch`] | writing the changed part of an object's status, or nothing |
//! | [`backoff`] | growing delays per object |
//! | [`client`] | the way to the API server |

#![forbid(unsafe_code)]

pub mod backoff;
pub mod client;
pub mod connections;
pub mod crypto;
pub mod events;
pub mod follow;
pub mod health;
pub mod http;
pub mod leader;
pub mod net;
pub mod patch;
pub mod pki;
pub mod registration;
pub mod serve;
pub mod settings;
pub mod shutdown;
#[cfg(any(test, feature = "testing"))]
pub mod strict_json;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
