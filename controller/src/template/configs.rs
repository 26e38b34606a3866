//! Volumes of the pod from whose files virt-launcher makes disks of configuration: ConfigMaps, Secrets, the downward API and
//! ServiceAccounts.

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, ConfigMapVolumeSource, DownwardAPIProjection, DownwardAPIVolumeFile,
    DownwardAPIVolumeSource, KeyToPath, ObjectFieldSelector, ProjectedVolumeSource, SecretVolumeSource,
    ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use podvirt_api::names::path::Config;
use podvirt_api::v1::{self, VirtualMachineInstance};

use super::volumes::SECRET_MODE;

/// For how many seconds the token of a ServiceAccount is valid. Kubernetes asks for the same number where it mounts a token into a
/// pod by itself; an API server with `--service-account-extend-token-expiration` makes a year of just this number.
const TOKEN_SECONDS: i64 = 3607;
/// ConfigMap in each namespace with the CA of the API server.
const ROOT_CA: &str = "kube-root-ca.crt";

/// The pod's volume of this name for a volume of the machine, and what it holds, if that is of configuration.
pub(super) fn volume(source: &v1::Volume, name: String) -> Option<(Config, Volume)> {
    let none = Volume { name, ..Volume::default() };
    if let Some(map) = &source.config_map {
        let map = config_map(map.name.clone().unwrap_or_default(), map.optional);
        return Some((Config::ConfigMap, Volume { config_map: Some(map), ..none }));
    }
    if let Some(of) = &source.secret {
        let secret = secret(of.secret_name.clone(), of.optional);
        return Some((Config::Secret, Volume { secret: Some(secret), ..none }));
    }
    if let Some(of) = &source.downward_api {
        let items =
            DownwardAPIVolumeSource { default_mode: Some(SECRET_MODE), items: Some(of.fields.clone()) };
        return Some((Config::DownwardApi, Volume { downward_api: Some(items), ..none }));
    }
    if source.service_account.is_some() {
        return Some((Config::ServiceAccount, Volume { projected: Some(account()), ..none }));
    }
    let sysprep = source.sysprep.as_ref()?;
    let volume = match (&sysprep.config_map, &sysprep.secret) {
        (Some(map), _) => Volume { config_map: Some(config_map(map.name.clone(), None)), ..none },
        (None, of) => Volume { secret: Some(secret(of.as_ref().map(|of| of.name.clone()), None)), ..none },
    };
    Some((Config::Sysprep, volume))
}

/// The ServiceAccount that the pod runs as, if a volume of the machine has its token.
pub(super) fn service_account(vmi: &VirtualMachineInstance) -> Option<String> {
    let mut accounts = vmi.spec.volumes.iter().filter_map(|volume| volume.service_account.as_ref());
    accounts.find_map(|account| account.service_account_name.clone()).filter(|name| !name.is_empty())
}

fn config_map(name: String, optional: Option<bool>) -> ConfigMapVolumeSource {
    ConfigMapVolumeSource { name, optional, default_mode: Some(SECRET_MODE), items: None }
}

fn secret(secret_name: Option<String>, optional: Option<bool>) -> SecretVolumeSource {
    SecretVolumeSource { secret_name, optional, default_mode: Some(SECRET_MODE), items: None }
}

/// Token, CA and namespace, as Kubernetes mounts them into pods by itself.
fn account() -> ProjectedVolumeSource {
    let token = ServiceAccountTokenProjection {
        path: "token".into(),
        expiration_seconds: Some(TOKEN_SECONDS),
        ..ServiceAccountTokenProjection::default()
    };
    let ca = ConfigMapProjection {
        name: ROOT_CA.into(),
        items: Some(vec![KeyToPath { key: "ca.crt".into(), path: "ca.crt".into(), mode: None }]),
        optional: None,
    };
    let field =
        ObjectFieldSelector { api_version: Some("v1".into()), field_path: "metadata.namespace".into() };
    let namespace = DownwardAPIVolumeFile {
        path: "namespace".into(),
        field_ref: Some(field),
        ..DownwardAPIVolumeFile::default()
    };
    let sources = vec![
        VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() },
        VolumeProjection { config_map: Some(ca), ..VolumeProjection::default() },
        VolumeProjection {
            downward_api: Some(DownwardAPIProjection { items: Some(vec![namespace]) }),
            ..VolumeProjection::default()
        },
    ];
    ProjectedVolumeSource { default_mode: Some(SECRET_MODE), sources: Some(sources) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_is_mounted_from_what_it_names() {
        let pod = |source: serde_json::Value| {
            let mut given = json!({"name": "c"});
            json_patch::merge(&mut given, &source);
            let volume = volume(&serde_json::from_value(given).unwrap(), "vol".into());
            serde_json::to_value(volume.map(|(_, volume)| volume)).unwrap()
        };
        let mode = SECRET_MODE;
        for (source, expected) in [
            (
                json!({"configMap": {"name": "m", "optional": true, "volumeLabel": "l"}}),
                json!({"name": "vol", "configMap": {"name": "m", "optional": true, "defaultMode": mode}}),
            ),
            (
                json!({"secret": {"secretName": "s"}}),
                json!({"name": "vol", "secret": {"secretName": "s", "defaultMode": mode}}),
            ),
            (
                json!({"downwardAPI": {"fields": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
                json!({"name": "vol", "downwardAPI": {"defaultMode": mode,
                    "items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
            ),
            (
                json!({"sysprep": {"configMap": {"name": "m"}}}),
                json!({"name": "vol", "configMap": {"name": "m", "defaultMode": mode}}),
            ),
            (
                json!({"sysprep": {"secret": {"name": "s"}}}),
                json!({"name": "vol", "secret": {"secretName": "s", "defaultMode": mode}}),
            ),
            (json!({"emptyDisk": {"capacity": "1Gi"}}), json!(null)),
        ] {
            assert_eq!(pod(source), expected);
        }
        let token = pod(json!({"serviceAccount": {"serviceAccountName": "a"}}));
        assert_eq!(token["projected"]["sources"][0]["serviceAccountToken"]["path"], "token");
    }
}
