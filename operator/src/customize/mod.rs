//! The objects of podvirt as the KubeVirt object wants them: a function of `deploy/`, the target and the object.

mod patch;
mod placement;

use podvirt_api::budget;
use podvirt_api::v1::{ComponentConfig, KubeVirtSpec};
use serde_json::{Map, Value, json};

use crate::manifests::{DEFINITION, DEPLOYMENT, ManifestError, Object, stored};
use crate::target::Target;

pub use patch::PatchError;

/// Label by which virt-operator finds what it has made.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Its value.
pub const OPERATOR: &str = "virt-operator";
/// Annotation: the version that an object belongs to.
pub const VERSION: &str = "kubevirt.io/install-strategy-version";
/// Annotation: the registry that an object's images are of.
pub const REGISTRY: &str = "kubevirt.io/install-strategy-registry";
/// Annotation: digest of the target.
pub const IDENTIFIER: &str = "kubevirt.io/install-strategy-identifier";
/// Namespace that the manifests of `deploy/` name.
const NAMESPACE: &str = podvirt_api::names::NAMESPACE;
/// virt-controller's variables that name images of pods, and whose they are.
const NAMED_IMAGES: [(&str, &str); 2] =
    [("LAUNCHER_IMAGE", "virt-launcher"), ("EXPORTER_IMAGE", "virt-exportserver")];
/// Largest object that may follow from the KubeVirt object, in bytes of memory: some eight times the largest of `deploy/`, and
/// its text is far below the limit of the API server.
const MAX_OBJECT_TREE_BYTES: usize = 1 << 20;
/// Argument of virt-api: virt-operator judges the KubeVirt object.
const OPERATED: &str = "--operated";

/// Why the objects cannot be as the KubeVirt object wants them.
#[derive(Debug, thiserror::Error)]
pub enum CustomizeError {
    /// A manifest of the program.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A patch of `spec.customizeComponents`.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// A daemon would become too large.
    #[error(
        "{field}: with it {title} takes {bytes} bytes of memory; at most {MAX_OBJECT_TREE_BYTES} are allowed"
    )]
    Size {
        /// The field of the KubeVirt object by which it does.
        field: &'static str,
        /// The daemon.
        title: String,
        /// What it would take.
        bytes: usize,
    },
}

/// All objects, for podvirt in `namespace`.
///
/// # Errors
///
/// A patch does not fit what it is for.
pub fn objects(spec: &KubeVirtSpec, target: &Target, namespace: &str) -> Result<Vec<Object>, CustomizeError> {
    customized(spec, target, namespace, |_| true)
}

/// Whether the objects can be made. Definitions of kinds, which are large, and which no field changes, are left out.
///
/// # Errors
///
/// As [`objects`].
pub fn check(spec: &KubeVirtSpec, target: &Target, namespace: &str) -> Result<(), CustomizeError> {
    customized(spec, target, namespace, |object| object.kind != DEFINITION).map(drop)
}

fn customized(
    spec: &KubeVirtSpec,
    target: &Target,
    namespace: &str,
    filter: impl Fn(&&Object) -> bool,
) -> Result<Vec<Object>, CustomizeError> {
    let mut objects: Vec<Object> = stored()?.iter().filter(filter).cloned().collect();
    for object in &mut objects {
        place(&mut object.value, namespace);
        mark(&mut object.value["metadata"], spec, target);
        if object.is_daemon() {
            daemon(object, spec, target)?;
        }
    }
    if let Some(customize) = &spec.customize_components {
        patch::apply(&mut objects, &customize.patches)?;
    }
    Ok(objects)
}

/// Puts a document into `namespace` where `deploy/` has podvirt's own.
fn place(value: &mut Value, namespace: &str) {
    let subjects = value.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten() {
        if subject["namespace"] == NAMESPACE {
            subject["namespace"] = json!(namespace);
        }
    }
    if value["metadata"]["namespace"] == NAMESPACE {
        value["metadata"]["namespace"] = json!(namespace);
    }
}

/// An object within `value`, made where it is not there.
fn object<'a>(value: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    if !value[name].is_object() {
        value[name] = json!({});
    }
    match &mut value[name] {
        Value::Object(map) => map,
        _ => unreachable!("it was just made an object"),
    }
}

