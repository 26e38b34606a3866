//! What a pod's annotation asks for, held against what Multus has told.

use k8s_openapi::api::core::v1::Pod;
use podvirt_api::names::annotation::{NETWORK_STATUS, NETWORKS};
use serde::Deserialize;
use serde_json::{Value, json};

use super::multus::Made;

/// A network that a pod asks to be attached to: an element of [`NETWORKS`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Element {
    /// Name of the NetworkAttachmentDefinition.
    pub name: String,
    /// Its namespace; the pod's where it is empty.
    pub namespace: String,
    /// Name of the pod's interface. Multus makes one up for a pod that it attaches when the pod is made.
    pub interface: Option<String>,
    /// A MAC address.
    pub mac: Option<String>,
    /// Addresses.
    pub ips: Vec<String>,
    /// For the plugin alone.
    #[serde(rename = "cni-args")]
    pub arguments: Option<Value>,
}

/// An attachment that is to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Namespace of the NetworkAttachmentDefinition.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Name of the pod's interface.
    pub interface: String,
}

/// What is to be done. What is to end comes first: a network that is replaced may need the interface's name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// To be detached.
    pub detach: Vec<Attached>,
    /// To be attached; each has the name of an interface.
    pub attach: Vec<Element>,
    /// Not to be attached: another element has the same name of an interface.
    pub doubled: Vec<Element>,
}

/// An annotation cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the pod's annotation {key} is not a list of networks in JSON")]
pub struct Unreadable {
    key: &'static str,
    source: serde_json::Error,
}

/// What Multus has told of a pod, element by element, with all that it said.
#[derive(Clone, Debug, PartialEq)]
pub struct Told(Vec<Value>);

impl Told {
    /// That of `pod`; none where Multus has not told anything yet.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(pod: &Pod) -> Result<Option<Told>, Unreadable> {
        let Some(text) = annotation(pod, NETWORK_STATUS) else { return Ok(None) };
        read(NETWORK_STATUS, text).map(|list| Some(Told(list)))
    }

    /// The network that the pod has by the interface; the pod's first one, too.
    pub fn network(&self, interface: &str) -> Option<&str> {
        let told = self.0.iter().find(|told| told["interface"] == interface)?;
        Some(told["name"].as_str().unwrap_or_default())
    }

    /// The interface is no more.
    pub fn remove(&mut self, interface: &str) {
        self.0.retain(|told| told["interface"] != interface);
    }

    /// The interface is there.
    pub fn add(&mut self, namespace: &str, name: &str, interface: &str, made: &Made) {
        let mut told =
            json!({"name": format!("{namespace}/{name}"), "interface": interface, "dns": made.dns});
        if !made.ips.is_empty() {
            told["ips"] = made.ips.clone().into();
        }
        if let Some(mac) = &made.mac {
            told["mac"] = mac.as_str().into();
        }
        self.0.push(told);
    }

    /// The annotation.
    pub fn text(&self) -> String {
        Value::from(self.0.clone()).to_string()
    }
}

/// What is to be done for `pod`; nothing where it asks for no networks in JSON, which is the form that can name interfaces.
///
/// # Errors
/// An annotation cannot be read.
pub fn difference(pod: &Pod) -> Result<Difference, Unreadable> {
    let own = pod.metadata.namespace.as_deref().unwrap_or_default();
    let wanted = annotation(pod, NETWORKS).filter(|text| text.starts_with('['));
    let (Some(wanted), Some(Told(told))) = (wanted, Told::of(pod)?) else { return Ok(Difference::default()) };
    let mut wanted: Vec<Element> = read(NETWORKS, wanted)?;
    for element in wanted.iter_mut().filter(|element| element.namespace.is_empty()) {
        own.clone_into(&mut element.namespace);
    }
    let told: Vec<Attached> = told.iter().filter_map(|told| attached(told, own)).collect();
    let is = |element: &Element, there: &Attached| {
        element.interface.as_ref() == Some(&there.interface)
            && (&element.namespace, &element.name) == (&there.namespace, &there.name)
    };
    let gone = |there: &&Attached| {
        !is_of_multus(&there.interface) && !wanted.iter().any(|element| is(element, there))
    };
    let detach = told.iter().filter(gone).cloned().collect();
    let new = |element: &Element| {
        let named = element.interface.as_ref().is_some_and(|name| !name.is_empty());
        named && !told.iter().any(|there| is(element, there))
    };
    let is_doubled = |element: &Element| {
        wanted.iter().filter(|other| other.interface == element.interface).nth(1).is_some()
    };
    let (doubled, attach) = wanted.iter().filter(|element| new(element)).cloned().partition(is_doubled);
    Ok(Difference { detach, attach, doubled })
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(|text| text.trim()).filter(|text| !text.is_empty())
}

fn read<T: for<'a> Deserialize<'a>>(key: &'static str, text: &str) -> Result<Vec<T>, Unreadable> {
    serde_json::from_str(text).map_err(|source| Unreadable { key, source })
}

/// An element of [`NETWORK_STATUS`] that is about a network of its own, and not about the pod's first one.
fn attached(told: &Value, own: &str) -> Option<Attached> {
    if told["default"] == true {
        return None;
    }
    let interface = told["interface"].as_str().filter(|name| !name.is_empty())?;
    let name = told["name"].as_str()?;
    let (namespace, name) = name.split_once('/').unwrap_or((own, name));
    Some(Attached { namespace: namespace.into(), name: name.into(), interface: interface.into() })
}

/// Whether Multus has made the name up (`net1`): for an element without one, or for a network that its own configuration
/// has for all pods. Which of them an annotation still means cannot be told.
fn is_of_multus(interface: &str) -> bool {
    let number = interface.strip_prefix("net").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
#[path = "difference_tests.rs"]
mod tests;
