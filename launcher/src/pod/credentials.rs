//! Credentials that the guest's agent sets: SSH keys and passwords of the guest's users, from mounted Secrets.
//!
//! # Theory of operation
//!
//! ```text
//!  Secret in the cluster ──kubelet──> mounted Secret ──every AGAIN──> Orders ──agent──> the guest's users
//!                                                                       └──> Facts::credentials ──> the launcher's report
//! ```
//!
//! While the guest's agent is connected, the launcher reads the mounted Secrets every [`AGAIN`] and gives the agent the orders that
//! follow from them, unless the agent has carried out the same orders within [`ANYHOW`]. An order that failed is given again. An
//! agent that connects anew gets the orders in any case: the guest may have been started again.
//!
//! A user's authorized_keys are replaced as a whole, so a key that leaves the Secret leaves the guest. How the last attempt went
//! is a fact, which the report tells virt-handler and the condition `AccessCredentialsSynchronized` tells users.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use podvirt_api::error::chain;
use podvirt_api::names::path;
use podvirt_api::vmi::AccessCredential;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::agent::{ANSWER, AgentError};
use super::shared::Shared;
use crate::media::{mounted, ssh_keys};

/// Between two looks at the Secrets.
const AGAIN: Duration = Duration::from_secs(15);
/// After this time the agent gets orders again that it has carried out.
const ANYHOW: Duration = Duration::from_secs(300);

/// What the agent is to set. It has no `Debug`, as it holds passwords.
#[derive(Default, PartialEq)]
struct Orders {
    /// Public keys by user.
    keys: BTreeMap<String, Vec<String>>,
    /// Passwords by user.
    passwords: BTreeMap<String, String>,
}

/// Has the agent set the machine's credentials again and again; never ends.
pub(super) async fn poll(shared: &Shared) {
    let mut connected = shared.agent_connected.subscribe();
    let mut wanted = shared.credentials.subscribe();
    loop {
        if connected.wait_for(|connected| *connected).await.is_err() {
            return std::future::pending().await;
        }
        let mut done: Option<(Orders, Instant)> = None;
        loop {
            let credentials = wanted.borrow_and_update().clone();
            if credentials.iter().any(is_by_agent) {
                let directory = Path::new(path::ACCESS_CREDENTIALS);
                match Orders::read(&credentials, directory) {
                    Ok(orders)
                        if done
                            .as_ref()
                            .is_some_and(|(last, at)| *last == orders && at.elapsed() < ANYHOW) => {}
                    Ok(orders) => {
                        let result = orders.carry_out(shared).await;
                        done = result.is_ok().then(|| (orders, Instant::now()));
                        note(shared, result.map_err(|error| chain(&error)));
                    }
                    Err(error) => {
                        done = None;
                        note(shared, Err(format!("a Secret cannot be read: {error}")));
                    }
                }
            }
            tokio::select! {
                () = sleep(AGAIN) => {}
                _ = connected.wait_for(|connected| !*connected) => break,
                _ = wanted.changed() => {}
            }
        }
    }
}

fn note(shared: &Shared, result: Result<(), String>) {
    shared.facts.send_if_modified(|facts| {
        let changed = facts.credentials.as_ref() != Some(&result);
        if changed {
            match &result {
                Ok(()) => info!("the guest's agent has set the credentials"),
                Err(why) => warn!(why, "the guest's agent has not set the credentials"),
            }
            facts.credentials = Some(result);
        }
        changed
    });
}

/// Whether a credential is for the guest's agent to set.
fn is_by_agent(credential: &AccessCredential) -> bool {
    credential.ssh_public_key.as_ref().is_some_and(|key| key.propagation_method.qemu_guest_agent.is_some())
        || credential.user_password.is_some()
}

impl Orders {
    /// The orders that follow from the mounted Secrets. `directory` has a directory for each credential, which is named by the
    /// credential's place in the manifest.
    fn read(credentials: &[AccessCredential], directory: &Path) -> io::Result<Orders> {
        let mut orders = Orders::default();
        for (n, credential) in credentials.iter().enumerate() {
            let secret = directory.join(n.to_string());
            if let Some(key) = &credential.ssh_public_key
                && let Some(by) = &key.propagation_method.qemu_guest_agent
            {
                let keys = ssh_keys::read(&secret)?;
                for user in &by.users {
                    orders.keys.entry(user.clone()).or_default().extend(keys.iter().cloned());
                }
            }
            if credential.user_password.is_some() {
                for file in mounted::files(&secret)? {
                    let user = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    let password = std::fs::read_to_string(&file)?;
                    orders.passwords.insert(user, password.trim_end_matches(['\r', '\n']).to_owned());
                }
            }
        }
        Ok(orders)
    }

    async fn carry_out(&self, shared: &Shared) -> Result<(), CredentialError> {
        for (user, keys) in &self.keys {
            let arguments = json!({"username": user, "keys": keys, "reset": true});
            let told = shared.agent_command("guest-ssh-add-authorized-keys", arguments, ANSWER).await;
            told.map_err(|source| CredentialError { what: "SSH keys", user: user.clone(), source })?;
        }
        for (user, password) in &self.passwords {
            let password = BASE64_STANDARD.encode(password);
            let arguments = json!({"username": user, "password": password, "crypted": false});
            let told = shared.agent_command("guest-set-user-password", arguments, ANSWER).await;
            told.map_err(|source| CredentialError { what: "password", user: user.clone(), source })?;
        }
        Ok(())
    }
}

/// A credential that the guest's agent has not set.
#[derive(Debug, thiserror::Error)]
#[error("the {what} of the guest's user {user}")]
struct CredentialError {
    /// Keys or a password.
    what: &'static str,
    user: String,
    source: AgentError,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_user_come_from_all_secrets_and_passwords_by_their_keys() {
        let credentials: Vec<AccessCredential> = serde_json::from_value(json!([
            {"sshPublicKey": {"source": {"secret": {"secretName": "a"}}, "propagationMethod": {"qemuGuestAgent": {"users": ["jane", "joe"]}}}},
            {"sshPublicKey": {"source": {"secret": {"secretName": "b"}}, "propagationMethod": {"noCloud": {}}}},
            {"sshPublicKey": {"source": {"secret": {"secretName": "c"}}, "propagationMethod": {"qemuGuestAgent": {"users": ["jane"]}}}},
            {"userPassword": {"source": {"secret": {"secretName": "d"}}, "propagationMethod": {"qemuGuestAgent": {}}}},
        ]))
        .unwrap();
        let dir = tempfile::tempdir().unwrap();
        for (place, file, text) in [
            ("0", "k", "ssh-rsa A\n"),
            ("1", "k", "ssh-rsa B"),
            ("2", "k", "ssh-rsa C"),
            ("3", "jane", "secret word\n"),
        ] {
            mounted::mount(&dir.path().join(place), &[(file, text)]);
        }
        let orders = Orders::read(&credentials, dir.path()).unwrap();
        assert_eq!(orders.keys["jane"], ["ssh-rsa A", "ssh-rsa C"]);
        assert_eq!(orders.keys["joe"], ["ssh-rsa A"]);
        assert_eq!(
            orders.passwords.iter().collect::<Vec<_>>(),
            [(&"jane".to_owned(), &"secret word".to_owned())]
        );
        std::fs::remove_dir_all(dir.path().join("2")).unwrap();
        assert!(Orders::read(&credentials, dir.path()).is_err());
        assert!(
            !is_by_agent(&credentials[1]) && is_by_agent(&credentials[2]) && is_by_agent(&credentials[3])
        );
    }
}
