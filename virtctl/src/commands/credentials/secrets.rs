//! Which Secrets a machine's users have, and what is in one. Pure.

use anyhow::bail;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

use super::Machine;
use crate::api::objects::pointer;

/// The Secrets with keys of `user` that the guest's agent carries out.
pub(super) fn with_keys_of<'a>(machine: &'a Machine, user: &str) -> Vec<&'a str> {
    let users = |credential: &Value| {
        let users = credential["propagationMethod"]["qemuGuestAgent"]["users"].as_array();
        users.is_some_and(|users| users.iter().any(|one| one == user))
    };
    named(machine, "sshPublicKey", users)
}

/// The Secrets with passwords that the guest's agent carries out.
pub(super) fn with_passwords(machine: &Machine) -> Vec<&str> {
    named(machine, "userPassword", |credential| credential["propagationMethod"]["qemuGuestAgent"].is_object())
}

fn named<'a>(machine: &'a Machine, kind: &str, wanted: impl Fn(&Value) -> bool) -> Vec<&'a str> {
    let of_kind = machine.credentials().into_iter().flatten().map(|credential| &credential[kind]);
    let names = of_kind
        .filter(|credential| wanted(credential))
        .filter_map(|credential| credential["source"]["secret"]["secretName"].as_str());
    names.filter(|name| !name.is_empty()).collect()
}

/// The Secret that is meant of those that the machine has.
pub(super) fn choose<'a>(wanted: Option<&str>, secrets: &[&'a str]) -> anyhow::Result<&'a str> {
    match (wanted.filter(|name| !name.is_empty()), secrets) {
        (None, [one]) => Ok(one),
        (None, _) => {
            bail!("multiple secrets specified, use option --secret to specify which secret to modify")
        }
        (Some(name), _) => match secrets.iter().find(|one| **one == name) {
            Some(one) => Ok(one),
            None => bail!("secret {name} was not assigned"),
        },
    }
}

/// That the machine owns the Secret: then no other one is meant to use it.
pub(super) fn check_owned(secret: &Value, name: &str, machine: &Machine) -> anyhow::Result<()> {
    let owners = secret["metadata"]["ownerReferences"].as_array();
    let owned = owners.into_iter().flatten().any(|owner| {
        owner["kind"] == "VirtualMachine"
            && owner["name"] == machine.name.as_str()
            && owner["uid"] == machine.object["metadata"]["uid"]
    });
    if !owned {
        bail!("secret {name} does not have an owner reference pointing to VM {}", machine.name);
    }
    Ok(())
}

/// Whether a line has the key, with or without a comment behind it.
fn has_key(line: &str, key: &str) -> bool {
    line.trim().starts_with(key)
}

/// Whether one of the Secret's entries has the key.
pub(super) fn contains(secret: &Value, key: &str) -> bool {
    let entries = secret["data"].as_object();
    entries.into_iter().flatten().any(|(_, data)| text(data).lines().any(|line| has_key(line, key)))
}

/// The steps that write an entry of the Secret.
pub(super) fn write_steps(secret: &Value, entry: &str, text: &str) -> Vec<Value> {
    let mut steps = Vec::new();
    if !secret["data"].is_object() {
        steps.push(json!({"op": "add", "path": "/data", "value": {}}));
    }
    steps.push(json!({"op": "add", "path": pointer(&["data", entry]), "value": encoded(text)}));
    steps
}

/// The steps that take the key out of the Secret; none where it has no such key.
pub(super) fn remove_steps(secret: &Value, key: &str) -> Vec<Value> {
    let mut left = secret.clone();
    remove(&mut left, key);
    if left == *secret {
        return Vec::new();
    }
    vec![json!({"op": "add", "path": "/data", "value": left["data"]})]
}

