//! The test bed's own storage, which tests of volumes rely on. Its images take a quarter of an hour to make, once, so it is not
//! among the quick tests; then each of these is two minutes.

use podvirt_e2e::cluster::{Cluster, prepare_storage};

/// Access modes, volume modes, both nodes, growth under a pod that runs, snapshots and clones.
#[test]
fn long_claims_of_every_mode_are_written_copied_and_grown() {
    prepare_storage().unwrap();
    let cluster = Cluster::get().unwrap();
    cluster.storage().unwrap().check_claims().unwrap();
}

/// Of nothing, of a web server, of an image on the node, of an upload, and of other volumes.
#[test]
fn long_data_volumes_of_every_source_have_what_they_are_of() {
    prepare_storage().unwrap();
    let cluster = Cluster::get().unwrap();
    cluster.storage().unwrap().check_data_volumes().unwrap();
}
