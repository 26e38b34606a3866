//! From text to a [`VirtualMachineInstance`].

use serde_json::Value;

use crate::fields::{On, Place, Resource};
use crate::names::annotation;
use crate::problem::{Problems, Reason};
use crate::vmi::VirtualMachineInstance;
use crate::{defaults, fields, hooks, plugin, v1, validate};

/// Why a text is no manifest that podvirt carries out.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// The text is not YAML.
    #[error("the manifest is not one YAML document: {0}")]
    Yaml(String),
    /// Fields are unknown, unsupported or wrong.
    #[error(transparent)]
    Invalid(#[from] Problems),
    /// The field table and the types disagree, which a test excludes.
    #[error("the manifest passed the field table but not the types")]
    Types(#[source] serde_json::Error),
}

impl VirtualMachineInstance {
    /// Reads a manifest that is to be carried out without a cluster; YAML, of which JSON is a part. Nothing is
    /// defaulted or validated yet.
    ///
    /// # Errors
    ///
    /// The text is not one YAML document, or some fields are unknown, not supported or of a wrong type.
    pub fn from_yaml(text: &str) -> Result<Self, ParseError> {
        // YAML 1.2's booleans only: in YAML 1.1 an interface could not be called `n`, nor a tag `on`.
        let options = serde_saphyr::options! { strict_booleans: true };
        let value: Value = serde_saphyr::from_str_with_options(text, options)
            .map_err(|e| ParseError::Yaml(e.to_string()))?;
        Self::from_document(Place::Alone, value)
    }

    /// Takes a document from a cluster.
    ///
    /// What the cluster carries out and the machine does not see, such as `spec.nodeSelector`, is left out.
    ///
    /// # Errors
    ///
    /// As [`VirtualMachineInstance::from_yaml`].
    pub fn from_value(value: Value) -> Result<Self, ParseError> {
        Self::from_document(Place::Cluster, value)
    }

    fn from_document(place: Place, mut value: Value) -> Result<Self, ParseError> {
        let mut problems = Problems::default();
        fields::check(Resource::Vmi, place, &value, &mut problems);
        if place == Place::Alone {
            // In a cluster the webhook asks once: an object that was taken must not become unreadable by an annotation.
            let given = &value["metadata"]["annotations"];
            fields::check_annotations(On::Vmi, given, "metadata.annotations", &mut problems);
            plugin::check(&value, &v1::KubeVirtConfiguration::default(), &mut problems);
            if hooks::asks(given) {
                let field = format!("metadata.annotations[{}]", annotation::HOOK_SIDECARS);
                problems.add(
                    Reason::FieldValueNotSupported,
                    field,
                    "hook sidecars are containers of a pod: a cluster has them",
                );
            }
        }
        problems.into_result()?;
        drop_nulls(&mut value);
        drop_idle(&mut value);
        fields::drop_open_words(Resource::Vmi, &mut value);
        serde_json::from_value(value).map_err(ParseError::Types)
    }

    /// Reads a manifest, sets the defaults and validates the result: what a command line wants.
    ///
    /// # Errors
    ///
    /// As [`VirtualMachineInstance::from_yaml`], or all problems that [`validate::validate`] finds.
    pub fn load(text: &str) -> Result<Self, ParseError> {
        let mut vmi = Self::from_yaml(text)?;
        defaults::set_defaults(&mut vmi);
        validate::validate(&vmi).into_result()?;
        Ok(vmi)
    }
}

/// Null is how Kubernetes writes "not set"; serde would want an `Option` everywhere.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Takes out what is passed over: line breaks in base64, as Go's decoder does, and the root among the search domains, which
/// a resolver that looks a name up as it is needs no telling of.
fn drop_idle(value: &mut Value) {
    const SOURCES: [&str; 2] = ["cloudInitNoCloud", "cloudInitConfigDrive"];
    const ENCODED: [&str; 2] = ["userDataBase64", "networkDataBase64"];
    let volumes = value.pointer_mut("/spec/volumes").and_then(Value::as_array_mut);
    for volume in volumes.into_iter().flatten() {
        for (source, field) in SOURCES.into_iter().flat_map(|source| ENCODED.map(|field| (source, field))) {
            if let Some(Value::String(text)) = volume.get_mut(source).and_then(|source| source.get_mut(field))
            {
                text.retain(|letter| !matches!(letter, '\r' | '\n'));
            }
        }
    }
    if let Some(domains) = value.pointer_mut("/spec/dnsConfig/searches").and_then(Value::as_array_mut) {
        domains.retain(|domain| domain != ".");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::vmi::{DiskBus, PortProtocol};

    /// In the manner of upstream's examples: a machine with an image, cloud-init and a forwarded port.
    const DEBIAN: &str = r#"
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: debian
  labels:
    special: key
spec:
  terminationGracePeriodSeconds: 0
  domain:
    cpu: {cores: 2, model: host-model}
    resources:
      requests:
        memory: 1024M
    devices:
      rng: {}
      disks:
      - name: containerdisk
        disk: {bus: virtio}
      - name: cloudinitdisk
        disk: {bus: virtio}
      interfaces:
      - name: default
        passtBinding: {}
        macAddress: "52:54:00:12:34:56"
        ports:
        - {name: http, port: 80}
        - {name: dns, port: 53, protocol: UDP}
  networks:
  - name: default
    pod: {}
  volumes:
  - name: containerdisk
    containerDisk:
      image: registry.example/debian:13
  - name: cloudinitdisk
    cloudInitNoCloud:
      userData: |
        #cloud-config
        password: debian
status:
  phase: Running
"#;

    #[test]
    fn an_upstream_like_manifest_is_read_whole() {
        let vmi = VirtualMachineInstance::load(DEBIAN).unwrap();
        let devices = &vmi.spec.domain.devices;
        assert_eq!(devices.disks[0].disk.as_ref().unwrap().bus, Some(DiskBus::Virtio));
        assert_eq!(devices.interfaces[0].ports[0].protocol, Some(PortProtocol::Tcp));
        assert_eq!(devices.interfaces[0].ports[1].protocol, Some(PortProtocol::Udp));
        assert_eq!(devices.interfaces[0].mac_address, "52:54:00:12:34:56");
        assert_eq!(vmi.spec.domain.memory.unwrap().guest.unwrap().value(), 1_024_000_000);
        assert_eq!(vmi.spec.termination_grace_period_seconds, Some(0));
        assert!(vmi.spec.volumes[1].cloud_init_no_cloud.as_ref().unwrap().user_data.starts_with("#cloud"));
    }

    #[test]
    fn what_was_loaded_is_read_again_from_its_json() {
        let vmi = VirtualMachineInstance::load(DEBIAN).unwrap();
        let again = VirtualMachineInstance::load(&serde_json::to_string(&vmi).unwrap()).unwrap();
        assert_eq!(vmi, again);
    }

    #[test]
    fn line_breaks_in_base64_and_the_root_among_search_domains_are_passed_over() {
        for source in ["cloudInitNoCloud", "cloudInitConfigDrive"] {
            for (field, is_user) in [("userDataBase64", true), ("networkDataBase64", false)] {
                let mut data = serde_json::json!({"userData": "#!/bin/sh"});
                data[field] = "IyEvYmlu\r\nL3NoCg==\n".into();
                if is_user {
                    data.as_object_mut().unwrap().remove("userData");
                }
                let machine = serde_json::json!({
                    "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                    "metadata": {"name": "a", "namespace": "n"},
                    "spec": {"domain": {"memory": {"guest": "64Mi"}}, "dnsConfig": {"searches": ["a.example", "."]},
                        "volumes": [{"name": "v", source: data}]},
                });
                let vmi = VirtualMachineInstance::load(&machine.to_string()).unwrap();
                let volume = &vmi.spec.volumes[0];
                let read =
                    volume.cloud_init_no_cloud.as_ref().or(volume.cloud_init_config_drive.as_ref()).unwrap();
                let text = if is_user { &read.user_data_base64 } else { &read.network_data_base64 };
                assert_eq!(text, "IyEvYmluL3NoCg==", "{source} {field}");
                assert_eq!(vmi.spec.dns_config.unwrap().searches, ["a.example"]);
            }
        }
    }

    #[test]
    fn words_that_old_yaml_took_for_booleans_stay_texts() {
        let vmi = VirtualMachineInstance::from_yaml("metadata: {name: n, namespace: on, uid: No}").unwrap();
        assert_eq!((vmi.metadata.name.as_str(), vmi.metadata.namespace.as_str()), ("n", "on"));
    }

    #[test]
    fn one_document_is_allowed() {
        for text in ["a: 1\n---\nb: 2\n", "a: [", "a: 1\na: 2\n"] {
            assert!(matches!(VirtualMachineInstance::from_yaml(text), Err(ParseError::Yaml(_))), "{text}");
        }
        assert!(matches!(VirtualMachineInstance::from_yaml(""), Err(ParseError::Invalid(_))));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = VirtualMachineInstance::load(&text);
        }

        #[test]
        fn no_values_in_known_places_panic(
            number in any::<i64>(),
            word in "\\PC{0,20}",
            field in 0usize..crate::fields::VMI.len(),
        ) {
            for value in [Value::from(number), Value::from(word)] {
                let document = crate::fields::VMI[field].path.rsplit('.').fold(value, |inner, segment| {
                    match segment.strip_suffix("[]") {
                        Some(name) => serde_json::json!({ name: [inner] }),
                        None => serde_json::json!({ segment: inner }),
                    }
                });
                if let Ok(mut vmi) = VirtualMachineInstance::from_value(document) {
                    defaults::set_defaults(&mut vmi);
                    let _ = validate::validate(&vmi);
                }
            }
        }
    }
}
