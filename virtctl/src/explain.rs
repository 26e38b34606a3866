//! What an answer that is no success means, and what to do about it. Pure, so that every case is tested.

use std::error::Error as StdError;
use std::io;

use podvirt_api::error::chain;

use crate::target::Object;

/// What was asked of the API server, in RBAC's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// RBAC verb: `get` or `update`.
    pub(crate) verb: &'static str,
    /// API group.
    pub(crate) group: &'static str,
    /// Resource with subresource: `virtualmachines/start`.
    pub(crate) resource: String,
}

/// Why there is no success.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    /// The API server answered with an error.
    #[error("{message}")]
    Status {
        /// HTTP status.
        code: u16,
        /// Kubernetes' reason, a CamelCase word; empty where the answer was no `Status`.
        reason: String,
        /// The server's own words.
        message: String,
    },
    /// There was no answer.
    #[error("{message}")]
    Unreachable {
        /// What the network or TLS said.
        message: String,
        /// What that is, where it is known.
        kind: Trouble,
    },
    /// There was no answer in time.
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
    /// The user's credentials could not be had.
    #[error("{0}")]
    Credentials(String),
    /// The answer makes no sense.
    #[error("{0}")]
    Protocol(String),
}

/// Kinds of trouble on the way to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// No server listens there.
    Refused,
    /// The certificates do not fit.
    Certificate,
    /// Anything else.
    Other,
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub(crate) struct ApiError {
    pub(crate) asked: Asked,
    pub(crate) server: String,
    pub(crate) cause: Cause,
}

