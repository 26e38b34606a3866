//! Hook sidecars: containers of a machine's users that have a say in its domain before it starts.
//!
//! A machine asks for them by the annotation [`HOOK_SIDECARS`], a JSON list in upstream's form. As upstream has it, the
//! cluster's administrator allows them by the feature gate [`gates::SIDECAR`]: users who may make a machine have images of their own
//! run by it.

use std::path::{Component, Path};

use serde::Deserialize;
use serde_json::Value;

use crate::gates;
use crate::names::annotation::HOOK_SIDECARS;
use crate::names::path;
use crate::problem::{Problems, Reason};
use crate::v1;

/// An element of the annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HookSidecar {
    /// Its image.
    pub image: String,
    /// When the image is pulled; Kubernetes' default when empty.
    pub image_pull_policy: String,
    /// Its command; the image's when empty.
    pub command: Vec<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// A file of a ConfigMap in it.
    pub config_map: Option<HookFile>,
    /// A claim in it.
    pub pvc: Option<HookClaim>,
}

/// A key of a ConfigMap that a sidecar has as a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HookFile {
    /// The ConfigMap.
    pub name: String,
    /// The key.
    pub key: String,
    /// Where the sidecar has the file.
    pub hook_path: String,
}

/// A claim that a sidecar has as a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HookClaim {
    /// The claim.
    pub name: String,
    /// Where the sidecar has it.
    pub volume_path: String,
    /// Where virt-launcher and QEMU have it; nowhere when empty.
    pub shared_compute_path: String,
}

/// The sidecars that a machine with this value of the annotation asks for.
///
/// # Errors
///
/// Every problem of the value, below `field`.
pub fn parse(text: &str, field: &str) -> Result<Vec<HookSidecar>, Problems> {
    let mut problems = Problems::default();
    let mut sidecars = Vec::new();
    let list: Vec<Value> = match text.trim() {
        "" => Vec::new(),
        text => serde_json::from_str(text).unwrap_or_else(|error| {
            problems.invalid(
                field,
                text.escape_debug(),
                &format!("a JSON list of objects is allowed ({error})"),
            );
            Vec::new()
        }),
    };
    for (n, element) in list.into_iter().enumerate() {
        let here = format!("{field}[{n}]");
        let given = element.to_string();
        match serde_json::from_value::<HookSidecar>(element) {
            Ok(sidecar) => {
                sidecar.judge(&here, &mut problems);
                sidecars.push(sidecar);
            }
            Err(error) => problems.invalid(here, given.escape_debug(), &error.to_string()),
        }
    }
    problems.into_result().map(|()| sidecars)
}

/// The sidecars that an object with these annotations asks for.
///
/// # Errors
///
/// As [`parse`].
pub fn of<'a>(
    annotations: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Result<Vec<HookSidecar>, Problems> {
    let given = annotations.into_iter().find(|(key, _)| *key == HOOK_SIDECARS);
    let field = format!("metadata.annotations[{HOOK_SIDECARS}]");
    given.map_or_else(|| Ok(Vec::new()), |(_, text)| parse(text, &field))
}

/// Whether the cluster allows hook sidecars.
pub fn allowed(config: &v1::KubeVirtConfiguration) -> bool {
    gates::is_open(config, gates::SIDECAR)
}

/// What is said to a machine that asks for sidecars where the cluster does not allow them.
pub const NOT_ALLOWED: &str = "hook sidecars are not allowed in this cluster; the feature gate Sidecar in \
    spec.configuration.developerConfiguration.featureGates of the KubeVirt object allows them";

/// Whether these annotations ask for sidecars.
pub(crate) fn asks(annotations: &Value) -> bool {
    annotations[HOOK_SIDECARS].as_str().is_some_and(|text| !matches!(text.trim(), "" | "[]"))
}

/// Notes annotations, which stand at `path`, that ask for sidecars where the cluster does not allow them.
pub fn check_allowed(
    annotations: &Value,
    path: &str,
    config: &v1::KubeVirtConfiguration,
    problems: &mut Problems,
) {
    if asks(annotations) && !allowed(config) {
        problems.add(Reason::FieldValueNotSupported, format!("{path}[{HOOK_SIDECARS}]"), NOT_ALLOWED);
    }
}

impl HookSidecar {
    fn judge(&self, here: &str, problems: &mut Problems) {
        if self.image.is_empty() {
            problems.required(
                format!("{here}.image"),
                "an image is required: podvirt has no image of its own for hook sidecars",
            );
        }
        let policies = ["", "Always", "IfNotPresent", "Never"];
        if !policies.contains(&self.image_pull_policy.as_str()) {
            let allowed = "one of Always, IfNotPresent, Never is allowed";
            problems.invalid(
                format!("{here}.imagePullPolicy"),
                self.image_pull_policy.escape_debug(),
                allowed,
            );
        }
        if let Some(file) = &self.config_map {
            named(&file.name, &format!("{here}.configMap.name"), problems);
            named(&file.key, &format!("{here}.configMap.key"), problems);
            absolute(&file.hook_path, &format!("{here}.configMap.hookPath"), problems);
        }
        if let Some(claim) = &self.pvc {
            named(&claim.name, &format!("{here}.pvc.name"), problems);
            absolute(&claim.volume_path, &format!("{here}.pvc.volumePath"), problems);
            if !claim.shared_compute_path.is_empty() {
                shared(&claim.shared_compute_path, &format!("{here}.pvc.sharedComputePath"), problems);
            }
        }
    }
}

