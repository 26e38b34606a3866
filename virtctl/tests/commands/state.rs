//! start, stop, restart, pause, unpause, version.

use serde_json::{Value, json};

use crate::fake::{Fake, Reply};

const VM: &str = "/apis/subresources.kubevirt.io/v1/namespaces/blue/virtualmachines/testvm";
const VMI: &str = "/apis/subresources.kubevirt.io/v1/namespaces/blue/virtualmachineinstances/testvm";

#[tokio::test]
async fn states_are_asked_for_as_upstream_does() {
    let fake = Fake::start(|_| Reply::ok()).await;
    let cases: [(&str, &str, Value, &str); 12] = [
        ("start testvm", "start", json!({}), "VM testvm was scheduled to start\n"),
        ("start testvm --paused", "start", json!({"paused": true}), "VM testvm was scheduled to start\n"),
        (
            "start testvm --dry-run",
            "start",
            json!({"dryRun": ["All"]}),
            "Dry Run execution\nVM testvm was scheduled to start\n",
        ),
        ("stop testvm", "stop", json!({}), "VM testvm was scheduled to stop\n"),
        (
            "stop testvm --force --grace-period=0",
            "stop",
            json!({"gracePeriod": 0}),
            "VM testvm was scheduled to stop\n",
        ),
        (
            "stop testvm --force=true --grace-period 7",
            "stop",
            json!({"gracePeriod": 7}),
            "VM testvm was scheduled to stop\n",
        ),
        ("restart testvm", "restart", json!({}), "VM testvm was scheduled to restart\n"),
        (
            "restart --force --grace-period=0 testvm",
            "restart",
            json!({"gracePeriodSeconds": 0}),
            "VM testvm was scheduled to restart\n",
        ),
        ("migrate testvm", "migrate", json!({}), "VM testvm was scheduled to migrate\n"),
        (
            "migrate testvm --addedNodeSelector zone=a,disk=fast --dry-run",
            "migrate",
            json!({"dryRun": ["All"], "addedNodeSelector": {"zone": "a", "disk": "fast"}}),
            "Dry Run execution\nVM testvm was scheduled to migrate\n",
        ),
        ("pause vmi testvm", "pause", json!({}), "VMI testvm was scheduled to pause\n"),
        (
            "unpause VMIs testvm --dry-run",
            "unpause",
            json!({"dryRun": ["All"]}),
            "Dry Run execution\nVMI testvm was scheduled to unpause\n",
        ),
    ];
    for (line, verb, body, out) in cases {
        let done = fake.run(&line.split(' ').collect::<Vec<_>>()).await;
        assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), out, ""), "{line}");
        let asked = fake.seen().pop().unwrap();
        let base = if verb.ends_with("pause") { VMI } else { VM };
        assert_eq!(asked.line, format!("PUT {base}/{verb}"), "{line}");
        assert_eq!(serde_json::from_str::<Value>(&asked.body).unwrap(), body, "{line}");
        assert_eq!(asked.headers["content-type"], "application/json");
    }
}

#[tokio::test]
async fn a_machine_is_printed_with_what_its_instance_type_says() {
    let expanded = json!({"kind": "VirtualMachine", "spec": {"runStrategy": "Halted"}});
    let answer = expanded.clone();
    let fake = Fake::start(move |_| Reply::Json(200, answer.clone())).await;
    let done = fake.run(&["expand", "--vm", "testvm", "-o", "json"]).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert_eq!(serde_json::from_str::<Value>(&done.out).unwrap(), expanded);
    assert_eq!(fake.seen().pop().unwrap().line, format!("GET {VM}/expand-spec"));
    let file = fake.home.path().join("vm.yaml");
    std::fs::write(&file, "kind: VirtualMachine\nmetadata: {name: testvm}\n").unwrap();
    let done = fake.run(&["expand", "--file", file.to_str().unwrap()]).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert_eq!(done.out, "kind: VirtualMachine\nspec:\n  runStrategy: Halted\n");
    let asked = fake.seen().pop().unwrap();
    assert_eq!(asked.line, "PUT /apis/subresources.kubevirt.io/v1/namespaces/blue/expand-vm-spec");
    let sent: Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(sent, json!({"kind": "VirtualMachine", "metadata": {"name": "testvm"}}));
    for words in
        [&["expand"][..], &["expand", "--vm", "a", "--file", "b"], &["expand", "--vm", "a", "-o", "xml"]]
    {
        assert_ne!(fake.run(words).await.code, Some(0), "{words:?}");
    }
}

