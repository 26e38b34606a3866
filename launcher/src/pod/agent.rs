//! The guest's agent (qemu-guest-agent, JSON over the channel that libvirt keeps): what it is asked, and how often.
//!
//! libvirt tells when a program in the guest opens the channel. From then on the agent is asked for its version, the
//! operating system and the interfaces, after pauses that double from [`FIRST_PAUSE`] to [`LONGEST_PAUSE`]: a guest
//! that just booted still gets its addresses, one that runs for long changes seldom. A card that is plugged or unplugged
//! begins it anew. What an agent tells is the guest's word: it is kept within [`MAX_INTERFACES`] and [`MAX_TEXT`], and nothing is decided by it.

use std::net::IpAddr;
use std::time::Duration;

use podvirt_proto::domain::{GuestOsInfo, Interface};
use serde_json::{Value, json};
use tokio::time::sleep;
use tracing::debug;

use super::shared::{AgentFacts, Facts, Shared};
use crate::hypervisor::HypervisorError;

/// The first pause between two questions.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long an agent may take to answer.
pub(super) const ANSWER: Duration = Duration::from_secs(5);
/// How many interfaces of a guest are listened to.
const MAX_INTERFACES: usize = 64;
/// How many addresses of an interface are listened to.
const MAX_ADDRESSES: usize = 64;
/// Longest text that is taken over, characters.
pub(super) const MAX_TEXT: usize = 256;

/// Why an agent gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AgentError {
    /// The hypervisor or the agent refuses, or there is none.
    #[error(transparent)]
    Refused(#[from] HypervisorError),
    /// It is not connected.
    #[error("the guest's agent is not connected")]
    NotConnected,
    /// The answer is none.
    #[error("the guest's agent gave an answer that cannot be read")]
    Answer(#[from] serde_json::Error),
}

impl Shared {
    /// Gives the agent a command and returns what it returned.
    pub(super) async fn agent_command(
        &self,
        command: &str,
        arguments: Value,
        timeout: Duration,
    ) -> Result<Value, AgentError> {
        if !*self.agent_connected.borrow() {
            return Err(AgentError::NotConnected);
        }
        let mut request = json!({"execute": command});
        if let (Some(object), false) = (request.as_object_mut(), arguments.is_null()) {
            object.insert("arguments".into(), arguments);
        }
        let text = request.to_string();
        let answer = self.call(move |hypervisor| hypervisor.agent(&text, timeout)).await?;
        let mut answer: Value = serde_json::from_str(&answer)?;
        Ok(answer.get_mut("return").map(Value::take).unwrap_or_default())
    }
}

/// Asks the agent again and again while it is connected; never ends.
pub(super) async fn poll(shared: &Shared) {
    let mut connected = shared.agent_connected.subscribe();
    let mut facts = shared.facts.subscribe();
    loop {
        if connected.wait_for(|connected| *connected).await.is_err() {
            return std::future::pending().await;
        }
        let mut pause = FIRST_PAUSE;
        loop {
            let had = cards(&facts.borrow_and_update());
            match ask(shared).await {
                Ok(facts) => set(shared, facts),
                Err(error) => debug!(%error, "the guest's agent does not tell"),
            }
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                _ = connected.wait_for(|connected| !*connected) => break,
                _ = facts.wait_for(|facts| cards(facts) != had) => pause = FIRST_PAUSE,
            }
        }
        set(shared, AgentFacts::default());
    }
}

/// The MAC addresses of the cards that the machine has.
fn cards(facts: &Facts) -> Vec<String> {
    facts.interfaces.iter().filter(|one| !one.unplugged).map(|one| one.mac.clone()).collect()
}

fn set(shared: &Shared, facts: AgentFacts) {
    shared.agent.send_if_modified(|present| {
        let changed = *present != facts;
        *present = facts;
        changed
    });
}