fn named(text: &str, field: &str, problems: &mut Problems) {
    if text.is_empty() {
        problems.required(field, "a name is required");
    }
}

/// Whether a path leads from the root to some place below it, without a detour.
fn leads_down(text: &str) -> bool {
    let path = Path::new(text);
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    path.is_absolute() && path.components().all(plain) && path.components().count() > 1
}

fn absolute(text: &str, field: &str, problems: &mut Problems) {
    if !leads_down(text) {
        problems.invalid(field, text.escape_debug(), "an absolute path below / without .. is allowed");
    }
}

/// Directories of the container `compute` on which virt-launcher relies.
const OF_COMPUTE: [&str; 10] = [
    path::PUBLIC,
    path::PRIVATE,
    path::EPHEMERAL_DISKS,
    path::LIBVIRT_RUNTIME,
    path::HOOKS,
    "/usr",
    "/etc",
    "/dev",
    "/proc",
    "/sys",
];

fn shared(text: &str, field: &str, problems: &mut Problems) {
    let path = Path::new(text);
    let meets = |own: &str| path.starts_with(own) || Path::new(own).starts_with(path);
    if !leads_down(text) {
        absolute(text, field, problems);
    } else if let Some(own) = OF_COMPUTE.iter().find(|own| meets(own)) {
        let allowed =
            format!("a directory is allowed that is neither below nor above {own}, which virt-launcher uses");
        problems.invalid(field, text.escape_debug(), &allowed);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(value: &Value) -> Vec<String> {
        let problems = parse(&value.to_string(), "hooks").unwrap_err();
        problems.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn upstreams_form_is_read() {
        let list = json!([
            {"args": ["--version", "v1alpha2"], "image": "hook:1", "imagePullPolicy": "IfNotPresent"},
            {"image": "hook:2", "command": ["/h"],
                "configMap": {"name": "c", "key": "h.sh", "hookPath": "/usr/bin/onDefineDomain"},
                "pvc": {"name": "p", "volumePath": "/debug", "sharedComputePath": "/var/run/debug"}},
        ]);
        let sidecars = parse(&list.to_string(), "hooks").unwrap();
        assert_eq!((sidecars[0].image.as_str(), sidecars[0].args.len()), ("hook:1", 2));
        assert_eq!(sidecars[1].config_map.as_ref().unwrap().hook_path, "/usr/bin/onDefineDomain");
        assert_eq!(sidecars[1].pvc.as_ref().unwrap().shared_compute_path, "/var/run/debug");
        for nothing in ["", " [] "] {
            assert_eq!(parse(nothing, "hooks"), Ok(Vec::new()));
        }
    }

    #[test]
    fn what_is_not_carried_out_is_refused_by_name() {
        let told = lines(&json!([{"image": "a", "env": []}, 7, {"args": []}]));
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].starts_with("hooks[0]: ") && told[0].contains("unknown field `env`"), "{told:?}");
        assert!(told[1].starts_with("hooks[1]: '7'"), "{told:?}");
        assert!(told[2].starts_with("hooks[2].image: "), "{told:?}");
        let told = lines(&json!([{"image": "a", "imagePullPolicy": "Sometimes",
            "configMap": {"name": "c", "hookPath": "bin"}, "pvc": {"name": "p", "volumePath": "/a/../b"}}]));
        let fields: Vec<&str> = told.iter().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(
            fields,
            [
                "hooks[0].imagePullPolicy",
                "hooks[0].configMap.key",
                "hooks[0].configMap.hookPath",
                "hooks[0].pvc.volumePath"
            ]
        );
        assert!(lines(&json!({}))[0].contains("a JSON list of objects is allowed"));
    }

    #[test]
    fn a_shared_directory_takes_no_place_of_the_launchers() {
        let shared = |path: &str| {
            parse(
                &json!([{"image": "a", "pvc": {"name": "p", "volumePath": "/p", "sharedComputePath": path}}])
                    .to_string(),
                "hooks",
            )
        };
        for taken in
            ["/", "/var", "/var/run/kubevirt/sockets", "/usr/bin", "/var/run/kubevirt-hooks", "/dev/x"]
        {
            assert!(shared(taken).is_err(), "{taken}");
        }
        assert!(shared("/var/run/debug").is_ok());
    }

    #[test]
    fn sidecars_are_for_clusters_whose_administrator_allows_them() {
        let config = |gates: Value| -> v1::KubeVirtConfiguration {
            serde_json::from_value(json!({"developerConfiguration": {"featureGates": gates}})).unwrap()
        };
        let judged = |text: &str, gates: Value| {
            let mut problems = Problems::default();
            check_allowed(&json!({HOOK_SIDECARS: text}), "annotations", &config(gates), &mut problems);
            problems.0.len()
        };
        assert_eq!(judged("[{\"image\":\"a\"}]", json!([])), 1);
        assert_eq!(judged("[{\"image\":\"a\"}]", json!(["Sidecar"])), 0);
        assert_eq!(judged("[]", json!([])), 0);
    }
}
