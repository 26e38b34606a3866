//! The CustomResourceDefinitions: names, columns, subresources and versions as upstream has them.

use anyhow::Result;
use serde_json::{Value, json};

use crate::ROOTS;
use crate::schema::Schemas;

const HEAD: &str = "# Written by podvirt-api-generate from api/model. Do not edit.\n";

/// What a user sees of a resource besides its schema.
struct Face {
    kind: &'static str,
    short: &'static [&'static str],
    columns: &'static [Column],
    subresources: Option<fn() -> Value>,
}

/// A column of `kubectl get`: name, type, path, priority (1: only with `-o wide`).
type Column = (&'static str, &'static str, &'static str, u8);

const AGE: Column = ("Age", "date", ".metadata.creationTimestamp", 0);

const FACES: &[Face] = &[
    Face {
        kind: "VirtualMachine",
        short: &["vm", "vms"],
        columns: &[
            AGE,
            ("Status", "string", ".status.printableStatus", 0),
            ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", 0),
        ],
        subresources: Some(status),
    },
    Face {
        kind: "VirtualMachineInstance",
        short: &["vmi", "vmis"],
        columns: &[
            AGE,
            ("Phase", "string", ".status.phase", 0),
            ("IP", "string", ".status.interfaces[0].ipAddress", 0),
            ("NodeName", "string", ".status.nodeName", 0),
            ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", 0),
            ("Live-Migratable", "string", ".status.conditions[?(@.type=='LiveMigratable')].status", 1),
            ("Paused", "string", ".status.conditions[?(@.type=='Paused')].status", 1),
        ],
        subresources: None,
    },
    Face {
        kind: "VirtualMachineInstanceMigration",
        short: &["vmim", "vmims"],
        columns: &[("Phase", "string", ".status.phase", 0), ("VMI", "string", ".spec.vmiName", 0)],
        subresources: Some(status),
    },
    Face {
        kind: "VirtualMachineInstanceReplicaSet",
        short: &["vmirs", "vmirss"],
        columns: &[
            ("Desired", "integer", ".spec.replicas", 0),
            ("Current", "integer", ".status.replicas", 0),
            ("Ready", "integer", ".status.readyReplicas", 0),
            AGE,
        ],
        subresources: Some(scale),
    },
    Face {
        kind: "KubeVirt",
        short: &["kv", "kvs"],
        columns: &[AGE, ("Phase", "string", ".status.phase", 0)],
        subresources: Some(status),
    },
];

fn status() -> Value {
    json!({ "status": {} })
}

fn scale() -> Value {
    json!({
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.labelSelector",
        },
    })
}

/// File names and contents: a CustomResourceDefinition each, and the kustomization that names them.
pub(crate) fn all(schemas: &Schemas<'_>) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for face in FACES {
        let plural = ROOTS.iter().find(|r| r.kind == face.kind).map_or("", |r| r.plural);
        let text = yaml(&definition(face, plural, &schemas.root(face.kind)?))?;
        files.push((format!("{plural}.yaml"), text));
    }
    files.push(("migrationpolicies.yaml".into(), yaml(&policies())?));
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let kustomization = yaml(&json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": names,
    }))?;
    files.push(("kustomization.yaml".into(), kustomization));
    Ok(files)
}

/// MigrationPolicy, which is of another group than the rest. Its type is `podvirt_api::policy`.
fn policies() -> Value {
    let labels = |of: &str| {
        json!({
            "type": "object",
            "additionalProperties": { "type": "string" },
            "description": format!("Labels that {of} must have. Empty: any."),
        })
    };
    let flag = |text: &str| json!({ "type": "boolean", "description": text });
    let spec = json!({
        "type": "object",
        "required": ["selectors"],
        "properties": {
            "selectors": {
                "type": "object",
                "description": "Which machines the policy is for: both must match.",
                "properties": {
                    "namespaceSelector": labels("the machine's namespace"),
                    "virtualMachineInstanceSelector": labels("the machine"),
                },
            },
            "allowAutoConverge": flag("Whether a guest may be slowed down that writes faster than it is copied."),
            "bandwidthPerMigration": {
                "anyOf": [{ "type": "integer" }, { "type": "string" }],
                "pattern": QUANTITY,
                "x-kubernetes-int-or-string": true,
                "description": "Bytes a second that a migration may use. 0: unlimited.",
            },
            "completionTimeoutPerGiB": {
                "type": "integer", "format": "int64", "minimum": 1,
                "description": "Seconds that a migration has for each GiB of its guest.",
            },
            "allowPostCopy": flag(
                "Whether a guest may go on at the target before it is copied. Not carried out: an event says so."
            ),
            "allowWorkloadDisruption": flag("Whether a guest may be paused that does not converge in time."),
        },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "migrationpolicies.migrations.kubevirt.io", "labels": { "kubevirt.io": "" } },
        "spec": {
            "group": "migrations.kubevirt.io",
            "names": {
                "kind": "MigrationPolicy",
                "listKind": "MigrationPolicyList",
                "plural": "migrationpolicies",
                "singular": "migrationpolicy",
                "categories": ["all"],
            },
            "scope": "Cluster",
            "conversion": { "strategy": "None" },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "description": "How the machines that it selects are migrated.",
                    "required": ["spec"],
                    "properties": {
                        "apiVersion": { "type": "string" },
                        "kind": { "type": "string" },
                        "metadata": { "type": "object" },
                        "spec": spec,
                        "status": { "type": "object", "nullable": true },
                    },
                } },
                "subresources": { "status": {} },
            }],
        },
    })
}

/// A quantity as text, in Kubernetes' own words.
const QUANTITY: &str = concat!(
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))",
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
);

fn yaml(value: &Value) -> Result<String> {
    Ok(format!("{HEAD}{}", serde_saphyr::to_string(value)?))
}

fn definition(face: &Face, plural: &str, schema: &Value) -> Value {
    let columns: Vec<Value> = face
        .columns
        .iter()
        .map(|(name, kind, path, priority)| match priority {
            0 => json!({ "name": name, "type": kind, "jsonPath": path }),
            _ => json!({ "name": name, "type": kind, "jsonPath": path, "priority": priority }),
        })
        .collect();
    let version = |name: &str, storage: bool| {
        let mut version = json!({
            "name": name,
            "served": true,
            "storage": storage,
            "schema": { "openAPIV3Schema": schema },
            "additionalPrinterColumns": columns,
        });
        if !storage {
            version["deprecated"] = true.into();
            version["deprecationWarning"] =
                format!("kubevirt.io/{name} is deprecated: use kubevirt.io/v1").into();
        }
        if let Some(subresources) = face.subresources {
            version["subresources"] = subresources();
        }
        version
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.kubevirt.io"), "labels": { "kubevirt.io": "" } },
        "spec": {
            "group": "kubevirt.io",
            "names": {
                "kind": face.kind,
                "listKind": format!("{}List", face.kind),
                "plural": plural,
                "singular": face.kind.to_lowercase(),
                "shortNames": face.short,
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "conversion": { "strategy": "None" },
            "versions": [version("v1", true), version("v1alpha3", false)],
        },
    })
}