/// Labels and annotations that say whose an object is and of which version.
pub(crate) fn mark(metadata: &mut Value, spec: &KubeVirtSpec, target: &Target) {
    let labels = object(metadata, "labels");
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    labels.insert(MANAGED_BY.to_owned(), json!(OPERATOR));
    let component = given(&spec.product_component).unwrap_or_else(|| "kubevirt".to_owned());
    labels.insert("app.kubernetes.io/component".to_owned(), json!(component));
    for (label, text) in [
        ("app.kubernetes.io/version", given(&spec.product_version)),
        ("app.kubernetes.io/part-of", given(&spec.product_name)),
    ] {
        if let Some(text) = text {
            labels.insert(label.to_owned(), json!(text));
        }
    }
    let annotations = object(metadata, "annotations");
    annotations.insert(VERSION.to_owned(), json!(target.version));
    annotations.insert(REGISTRY.to_owned(), json!(target.registry));
    annotations.insert(IDENTIFIER.to_owned(), json!(target.id));
}

/// Image of a container, and when it is pulled.
fn of_image(container: &mut Value, image: Option<&str>, spec: &KubeVirtSpec) {
    if let Some(image) = image {
        container["image"] = json!(image);
    }
    if let Some(policy) = spec.image_pull_policy.as_deref().filter(|policy| !policy.is_empty()) {
        container["imagePullPolicy"] = json!(policy);
    }
}

/// Images, replicas, place and flags of a daemon.
fn daemon(daemon: &mut Object, spec: &KubeVirtSpec, target: &Target) -> Result<(), CustomizeError> {
    let name = daemon.name().to_owned();
    let is_infra = daemon.kind == DEPLOYMENT;
    let component: Option<&ComponentConfig> =
        if is_infra { spec.infra.as_ref() } else { spec.workloads.as_ref() };
    if is_infra && let Some(replicas) = component.and_then(|component| component.replicas) {
        daemon.value["spec"]["replicas"] = json!(replicas);
    }
    let template = &mut daemon.value["spec"]["template"];
    mark(&mut template["metadata"], spec, target);
    let pod = &mut template["spec"];
    placement::put(pod, component.and_then(|component| component.node_placement.as_ref()));
    if !spec.image_pull_secrets.is_empty() {
        pod["imagePullSecrets"] = json!(spec.image_pull_secrets);
    }
    let flags = spec.customize_components.as_ref().and_then(|customize| customize.flags.as_ref());
    // What runs ahead of a daemon is of the launcher's image.
    let ahead = pod.get_mut("initContainers").and_then(Value::as_array_mut).into_iter().flatten();
    for container in ahead {
        of_image(container, target.image("virt-launcher"), spec);
    }
    let container = &mut pod["containers"][0];
    of_image(container, target.image(&name), spec);
    let mut arguments = Vec::new();
    let flags = match name.as_str() {
        "virt-api" => {
            arguments.push(json!(OPERATED));
            flags.map(|flags| &flags.api)
        }
        "virt-controller" => {
            for variable in container["env"].as_array_mut().into_iter().flatten() {
                let named = NAMED_IMAGES.iter().find(|(name, _)| variable["name"] == *name);
                if let Some((_, component)) = named {
                    variable["value"] = json!(target.image(component));
                }
            }
            flags.map(|flags| &flags.controller)
        }
        // The KubeVirt object has no field for its flags.
        "virt-exportproxy" => None,
        _ => flags.map(|flags| &flags.handler),
    };
    for (flag, value) in flags.into_iter().flatten() {
        let text = if value.is_empty() { format!("--{flag}") } else { format!("--{flag}={value}") };
        arguments.push(json!(text));
    }
    if !arguments.is_empty() {
        let given = container["args"].as_array().cloned().unwrap_or_default();
        container["args"] = Value::Array([given, arguments].concat());
    }
    let bytes = budget::weigh(&daemon.value);
    if bytes > MAX_OBJECT_TREE_BYTES {
        let field = if is_infra { "spec.infra" } else { "spec.workloads" };
        return Err(CustomizeError::Size { field, title: daemon.title(), bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
