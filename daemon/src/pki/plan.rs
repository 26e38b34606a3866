//! What to do next with the stored certificates: a function of what is stored and of the time.

use std::time::Duration;

use jiff::Timestamp;
use podvirt_api::rotation::Life;

use super::certificate::{BACKDATE, Certificate, Purpose};
use super::policy::Policy;

/// A leaf certificate that has to exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafRequest {
    /// Secret it is kept in.
    pub secret: String,
    /// Common name of its subject.
    pub common_name: String,
    /// DNS names it is valid for.
    pub dns_names: Vec<String>,
    /// What it is for.
    pub purpose: Purpose,
}

impl LeafRequest {
    /// The leaves of podvirt's daemons in `namespace` that are kept in Secrets; virt-handler's are not, see
    /// [`Signer`](super::Signer).
    pub fn of_the_daemons(namespace: &str) -> Vec<LeafRequest> {
        use super::{
            API_SERVER_SECRET, CONTROLLER_SECRET, EXPORT_PROXY_SECRET, HANDLER_CLIENT_NAME,
            HANDLER_CLIENT_SECRET,
        };
        vec![
            Self::server(API_SERVER_SECRET, "virt-api", namespace),
            LeafRequest {
                secret: HANDLER_CLIENT_SECRET.to_owned(),
                common_name: HANDLER_CLIENT_NAME.to_owned(),
                dns_names: Vec::new(),
                purpose: Purpose::Client,
            },
            Self::server(CONTROLLER_SECRET, "virt-controller", namespace),
            Self::server(EXPORT_PROXY_SECRET, podvirt_api::export::PROXY, namespace),
        ]
    }

    /// virt-operator's leaf in `namespace`.
    pub fn of_the_operator(namespace: &str) -> LeafRequest {
        Self::server(super::OPERATOR_SECRET, "kubevirt-operator-webhook", namespace)
    }

    fn server(secret: &str, service: &str, namespace: &str) -> LeafRequest {
        LeafRequest {
            secret: secret.to_owned(),
            common_name: format!("{service}.{namespace}.svc"),
            dns_names: vec![
                format!("{service}.{namespace}.svc"),
                format!("{service}.{namespace}.svc.cluster.local"),
                format!("{service}.{namespace}"),
                service.to_owned(),
            ],
            purpose: Purpose::Server,
        }
    }

    fn is_met_by(&self, leaf: &Certificate) -> bool {
        !leaf.is_ca
            && leaf.common_name == self.common_name
            && leaf.dns_names == self.dns_names
            && leaf.purpose == Some(self.purpose)
    }
}

/// What is stored. What cannot be read, or whose key does not fit, counts as not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The CA that signs.
    pub ca: Option<Certificate>,
    /// The CAs that are trusted, in the order of the bundle.
    pub bundle: Vec<Certificate>,
    /// The leaves, in the order of the requests.
    pub leaves: Vec<Option<Certificate>>,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a CA and store it in place of the one that was read.
    MakeCa,
    /// Store exactly these certificates as the bundle.
    WriteBundle(Vec<Certificate>),
    /// Make the leaf of this request.
    MakeLeaf(usize),
}

fn after(moment: Timestamp, span: Duration) -> Timestamp {
    moment.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// When a certificate was made. Its `notBefore` is earlier by [`BACKDATE`], for peers whose clocks are behind.
fn made(certificate: &Certificate) -> Timestamp {
    after(certificate.not_before, BACKDATE)
}

/// The life that a certificate was made with.
fn duration(certificate: &Certificate) -> Duration {
    let seconds = certificate.not_after.as_second().saturating_sub(made(certificate).as_second());
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// Whether the certificate lives longer than those that are made now.
///
/// It is not replaced for living shorter: of two replicas that see two versions of the policy for a while, each would
/// replace what the other has made.
pub(super) fn is_too_long(certificate: &Certificate, life: &Life) -> bool {
    duration(certificate) > life.duration
}

/// Whether it is time to replace the certificate, or it is not valid at all.
fn is_due(certificate: &Certificate, life: &Life, now: Timestamp) -> bool {
    now < certificate.not_before || now >= due(certificate, life) || is_too_long(certificate, life)
}

/// When the certificate is to be replaced.
///
/// A certificate whose whole life is no longer than the policy's `renew_before` was made by another policy, or by a CA near
/// its end. It is replaced when a fifth of its own life is left.
pub(super) fn due(certificate: &Certificate, life: &Life) -> Timestamp {
    let own = duration(certificate);
    let left = if life.renew_before < own { life.renew_before } else { Life::of(own).renew_before };
    certificate.not_after.checked_sub(left).unwrap_or(Timestamp::MIN)
}

/// When the first leaves of this CA may be signed: every reader has it among the trusted ones by then.
pub(super) fn distributed(ca: &Certificate, policy: &Policy) -> Timestamp {
    after(made(ca), policy.distribution)
}

fn is_valid(certificate: &Certificate, now: Timestamp) -> bool {
    certificate.not_before <= now && now <= certificate.not_after
}

/// Names the next step, or `None` when all is as it should be.
pub fn next_step(
    observed: &Observed,
    requests: &[LeafRequest],
    policy: &Policy,
    now: Timestamp,
) -> Option<Step> {
    let Some(ca) = observed.ca.as_ref().filter(|ca| ca.is_ca && !is_due(ca, &policy.ca, now)) else {
        return Some(Step::MakeCa);
    };
    let in_overlap = now < after(made(ca), policy.overlap);
    let signed_a_leaf = |old: &Certificate| {
        observed.leaves.iter().flatten().any(|leaf| leaf.authority_key == old.subject_key)
    };
    let mut bundle = vec![ca.clone()];
    bundle.extend(
        observed
            .bundle
            .iter()
            .filter(|old| old.der != ca.der && old.is_ca && is_valid(old, now))
            .filter(|old| in_overlap || signed_a_leaf(old))
            .cloned(),
    );
    if bundle != observed.bundle {
        return Some(Step::WriteBundle(bundle));
    }

    let distributed = now >= distributed(ca, policy);
    requests.iter().enumerate().find_map(|(index, request)| {
        let leaf = observed.leaves.get(index).and_then(Option::as_ref);
        let needed = leaf.is_none_or(|leaf| {
            let of_this_ca = leaf.authority_key == ca.subject_key;
            let trusted = bundle.iter().any(|ca| ca.subject_key == leaf.authority_key);
            let unusable = !request.is_met_by(leaf) || !trusted || !is_valid(leaf, now);
            unusable || (distributed && !of_this_ca) || (of_this_ca && is_due(leaf, &policy.leaf, now))
        });
        needed.then_some(Step::MakeLeaf(index))
    })
}
