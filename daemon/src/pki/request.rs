//! A node's certificate, asked for by the virt-handler on it.
//!
//! # Theory of operation
//!
//! The key is made here and never leaves this process; it is gone with it, and the next one makes another. A request is a
//! `CertificateSigningRequest` object, which virt-api answers ([`super::Signer`]): it has a certificate then, or the
//! condition `Denied`. One request is open at a time; it is asked for by `get`, since a watch would need the right to
//! list the requests of all nodes. What fails is said in the log and tried again after [`RETRY`]; a request that no
//! virt-api answers stays open, and is asked for as long as it is there. A change of the policy after which certificates
//! live shorter is followed by one request; the answer is kept even where it comes from a virt-api that has not seen the
//! change yet.
//!
//! ```text
//!   no certificate ──> request open ──> certificate ──(it is due, or a new CA is distributed)────────┐
//!         ^                 │                 ^                                                      │
//!         └──── denied or gone, RETRY         └──────────────── request open <────────────────────────┘
//! ```

use std::pin::Pin;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use tracing::{info, warn};

use super::certificate::{Certificate, CertificateError, KeyPairPem, make_request};
use super::identity::{Identity, Update, WatchError, bundles, follow};
use super::node::{USAGES, node_name};
use super::plan::{distributed, due, is_too_long};
use super::policy::{Policies, Policy};
use super::{CA_CONFIG_MAP, NODE_COMMON_NAME, NODE_SIGNER};

/// Wait after a request that failed.
const RETRY: Duration = Duration::from_secs(5);
/// First and longest pause between two looks at an open request.
const LOOK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long a request may be open until the log says so, and then says so again.
const UNANSWERED: Duration = Duration::from_secs(30);

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("making the request")]
    Make(#[from] CertificateError),
    #[error("CertificateSigningRequest {name}")]
    Api { name: String, source: Box<kube::Error> },
    #[error("CertificateSigningRequest {name} is gone")]
    Gone { name: String },
    #[error("CertificateSigningRequest {name} was answered by {condition}: {message}")]
    Refused { name: String, condition: String, message: String },
    #[error("the certificate of CertificateSigningRequest {name} is no text")]
    Text { name: String },
}

/// Waits until the virt-handler on `node` has a certificate and the ConfigMap of trusted CAs in `namespace` exists, and
/// follows both from then on. The client's token must be bound to a pod on that node.
///
/// # Errors
///
/// The watch of the ConfigMap ended. What fails is retried and logged.
pub async fn watch_node(
    client: Client,
    namespace: &str,
    node: &str,
    policies: Policies,
) -> Result<Identity, WatchError> {
    let of = format!("node {node}");
    let asks = Asks {
        requests: Api::all(client.clone()),
        node: node.to_owned(),
        bundles: Box::pin(bundles(client, namespace, CA_CONFIG_MAP)),
        policies,
        asking: None,
        leaf: None,
        cas: Vec::new(),
        not_before: Timestamp::MIN,
    };
    let updates = futures::stream::unfold(asks, async |mut asks| Some((asks.next().await?, asks)));
    follow(Box::pin(updates), of).await
}

struct Asks {
    requests: Api<CertificateSigningRequest>,
    node: String,
    bundles: Pin<Box<dyn Stream<Item = Option<String>> + Send>>,
    policies: Policies,
    /// The request that is open.
    asking: Option<BoxFuture<'static, Result<KeyPairPem, AskError>>>,
    /// The certificate that was taken last.
    leaf: Option<Certificate>,
    /// The CAs that are trusted; the first is the one that signs.
    cas: Vec<Certificate>,
    /// No request is made before.
    not_before: Timestamp,
}

