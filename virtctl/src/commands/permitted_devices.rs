//! `permitted-devices`: which devices of nodes the KubeVirt object of a namespace lets machines have.

use anyhow::bail;
use serde_json::Value;

use crate::api::Cluster;
use crate::output::say;
use crate::target::checked;

pub(super) async fn run(cluster: &Cluster) -> anyhow::Result<()> {
    let namespace = checked("namespace", cluster.namespace())?;
    let all = cluster.list("kubevirts", Some(&namespace), None).await.map_err(|error| {
        error.explain_plain(&format!("list the KubeVirt objects of namespace {namespace:?}"))
    })?;
    let Some(kubevirt) = all.first() else {
        bail!("no KubeVirt resource in {namespace:?} namespace");
    };
    say(&listed(&kubevirt["spec"]["configuration"]["permittedHostDevices"]))
}

fn listed(permitted: &Value) -> String {
    let names = |field: &str| {
        let devices = permitted[field].as_array();
        let names = devices.into_iter().flatten().filter_map(|device| device["resourceName"].as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let (host, gpu) = (names("pciHostDevices"), names("mediatedDevices"));
    format!("Permitted Devices: \nHost Devices: \n{host} \nGPU Devices: \n{gpu}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn devices_are_listed_by_their_resources() {
        let permitted = json!({
            "pciHostDevices": [{"resourceName": "a/b"}, {"resourceName": "c/d"}],
            "mediatedDevices": [{"resourceName": "e/f"}],
        });
        let expected = "Permitted Devices: \nHost Devices: \na/b, c/d \nGPU Devices: \ne/f";
        assert_eq!(listed(&permitted), expected);
        assert_eq!(listed(&Value::Null), "Permitted Devices: \nHost Devices: \n \nGPU Devices: \n");
    }
}
