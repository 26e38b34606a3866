//! What to do for an export: a pure function of what is seen.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use podvirt_api::export::{CERT_PARAMETERS, expires, token_secret_name};
use podvirt_api::names::event;
use podvirt_api::v1::{VirtualMachineExport as Export, VirtualMachineExportStatus};

use super::external::External;
use super::source::{self, Seen};
use super::status;

/// When to look again for what no word comes of.
const AGAIN: Duration = Duration::from_secs(3);
/// When to look again whether a claim that is exported is in use.
const IN_USE_AGAIN: Duration = Duration::from_secs(30);

/// What is seen of an export.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The export.
    pub export: &'a Export,
    /// Its source.
    pub source: &'a Seen,
    /// Its pod.
    pub pod: Option<&'a Pod>,
    /// Whether it has a Service.
    pub has_service: bool,
    /// How long certificates live now, as [`CERT_PARAMETERS`] says it.
    pub parameters: &'a str,
    /// The CAs that clients are to trust.
    pub bundle: Option<&'a str>,
    /// How clients outside the cluster find the proxy.
    pub external: Option<&'a External>,
    /// The time.
    pub now: Timestamp,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The export's time is over.
    Expire,
    /// Make its Service.
    MakeService,
    /// Make claims of a snapshot's volumes, by their places.
    MakeClaims(Vec<usize>),
    /// Make the Secret of this name with a token.
    MakeToken(String),
    /// Make the pod, which reads the token from the Secret of this name.
    MakePod(String),
    /// Make the pod's certificate.
    MakeCertificate,
    /// Delete the pod.
    DeletePod {
        /// Reason of the event.
        reason: &'static str,
        /// Its message.
        message: String,
    },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// In this order.
    pub actions: Vec<Action>,
    /// The status, as long as no action fails.
    pub status: VirtualMachineExportStatus,
    /// When to look again.
    pub again_after: Option<Duration>,
}

/// The phase of a pod; a pod that the API server has just made has none.
pub(super) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// Decides.
pub fn decide(seen: &Observed<'_>) -> Plan {
    let Observed { export, source, pod, now, .. } = *seen;
    let end = expires(export);
    if export.metadata.deletion_timestamp.is_some() || end.is_some_and(|end| end <= now) {
        let expired = export.metadata.deletion_timestamp.is_none();
        let actions = if expired { vec![Action::Expire] } else { Vec::new() };
        return Plan { actions, status: export.status.clone(), again_after: None };
    }
    let mut actions = Vec::new();
    if !seen.has_service {
        actions.push(Action::MakeService);
    }
    if !source.missing.is_empty() {
        actions.push(Action::MakeClaims(source.missing.clone()));
    }
    let given = export.spec.token_secret_ref.clone();
    let own = || token_secret_name(export.metadata.name.as_deref().unwrap_or_default());
    let available = source.is_available();
    let token = given.clone().or_else(|| {
        let known = export.status.token_secret_ref.clone();
        if available { Some(known.unwrap_or_else(own)) } else { known }
    });
    match pod {
        None if available => {
            if let Some(token) = &token {
                if given.is_none() {
                    actions.push(Action::MakeToken(token.clone()));
                }
                actions.push(Action::MakePod(token.clone()));
                actions.push(Action::MakeCertificate);
            }
        }
        None => {}
        Some(pod) if goes(pod, export) => {}
        Some(pod) => actions.extend(keep(seen, pod, available)),
    }
    let until_end = end.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
    let look = match (source.looks_again, pod) {
        (true, None) if !available => Some(AGAIN),
        (true, Some(_)) => Some(IN_USE_AGAIN),
        _ => None,
    };
    let look = look.or_else(|| status::is_slow_soon(seen));
    Plan {
        actions,
        status: status::status(seen, token),
        again_after: until_end.into_iter().chain(look).min(),
    }
}

/// Whether a pod is about to go: by itself, or with an earlier export of the same name, which is gone already.
pub(super) fn goes(pod: &Pod, export: &Export) -> bool {
    pod.metadata.deletion_timestamp.is_some() || !source::is_own(&pod.metadata, export)
}

/// What the program of a pod that has failed said last.
fn last_words(pod: &Pod) -> String {
    let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let mut ended = containers.filter_map(|container| container.state.as_ref()?.terminated.as_ref());
    let said = ended.find(|ended| ended.exit_code != 0).and_then(|ended| ended.message.as_deref());
    said.map(|said| format!(": {}", said.trim())).unwrap_or_default()
}

/// What becomes of a pod that is there.
fn keep(seen: &Observed<'_>, pod: &Pod, available: bool) -> Option<Action> {
    let delete = |reason, message: String| Some(Action::DeletePod { reason, message });
    if !available {
        return delete(event::EXPORT_PAUSED, seen.source.waits.1.clone());
    }
    let annotations = pod.metadata.annotations.as_ref();
    let parameters = annotations.and_then(|all| all.get(CERT_PARAMETERS)).map(String::as_str);
    match phase(pod) {
        ended @ ("Succeeded" | "Failed") => {
            let name = |text: &Option<String>| text.clone().unwrap_or_default();
            let (namespace, name) = (name(&pod.metadata.namespace), name(&pod.metadata.name));
            let message = format!("Exporter pod {namespace}/{name} is in phase {ended}{}", last_words(pod));
            delete(event::EXPORTER_ENDED, message)
        }
        _ if parameters != Some(seen.parameters) => {
            delete(event::CERTIFICATE_CHANGED, "Exporter TLS certificate parameters updated".to_owned())
        }
        "Pending" => Some(Action::MakeCertificate),
        _ => None,
    }
}
