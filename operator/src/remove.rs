//! Taking podvirt out of the cluster.
//!
//! ```text
//!   definitions of kinds ──(all gone: with them every machine)──> rights, webhooks ──> daemons ──> the rest ──> finalizer
//! ```
//!
//! Deleting the definition of a kind deletes its objects. Machines have finalizers, so they end in order, by the
//! daemons that are still there; nothing else goes before the last definition is gone. Whether machines may be deleted
//! so is asked before, by the webhook ([`crate::webhook`]): `uninstallStrategy: BlockUninstallIfWorkloadsExist`.

use crate::cluster::{Cluster, ClusterError, Stored};
use crate::foreign::Foreign;
use crate::manifests::{DEFINITION, KINDS, Kind};
use crate::status::{KUBEVIRT_INSTALLED, Outcome};

/// What to delete now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Objects to delete.
    pub delete: Vec<Stored>,
    /// What is still there, in a sentence; empty: nothing.
    pub waits: String,
}

/// Decides by what is there.
pub fn plan(there: &[Stored]) -> Plan {
    let definitions: Vec<&Stored> = there.iter().filter(|own| own.kind == DEFINITION).collect();
    if !definitions.is_empty() {
        let names: Vec<&str> = definitions.iter().map(|own| own.name.as_str()).collect();
        let delete = definitions.iter().filter(|own| !own.deleting).map(|own| (*own).clone()).collect();
        return Plan { delete, waits: format!("waiting for the objects of {}", names.join(", ")) };
    }
    let place = |kind: Kind| KINDS.iter().position(|known| *known == kind);
    let mut rest: Vec<&Stored> = there.iter().collect();
    // Rights go first: virt-api's webhooks and APIServices belong to its ClusterRole, and it must not make them again.
    rest.sort_by_key(|own| place(own.kind));
    let titles: Vec<String> = rest.iter().map(|own| format!("{} {}", own.kind.kind, own.name)).collect();
    let delete = rest.iter().filter(|own| !own.deleting).map(|own| (*own).clone()).collect();
    let waits = if titles.is_empty() { String::new() } else { format!("waiting for {}", titles.join(", ")) };
    Plan { delete, waits }
}

/// One pass of the removal.
///
/// # Errors
///
/// The API server refuses.
pub async fn pass(cluster: &Cluster) -> Result<Outcome, ClusterError> {
    let served = cluster.served().await?;
    let there = cluster.all(&served).await?;
    if let Some(foreign) = Foreign::find(&there) {
        return Ok(Outcome::Failed { reason: KUBEVIRT_INSTALLED, message: foreign.to_string() });
    }
    let plan = plan(&there);
    cluster.delete_all(plan.delete.iter()).await?;
    Ok(if plan.waits.is_empty() { Outcome::Deleted } else { Outcome::Deleting { waits: plan.waits } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::{CLUSTER_ROLE, DEPLOYMENT};

    fn own(kind: Kind, name: &str, deleting: bool) -> Stored {
        let (name, version, identifier) = (name.into(), None, None);
        Stored { kind, namespace: None, name, deleting, version, identifier, is_applied: true }
    }

    #[test]
    fn daemons_stay_until_the_last_definition_is_gone() {
        let daemon = own(DEPLOYMENT, "virt-controller", false);
        let plan_of = |there: &[Stored]| plan(there);
        let first = plan_of(&[daemon.clone(), own(DEFINITION, "a", false), own(DEFINITION, "b", true)]);
        assert_eq!(first.delete, [own(DEFINITION, "a", false)]);
        assert_eq!(first.waits, "waiting for the objects of a, b");
        let second = plan_of(&[daemon.clone(), own(DEFINITION, "b", true)]);
        assert!(second.delete.is_empty() && !second.waits.is_empty());
        let third = plan_of(&[daemon.clone(), own(CLUSTER_ROLE, "kubevirt-apiserver", false)]);
        assert_eq!(third.delete[1], daemon, "rights before daemons");
        let last = plan_of(&[]);
        assert!(last.delete.is_empty() && last.waits.is_empty());
    }
}
