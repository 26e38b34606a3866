//! A few of the upstream project's own functional tests: of the fastest, which start no machine, one for each thing
//! that the API does by itself. `make conformance` runs the others.

use std::process::{Command, Stdio};

use podvirt_e2e::artefacts::{artefact, script};
use podvirt_e2e::cluster::Cluster;

/// Parts of the tests' names, each of which names at least one of them.
const TESTS: [&str; 6] = [
    // The schemas of all kinds are structural.
    "test_id:5177",
    // The server's dry run, of podvirt's own configuration.
    "test_id:7650",
    // What only the webhook refuses.
    "test_id:1412",
    // Instance types: what is refused, a subresource, old versions that are renewed.
    "reject invalid instancetype without CPU.Guest",
    "expanded with VirtualMachineInstancetype",
    "upgrade VirtualMachineClusterPreference from v1beta1 with labels",
];

#[test]
fn long_the_fastest_of_upstreams_own_tests_pass() {
    // What they are made of may have to be fetched, and the cluster's network leads nowhere.
    artefact("conformance").unwrap();
    // Fails here, with the reason, where there is no cluster.
    let _cluster = Cluster::get().unwrap();
    let out = tempfile::tempdir().unwrap();
    let run = Command::new(script("cluster/conformance"))
        .arg(out.path())
        .arg(format!("-ginkgo.focus={}", TESTS.join("|")))
        .env("GUESTS", "none")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let results = String::from_utf8(run.stdout).unwrap();
    println!("{results}");
    assert!(run.status.success(), "{}", run.status);
    for test in TESTS {
        let passed = results.lines().any(|line| line.starts_with("passed\t") && line.contains(test));
        assert!(passed, "no test that is named {test} has passed");
    }
}
