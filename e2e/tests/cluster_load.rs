//! A machine that starts on a busy cluster. How long it takes is measured by `perf load`; what is asserted is what can be
//! counted.

use podvirt_e2e::cluster::load::{Load, Loaded, starts};
use podvirt_e2e::cluster::{Cluster, Security};

/// Migrations of the cluster at a time.
const LIMIT: usize = 5;

#[test]
fn long_a_machine_starts_while_much_else_waits_and_hangs() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let loaded = Loaded::new(&namespace, Load::LARGE).unwrap();
    println!("starts under load: {:?} ms", starts(&namespace, "under", 3).unwrap());
    let (labelled, written) = loaded.rewritten().unwrap();
    // A migration that finds no node for its target pod ends after five minutes, and its budget changes with it.
    assert!(written <= labelled / 10, "{written} of {labelled} labelled budgets were written again");
    let begun = loaded.begun().unwrap();
    assert!(begun <= LIMIT, "{begun} migrations have begun");
}