impl ApiError {
    /// The HTTP status, where there is one.
    pub(crate) fn code(&self) -> Option<u16> {
        match self.cause {
            Cause::Status { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Whether the server says that there is no such object.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(&self.cause, Cause::Status { code: 404, reason, .. } if reason == "NotFound")
            && !self.is_unserved()
    }

    /// Whether the API itself is not there: the server's answer for paths it does not know.
    fn is_unserved(&self) -> bool {
        matches!(&self.cause, Cause::Status { code: 404, message, .. }
            if message.starts_with("404 page not found") || message.contains("could not find the requested resource"))
    }

    /// The whole error for the user: what was not done, to what, why, and what can be done about it.
    pub(crate) fn explain(&self, doing: &str, object: &Object) -> anyhow::Error {
        let advice = self.advice_on(object).or_else(|| self.advice());
        self.text(&format!("{doing} {object}"), &self.reason(object.kind.short()), advice)
    }

    /// The same for what is no machine's.
    pub(crate) fn explain_plain(&self, doing: &str) -> anyhow::Error {
        self.text(doing, &self.reason("object"), self.advice())
    }

    fn text(&self, what: &str, reason: &str, advice: Option<String>) -> anyhow::Error {
        let advice = advice.map(|advice| format!("\n  {advice}")).unwrap_or_default();
        anyhow::anyhow!("cannot {what}: {reason}{advice}")
    }

    fn reason(&self, kind: &str) -> String {
        match &self.cause {
            _ if self.is_unserved() => format!("the cluster does not serve {}", self.asked.group),
            _ if self.is_not_found() => format!("there is no such {kind}"),
            Cause::Status { code: 401, .. } => "the API server does not accept your credentials".into(),
            Cause::Status { code: 403, message, .. } => format!("not allowed: {message}"),
            Cause::Status { code: 503, message, .. } => format!("virt-api does not answer: {message}"),
            Cause::Status { code, message, .. } if message.is_empty() => {
                format!("the API server answered {code}")
            }
            Cause::Status { message, .. } | Cause::Credentials(message) | Cause::Protocol(message) => {
                message.clone()
            }
            Cause::Unreachable { message, .. } => {
                format!("cannot reach the API server {}: {message}", self.server)
            }
            Cause::Timeout(after) => {
                format!("the API server {} did not answer within {after:?}", self.server)
            }
        }
    }

    /// What can be done about the object.
    fn advice_on(&self, object: &Object) -> Option<String> {
        let (kind, name, namespace) = (object.kind.short(), &object.name, &object.namespace);
        let Asked { verb, group, resource } = &self.asked;
        Some(match &self.cause {
            _ if self.is_not_found() => {
                format!(
                    "To see which there are: kubectl get {kind} -n {namespace} (or -A for all namespaces)"
                )
            }
            Cause::Status { code: 403, .. } => format!(
                "An administrator can allow it by a role for namespace {namespace}: \
                 verb {verb} on {resource} in API group {group}."
            ),
            Cause::Status { code: 400 | 409, message, .. } if says_not_running(message) => format!(
                "To see what it does: kubectl get vm,vmi {name} -n {namespace}; to start it: virtctl start {name} -n {namespace}"
            ),
            _ => return None,
        })
    }

    /// What can be done about the way to the API.
    fn advice(&self) -> Option<String> {
        let text = match &self.cause {
            _ if self.is_unserved() => {
                "Is podvirt installed there, and is this the cluster you mean? \
                 kubectl config current-context; kubectl get apiservice v1.subresources.kubevirt.io"
            }
            Cause::Status { code: 401, .. } => "Log in again, or choose another user by --context or --user.",
            Cause::Status { code: 503, .. } => {
                "To see whether it runs: kubectl get pods -A -l kubevirt.io=virt-api; \
                 kubectl get apiservice v1.subresources.kubevirt.io"
            }
            Cause::Unreachable { kind: Trouble::Refused, .. } => {
                "Nothing listens at that address: is the cluster up, and is this the context you mean? \
                 kubectl config current-context"
            }
            Cause::Unreachable { kind: Trouble::Certificate, .. } => {
                "Does the kubeconfig name the authority (certificate-authority) that signed the server's certificate, \
                 and a client certificate that is still valid?"
            }
            _ => return None,
        };
        Some(text.into())
    }
}

/// Whether a server's message says that the machine is in no state for it.
pub(crate) fn says_not_running(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    message.contains("not running")
        || message.contains("because phase is")
        || message.contains("is not set to run")
}

/// What a client error is: no answer, no credentials.
pub(crate) fn cause(error: &(dyn StdError + 'static)) -> Cause {
    let mut deepest = error.to_string();
    let mut kind = Trouble::Other;
    let mut next = Some(error);
    while let Some(error) = next {
        deepest = error.to_string();
        if let Some(kube::Error::Auth(auth)) = error.downcast_ref::<kube::Error>() {
            return Cause::Credentials(format!("cannot get credentials for the API server: {}", chain(auth)));
        }
        if error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        {
            kind = Trouble::Refused;
        }
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inner.map(|inner| inner as &(dyn StdError + 'static)).or_else(|| error.source());
    }
    if deepest.contains("certificate") || deepest.contains("UnknownCA") {
        kind = Trouble::Certificate;
    }
    Cause::Unreachable { message: deepest, kind }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Kind;

    fn explained(cause: Cause) -> String {
        let asked = Asked {
            verb: "update",
            group: "subresources.kubevirt.io",
            resource: "virtualmachines/start".into(),
        };
        let object = Object::new(Kind::Vm, "testvm", "blue").unwrap();
        ApiError { asked, server: "https://here:6443".into(), cause }.explain("start", &object).to_string()
    }

    fn status(code: u16, reason: &str, message: &str) -> Cause {
        Cause::Status { code, reason: reason.into(), message: message.into() }
    }

    #[test]
    fn errors_name_the_object_the_reason_and_what_to_do() {
        let cases = [
            (
                status(404, "NotFound", "virtualmachine.kubevirt.io \"testvm\" not found"),
                ["there is no such vm", "kubectl get vm -n blue"],
            ),
            (status(404, "", "404 page not found"), ["does not serve subresources.kubevirt.io", "installed"]),
            (
                status(404, "NotFound", "the server could not find the requested resource"),
                ["does not serve", "installed"],
            ),
            (
                status(403, "Forbidden", "User \"bob\" cannot update"),
                [
                    "not allowed: User \"bob\" cannot update",
                    "verb update on virtualmachines/start in API group subresources.kubevirt.io",
                ],
            ),
            (status(401, "Unauthorized", "Unauthorized"), ["does not accept your credentials", "--context"]),
            (
                status(409, "Conflict", "VM is not running"),
                ["VM is not running", "virtctl start testvm -n blue"],
            ),
            (
                status(503, "ServiceUnavailable", "error trying to reach service"),
                ["virt-api does not answer", "kubevirt.io=virt-api"],
            ),
            (
                Cause::Unreachable {
                    message: "Connection refused (os error 111)".into(),
                    kind: Trouble::Refused,
                },
                ["https://here:6443", "is the cluster up"],
            ),
        ];
        for (cause, words) in cases {
            let text = explained(cause);
            assert!(text.starts_with("cannot start VM \"testvm\" in namespace \"blue\": "), "{text}");
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }

    #[test]
    fn an_answer_without_known_advice_gives_the_servers_words_alone() {
        assert_eq!(
            explained(status(409, "Conflict", "VM is already running")),
            "cannot start VM \"testvm\" in namespace \"blue\": VM is already running"
        );
    }

    #[test]
    fn a_refused_connection_is_found_below_its_wrappers() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = kube::Error::Service(Box::new(io::Error::other(refused)));
        assert!(matches!(cause(&error), Cause::Unreachable { kind: Trouble::Refused, .. }));
    }
}
