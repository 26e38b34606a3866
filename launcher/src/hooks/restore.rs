//! What hook sidecars lose of a domain without meaning to.
//!
//! Upstream's network binding sidecars, and others that are built with upstream's library, read the domain's XML into
//! upstream's types and write it from them. What these types have no place for is gone then, and some of what they have one for
//! is written empty. virt-launcher puts back what it had written itself of the following, where the answer lacks it. A
//! value that a sidecar has changed stays changed, and what belongs to an interface that it has taken away stays away.
//!
//! | element | what upstream's types do with it |
//! |---|---|
//! | `on_poweroff`, `on_crash` | lost |
//! | `disk`: `backingStore` | the empty one inside, which says that the chain ends there, is lost: QEMU would believe the file's own word |
//! | `features`: `tcg`; `apic` with `eoi`; `smm` with `state` | lost; the attributes alone |
//! | `interface` of the type `vhostuser`: `source` | its path and what is said of reconnecting are lost; one of another type gets an empty `source` |
//! | `interface`: `driver` | `rx_queue_size` and `tx_queue_size` are lost, and it gets a `name` without a value, which libvirt refuses |
//! | `qemu:override` | lost |
//! | `qemu:commandline` | lost; what a sidecar adds comes alone |
//!
//! An answer that lacks nothing of it is passed on as it is.

use crate::domain::schema::{QEMU_NAMESPACE, VHOST_USER};
use crate::xml_tree::{Document, Element, Node, TreeError};

/// Elements of the domain.
const OF_DOMAIN: [&str; 2] = ["on_poweroff", "on_crash"];
/// Attributes of features.
const OF_FEATURES: [(&str, &str); 2] = [("apic", "eoi"), ("smm", "state")];
/// Attributes of an interface's `driver`.
const OF_DRIVER: [&str; 2] = ["rx_queue_size", "tx_queue_size"];
/// The attribute by which a domain names QEMU's name space.
const QEMU_PREFIX: &str = "xmlns:qemu";

/// `answer`, a sidecar's to the domain `given`, with what it has lost.
///
/// # Errors
///
/// One of them is no XML.
pub(super) fn restored(given: &str, answer: String) -> Result<String, TreeError> {
    let ours = Document::read(given)?.root;
    let mut theirs = Document::read(&answer)?;
    let before = theirs.root.clone();
    domain(&ours, &mut theirs.root);
    Ok(if theirs.root == before { answer } else { theirs.write() })
}

fn domain(ours: &Element, theirs: &mut Element) {
    for name in OF_DOMAIN {
        put_back(ours, theirs, name);
    }
    if let Some(ours) = ours.child("features") {
        for theirs in theirs.all_mut("features") {
            put_back(ours, theirs, "tcg");
            for (feature, attribute) in OF_FEATURES {
                if let Some(ours) = ours.child(feature) {
                    theirs.all_mut(feature).for_each(|theirs| say_again(ours, theirs, attribute));
                }
            }
        }
    }
    for device in ["interface", "disk"] {
        let mend: fn(&Element, &mut Element) = if device == "disk" { disk } else { interface };
        for theirs in theirs.all_mut("devices").flat_map(|devices| devices.all_mut(device)) {
            let (name, kind) = (alias(theirs), theirs.value("type"));
            let mut known = ours.all("devices").flat_map(|devices| devices.all(device));
            let same = known.find(|one| name.is_some() && alias(one) == name && one.value("type") == kind);
            if let Some(ours) = same {
                mend(ours, theirs);
            }
        }
    }
    overrides(ours, theirs);
    command_line(ours, theirs);
}

/// Puts back a whole element.
fn put_back(ours: &Element, theirs: &mut Element, name: &str) {
    if theirs.child(name).is_none() {
        theirs.children.extend(ours.child(name).cloned().map(Node::Element));
    }
}

/// Puts back an attribute.
fn say_again(ours: &Element, theirs: &mut Element, attribute: &str) {
    let said = ours.attributes.iter().find(|(name, _)| name == attribute);
    if let Some(said) = said.filter(|_| theirs.value(attribute).is_none()) {
        theirs.attributes.push(said.clone());
    }
}

fn alias(device: &Element) -> Option<String> {
    device.child("alias")?.value("name")
}

fn interface(ours: &Element, theirs: &mut Element) {
    if let Some(ours) = ours.child("source").filter(|_| ours.value("type").as_deref() == Some(VHOST_USER)) {
        theirs.all_mut("source").filter(|theirs| theirs.value("path").is_none()).for_each(|theirs| {
            *theirs = ours.clone();
        });
    }
    if ours.child("source").is_none() {
        let empty = |one: &Element| one.attributes.is_empty() && one.children.is_empty();
        let left = |node: &Node| !matches!(node, Node::Element(one) if one.local() == "source" && empty(one));
        theirs.children.retain(left);
    }
    let Some(ours) = ours.child("driver") else { return };
    for theirs in theirs.all_mut("driver") {
        theirs.attributes.retain(|(_, value)| !value.is_empty());
        OF_DRIVER.iter().for_each(|attribute| say_again(ours, theirs, attribute));
    }
}

fn disk(ours: &Element, theirs: &mut Element) {
    const BELOW: &str = "backingStore";
    let Some(ours) = ours.child(BELOW) else { return };
    let file = |store: &Element| store.child("source").and_then(|source| source.value("file"));
    for theirs in theirs.all_mut(BELOW).filter(|theirs| file(theirs) == file(ours)) {
        put_back(ours, theirs, BELOW);
    }
}

