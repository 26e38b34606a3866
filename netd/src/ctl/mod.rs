//! The control interface, which `netctl` and others use.
//!
//! [`server`] serves [`Control`](crate::control::Control) as gRPC on a UNIX socket, [`metrics`] as Prometheus metrics, [`http`] serves these over
//! TCP where that is configured. The other end, client and command, is the crate `netctl`.

pub mod http;
mod listening;
pub mod metrics;
pub mod server;

mod capture;
mod convert;
mod link;
#[cfg(test)]
mod tests;

pub use listening::Listening;

/// What a client's bytes meet first, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz {
    use podvirt_proto::netd::v1 as proto;

    use crate::port::PortRule;

    pub(crate) fn rules(rules: &[proto::PortRule]) -> Result<Vec<PortRule>, tonic::Status> {
        super::server::rules(rules)
    }

    pub(crate) fn rule_to_proto(rule: PortRule) -> proto::PortRule {
        super::convert::rule_to_proto(rule)
    }

    pub(crate) fn http_target(request: &[u8]) -> Option<(&str, &str)> {
        super::http::target(request)
    }
}
