//! adm, permitted-devices, and create of what has no cluster's answer.

use serde_json::{Value, json};

use crate::fake::{Fake, Reply};

const LIST: &str = "GET /apis/kubevirt.io/v1/kubevirts";

#[tokio::test]
async fn the_verbosity_of_logs_is_shown_and_set() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        LIST => Reply::Json(
            200,
            json!({"items": [{"metadata": {"name": "kv", "namespace": "podvirt"}, "spec": {"configuration": {}}}]}),
        ),
        "GET /apis/kubevirt.io/v1/namespaces/podvirt/kubevirts/kv" => {
            Reply::Json(200, json!({"metadata": {"resourceVersion": "7"}, "spec": {"configuration": {}}}))
        }
        line if line.starts_with("PATCH ") => Reply::ok(),
        _ => Reply::status(404, "NotFound", "there is none"),
    })
    .await;
    let done = fake.run(&["adm", "log-verbosity", "--virt-handler", "--virt-api"]).await;
    assert_eq!(
        (done.code, done.out.as_str(), done.err.as_str()),
        (Some(0), "virt-api=2\nvirt-handler=2\n", "")
    );
    let done = fake.run(&["adm", "log-verbosity", "--virt-handler=7"]).await;
    assert_eq!((done.code, done.out.as_str()), (Some(0), "successfully set/reset the log verbosity\n"));
    let asked = fake.seen().pop().unwrap();
    assert_eq!(asked.line, "PATCH /apis/kubevirt.io/v1/namespaces/podvirt/kubevirts/kv");
    let path = "/spec/configuration/developerConfiguration";
    assert_eq!(
        serde_json::from_str::<Value>(&asked.body).unwrap(),
        json!([
            {"op": "add", "path": path, "value": {}},
            {"op": "add", "path": format!("{path}/logVerbosity"), "value": {"virtHandler": 7}},
            {"op": "add", "path": "/metadata/resourceVersion", "value": "7"},
        ])
    );
    let done = fake.run(&["adm", "log-verbosity"]).await;
    assert_eq!(
        (done.code, done.err.as_str()),
        (Some(1), "error: no flag specified - expecting at least one flag\n")
    );

    let empty = Fake::start(|_| Reply::Json(200, json!({"items": []}))).await;
    let done = empty.run(&["adm", "log-verbosity", "--all"]).await;
    assert_eq!(done.err, "error: could not detect a KubeVirt installation\n");
}

#[tokio::test]
async fn permitted_devices_are_those_of_the_namespaces_kubevirt_object() {
    let fake = Fake::start(|_| {
        let devices = json!({"pciHostDevices": [{"resourceName": "intel.com/qat"}]});
        Reply::Json(200, json!({"items": [{"spec": {"configuration": {"permittedHostDevices": devices}}}]}))
    })
    .await;
    let done = fake.run(&["permitted-devices", "-n", "kubevirt"]).await;
    assert_eq!(
        done.out, "Permitted Devices: \nHost Devices: \nintel.com/qat \nGPU Devices: \n\n",
        "{}",
        done.err
    );
    assert_eq!(fake.lines(), ["GET /apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts"]);
}

#[tokio::test]
async fn instance_types_and_preferences_are_written_without_a_cluster() {
    let fake = Fake::start(|_| Reply::ok()).await;
    let done = fake.run(&["create", "instancetype", "--name=small", "--cpu=1", "--memory=1Gi"]).await;
    let manifest: Value = serde_saphyr::from_str(&done.out).unwrap();
    assert_eq!(
        manifest,
        json!({
            "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
            "metadata": {"name": "small"}, "spec": {"cpu": {"guest": 1}, "memory": {"guest": "1Gi"}},
        })
    );
    let done = fake.run(&["create", "preference", "--name=linux", "-n", "red"]).await;
    let manifest: Value = serde_saphyr::from_str(&done.out).unwrap();
    assert_eq!(manifest["kind"], "VirtualMachinePreference");
    assert_eq!(manifest["metadata"], json!({"name": "linux", "namespace": "red"}));
    assert!(fake.lines().is_empty());
}