/// Properties of devices that are still there.
fn overrides(ours: &Element, theirs: &mut Element) {
    let Some(ours) = ours.child("override").filter(|_| theirs.child("override").is_none()) else { return };
    let devices = theirs.all("devices").flat_map(|devices| &devices.children);
    let there: Vec<String> = devices
        .filter_map(|node| match node {
            Node::Element(element) => alias(element),
            Node::Raw(_) => None,
        })
        .collect();
    let mut ours = ours.clone();
    ours.children.retain(|node| match node {
        Node::Element(device) => device.value("alias").is_some_and(|alias| there.contains(&alias)),
        Node::Raw(_) => false,
    });
    if !ours.children.is_empty() {
        theirs.children.push(Node::Element(ours));
        name_prefix(theirs);
    }
}

/// The launcher's own words, before those of sidecars.
fn command_line(ours: &Element, theirs: &mut Element) {
    const NAME: &str = "commandline";
    let Some(ours) = ours.child(NAME) else { return };
    let words = |line: &Element| line.all("arg").filter_map(|word| word.value("value")).collect::<Vec<_>>();
    let wanted = words(ours);
    if wanted.is_empty() {
        return;
    }
    if theirs.child(NAME).is_none() {
        theirs.children.push(Node::Element(ours.clone()));
        name_prefix(theirs);
        return;
    }
    for theirs in theirs.all_mut(NAME) {
        if !words(theirs).windows(wanted.len()).any(|there| there == wanted) {
            // In the name space that theirs is in, by its prefix or without one.
            let name = format!("{}arg", theirs.name.strip_suffix(NAME).unwrap_or_default());
            let own =
                ours.all("arg").map(|word| Node::Element(Element { name: name.clone(), ..word.clone() }));
            drop(theirs.children.splice(..0, own));
        }
    }
}

/// What is put back has the prefix that the launcher writes.
fn name_prefix(domain: &mut Element) {
    if domain.value(QEMU_PREFIX).is_none() {
        domain.attributes.push((QEMU_PREFIX.into(), QEMU_NAMESPACE.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::schema::Domain;

    /// Domains of virt-launcher's, and what upstream's network-slirp-binding v1.8.0 answers to them: without any change
    /// (`callback.OnDefineDomain` with a mutator that returns what it is given), and with its own.
    const CASES: [(&str, &str, &str); 3] = [
        (
            include_str!("../../tests/hooks/full.xml"),
            include_str!("../../tests/hooks/full-same.xml"),
            include_str!("../../tests/hooks/full-slirp.xml"),
        ),
        (
            include_str!("../../tests/hooks/netd.xml"),
            include_str!("../../tests/hooks/netd-same.xml"),
            include_str!("../../tests/hooks/netd-slirp.xml"),
        ),
        (
            include_str!("../../tests/hooks/bridge.xml"),
            include_str!("../../tests/hooks/bridge-same.xml"),
            include_str!("../../tests/hooks/bridge-slirp.xml"),
        ),
    ];

    #[test]
    fn what_upstreams_library_loses_is_put_back() {
        for (given, same, slirp) in CASES {
            let ours = Domain::from_xml(given).unwrap();
            assert_ne!(Domain::from_xml(same).unwrap(), ours, "nothing is lost: the test is about nothing");
            let back = restored(given, same.into()).unwrap();
            assert_eq!(Domain::from_xml(&back).unwrap(), ours);
            assert!(!back.contains("name=\"\""), "libvirt refuses it: {back}");
            assert_eq!(restored(given, back.clone()).unwrap(), back);

            let mut back = Domain::from_xml(&restored(given, slirp.into()).unwrap()).unwrap();
            let mut words: Vec<String> =
                back.qemu_command_line.take().unwrap().arguments.into_iter().map(|word| word.value).collect();
            let added = words.split_off(words.len() - 4);
            assert_eq!([added[0].as_str(), &added[2]], ["-netdev", "-device"]);
            let mut ours = ours;
            let own = ours.qemu_command_line.take().map(|line| line.arguments).unwrap_or_default();
            assert_eq!(words, own.into_iter().map(|word| word.value).collect::<Vec<_>>());
            assert_eq!(back, ours);
        }
    }

    #[test]
    fn what_a_sidecar_means_stays() {
        let (given, ..) = CASES[1];
        assert_eq!(restored(given, given.into()).unwrap(), given, "as it was");
        for (from, to) in [
            ("rx_queue_size=\"1024\"", "rx_queue_size=\"256\""),
            ("<on_crash>destroy", "<on_crash>preserve"),
            ("path=\"/run/vm/net/default.sock\"", "path=\"/elsewhere\""),
            ("value=\"false\"", "value=\"true\""),
            (">128<", ">64<"),
        ] {
            let answer = given.replacen(from, to, 1);
            assert_ne!(answer, given, "{from}");
            assert_eq!(restored(given, answer.clone()).unwrap(), answer, "{to}");
        }
        // Without the interface there is nothing to override.
        let mut without = Domain::from_xml(given).unwrap();
        (without.devices.interfaces, without.qemu_override) = (Vec::new(), None);
        let back = Domain::from_xml(&restored(given, without.to_xml().unwrap()).unwrap()).unwrap();
        assert_eq!(back, without);
    }

    #[test]
    fn words_to_qemu_may_have_a_name_space_of_their_own() {
        // As libvirt's own Go library writes them.
        let given = CASES[1].0;
        let answer = format!(
            "<domain type='qemu'><name>demo_tiny</name><commandline xmlns='{QEMU_NAMESPACE}'><arg value='-x'></arg></commandline></domain>"
        );
        let back = restored(given, answer).unwrap();
        let words: Vec<_> = Domain::from_xml(&back)
            .unwrap()
            .qemu_command_line
            .unwrap()
            .arguments
            .into_iter()
            .map(|word| word.value)
            .collect();
        assert_eq!(words, ["-global", "virtio-net-device.ctrl_guest_offloads=off", "-x"]);
    }
}
