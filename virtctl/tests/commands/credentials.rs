//! credentials.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

use crate::fake::{Asked, Fake, Reply};

const VM: &str = "/apis/kubevirt.io/v1/namespaces/blue/virtualmachines/testvm";
const VMI: &str = "/apis/kubevirt.io/v1/namespaces/blue/virtualmachineinstances/testvm";
const SECRETS: &str = "/api/v1/namespaces/blue/secrets";

fn text(data: &Value) -> String {
    String::from_utf8(BASE64_STANDARD.decode(data.as_str().unwrap()).unwrap()).unwrap()
}

fn sent(asked: &Asked) -> Value {
    serde_json::from_str(&asked.body).unwrap()
}

/// A machine that gets its keys for joe and its passwords from the Secret `keys`, which it owns, with one key in it.
fn with_secret(asked: &Asked) -> Reply {
    let source = json!({"secret": {"secretName": "keys"}});
    let joe = json!({"qemuGuestAgent": {"users": ["joe"]}});
    let credentials = json!([
        {"sshPublicKey": {"source": source, "propagationMethod": joe}},
        {"userPassword": {"source": source, "propagationMethod": {"qemuGuestAgent": {}}}},
    ]);
    let line = asked.line.as_str();
    if line == format!("GET {VM}") {
        let spec = json!({"template": {"spec": {"accessCredentials": credentials}}});
        Reply::Json(200, json!({"metadata": {"name": "testvm", "uid": "u1"}, "spec": spec}))
    } else if line == format!("GET {SECRETS}/keys") {
        let owner = json!({"kind": "VirtualMachine", "name": "testvm", "uid": "u1"});
        let data = json!({"one": BASE64_STANDARD.encode("ssh-rsa A joe@here\n")});
        Reply::Json(200, json!({"metadata": {"name": "keys", "ownerReferences": [owner]}, "data": data}))
    } else if line.starts_with("PATCH ") || line.starts_with("PUT ") {
        Reply::ok()
    } else {
        Reply::status(404, "NotFound", "there is none")
    }
}

#[tokio::test]
async fn a_key_comes_into_the_secret_that_the_machine_has() {
    let fake = Fake::start(with_secret).await;
    let add = ["credentials", "add-ssh-key", "--user=joe", "testvm"];
    let done = fake.run(&[&add[..], &["--value=ssh-rsa B"]].concat()).await;
    let out = "Successfully added the key to secret \"keys\"\n";
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), out, ""));
    let asked = fake.seen().pop().unwrap();
    assert_eq!(asked.line, format!("PATCH {SECRETS}/keys"));
    assert_eq!(asked.headers["content-type"], "application/json-patch+json");
    let step = &sent(&asked)[0];
    assert_eq!(step["op"], "add");
    assert!(step["path"].as_str().unwrap().starts_with("/data/ssh-key-"), "{step}");
    assert_eq!(text(&step["value"]), "ssh-rsa B");

    // The key is there, in a file with a line's end.
    let file = fake.home.path().join("key.pub");
    std::fs::write(&file, "ssh-rsa A\n").unwrap();
    let before = fake.lines().len();
    let done = fake.run(&[&add[..], &["-f", file.to_str().unwrap()]].concat()).await;
    assert_eq!(done.out, "Secret \"keys\" already contains this SSH key.\n", "{}", done.err);
    assert_eq!(fake.lines()[before..], [format!("GET {VM}"), format!("GET {SECRETS}/keys")]);

    let done = fake.run(&[&add[..], &["--value=x", "--secret=other"]].concat()).await;
    assert_eq!((done.code, done.err.as_str()), (Some(1), "error: secret other was not assigned\n"));
    let done = fake.run(&add).await;
    assert!(done.err.contains("--file") && done.err.contains("--value"), "{}", done.err);
}

#[tokio::test]
async fn a_machine_without_a_secret_gets_one() {
    let fake = Fake::start(|asked| match asked.line.split_once(' ').unwrap() {
        ("GET", VM) => Reply::Json(
            200,
            json!({"metadata": {"name": "testvm", "uid": "u1"}, "spec": {"template": {"spec": {}}}}),
        ),
        ("GET", VMI) if asked.headers.contains_key("impersonate-user") => Reply::ok(),
        ("POST", SECRETS) => Reply::Json(201, json!({"metadata": {"name": "testvm-ssh-key-x"}})),
        ("PATCH", VM) => Reply::ok(),
        _ => Reply::status(404, "NotFound", "there is none"),
    })
    .await;
    let add = ["credentials", "add-ssh-key", "-u", "joe", "--value=ssh-rsa B", "testvm"];
    let done = fake.run(&add).await;
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "", ""));
    let seen = fake.seen();
    let secret = sent(&seen[2]);
    assert_eq!(secret["metadata"]["generateName"], "testvm-ssh-key-");
    let owner = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "testvm", "uid": "u1", "controller": true}]);
    assert_eq!(secret["metadata"]["ownerReferences"], owner);
    assert_eq!(secret["data"].as_object().unwrap().values().map(text).collect::<Vec<_>>(), ["ssh-rsa B"]);
    let steps = sent(&seen[4]);
    let credential = json!({"sshPublicKey": {
        "source": {"secret": {"secretName": "testvm-ssh-key-x"}},
        "propagationMethod": {"qemuGuestAgent": {"users": ["joe"]}},
    }});
    assert_eq!(steps[1]["value"], credential);

    // It runs: a new Secret would wait for its next start.
    let done = fake.run(&[&add[..], &["--as=ann"]].concat()).await;
    assert!(done.err.contains("virtual machine testvm is running. Use --force flag"), "{}", done.err);
    let done = fake.run(&[&add[..], &["--as=ann", "--force"]].concat()).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    let done = fake.run(&[&add[..], &["--update-secret"]].concat()).await;
    assert_eq!(done.err, "error: no secrets specified for user: joe\n");
}

