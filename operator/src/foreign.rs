//! Whether the installation in the cluster is KubeVirt's own.
//!
//! KubeVirt's virt-operator gives its objects the same names, labels and annotations. podvirt would take them over: its
//! virt-handlers cannot speak to KubeVirt's launchers, so that running machines would be taken for failed and be started a second
//! time beside the first. So nothing is changed, and nothing is deleted, where there are such objects and podvirt has applied
//! none of them. KubeVirt's virt-operator creates and updates objects; podvirt's applies them, which the API server notes in
//! each object's `managedFields`.

use crate::cluster::Stored;

/// An installation that podvirt did not make.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this cluster has an installation of KubeVirt, {title} among it: podvirt changes nothing. Machines that run by KubeVirt cannot \
     run on by podvirt: stop them, delete the KubeVirt object by KubeVirt's virt-operator, and install podvirt then"
)]
pub struct Foreign {
    /// One of its objects.
    title: String,
}

impl Foreign {
    /// The installation that `there` is, unless podvirt has made any of it.
    pub fn find(there: &[Stored]) -> Option<Self> {
        if there.iter().any(|own| own.is_applied) {
            return None;
        }
        // Daemons say more to people than definitions of kinds.
        let first = there.iter().max_by_key(|own| own.kind.group == "apps")?;
        Some(Self { title: format!("{} {}", first.kind.kind, first.name) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::{DEFINITION, DEPLOYMENT, Kind};

    fn stored(kind: Kind, name: &str, is_applied: bool) -> Stored {
        Stored {
            kind,
            namespace: None,
            name: name.into(),
            deleting: false,
            version: None,
            identifier: Some("i".into()),
            is_applied,
        }
    }

    #[test]
    fn an_installation_of_which_podvirt_has_made_nothing_is_foreign() {
        let theirs = [stored(DEPLOYMENT, "virt-api", false), stored(DEFINITION, "a", false)];
        assert!(Foreign::find(&theirs).unwrap().to_string().contains("Deployment virt-api"));
        let own = [theirs[0].clone(), stored(DEFINITION, "a", true)];
        assert_eq!((Foreign::find(&own), Foreign::find(&[])), (None, None));
    }
}