/// Takes the key out of all entries, and an entry of which nothing is left out of the Secret.
fn remove(secret: &mut Value, key: &str) {
    let Some(entries) = secret["data"].as_object_mut() else { return };
    entries.retain(|_, data| {
        let text = text(data);
        if text.lines().any(|line| has_key(line, key)) {
            let left: Vec<&str> =
                text.lines().filter(|line| !line.trim().is_empty() && !has_key(line, key)).collect();
            *data = encoded(&left.join("\n"));
            return !left.is_empty();
        }
        true
    });
}

/// A text as an entry of a Secret.
pub(super) fn encoded(text: &str) -> Value {
    BASE64_STANDARD.encode(text).into()
}

fn text(data: &Value) -> String {
    let bytes = data.as_str().and_then(|data| BASE64_STANDARD.decode(data).ok()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(credentials: &Value) -> Machine {
        let object = json!({
            "metadata": {"uid": "u"}, "spec": {"template": {"spec": {"accessCredentials": credentials}}},
        });
        Machine { namespace: "blue".into(), name: "web".into(), object }
    }

    fn keys(secret: &str, method: &Value) -> Value {
        json!({"sshPublicKey": {"source": {"secret": {"secretName": secret}}, "propagationMethod": method}})
    }

    #[test]
    fn secrets_are_those_that_the_agent_carries_out_for_the_user() {
        let machine = machine(&json!([
            keys("a", &json!({"qemuGuestAgent": {"users": ["joe", "ann"]}})),
            keys("b", &json!({"qemuGuestAgent": {"users": ["ann"]}})),
            keys("c", &json!({"noCloud": {}})),
            keys("", &json!({"qemuGuestAgent": {"users": ["ann"]}})),
            {"userPassword": {"source": {"secret": {"secretName": "d"}}, "propagationMethod": {"qemuGuestAgent": {}}}},
            {"userPassword": {"source": {"secret": {"secretName": "e"}}, "propagationMethod": {}}},
        ]));
        assert_eq!(with_keys_of(&machine, "ann"), ["a", "b"]);
        assert_eq!(with_keys_of(&machine, "bob"), [""; 0]);
        assert_eq!(with_passwords(&machine), ["d"]);
    }

    #[test]
    fn one_of_several_secrets_must_be_named() {
        assert_eq!(choose(None, &["a"]).unwrap(), "a");
        assert_eq!(choose(Some("b"), &["a", "b"]).unwrap(), "b");
        assert!(choose(None, &["a", "b"]).unwrap_err().to_string().starts_with("multiple secrets"));
        assert_eq!(choose(Some("c"), &["a"]).unwrap_err().to_string(), "secret c was not assigned");
    }

    #[test]
    fn an_owner_is_the_same_machine_not_one_of_its_name() {
        let owned = |uid: &str| {
            let owner = json!({"kind": "VirtualMachine", "name": "web", "uid": uid});
            check_owned(&json!({"metadata": {"ownerReferences": [owner]}}), "s", &machine(&json!([])))
        };
        owned("u").unwrap();
        let why = "secret s does not have an owner reference pointing to VM web";
        assert_eq!(owned("older").unwrap_err().to_string(), why);
        assert!(check_owned(&json!({}), "s", &machine(&json!([]))).is_err());
    }

    #[test]
    fn a_key_is_found_with_its_comment_and_leaves_nothing_behind() {
        let mut secret = json!({"data": {
            "one": encoded("ssh-rsa A joe@here\n"),
            "two": encoded("# keys\n  ssh-rsa A\n\nssh-rsa B\n"),
            "three": encoded("ssh-rsa C\n\n"),
        }});
        assert!(contains(&secret, "ssh-rsa A"));
        remove(&mut secret, "ssh-rsa A");
        assert!(!contains(&secret, "ssh-rsa A"));
        let expected = json!({"two": encoded("# keys\nssh-rsa B"), "three": encoded("ssh-rsa C\n\n")});
        assert_eq!(secret["data"], expected);
        let mut empty = json!({});
        remove(&mut empty, "ssh-rsa A");
        assert!(!contains(&empty, "ssh-rsa A"));
    }
}
