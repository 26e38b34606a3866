//! Paths of webhooks that only those know who read the CA's key or the webhook configurations.
//!
//! # Theory of operation
//!
//! The API server shows no client certificate to a webhook. What tells its reviews from a pod's is their path,
//! `/WEBHOOK/TOKEN`. The token is an HMAC-SHA256 of the webhook's plain path, whose key is the CA's private key: all replicas
//! derive the same one, no object but the webhook configurations holds it, and it changes with the CA.
//!
//! ```text
//!   Secret kubevirt-ca ──read──> PathKey ──register──> webhook configurations ──> API server
//!                         │                                                           │
//!                         └────> accepted keys <───────────admits──────── /WEBHOOK/TOKEN
//! ```
//!
//! **A new CA.** The first replica that reads it registers paths that the others do not know yet. A replica therefore reads
//! the CA again before it refuses a token, once a second at most. All reviews that wait share a reading.
//!
//! **The CA before.** Its key is accepted until [`OVERLAP`] after it was read last, and until a registration with another
//! one has succeeded: API servers see a new configuration a moment later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use ring::hmac;
use subtle::ConstantTimeEq;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::warn;

use super::CA_SECRET;
use super::certificate::KeyPairPem;
use super::issuer::key_pair;

/// Begin of what tokens are made of: the CA's key signs certificates as well.
const LABEL: &str = "podvirt webhook paths v1";
/// How long a key is accepted after it was read last.
const OVERLAP: Duration = Duration::from_secs(300);
/// Time between two readings of the CA for unknown tokens.
const READ_PERIOD: Duration = Duration::from_secs(1);
/// Longest time for such a reading: the API server waits ten seconds for its review.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there are no paths to register, or why they are not registered.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// There is no CA at the moment.
    #[error("Secret {CA_SECRET} holds no CA")]
    NoCa,
    /// The API server refused.
    #[error(transparent)]
    Api(#[from] kube::Error),
}

/// A key of tokens, made of a CA. `Debug` does not show it.
#[derive(Clone, Debug)]
pub struct PathKey(hmac::Key);

impl PathKey {
    /// The key that a CA makes.
    pub fn new(ca: &KeyPairPem) -> Self {
        PathKey(hmac::Key::new(hmac::HMAC_SHA256, ca.key.as_bytes()))
    }

    /// The path of a webhook whose plain path is `webhook`, e.g. `/virtualmachines-mutate`.
    pub fn path(&self, webhook: &str) -> String {
        format!("{webhook}/{}", self.token(webhook))
    }

    fn token(&self, webhook: &str) -> String {
        let tag = hmac::sign(&self.0, format!("{LABEL} {webhook}").as_bytes());
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Compares in the same time whatever the token is.
    fn makes(&self, webhook: &str, token: &str) -> bool {
        self.token(webhook).as_bytes().ct_eq(token.as_bytes()).into()
    }
}

impl PartialEq for PathKey {
    fn eq(&self, other: &Self) -> bool {
        self.makes("", &other.token(""))
    }
}

impl Eq for PathKey {}

/// The paths that a daemon's webhooks accept. Clones see the same.
#[derive(Clone)]
pub struct WebhookPaths(Arc<Shared>);

struct Shared {
    secrets: Api<Secret>,
    accepted: Mutex<Vec<AcceptedKey>>,
    readings: tokio::sync::Mutex<Readings>,
}

struct AcceptedKey {
    key: PathKey,
    last_read: Instant,
}

/// When readings for unknown tokens began.
#[derive(Default)]
struct Readings {
    last: Option<Instant>,
    /// The last one that was not given up with its review.
    last_complete: Option<Instant>,
}

impl WebhookPaths {
    /// Paths by the CA in `namespace`; none is accepted before it has been read.
    pub fn new(client: Client, namespace: &str) -> Self {
        WebhookPaths(Arc::new(Shared {
            secrets: Api::namespaced(client, namespace),
            accepted: Mutex::default(),
            readings: tokio::sync::Mutex::default(),
        }))
    }

    fn accepted(&self) -> MutexGuard<'_, Vec<AcceptedKey>> {
        self.0.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the CA, and accepts the paths that it makes.
    ///
    /// # Errors
    ///
    /// The API server refused, or there is no CA.
    pub async fn read(&self) -> Result<PathKey, PathError> {
        let secret = self.0.secrets.get_opt(CA_SECRET).await?;
        let ca = secret.as_ref().and_then(key_pair).ok_or(PathError::NoCa)?;
        let key = PathKey::new(&ca);
        let mut accepted = self.accepted();
        accepted.retain(|known| known.key != key);
        accepted.push(AcceptedKey { key: key.clone(), last_read: Instant::now() });
        Ok(key)
    }

    /// Forgets keys that have been replaced for a while: the API server was told of paths by the key that was read last.
    pub fn forget_replaced(&self) {
        self.accepted().retain(|known| known.last_read.elapsed() < OVERLAP);
    }

