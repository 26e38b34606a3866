//! The CustomResourceDefinitions: names, columns, subresources and versions as upstream has them.

use anyhow::Result;
use serde_json::{Value, json};

use crate::schema::Schemas;

const HEAD: &str = "# Written by podvirt-api-generate from api/model. Do not edit.\n";

/// What a user sees of a resource besides its schema.
struct Face {
    /// First part of the group, as `pool` of `pool.kubevirt.io`; empty for the group `kubevirt.io`.
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    categories: &'static [&'static str],
    scope: &'static str,
    versions: &'static [Version],
    columns: &'static [Column],
    subresources: Option<fn() -> Value>,
    /// What the resource is; empty where api/model/descriptions.json says it.
    about: &'static str,
}

/// A version of a resource.
struct Version {
    name: &'static str,
    stored: bool,
    /// What a client that uses it is told, if anything.
    warning: &'static str,
}

const fn stored(name: &'static str) -> Version {
    Version { name, stored: true, warning: "" }
}

const fn served(name: &'static str) -> Version {
    Version { name, stored: false, warning: "" }
}

const CORE: &[Version] = &[
    stored("v1"),
    Version {
        name: "v1alpha3",
        stored: false,
        warning: "kubevirt.io/v1alpha3 is deprecated: use kubevirt.io/v1",
    },
];
const PRESETS: &str = "VirtualMachineInstancePresets are deprecated: use instance types and preferences";
const ALPHA_AND_BETA: &[Version] = &[served("v1alpha1"), stored("v1beta1")];
const BETA: &[Version] = &[stored("v1beta1")];

