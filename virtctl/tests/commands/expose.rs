//! expose.

use serde_json::{Value, json};

use crate::fake::{Fake, Reply};

#[tokio::test]
async fn a_service_is_made_that_leads_to_the_machine() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        "GET /apis/kubevirt.io/v1/namespaces/blue/virtualmachines/testvm" => Reply::Json(
            200,
            json!({"spec": {"template": {"spec": {
                "networks": [{"name": "default", "pod": {}}],
                "domain": {"devices": {"interfaces": [{"name": "default", "ports": [{"port": 80}]}]}},
            }}}}),
        ),
        "POST /api/v1/namespaces/blue/services" => Reply::Json(201, json!({})),
        _ => Reply::status(404, "NotFound", "no such object"),
    })
    .await;
    let done = fake.run(&["expose", "VM", "testvm", "--name=web", "--type=nodeport"]).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert_eq!(done.out, "Service web successfully created for vm testvm\n");
    let asked = fake.seen().pop().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&asked.body).unwrap(),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {
            "type": "NodePort", "selector": {"vmi.kubevirt.io/id": "testvm"}, "ports": [{"name": "port-1", "port": 80}],
        }})
    );

    let done = fake.run(&["expose", "vmi", "other", "--name=web", "--port=22"]).await;
    assert_eq!(done.code, Some(1));
    assert!(done.err.starts_with("error: cannot read vmi \"other\" in namespace \"blue\": "), "{}", done.err);
    let done = fake.run(&["expose", "pod", "other", "--name=web", "--port=22"]).await;
    assert!(done.err.starts_with("error: unsupported resource type: pod"), "{}", done.err);
    let done = fake.run(&["expose", "vmi", "other", "--port=22"]).await;
    assert!(done.err.contains("--name"), "{}", done.err);
}