#[tokio::test]
async fn a_machine_is_looked_up_before_it_is_paused() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        "GET /apis/kubevirt.io/v1/namespaces/blue/virtualmachines/testvm" => {
            Reply::Json(200, json!({"kind": "VirtualMachine"}))
        }
        line if line.starts_with("PUT") => {
            Reply::status(404, "NotFound", "virtualmachineinstance.kubevirt.io \"testvm\" not found")
        }
        _ => Reply::status(404, "NotFound", "virtualmachine.kubevirt.io \"other\" not found"),
    })
    .await;
    let done = fake.run(&["pause", "vm", "testvm"]).await;
    assert_eq!(done.code, Some(1));
    assert_eq!(
        done.err,
        "error: cannot pause VM \"testvm\" in namespace \"blue\": it does not run\n  To start it: virtctl start testvm -n blue\n"
    );
    let done = fake.run(&["unpause", "vm", "other"]).await;
    assert!(
        done.err
            .starts_with("error: cannot unpause VM \"other\" in namespace \"blue\": there is no such vm\n"),
        "{}",
        done.err
    );
    assert_eq!(fake.lines().iter().filter(|line| line.starts_with("PUT")).count(), 1);
}

#[tokio::test]
async fn the_namespace_is_the_flags_then_the_contexts() {
    let fake = Fake::start(|_| Reply::ok()).await;
    for (words, namespace) in [
        (&["start", "a"][..], "blue"),
        (&["start", "a", "-n", "red"], "red"),
        (&["--namespace=red", "start", "a"], "red"),
    ] {
        assert_eq!(fake.run(words).await.code, Some(0));
        let line = fake.lines().pop().unwrap();
        assert!(line.contains(&format!("/namespaces/{namespace}/virtualmachines/a/")), "{line}");
    }
}