/// A column of `kubectl get`: name, type, path, priority (1: only with `-o wide`).
type Column = (&'static str, &'static str, &'static str, u8);

const AGE: Column = ("Age", "date", ".metadata.creationTimestamp", 0);
const PHASE: Column = ("Phase", "string", ".status.phase", 0);
const REPLICAS: &[Column] = &[
    ("Desired", "integer", ".spec.replicas", 0),
    ("Current", "integer", ".status.replicas", 0),
    ("Ready", "integer", ".status.readyReplicas", 0),
    AGE,
];
const SOURCE_KIND: Column = ("SourceKind", "string", ".spec.source.kind", 0);
const SOURCE_NAME: Column = ("SourceName", "string", ".spec.source.name", 0);
const READY_TO_USE: Column = ("ReadyToUse", "boolean", ".status.readyToUse", 0);
const CREATION_TIME: Column = ("CreationTime", "date", ".status.creationTime", 0);
const ERROR: Column = ("Error", "string", ".status.error.message", 0);

/// A namespaced resource of the group kubevirt.io with a status: what the resources below have in common.
const FACE: Face = Face {
    group: "",
    kind: "",
    plural: "",
    short: &[],
    categories: &["all"],
    scope: "Namespaced",
    versions: CORE,
    columns: &[],
    subresources: Some(status),
    about: "",
};

const FACES: &[Face] = &[
    Face {
        kind: "VirtualMachine",
        plural: "virtualmachines",
        short: &["vm", "vms"],
        columns: &[
            AGE,
            ("Status", "string", ".status.printableStatus", 0),
            ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", 0),
        ],
        ..FACE
    },
    Face {
        kind: "VirtualMachineInstance",
        plural: "virtualmachineinstances",
        short: &["vmi", "vmis"],
        columns: &[
            AGE,
            PHASE,
            ("IP", "string", ".status.interfaces[0].ipAddress", 0),
            ("NodeName", "string", ".status.nodeName", 0),
            ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", 0),
            ("Live-Migratable", "string", ".status.conditions[?(@.type=='LiveMigratable')].status", 1),
            ("Paused", "string", ".status.conditions[?(@.type=='Paused')].status", 1),
        ],
        subresources: None,
        ..FACE
    },
    Face {
        kind: "VirtualMachineInstanceMigration",
        plural: "virtualmachineinstancemigrations",
        short: &["vmim", "vmims"],
        columns: &[PHASE, ("VMI", "string", ".spec.vmiName", 0)],
        ..FACE
    },
    Face {
        kind: "VirtualMachineInstanceReplicaSet",
        plural: "virtualmachineinstancereplicasets",
        short: &["vmirs", "vmirss"],
        columns: REPLICAS,
        subresources: Some(scale),
        ..FACE
    },
    Face { kind: "KubeVirt", plural: "kubevirts", short: &["kv", "kvs"], columns: &[AGE, PHASE], ..FACE },
    Face {
        kind: "VirtualMachineInstancePreset",
        plural: "virtualmachineinstancepresets",
        short: &["vmipreset", "vmipresets"],
        versions: &[
            Version { name: "v1", stored: false, warning: PRESETS },
            Version { name: "v1alpha3", stored: true, warning: PRESETS },
        ],
        subresources: None,
        about: "What machines that a selector finds get into their specification.",
        ..FACE
    },
    Face {
        group: "instancetype",
        kind: "VirtualMachineInstancetype",
        plural: "virtualmachineinstancetypes",
        short: &["vminstancetype", "vminstancetypes", "vmf", "vmfs"],
        versions: BETA,
        subresources: None,
        about: "Processors, memory and devices that a VirtualMachine of its namespace may refer to.",
        ..FACE
    },
    Face {
        group: "instancetype",
        kind: "VirtualMachineClusterInstancetype",
        plural: "virtualmachineclusterinstancetypes",
        short: &["vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"],
        categories: &[],
        scope: "Cluster",
        versions: BETA,
        subresources: None,
        about: "Processors, memory and devices that each VirtualMachine may refer to.",
        ..FACE
    },
    Face {
        group: "instancetype",
        kind: "VirtualMachinePreference",
        plural: "virtualmachinepreferences",
        short: &["vmpref", "vmprefs", "vmp", "vmps"],
        versions: BETA,
        subresources: None,
        about: "What a VirtualMachine of its namespace gets where it leaves something open.",
        ..FACE
    },
    Face {
        group: "instancetype",
        kind: "VirtualMachineClusterPreference",
        plural: "virtualmachineclusterpreferences",
        short: &["vmcp", "vmcps"],
        categories: &[],
        scope: "Cluster",
        versions: BETA,
        subresources: None,
        about: "What a VirtualMachine gets where it leaves something open.",
        ..FACE
    },
    Face {
        group: "pool",
        kind: "VirtualMachinePool",
        plural: "virtualmachinepools",
        short: &["vmpool", "vmpools"],
        versions: ALPHA_AND_BETA,
        columns: REPLICAS,
        subresources: Some(scale),
        about: "A number of VirtualMachines from one template.",
        ..FACE
    },
    Face {
        group: "snapshot",
        kind: "VirtualMachineSnapshot",
        plural: "virtualmachinesnapshots",
        short: &["vmsnapshot", "vmsnapshots"],
        versions: ALPHA_AND_BETA,
        columns: &[SOURCE_KIND, SOURCE_NAME, PHASE, READY_TO_USE, CREATION_TIME, ERROR],
        about: "A snapshot of a VirtualMachine.",
        ..FACE
    },
    Face {
        group: "snapshot",
        kind: "VirtualMachineSnapshotContent",
        plural: "virtualmachinesnapshotcontents",
        short: &["vmsnapshotcontent", "vmsnapshotcontents"],
        versions: ALPHA_AND_BETA,
        columns: &[READY_TO_USE, CREATION_TIME, ERROR],
        about: "What a snapshot of a VirtualMachine holds.",
        ..FACE
    },
    Face {
        group: "snapshot",
        kind: "VirtualMachineRestore",
        plural: "virtualmachinerestores",
        short: &["vmrestore", "vmrestores"],
        versions: ALPHA_AND_BETA,
        columns: &[
            ("TargetKind", "string", ".spec.target.kind", 0),
            ("TargetName", "string", ".spec.target.name", 0),
            ("Complete", "boolean", ".status.complete", 0),
            ("RestoreTime", "date", ".status.restoreTime", 0),
        ],
        about: "A VirtualMachine's return to a snapshot.",
        ..FACE
    },
    Face {
        group: "export",
        kind: "VirtualMachineExport",
        plural: "virtualmachineexports",
        short: &["vmexport", "vmexports"],
        versions: ALPHA_AND_BETA,
        columns: &[SOURCE_KIND, SOURCE_NAME, PHASE],
        about: "Disks for download.",
        ..FACE
    },
    Face {
        group: "clone",
        kind: "VirtualMachineClone",
        plural: "virtualmachineclones",
        short: &["vmclone", "vmclones"],
        versions: ALPHA_AND_BETA,
        columns: &[
            PHASE,
            ("SourceVirtualMachine", "string", ".spec.source.name", 0),
            ("TargetVirtualMachine", "string", ".spec.target.name", 0),
        ],
        about: "A copy of a VirtualMachine.",
        ..FACE
    },
    Face {
        group: "backup",
        kind: "VirtualMachineBackup",
        plural: "virtualmachinebackups",
        short: &["vmbackup", "vmbackups"],
        versions: &[stored("v1alpha1")],
        columns: &[
            SOURCE_KIND,
            SOURCE_NAME,
            // Upstream's columns read .status.Type and .status.CheckpointName, which no backup has.
            ("Type", "string", ".status.type", 0),
            ("CheckpointName", "string", ".status.checkpointName", 0),
        ],
        about: "A backup of a VirtualMachine's disks.",
        ..FACE
    },
    Face {
        group: "backup",
        kind: "VirtualMachineBackupTracker",
        plural: "virtualmachinebackuptrackers",
        short: &["vmbackuptracker", "vmbackuptrackers"],
        versions: &[stored("v1alpha1")],
        columns: &[
            SOURCE_KIND,
            SOURCE_NAME,
            ("LatestCheckpoint", "string", ".status.latestCheckpoint.name", 0),
            ("CheckpointTime", "date", ".status.latestCheckpoint.creationTime", 0),
        ],
        about: "From where on the next backup of a VirtualMachine copies.",
        ..FACE
    },
];

impl Face {
    /// The resource's type in the model.
    fn model(&self) -> String {
        if self.group.is_empty() { self.kind.to_owned() } else { format!("{}.{}", self.group, self.kind) }
    }

    fn group(&self) -> String {
        if self.group.is_empty() { DOMAIN.to_owned() } else { format!("{}.{DOMAIN}", self.group) }
    }
}

/// The group of most resources, and the end of the others' groups.
const DOMAIN: &str = "kubevirt.io";

/// The plural by which the resource of this type in the model is served, and its group and version where they are not those
/// of most resources.
pub(crate) fn served_as(model: &str) -> Option<(&'static str, Option<(String, &'static str)>)> {
    let face = FACES.iter().find(|face| face.model() == model)?;
    let stored = face.versions.iter().find(|version| version.stored)?.name;
    Some((face.plural, (!face.group.is_empty()).then(|| (face.group(), stored))))
}

