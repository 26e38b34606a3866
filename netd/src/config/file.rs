//! The configuration file as it is written: every scalar is text until [`File::check`] judges it. It is what netd reads, and
//! what programs that start netd write.
//!
//! What each field means, its unit and its default stand at the fields of [`super::Config`] and in
//! `docs/netd-configuration.md`; the names are the same.

use std::fmt;

use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, ser};
use serde_json::Value;

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    /// Name of the guest.
    pub name: Option<String>,
    /// The vhost-user socket.
    pub vhost_user: VhostUser,
    /// The control socket.
    pub control: Control,
    /// Metrics over HTTP.
    pub metrics: Metrics,
    /// Interface name.
    pub interface: Option<String>,
    /// `true` or `false`.
    pub bind_interface: Option<String>,
    /// `passthrough` or `masquerade`.
    pub mode: Option<String>,
    /// netd's Ethernet address.
    pub mac: Option<String>,
    /// Bytes.
    pub mtu: Option<String>,
    /// What the guest is told.
    pub guest: Guest,
    /// The way to the pod's loopback.
    pub loopback: Loopback,
    /// Addresses of masquerade mode.
    pub masquerade: Masquerade,
    /// Forwarded ports.
    pub ports: Ports,
    /// Which peers the guest may speak to.
    pub egress: Egress,
    /// Bounds.
    pub limits: Limits,
    /// Times.
    pub timeouts: Timeouts,
    /// The hold.
    pub hold: Hold,
    /// `auto` or `never`.
    pub spin: Option<String>,
    /// `enforce`, `log` or `off`.
    pub sandbox: Option<String>,
    /// Log filter.
    pub log: Option<String>,
}

/// Section `vhost_user`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VhostUser {
    /// Path.
    pub socket: Option<String>,
    /// `server` or `client`.
    pub mode: Option<String>,
    /// Queue pairs.
    pub queue_pairs: Option<String>,
}

/// Section `control`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Path.
    pub socket: Option<String>,
    /// `true` or `false`.
    pub group: Option<String>,
}

/// Section `metrics`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Address and port.
    pub listen: Option<String>,
}

/// Section `hold`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hold {
    /// Path.
    pub socket: Option<String>,
}

/// Section `guest`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Guest {
    /// Ethernet address.
    pub mac: Option<String>,
    /// Host name.
    pub hostname: Option<String>,
    /// Fully qualified name.
    pub fqdn: Option<String>,
    /// Resolvers.
    pub dns: Option<Words>,
    /// Search domains.
    pub search: Option<Words>,
    /// Further DHCPv4 options.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dhcp_options: Vec<DhcpOption>,
}

/// An element of `guest.dhcp_options`: a code and one form of its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DhcpOption {
    /// Option code.
    pub code: Option<String>,
    /// Value as text.
    pub text: Option<String>,
    /// Value as IPv4 addresses.
    pub addresses: Option<Words>,
    /// Value in hexadecimal.
    pub hex: Option<String>,
}

/// Section `loopback`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Loopback {
    /// IPv4 address.
    pub ipv4: Option<String>,
    /// IPv6 address.
    pub ipv6: Option<String>,
}

/// Section `masquerade`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Masquerade {
    /// The guest's address with its prefix length.
    pub ipv4: Option<String>,
    /// The gateway's address.
    pub ipv4_gateway: Option<String>,
    /// The guest's address with its prefix length.
    pub ipv6: Option<String>,
}

/// Section `ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ports {
    /// Port entries.
    pub tcp: Option<Words>,
    /// Port entries.
    pub udp: Option<Words>,
    /// Presets, ports and ranges.
    pub reserved: Option<Words>,
    /// true or false.
    pub mesh: Option<String>,
    /// Listeners.
    pub all_ports_budget: Option<String>,
    /// Path.
    pub steering: Option<String>,
    /// true or false.
    pub ask_guest: Option<String>,
}

/// Section `egress`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Egress {
    /// `allow` or `deny`.
    pub default: Option<String>,
    /// `allow` or `deny`.
    pub metadata: Option<String>,
    /// Rules in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<EgressRule>,
}

/// An element of `egress.rules`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EgressRule {
    /// `allow` or `deny`.
    pub action: Option<String>,
    /// Networks.
    pub to: Option<Words>,
    /// `tcp`, `udp`, `icmp` or `any`.
    pub protocol: Option<String>,
    /// Ports and ranges.
    pub ports: Option<Words>,
}

/// Section `limits`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Flows.
    pub flows: Option<String>,
    /// Flows a second.
    pub new_flows_per_second: Option<String>,
    /// Flows.
    pub new_flows_burst: Option<String>,
    /// Bytes.
    pub fragment_bytes: Option<String>,
    /// Datagrams.
    pub fragment_datagrams: Option<String>,
}

/// Section `timeouts`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Time.
    pub udp_unreplied: Option<String>,
    /// Time.
    pub udp_replied: Option<String>,
    /// A question that was answered.
    pub udp_exchange: Option<String>,
    /// Time.
    pub echo: Option<String>,
    /// Time.
    pub tcp_handshake: Option<String>,
    /// Time.
    pub tcp_time_wait: Option<String>,
    /// Time.
    pub tcp_idle: Option<String>,
}

impl File {
    /// Reads YAML.
    ///
    /// # Errors
    ///
    /// What is not YAML, an unknown field or a value of a wrong shape; with its place.
    pub fn parse(text: &str) -> Result<File, serde_saphyr::Error> {
        // An empty document is YAML's null, and a configuration in which everything has its default.
        Ok(serde_saphyr::from_str::<Option<File>>(text)?.unwrap_or_default())
    }

    /// Writes YAML, which [`File::parse`] reads as the same file. What is not set is left out.
    ///
    /// # Errors
    ///
    /// Something cannot be written as YAML.
    pub fn to_yaml(&self) -> Result<String, serde_saphyr::ser::Error> {
        let mut value =
            serde_json::to_value(self).map_err(<serde_saphyr::ser::Error as ser::Error>::custom)?;
        leave_out_unset(&mut value);
        serde_saphyr::to_string(&value)
    }
}

/// Removes fields without a value, and sections without fields.
fn leave_out_unset(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(leave_out_unset);
            fields.retain(|_, field| {
                !field.is_null() && !field.as_object().is_some_and(serde_json::Map::is_empty)
            });
        }
        Value::Array(elements) => elements.iter_mut().for_each(leave_out_unset),
        _ => {}
    }
}

/// A list of words: a YAML sequence of scalars, or one scalar with commas as on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Words(pub Vec<String>);

impl Words {
    /// The words of `text`, which commas separate; an empty text has none.
    pub fn split(text: &str) -> Words {
        Words(text.split(',').map(str::trim).filter(|w| !w.is_empty()).map(str::to_owned).collect())
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordsVisitor)
    }
}

struct WordsVisitor;

impl<'de> Visitor<'de> for WordsVisitor {
    type Value = Words;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list, or one text with commas")
    }

    fn visit_str<E>(self, v: &str) -> Result<Words, E> {
        Ok(Words::split(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Words, E> {
        Ok(Words(vec![v.to_string()]))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Words, E> {
        Ok(Words(vec![v.to_string()]))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Words, E> {
        Ok(Words(vec![v.to_string()]))
    }

    fn visit_bool<E>(self, v: bool) -> Result<Words, E> {
        Ok(Words(vec![v.to_string()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Words, A::Error> {
        let mut words = Vec::new();
        while let Some(word) = seq.next_element::<String>()? {
            words.push(word);
        }
        Ok(Words(words))
    }
}
