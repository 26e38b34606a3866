//! What a VirtualMachine names its instance type and its preference by.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::v1::{InferFromVolumeFailurePolicy, VirtualMachine};

/// Instance type or preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// An instance type.
    Instancetype,
    /// A preference.
    Preference,
}

/// Where an object is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In the VirtualMachine's namespace.
    Namespace,
    /// In the cluster.
    Cluster,
}

/// A kind that is none of the subject's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("got unexpected kind in {matcher}: {kind}; {allowed} are allowed")]
pub struct KindError {
    matcher: &'static str,
    kind: String,
    allowed: String,
}

impl Subject {
    /// Both.
    pub const ALL: [Subject; 2] = [Subject::Instancetype, Subject::Preference];

    /// The field of `spec` that names it.
    pub fn field(self) -> &'static str {
        match self {
            Subject::Instancetype => "instancetype",
            Subject::Preference => "preference",
        }
    }

    /// The field of `status` that tells which is in use.
    pub fn status_field(self) -> &'static str {
        match self {
            Subject::Instancetype => "instancetypeRef",
            Subject::Preference => "preferenceRef",
        }
    }

    /// Upstream's type of the field that names it, as messages have it.
    pub(crate) fn matcher(self) -> &'static str {
        match self {
            Subject::Instancetype => "InstancetypeMatcher",
            Subject::Preference => "PreferenceMatcher",
        }
    }

    /// Its kind.
    pub fn kind(self, scope: Scope) -> &'static str {
        match (self, scope) {
            (Subject::Instancetype, Scope::Namespace) => "VirtualMachineInstancetype",
            (Subject::Instancetype, Scope::Cluster) => "VirtualMachineClusterInstancetype",
            (Subject::Preference, Scope::Namespace) => "VirtualMachinePreference",
            (Subject::Preference, Scope::Cluster) => "VirtualMachineClusterPreference",
        }
    }

    /// Its kind's plural, as in paths.
    pub fn plural(self, scope: Scope) -> String {
        format!("{}s", self.kind(scope).to_ascii_lowercase())
    }

    /// The annotation by which an instance tells what it was made from.
    pub fn annotation(self, scope: Scope) -> &'static str {
        match (self, scope) {
            (Subject::Instancetype, Scope::Namespace) => "kubevirt.io/instancetype-name",
            (Subject::Instancetype, Scope::Cluster) => "kubevirt.io/cluster-instancetype-name",
            (Subject::Preference, Scope::Namespace) => "kubevirt.io/preference-name",
            (Subject::Preference, Scope::Cluster) => "kubevirt.io/cluster-preference-name",
        }
    }

    /// Labels of a volume that tell which name and which kind suit it.
    pub fn default_labels(self) -> [&'static str; 2] {
        match self {
            Subject::Instancetype => [
                "instancetype.kubevirt.io/default-instancetype",
                "instancetype.kubevirt.io/default-instancetype-kind",
            ],
            Subject::Preference => [
                "instancetype.kubevirt.io/default-preference",
                "instancetype.kubevirt.io/default-preference-kind",
            ],
        }
    }
}

/// How a VirtualMachine names an instance type or a preference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Matcher {
    /// Name.
    pub name: Option<String>,
    /// Kind, its singular or its plural; none is the cluster's.
    pub kind: Option<String>,
    /// ControllerRevision in the place of what the object says now.
    pub revision_name: Option<String>,
    /// Volume whose labels give name and kind.
    pub infer_from_volume: Option<String>,
    /// What becomes of the machine when they do not.
    pub infer_from_volume_failure_policy: Option<InferFromVolumeFailurePolicy>,
}

impl Matcher {
    /// The matcher of a machine.
    pub fn of(vm: &VirtualMachine, subject: Subject) -> Option<Matcher> {
        macro_rules! matcher {
            ($from:expr) => {{
                let from = $from.clone()?;
                Some(Matcher {
                    name: from.name,
                    kind: from.kind,
                    revision_name: from.revision_name,
                    infer_from_volume: from.infer_from_volume,
                    infer_from_volume_failure_policy: from.infer_from_volume_failure_policy,
                })
            }};
        }
        match subject {
            Subject::Instancetype => matcher!(vm.spec.instancetype),
            Subject::Preference => matcher!(vm.spec.preference),
        }
    }

    /// The matcher of a machine as JSON; none of what cannot be read, which is refused elsewhere.
    pub fn in_object(object: &Value, subject: Subject) -> Option<Matcher> {
        Option::<Matcher>::deserialize(&object["spec"][subject.field()]).ok().flatten()
    }

    /// The name, if there is one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| !name.is_empty())
    }

    /// The revision that is asked for, if one is.
    pub fn revision(&self) -> Option<&str> {
        self.revision_name.as_deref().filter(|name| !name.is_empty())
    }

    /// The volume to infer from, if there is one.
    pub fn volume(&self) -> Option<&str> {
        self.infer_from_volume.as_deref().filter(|name| !name.is_empty())
    }

    /// Whether a failed inference leaves the machine without.
    pub fn ignores_failure(&self) -> bool {
        self.infer_from_volume_failure_policy == Some(InferFromVolumeFailurePolicy::Ignore)
    }

    /// Where the object is looked up.
    ///
    /// # Errors
    ///
    /// The kind is none of the subject's.
    pub fn scope(&self, subject: Subject) -> Result<Scope, KindError> {
        let kind = self.kind.as_deref().unwrap_or_default();
        let lower = kind.to_ascii_lowercase();
        let is = |scope| {
            let singular = subject.kind(scope).to_ascii_lowercase();
            lower.strip_prefix(singular.as_str()).is_some_and(|rest| ["", "s"].contains(&rest))
        };
        match () {
            () if kind.is_empty() || is(Scope::Cluster) => Ok(Scope::Cluster),
            () if is(Scope::Namespace) => Ok(Scope::Namespace),
            () => Err(KindError {
                matcher: subject.matcher(),
                kind: kind.to_owned(),
                allowed: format!("{} and {}", subject.kind(Scope::Namespace), subject.kind(Scope::Cluster)),
            }),
        }
    }
}
