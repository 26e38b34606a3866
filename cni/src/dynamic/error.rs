//! Why an attempt failed.

use podvirt_api::error::chain;
use podvirt_api::names::annotation::NETWORKS;

use super::{difference, multus, sandbox};

/// An attempt failed; it is made again, later each time.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pod says what cannot be read.
    #[error(transparent)]
    Annotation(#[from] difference::Unreadable),
    /// The runtime.
    #[error(transparent)]
    Sandbox(#[from] sandbox::Error),
    /// One of the pod's interfaces.
    #[error("interface {interface} on the network {network}")]
    Interface {
        /// Its name.
        interface: String,
        /// Namespace and name of the network.
        network: String,
        /// What happened.
        source: Failure,
    },
    /// The API server.
    #[error("{0}")]
    Cluster(&'static str, #[source] Box<kube::Error>),
    /// More than one of these.
    #[error("{}", joined(.0))]
    Several(Vec<Error>),
}

/// An interface was not attached, or not detached.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Multus or a plugin.
    #[error(transparent)]
    Multus(#[from] multus::Error),
    /// The network is not there, or has no configuration.
    #[error("the NetworkAttachmentDefinition is not usable: {0}")]
    Definition(&'static str),
    /// The API server does not tell the network.
    #[error("read the NetworkAttachmentDefinition")]
    Read(#[source] Box<kube::Error>),
    /// The pod has the interface. The DEL after an ADD that fails would take it away.
    #[error("the pod has this interface already, on the network {0}")]
    InUse(String),
    /// Which network the interface is for cannot be told.
    #[error("the annotation {} names this interface more than once", NETWORKS)]
    Twice,
    /// The network is of a namespace whose networks are not for the pod.
    #[error(
        "networks of the namespace {namespace} are refused (--namespace-isolation); allowed are those of the \
         namespaces {allowed}"
    )]
    Isolated {
        /// The network's namespace.
        namespace: String,
        /// Namespaces whose networks are for the pod.
        allowed: String,
    },
}

impl Error {
    /// All of `errors` as one.
    pub(super) fn all(mut errors: Vec<Error>) -> Result<(), Error> {
        if errors.len() > 1 {
            return Err(Error::Several(errors));
        }
        errors.pop().map_or(Ok(()), Err)
    }
}

fn joined(errors: &[Error]) -> String {
    errors.iter().map(|error| chain(error)).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twice(interface: &str) -> Error {
        Error::Interface { interface: interface.into(), network: "shop/red".into(), source: Failure::Twice }
    }

    #[test]
    fn errors_are_told_together_with_their_causes() {
        assert!(Error::all(vec![]).is_ok());
        assert!(
            matches!(Error::all(vec![twice("a")]), Err(Error::Interface { interface, .. }) if interface == "a")
        );
        let all = Error::all(vec![twice("a"), twice("b")]).unwrap_err();
        let why = "the annotation k8s.v1.cni.cncf.io/networks names this interface more than once";
        assert_eq!(
            chain(&all),
            format!("interface a on the network shop/red: {why}; interface b on the network shop/red: {why}")
        );
    }

    #[test]
    fn a_cause_that_repeats_what_was_said_is_left_out() {
        #[derive(Debug, thiserror::Error)]
        #[error("{text}")]
        struct Told {
            text: &'static str,
            source: std::io::Error,
        }
        let told = |text| Told { text, source: std::io::Error::other("no such bridge") };
        assert_eq!(chain(&told("ADD")), "ADD: no such bridge");
        assert_eq!(chain(&told("ADD: no such bridge")), "ADD: no such bridge");
    }
}