async fn ask(shared: &Shared) -> Result<AgentFacts, AgentError> {
    let info = shared.agent_command("guest-info", Value::Null, ANSWER).await?;
    let interfaces = shared.agent_command("guest-network-get-interfaces", Value::Null, ANSWER).await?;
    // Agents of some systems have no such command.
    let os = shared.agent_command("guest-get-osinfo", Value::Null, ANSWER).await.ok();
    Ok(AgentFacts {
        version: Some(text(&info, "version")),
        os: os.map(|os| os_info(&os)),
        interfaces: read(&interfaces),
    })
}

/// A text of an answer, cut to what is taken over.
pub(super) fn text(value: &Value, field: &str) -> String {
    let text = value.get(field).and_then(Value::as_str).unwrap_or_default();
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}

/// What `guest-get-osinfo` returned.
pub(super) fn os_info(os: &Value) -> GuestOsInfo {
    GuestOsInfo {
        name: text(os, "name"),
        kernel_release: text(os, "kernel-release"),
        version: text(os, "version"),
        pretty_name: text(os, "pretty-name"),
        version_id: text(os, "version-id"),
        kernel_version: text(os, "kernel-version"),
        machine: text(os, "machine"),
        id: text(os, "id"),
    }
}

/// What `guest-network-get-interfaces` returned, without the guest's loopback and without link-local addresses.
pub(super) fn read(interfaces: &Value) -> Vec<Interface> {
    let listed = interfaces.as_array().map(Vec::as_slice).unwrap_or_default();
    listed
        .iter()
        .filter(|i| text(i, "name") != "lo")
        .take(MAX_INTERFACES)
        .map(|i| Interface {
            interface_name: text(i, "name"),
            mac: text(i, "hardware-address").to_ascii_lowercase(),
            ips: addresses(i.get("ip-addresses").unwrap_or(&Value::Null)),
            ..Interface::default()
        })
        .collect()
}

fn addresses(listed: &Value) -> Vec<String> {
    let listed = listed.as_array().map(Vec::as_slice).unwrap_or_default();
    listed
        .iter()
        .filter_map(|a| a.get("ip-address")?.as_str()?.parse::<IpAddr>().ok())
        .filter(|ip| match ip {
            IpAddr::V4(ip) => !ip.is_link_local() && !ip.is_loopback(),
            IpAddr::V6(ip) => !ip.is_unicast_link_local() && !ip.is_loopback(),
        })
        .take(MAX_ADDRESSES)
        .map(|ip| ip.to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_taken_without_loopback_and_link_local_addresses() {
        let told = json!([
            {"name": "lo", "ip-addresses": [{"ip-address": "127.0.0.1"}]},
            {"name": "eth0", "hardware-address": "52:54:00:AB:00:01", "ip-addresses": [
                {"ip-address": "fe80::1", "ip-address-type": "ipv6", "prefix": 64},
                {"ip-address": "10.0.0.2", "ip-address-type": "ipv4", "prefix": 24},
                {"ip-address": "no address"}, 7,
            ]},
            {"name": 5}, "nonsense",
        ]);
        let interfaces = read(&told);
        assert_eq!(interfaces.len(), 3);
        assert_eq!(interfaces[0].interface_name, "eth0");
        assert_eq!(interfaces[0].mac, "52:54:00:ab:00:01");
        assert_eq!(interfaces[0].ips, ["10.0.0.2"]);
        assert!(read(&json!({"a": 1})).is_empty());
    }

    #[test]
    fn a_guest_cannot_fill_the_report() {
        let many: Vec<Value> = (0..1_000).map(|n| json!({"name": format!("e{n}")})).collect();
        assert_eq!(read(&Value::Array(many)).len(), MAX_INTERFACES);
        let os = os_info(&json!({"name": "x".repeat(10_000), "id": "a\nb"}));
        assert_eq!((os.name.len(), os.id.as_str()), (MAX_TEXT, "ab"));
    }
}