#[tokio::test]
async fn wrong_words_are_told_before_anything_is_asked() {
    let fake = Fake::start(|_| Reply::ok()).await;
    for (line, told) in [
        ("stop testvm --force", "--force needs --grace-period"),
        ("stop testvm --grace-period=5", "--grace-period=5 needs --force"),
        ("restart testvm --force --grace-period=-1", "--grace-period=-1 is not possible"),
        ("start ../../x", "name \"../../x\" is not valid"),
        ("start testvm -n Blue", "namespace \"Blue\" is not valid"),
        ("pause pod testvm", "\"pod\" is not a type of machine"),
        ("start", "<VM>"),
        ("strat testvm", "strat"),
    ] {
        let done = fake.run(&line.split(' ').collect::<Vec<_>>()).await;
        assert_eq!((done.code, done.out.as_str()), (Some(1), ""), "{line}");
        assert!(done.err.contains(told), "{line}: {}", done.err);
    }
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn refusals_are_explained() {
    let fake = Fake::start(|asked| {
        let name = asked.line.rsplit('/').nth(1).unwrap_or_default();
        match name {
            "gone" => Reply::status(404, "NotFound", "virtualmachine.kubevirt.io \"gone\" not found"),
            "denied" => Reply::status(403, "Forbidden", "User \"bob\" cannot update resource"),
            "running" => Reply::status(409, "Conflict", "VM is already running"),
            "away" => Reply::Text(503, "service unavailable\n"),
            _ => Reply::Text(404, "404 page not found\n"),
        }
    })
    .await;
    for (name, err) in [
        ("gone", "there is no such vm\n  To see which there are: kubectl get vm -n blue"),
        (
            "denied",
            "not allowed: User \"bob\" cannot update resource\n  An administrator can allow it by a role for namespace blue: verb update on virtualmachines/start in API group subresources.kubevirt.io.",
        ),
        ("running", "VM is already running\n"),
        ("away", "virt-api does not answer: service unavailable\n"),
        ("unserved", "the cluster does not serve subresources.kubevirt.io\n  Is podvirt installed there"),
    ] {
        let done = fake.run(&["start", name]).await;
        let whole = format!("error: cannot start VM \"{name}\" in namespace \"blue\": {err}");
        assert_eq!(done.code, Some(1));
        assert!(done.err.starts_with(&whole), "{}", done.err);
    }
    // One request each: a user sees an answer, not a program that tries again for minutes.
    assert_eq!(fake.seen().len(), 5);
}

#[tokio::test]
async fn versions_are_told_in_upstreams_form() {
    let fake =
        Fake::start(|_| Reply::Json(200, json!({"gitVersion": "v1.8.0", "platform": "linux/amd64"}))).await;
    let done = fake.run(&["version"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let lines: Vec<_> = done.out.lines().collect();
    assert!(lines[0].starts_with(&format!(
        "Client Version: version.Info{{GitVersion:\"v{}\"",
        env!("CARGO_PKG_VERSION")
    )));
    assert!(
        lines[1].starts_with("Server Version: version.Info{GitVersion:\"v1.8.0\", GitCommit:\"\""),
        "{}",
        lines[1]
    );
    assert_eq!(fake.lines(), ["GET /apis/subresources.kubevirt.io/v1/version"]);
    let done = fake.run(&["version", "--client"]).await;
    assert_eq!((done.code, done.out.lines().count()), (Some(0), 1));
    assert_eq!(fake.seen().len(), 1);
}

const MIGRATIONS: &str = "/apis/kubevirt.io/v1/namespaces/blue/virtualmachineinstancemigrations";

#[tokio::test]
async fn the_open_migration_of_the_machine_is_cancelled() {
    let migration = |name: &str, vmi: &str, phase: &str| json!({"metadata": {"name": name}, "spec": {"vmiName": vmi}, "status": {"phase": phase}});
    let items = json!({"items": [
        migration("old", "testvm", "Succeeded"),
        migration("others", "other", "Running"),
        migration("open", "testvm", "Running"),
    ]});
    let fake = Fake::start(move |asked| {
        if asked.line.starts_with("GET") { Reply::Json(200, items.clone()) } else { Reply::ok() }
    })
    .await;
    for (line, query) in [("migrate-cancel testvm", ""), ("migrate-cancel testvm --dry-run", "?dryRun=All")] {
        let done = fake.run(&line.split(' ').collect::<Vec<_>>()).await;
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
        assert!(done.out.ends_with("VM testvm was scheduled to migrate-cancel\n"), "{}", done.out);
        let seen = fake.seen();
        let lines: Vec<&str> = seen.iter().map(|asked| asked.line.as_str()).collect();
        assert_eq!(
            lines[lines.len() - 2..],
            [format!("GET {MIGRATIONS}"), format!("DELETE {MIGRATIONS}/open{query}")]
        );
    }
    let done = fake.run(&["migrate-cancel", "idle"]).await;
    assert_eq!((done.code, done.err.as_str()), (Some(1), "error: Found no migration to cancel for idle\n"));
    let done = fake.run(&["migrate", "testvm", "--addedNodeSelector", "zone"]).await;
    assert!(done.err.contains("--addedNodeSelector=zone must have the form KEY=VALUE"), "{}", done.err);
}

#[tokio::test]
async fn evacuations_are_cancelled_by_machine_and_by_node() {
    let vmi = |name: &str, node: Value| json!({"metadata": {"name": name, "namespace": "red"}, "status": {"evacuationNodeName": node}});
    let items = json!({"items": [vmi("a", json!("n1")), vmi("b", Value::Null), vmi("c", json!("n1"))]});
    let fake = Fake::start(move |asked| {
        if asked.line.starts_with("GET") { Reply::Json(200, items.clone()) } else { Reply::ok() }
    })
    .await;
    for (line, base, out) in [
        ("evacuate-cancel vm testvm", VM, "VM blue/testvm is no longer marked for evacuation\n"),
        ("evacuate-cancel vmi testvm", VMI, "VMI blue/testvm is no longer marked for evacuation\n"),
    ] {
        let done = fake.run(&line.split(' ').collect::<Vec<_>>()).await;
        assert_eq!((done.code, done.out.as_str()), (Some(0), out));
        let asked = fake.seen().pop().unwrap();
        assert_eq!((asked.line, asked.body.as_str()), (format!("PUT {base}/evacuate/cancel"), "{}"));
    }
    let done = fake.run(&["evacuate-cancel", "node", "n1"]).await;
    assert_eq!(
        done.out,
        "VMI red/a is no longer marked for evacuation\nVMI red/c is no longer marked for evacuation\n"
    );
    // A machine that is marked for another node by now keeps its mark.
    assert_eq!(fake.seen().pop().unwrap().body, r#"{"evacuationNodeName":"n1"}"#);
    let lines: Vec<String> = fake.seen().into_iter().map(|asked| asked.line).collect();
    let red = "/apis/subresources.kubevirt.io/v1/namespaces/red/virtualmachineinstances";
    assert_eq!(
        lines[lines.len() - 3..],
        [
            "GET /apis/kubevirt.io/v1/virtualmachineinstances?labelSelector=kubevirt.io%2FnodeName%3Dn1"
                .to_owned(),
            format!("PUT {red}/a/evacuate/cancel"),
            format!("PUT {red}/c/evacuate/cancel"),
        ]
    );
    let done = fake.run(&["evacuate-cancel", "node", "n2"]).await;
    assert_eq!(done.err, "error: no virtual machine instance is to leave node n2\n");
    let done = fake.run(&["evacuate-cancel", "pod", "x"]).await;
    assert!(done.err.contains("use vm, vmi or node"), "{}", done.err);
}

#[tokio::test]
async fn a_machine_that_cannot_be_let_stay_keeps_no_other_one_of_the_node_from_it() {
    let vmi = |name: &str| json!({"metadata": {"name": name, "namespace": "red"}, "status": {"evacuationNodeName": "n1"}});
    let items = json!({"items": [vmi("a"), vmi("c")]});
    let fake = Fake::start(move |asked| match asked.line.as_str() {
        line if line.starts_with("GET") => Reply::Json(200, items.clone()),
        line if line.contains("/a/") => Reply::status(409, "Conflict", "it is to leave node n2, not n1"),
        _ => Reply::ok(),
    })
    .await;
    let done = fake.run(&["evacuate-cancel", "node", "n1"]).await;
    assert_eq!(done.out, "VMI red/c is no longer marked for evacuation\n");
    assert!(done.code == Some(1) && done.err.contains("it is to leave node n2"), "{}", done.err);
}
