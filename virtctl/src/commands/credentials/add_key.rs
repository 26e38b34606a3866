//! `credentials add-ssh-key`: a key comes into a Secret that the machine has for the user, or into a new one.

use anyhow::bail;
use podvirt_api::names::limits::{MAX_OBJECT_NAME_BYTES, shortened_with};
use serde_json::{Value, json};

use super::{Machine, credentials, key, secrets};
use crate::api::Cluster;
use crate::api::objects::{MACHINES, SECRETS, pointer};
use crate::args::AddSshKey;
use crate::output::say;
use crate::random;
use crate::target::{Kind, Object, checked};

/// Before the random letters of an entry's name.
const ENTRY: &str = "ssh-key-";
/// How many of them.
const LETTERS: usize = 6;

pub(super) async fn run(cluster: &Cluster, args: &AddSshKey) -> anyhow::Result<()> {
    let key = key(&args.key)?;
    let machine = Machine::read(cluster, &args.of.vm).await?;
    let assigned = secrets::with_keys_of(&machine, &args.of.user);
    if args.create_secret || (!args.update_secret && assigned.is_empty()) {
        return create(cluster, args, &machine, &key).await;
    }
    if assigned.is_empty() {
        bail!("no secrets specified for user: {}", args.of.user);
    }
    let name = checked("secret", secrets::choose(args.of.secret.as_deref(), &assigned)?)?;
    update(cluster, args, &machine, &name, &key).await
}

async fn create(cluster: &Cluster, args: &AddSshKey, machine: &Machine, key: &str) -> anyhow::Result<()> {
    let (namespace, name) = (&machine.namespace, &machine.name);
    if !args.of.force {
        let instance = Object::new(Kind::Vmi, name, namespace)?;
        match cluster.get(&instance).await {
            Ok(_) => bail!(
                "virtual machine {name} is running. Use --force flag to update a running VM, it will take effect after \
                 restart"
            ),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.explain("read", &instance)),
        }
    }
    let made = cluster.create(SECRETS, namespace, &manifest(machine, key)).await;
    let made =
        made.map_err(|error| error.explain_plain(&format!("make a secret in namespace {namespace:?}")))?;
    let secret = made["metadata"]["name"].as_str().unwrap_or_default();
    let changed = cluster
        .change(MACHINES, namespace, name, |stored| Ok(assign_steps(stored, secret, &args.of.user)))
        .await;
    changed.map_err(|error| {
        let made = format!("the secret {secret:?} was made, and not given to the VM");
        error.explain(&format!("the VM {name:?} in namespace {namespace:?}")).context(made)
    })
}

/// A Secret with the key, which ends with the machine.
fn manifest(machine: &Machine, key: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "generateName": shortened_with(&machine.name, "-ssh-key-", MAX_OBJECT_NAME_BYTES),
            "namespace": machine.namespace,
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": machine.name,
                "uid": machine.object["metadata"]["uid"], "controller": true,
            }],
        },
        "data": {random::name(ENTRY, LETTERS): secrets::encoded(key)},
    })
}

/// The steps that name the Secret in the machine.
fn assign_steps(machine: &Value, secret: &str, user: &str) -> Vec<Value> {
    let list = pointer(&["spec", "template", "spec", "accessCredentials"]);
    let credential = json!({"sshPublicKey": {
        "source": {"secret": {"secretName": secret}},
        "propagationMethod": {"qemuGuestAgent": {"users": [user]}},
    }});
    let mut steps = Vec::new();
    if credentials(machine).is_none() {
        steps.push(json!({"op": "add", "path": list, "value": []}));
    }
    steps.push(json!({"op": "add", "path": format!("{list}/-"), "value": credential}));
    steps
}

async fn update(
    cluster: &Cluster,
    args: &AddSshKey,
    machine: &Machine,
    name: &str,
    key: &str,
) -> anyhow::Result<()> {
    let entry = random::name(ENTRY, LETTERS);
    let mut there = false;
    let steps = |secret: &Value| {
        there = secrets::contains(secret, key);
        if there {
            return Ok(Vec::new());
        }
        if !args.of.force {
            secrets::check_owned(secret, name, machine)?;
        }
        Ok(secrets::write_steps(secret, &entry, key))
    };
    machine.change_secret(cluster, name, steps).await?;
    if there {
        return say(&format!("Secret \"{name}\" already contains this SSH key."));
    }
    say(&format!("Successfully added the key to secret \"{name}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_of_a_machine_with_a_long_name_has_one_that_kubernetes_takes() {
        let machine = Machine { namespace: "blue".into(), name: "w".repeat(253), object: json!({}) };
        let secret = manifest(&machine, "ssh-ed25519 AAAA");
        let begin = secret["metadata"]["generateName"].as_str().unwrap();
        assert!(begin.len() <= MAX_OBJECT_NAME_BYTES && begin.ends_with("-ssh-key-"), "{begin}");
    }

    #[test]
    fn a_machine_without_credentials_gets_the_list_first() {
        let list = "/spec/template/spec/accessCredentials";
        let steps = assign_steps(&json!({}), "s", "joe");
        let ops: Vec<_> = steps.iter().map(|step| (step["op"].as_str(), step["path"].as_str())).collect();
        let last = format!("{list}/-");
        assert_eq!(ops, [(Some("add"), Some(list)), (Some("add"), Some(last.as_str()))]);
        let with = json!({"spec": {"template": {"spec": {"accessCredentials": []}}}});
        assert_eq!(assign_steps(&with, "s", "joe"), steps[1..]);
    }
}