impl Asks {
    /// The next key or the next CAs. `None`: the watch ended.
    async fn next(&mut self) -> Option<Update> {
        loop {
            let wait = self.due().duration_since(Timestamp::now());
            let wait = Duration::try_from(wait).unwrap_or_default();
            let asking = self.asking.as_mut();
            let idle = asking.is_none();
            let answered = async {
                match asking {
                    Some(asking) => asking.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                bundle = self.bundles.next() => {
                    let bundle = bundle?;
                    let read = bundle.as_deref().map(Certificate::all_from_pem);
                    self.cas = read.and_then(Result::ok).unwrap_or_default();
                    return Some(Update::Bundle(bundle));
                }
                answer = answered => {
                    self.asking = None;
                    match answer.and_then(|pair| Ok((first(&pair)?, pair))) {
                        Ok((leaf, pair)) => {
                            self.leaf = Some(leaf);
                            // The watch of the CAs may be behind the one that has signed.
                            self.not_before = Timestamp::now() + RETRY;
                            return Some(Update::Pair(Some(pair)));
                        }
                        Err(error) => {
                            let error = &error as &dyn std::error::Error;
                            warn!(self.node, error, "no certificate for this node; trying again");
                            self.not_before = Timestamp::now() + RETRY;
                        }
                    }
                }
                () = self.policies.changed() => self.shorten(),
                () = tokio::time::sleep(wait), if idle => {
                    self.asking = Some(ask(self.requests.clone(), self.node.clone()).boxed());
                }
            }
        }
    }

    /// Forgets a certificate that lives longer than those that are made now, so that another one is asked for.
    fn shorten(&mut self) {
        let policy = self.policies.now();
        self.leaf.take_if(|leaf| policy.is_some_and(|policy| is_too_long(leaf, &policy.leaf)));
    }

    /// When the next request is to be made.
    fn due(&self) -> Timestamp {
        let policy = self.policies.now().unwrap_or_default();
        renewal(self.leaf.as_ref(), &self.cas, &policy).max(self.not_before)
    }
}

fn first(pair: &KeyPairPem) -> Result<Certificate, CertificateError> {
    let all = Certificate::all_from_pem(&pair.certificate)?;
    all.into_iter().next().ok_or(CertificateError::NoCertificate)
}

/// When the next certificate is to be asked for, with `leaf` in hand and `cas` trusted, of which the first signs.
fn renewal(leaf: Option<&Certificate>, cas: &[Certificate], policy: &Policy) -> Timestamp {
    let Some(leaf) = leaf else { return Timestamp::MIN };
    let is_of = |ca: &Certificate| ca.subject_key == leaf.authority_key;
    match cas.first() {
        Some(ca) if is_of(ca) => due(leaf, &policy.leaf),
        Some(ca) if cas.iter().any(is_of) => distributed(ca, policy).min(due(leaf, &policy.leaf)),
        // Others trust it no more.
        Some(_) => Timestamp::MIN,
        None => due(leaf, &policy.leaf),
    }
}

/// Asks for a certificate of a new key and waits for the answer.
pub(super) async fn ask(
    requests: Api<CertificateSigningRequest>,
    node: String,
) -> Result<KeyPairPem, AskError> {
    let new = make_request(NODE_COMMON_NAME, &[node_name(&node)])?;
    let request = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("virt-handler-".into()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(new.request.into_bytes()),
            signer_name: NODE_SIGNER.to_owned(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let failed = |name: &str| {
        let name = name.to_owned();
        |source| AskError::Api { name, source: Box::new(source) }
    };
    let made = requests.create(&PostParams::default(), &request).await.map_err(failed("of this node"))?;
    let name = made.name_any();
    info!(node, name, "asked for this node's certificate");
    let (mut pause, mut waited) = (LOOK.0, Duration::ZERO);
    loop {
        tokio::time::sleep(pause).await;
        waited += pause;
        if waited >= UNANSWERED {
            warn!(name, "no answer to this node's CertificateSigningRequest yet: is there a virt-api?");
            waited = Duration::ZERO;
        }
        pause = (pause * 2).min(LOOK.1);
        let seen = requests.get_opt(&name).await.map_err(failed(&name))?;
        let Some(seen) = seen else { return Err(AskError::Gone { name }) };
        let status = seen.status.unwrap_or_default();
        if let Some(certificate) = status.certificate.filter(|certificate| !certificate.0.is_empty()) {
            let certificate = String::from_utf8(certificate.0).map_err(|_| AskError::Text { name })?;
            return Ok(KeyPairPem { certificate, key: new.key });
        }
        let conditions = status.conditions.unwrap_or_default();
        let refused = conditions.into_iter().find(|c| matches!(c.type_.as_str(), "Denied" | "Failed"));
        if let Some(refused) = refused {
            let message = refused.message.unwrap_or_default();
            return Err(AskError::Refused { name, condition: refused.type_, message });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::certificate::{Purpose, make_ca, make_leaf};
    use super::*;

    #[test]
    fn a_certificate_is_renewed_before_its_end_and_for_a_new_ca() {
        let policy = Policy::default();
        let at = |seconds: i64| Timestamp::from_second(1_900_000_000 + seconds).unwrap();
        let ca = |now| make_ca(now, policy.ca.duration).unwrap();
        let read = |pair: &KeyPairPem| first(pair).unwrap();
        let old = ca(at(0));
        let names = [node_name("node1")];
        let leaf =
            make_leaf(&old, NODE_COMMON_NAME, &names, Purpose::Node, at(0), policy.leaf.duration).unwrap();
        let leaf = read(&leaf);
        assert_eq!(renewal(None, &[], &policy), Timestamp::MIN, "at once");
        let four_fifths = at(86_400 * 4 / 5);
        assert_eq!(renewal(Some(&leaf), &[read(&old)], &policy), four_fifths);
        assert_eq!(renewal(Some(&leaf), &[], &policy), four_fifths);
        let new = read(&ca(at(1000)));
        let both = [new.clone(), read(&old)];
        assert_eq!(renewal(Some(&leaf), &both, &policy), at(1120), "once all daemons trust it");
        let late = [read(&ca(at(86_000))), read(&old)];
        assert_eq!(renewal(Some(&leaf), &late, &policy), four_fifths);
        assert_eq!(renewal(Some(&leaf), &[new], &policy), Timestamp::MIN, "the old one was lost");
    }
}
