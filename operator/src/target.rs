//! Which version of podvirt is to be installed: its images, and the words by which objects and status name it.

use podvirt_api::v1::KubeVirtSpec;
use serde_json::json;
use sha2::{Digest, Sha256};

/// Daemons, and the images of machines' pods and of exporter pods.
pub const COMPONENTS: [&str; 6] =
    ["virt-api", "virt-controller", "virt-handler", "virt-launcher", "virt-exportproxy", "virt-exportserver"];

/// What virt-operator's own Deployment says of images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// virt-operator's own image (`VIRT_OPERATOR_IMAGE`): registry and tag of the others follow from it.
    pub operator_image: String,
    /// Version of podvirt (`KUBEVIRT_VERSION`); the image's tag where it is not given.
    pub version: Option<String>,
    /// Images that are named one by one (`VIRT_API_IMAGE`, …), in the order of [`COMPONENTS`].
    pub images: [Option<String>; COMPONENTS.len()],
}

impl Own {
    /// Reads the environment.
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let image =
            |component: &str| variable(&format!("{}_IMAGE", component.replace('-', "_").to_uppercase()));
        Self {
            operator_image: image("virt-operator").unwrap_or_else(|| "podvirt/virt-operator:dev".to_owned()),
            version: variable("KUBEVIRT_VERSION"),
            images: COMPONENTS.map(image),
        }
    }
}

/// A version of podvirt, with its images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `dev`, `v0.2.0`.
    pub version: String,
    /// Registry and folder of the images: `registry.example.org/podvirt`.
    pub registry: String,
    /// Digest of the images: two targets of the same version may have other images.
    pub id: String,
    /// Images in the order of [`COMPONENTS`].
    images: [String; COMPONENTS.len()],
}

impl Target {
    /// The version that the KubeVirt object asks for; virt-operator's own where it asks for none.
    pub fn of(spec: &KubeVirtSpec, own: &Own) -> Self {
        let (own_registry, own_tag) = split(&own.operator_image);
        let given = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
        let (registry, tag) = (given(&spec.image_registry), given(&spec.image_tag));
        let named = registry.is_some() || tag.is_some();
        let version = tag.clone().or_else(|| own.version.clone());
        let version = version.unwrap_or_else(|| own_tag.trim_start_matches(['@', ':']).to_owned());
        let registry = registry.unwrap_or_else(|| own_registry.to_owned());
        let tag = tag.map_or_else(|| own_tag.to_owned(), |tag| joined(&tag));
        let mut images = COMPONENTS.map(|component| format!("{registry}/{component}{tag}"));
        // Images that are named one by one are of virt-operator's own version.
        if !named {
            for (image, own) in images.iter_mut().zip(&own.images) {
                if let Some(own) = own {
                    image.clone_from(own);
                }
            }
        }
        let digest = Sha256::digest(json!([version, registry, images]).to_string());
        let id = digest.iter().take(20).map(|byte| format!("{byte:02x}")).collect();
        Self { version, registry, id, images }
    }

    /// Image of a component; none when the name is not one of [`COMPONENTS`].
    pub fn image(&self, component: &str) -> Option<&str> {
        let place = COMPONENTS.iter().position(|known| *known == component)?;
        Some(&self.images[place])
    }
}

/// A tag as it follows an image's name: `:v1`, or `@sha256:…` for a digest.
fn joined(tag: &str) -> String {
    if tag.starts_with("sha256:") { format!("@{tag}") } else { format!(":{tag}") }
}

/// Registry with folder, and tag with its `:` or `@`. A port of a registry is no tag.
fn split(image: &str) -> (&str, &str) {
    let (registry, name) = image.rsplit_once('/').unwrap_or(("", image));
    let tag = name.find(['@', ':']).map_or(":latest", |at| &name[at..]);
    (registry, tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(image: &str) -> Own {
        Own { operator_image: image.to_owned(), ..Own::default() }
    }

    #[test]
    fn images_are_beside_the_operators_own() {
        let spec = KubeVirtSpec::default();
        let target = Target::of(&spec, &own("registry.example.org:5000/p/virt-operator:v0.2.0"));
        assert_eq!(target.version, "v0.2.0");
        assert_eq!(target.registry, "registry.example.org:5000/p");
        assert_eq!(target.image("virt-api"), Some("registry.example.org:5000/p/virt-api:v0.2.0"));
        assert_eq!(target.image("virt-launcher"), Some("registry.example.org:5000/p/virt-launcher:v0.2.0"));
        assert_eq!(target.image("other"), None);
        let digest = Target::of(&spec, &own("r/virt-operator@sha256:ab"));
        assert_eq!(
            (digest.version.as_str(), digest.image("virt-api")),
            ("sha256:ab", Some("r/virt-api@sha256:ab"))
        );
        assert_eq!(Target::of(&spec, &own("r/virt-operator")).version, "latest");
    }

    #[test]
    fn the_kubevirt_object_goes_before() {
        let own = Own {
            version: Some("v0.3".into()),
            images: [Some("elsewhere/api@sha256:1".into()), None, None, None, None, None],
            ..own("r/virt-operator:v0.3")
        };
        let plain = Target::of(&KubeVirtSpec::default(), &own);
        assert_eq!(
            (plain.version.as_str(), plain.image("virt-api")),
            ("v0.3", Some("elsewhere/api@sha256:1"))
        );
        let spec = KubeVirtSpec {
            image_tag: Some("v0.4".into()),
            image_registry: Some("s".into()),
            ..KubeVirtSpec::default()
        };
        let asked = Target::of(&spec, &own);
        assert_eq!((asked.version.as_str(), asked.image("virt-api")), ("v0.4", Some("s/virt-api:v0.4")));
        assert_ne!(plain.id, asked.id);
        assert_eq!(asked, Target::of(&spec, &own));
    }

    #[test]
    fn the_environment_names_images() {
        let own = Own::from_env(|name| match name {
            "VIRT_OPERATOR_IMAGE" => Some("r/virt-operator:1".into()),
            "VIRT_HANDLER_IMAGE" => Some("x".into()),
            "KUBEVIRT_VERSION" => Some(String::new()),
            _ => None,
        });
        assert_eq!(own.operator_image, "r/virt-operator:1");
        assert_eq!(own.images, [None, None, Some("x".into()), None, None, None]);
        assert_eq!(own.version, None);
    }
}