    /// Whether `token` is one of the webhook whose plain path is `webhook`. It reads the CA before it says no.
    pub async fn admits(&self, webhook: &str, token: &str) -> bool {
        if self.knows(webhook, token) {
            return true;
        }
        let asked = Instant::now();
        let mut readings = self.0.readings.lock().await;
        if readings.last_complete.is_none_or(|began| began <= asked) {
            if let Some(last) = readings.last {
                sleep_until(last + READ_PERIOD).await;
            }
            let began = Instant::now();
            readings.last = Some(began);
            match timeout(READ_TIMEOUT, self.read()).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    let error = &error as &dyn std::error::Error;
                    warn!(error, "the CA cannot be read for a review at an unknown path");
                }
                Err(_) => warn!("the CA cannot be read in time for a review at an unknown path"),
            }
            readings.last_complete = Some(began);
        }
        drop(readings);
        self.knows(webhook, token)
    }

    fn knows(&self, webhook: &str, token: &str) -> bool {
        self.accepted().iter().any(|known| known.key.makes(webhook, token))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::pki::make_ca;
    use crate::testing::{self, ca_secret, failure};

    const WEBHOOK: &str = "/virtualmachines-mutate";

    fn ca() -> KeyPairPem {
        make_ca(Timestamp::now(), Duration::from_secs(3600)).unwrap()
    }

    /// What the API server holds, and how often it was read.
    struct Stored {
        ca: Option<KeyPairPem>,
        reads: usize,
    }

    fn stored() -> Arc<Mutex<Stored>> {
        Arc::new(Mutex::new(Stored { ca: Some(ca()), reads: 0 }))
    }

    fn replica(stored: &Arc<Mutex<Stored>>) -> WebhookPaths {
        let stored = Arc::clone(stored);
        let client = testing::client("kubevirt", move |_, uri, _| {
            assert_eq!(uri.path(), "/api/v1/namespaces/kubevirt/secrets/kubevirt-ca");
            let mut stored = stored.lock().unwrap();
            stored.reads += 1;
            stored.ca.as_ref().map_or_else(|| failure(404, "NotFound", "NotFound"), |ca| (200, ca_secret(ca)))
        });
        WebhookPaths::new(client, "kubevirt")
    }

    #[test]
    fn a_token_is_of_one_webhook_and_one_ca_and_may_stand_in_a_path() {
        let (ca, other) = (ca(), PathKey::new(&ca()));
        let key = PathKey::new(&ca);
        assert_eq!(PathKey::new(&ca), key);
        assert_ne!(other, key);
        let path = key.path(WEBHOOK);
        let token = path.strip_prefix("/virtualmachines-mutate/").unwrap();
        // The API server takes a path whose parts are DNS names.
        assert_eq!(token.len(), 64);
        assert!(token.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')), "{token}");
        assert!(key.makes(WEBHOOK, token));
        assert!(!key.makes("/virtualmachines-validate", token) && !other.makes(WEBHOOK, token));
        assert!(!key.makes(WEBHOOK, "") && !key.makes(WEBHOOK, &token[..63]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_is_behind_reads_the_ca_before_it_refuses() {
        let stored = stored();
        let (ahead, behind) = (replica(&stored), replica(&stored));
        let old = ahead.read().await.unwrap();
        assert_eq!(behind.read().await.unwrap(), old);

        stored.lock().unwrap().ca = Some(ca());
        let new = ahead.read().await.unwrap();
        assert!(behind.admits(WEBHOOK, &new.token(WEBHOOK)).await, "the other replica has registered it");
        for replica in [&ahead, &behind] {
            assert!(replica.admits(WEBHOOK, &old.token(WEBHOOK)).await, "an API server may still use it");
            assert!(!replica.admits("/virtualmachines-validate", &new.token(WEBHOOK)).await);
        }

        stored.lock().unwrap().ca = None;
        assert!(matches!(behind.read().await, Err(PathError::NoCa)));
        assert!(behind.admits(WEBHOOK, &new.token(WEBHOOK)).await, "a lost CA takes no path away");
    }

    #[tokio::test(start_paused = true)]
    async fn a_replaced_key_is_forgotten_when_its_successor_has_been_registered_for_a_while() {
        let stored = stored();
        let replica = replica(&stored);
        let old = replica.read().await.unwrap().token(WEBHOOK);
        stored.lock().unwrap().ca = Some(ca());
        let new = replica.read().await.unwrap().token(WEBHOOK);
        replica.forget_replaced();
        assert!(replica.admits(WEBHOOK, &old).await);
        tokio::time::advance(OVERLAP).await;
        assert!(replica.admits(WEBHOOK, &old).await, "no registration has succeeded meanwhile");
        replica.read().await.unwrap();
        replica.forget_replaced();
        assert!(!replica.admits(WEBHOOK, &old).await);
        assert!(replica.admits(WEBHOOK, &new).await);
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_tokens_have_the_ca_read_once_a_second_at_most() {
        let stored = stored();
        let replica = replica(&stored);
        assert!(!replica.admits(WEBHOOK, "unknown").await);
        let others = (0..100).map(|_| replica.admits(WEBHOOK, "unknown"));
        assert!(!futures::future::join_all(others).await.contains(&true));
        assert_eq!(stored.lock().unwrap().reads, 2);
    }
}