/// The resources' types in the model.
pub(crate) fn kinds() -> impl Iterator<Item = String> {
    FACES.iter().map(Face::model)
}

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
        let mut schema = schemas.root(&face.model())?;
        if !face.about.is_empty() {
            schema["description"] = face.about.into();
        }
        files.push((format!("{}.yaml", face.plural), yaml(&definition(face, &schema))?));
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
                "x-kubernetes-validations": [
                    { "rule": "!string(self).startsWith('-')", "message": "at least 0 is allowed" },
                ],
                "description": "Bytes a second that a migration may use. 0: unlimited.",
            },
            "completionTimeoutPerGiB": {
                "type": "integer", "format": "int64", "minimum": 0,
                "description": "Seconds that a migration has for each GiB of its guest. 0: as many as it takes.",
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

fn definition(face: &Face, schema: &Value) -> Value {
    let columns: Vec<Value> = face
        .columns
        .iter()
        .map(|(name, kind, path, priority)| match priority {
            0 => json!({ "name": name, "type": kind, "jsonPath": path }),
            _ => json!({ "name": name, "type": kind, "jsonPath": path, "priority": priority }),
        })
        .collect();
    let version = |of: &Version| {
        let mut version = json!({
            "name": of.name,
            "served": true,
            "storage": of.stored,
            "schema": { "openAPIV3Schema": schema },
        });
        if !columns.is_empty() {
            version["additionalPrinterColumns"] = columns.clone().into();
        }
        if !of.warning.is_empty() {
            version["deprecated"] = true.into();
            version["deprecationWarning"] = of.warning.into();
        }
        if let Some(subresources) = face.subresources {
            version["subresources"] = subresources();
        }
        version
    };
    let (group, plural) = (face.group(), face.plural);
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}"), "labels": { "kubevirt.io": "" } },
        "spec": {
            "group": group,
            "names": {
                "kind": face.kind,
                "listKind": format!("{}List", face.kind),
                "plural": plural,
                "singular": face.kind.to_lowercase(),
                "shortNames": face.short,
            },
            "scope": face.scope,
            "conversion": { "strategy": "None" },
            "versions": face.versions.iter().map(version).collect::<Vec<_>>(),
        },
    });
    if !face.categories.is_empty() {
        definition["spec"]["names"]["categories"] = json!(face.categories);
    }
    definition
}