/// A machine whose Secret `keys` another client changes before each of the first `conflicts` patches.
fn with_conflicts(conflicts: usize) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    let version = std::sync::atomic::AtomicUsize::new(1);
    move |asked| {
        use std::sync::atomic::Ordering::Relaxed;
        let line = asked.line.as_str();
        if line == format!("GET {SECRETS}/keys") {
            let Reply::Json(code, mut secret) = with_secret(asked) else { panic!("no Secret") };
            let now = version.load(Relaxed);
            secret["metadata"]["resourceVersion"] = json!(now.to_string());
            secret["data"][format!("of-version-{now}")] = json!("");
            return Reply::Json(code, secret);
        }
        if line.starts_with("PATCH ") && version.fetch_add(1, Relaxed) <= conflicts {
            return Reply::status(409, "Conflict", "the object has been modified");
        }
        with_secret(asked)
    }
}

#[tokio::test]
async fn a_secret_that_others_change_meanwhile_is_read_again_and_changed_as_it_is_then() {
    let fake = Fake::start(with_conflicts(2)).await;
    let of_testvm = ["testvm", "--user=joe", "--value=ssh-rsa A"];
    let done = fake.run(&[&["credentials", "remove-ssh-key"], &of_testvm[..]].concat()).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    let patches: Vec<_> =
        fake.seen().iter().filter(|asked| asked.line.starts_with("PATCH ")).map(sent).collect();
    let steps = |version: u8| {
        let left = json!({format!("of-version-{version}"): ""});
        json!([
            {"op": "add", "path": "/data", "value": left},
            {"op": "add", "path": "/metadata/resourceVersion", "value": version.to_string()},
        ])
    };
    assert_eq!(patches, [steps(1), steps(2), steps(3)]);

    // Others always come first.
    let fake = Fake::start(with_conflicts(usize::MAX - 1)).await;
    let set = ["credentials", "set-password", "testvm", "--user=joe", "-p", "secret"];
    let done = fake.run(&set).await;
    let told =
        "error: cannot change the secret \"keys\" in namespace \"blue\": the object has been modified\n";
    assert_eq!((done.code, done.err.as_str()), (Some(1), told));
    assert_eq!(fake.lines().iter().filter(|line| line.starts_with("PATCH ")).count(), 8);
}

#[tokio::test]
async fn a_key_leaves_the_secret() {
    let fake = Fake::start(with_secret).await;
    let remove = ["credentials", "remove-ssh-key", "testvm", "--value=ssh-rsa A"];
    let done = fake.run(&[&remove[..], &["--user=joe"]].concat()).await;
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "", ""));
    let asked = fake.seen().pop().unwrap();
    assert_eq!(asked.line, format!("PATCH {SECRETS}/keys"));
    assert_eq!(sent(&asked), json!([{"op": "add", "path": "/data", "value": {}}]));
    let done = fake.run(&[&remove[..], &["--user=ann"]].concat()).await;
    assert_eq!((done.code, done.out.as_str()), (Some(0), "No secrets associated with user ann\n"));
}

#[tokio::test]
async fn a_password_comes_into_the_secret() {
    let fake = Fake::start(with_secret).await;
    let set = ["credentials", "set-password", "testvm", "--user=joe", "-p", "secret"];
    let done = fake.run(&set).await;
    assert_eq!((done.code, done.out.as_str()), (Some(0), "Successfully set password in secret \"keys\"\n"));
    let asked = fake.seen().pop().unwrap();
    assert_eq!(
        sent(&asked),
        json!([{"op": "add", "path": "/data/joe", "value": BASE64_STANDARD.encode("secret")}])
    );

    // From a file, and from the standard input.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "from a file\n").unwrap();
    let path = format!("--password-file={}", file.path().display());
    let done = fake.run(&["credentials", "set-password", "testvm", "--user=joe", &path]).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    let value = json!(BASE64_STANDARD.encode("from a file"));
    assert_eq!(sent(&fake.seen().pop().unwrap())[0]["value"], value);
    let mut piped =
        fake.command(&["credentials", "set-password", "testvm", "--user=joe", "--password-file", "-"]);
    let input = std::fs::File::open(file.path()).unwrap();
    assert!(piped.stdin(input).status().await.unwrap().success());
    assert_eq!(sent(&fake.seen().pop().unwrap())[0]["value"], value);

    let foreign = Fake::start(|asked| match with_secret(asked) {
        Reply::Json(code, mut object) => {
            object["metadata"]["ownerReferences"] = Value::Null;
            Reply::Json(code, object)
        }
        other => other,
    })
    .await;
    let done = foreign.run(&set).await;
    let why = "error: secret keys does not have an owner reference pointing to VM testvm\n";
    assert_eq!((done.code, done.err.as_str()), (Some(1), why));
    let done = foreign.run(&[&set[..], &["--force"]].concat()).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
}
