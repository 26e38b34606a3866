//! `credentials add-ssh-key`: a key comes into a Secret that the machine has for the user, or into a new one.

use anyhow::bail;
use serde_json::{Value, json};

use super::{Machine, key, secrets};
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
    cluster.patch(MACHINES, namespace, name, &assign(machine, secret, &args.of.user)).await.map_err(
        |error| {
            let doing = format!("give the secret {secret:?} to the VM {name:?} in namespace {namespace:?}");
            error.explain_plain(&doing)
        },
    )?;
    Ok(())
}

/// A Secret with the key, which ends with the machine.
fn manifest(machine: &Machine, key: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "generateName": format!("{}-ssh-key-", machine.name),
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
fn assign(machine: &Machine, secret: &str, user: &str) -> Vec<Value> {
    let list = pointer(&["spec", "template", "spec", "accessCredentials"]);
    let credential = json!({"sshPublicKey": {
        "source": {"secret": {"secretName": secret}},
        "propagationMethod": {"qemuGuestAgent": {"users": [user]}},
    }});
    let mut steps = Vec::new();
    if machine.credentials().is_none() {
        // That no other client has begun the list meanwhile.
        steps.push(json!({"op": "test", "path": list, "value": null}));
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
    let secret = machine.secret(cluster, name).await?;
    if secrets::contains(&secret, key) {
        return say(&format!("Secret \"{name}\" already contains this SSH key."));
    }
    if !args.of.force {
        secrets::check_owned(&secret, name, machine)?;
    }
    let entry = random::name(ENTRY, LETTERS);
    machine.write(cluster, name, &secret, (&entry, key)).await?;
    say(&format!("Successfully added the key to secret \"{name}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_credentials_gets_the_list_first() {
        let machine = |object: Value| Machine { namespace: "blue".into(), name: "web".into(), object };
        let list = "/spec/template/spec/accessCredentials";
        let steps = assign(&machine(json!({})), "s", "joe");
        let ops: Vec<_> = steps.iter().map(|step| (step["op"].as_str(), step["path"].as_str())).collect();
        let last = format!("{list}/-");
        assert_eq!(
            ops,
            [(Some("test"), Some(list)), (Some("add"), Some(list)), (Some("add"), Some(last.as_str()))]
        );
        let with = json!({"spec": {"template": {"spec": {"accessCredentials": []}}}});
        assert_eq!(assign(&machine(with), "s", "joe"), steps[2..]);
    }
}
