//! Generates the gRPC code. The contracts are compiled by a Rust library, so that no protoc is needed.

use std::error::Error;

const CONTRACTS: &[&str] = &[
    "proto/netd.proto",
    "proto/hooks_info.proto",
    "proto/hooks_v1alpha1.proto",
    "proto/hooks_v1alpha2.proto",
    "proto/hooks_v1alpha3.proto",
    "proto/cmd.proto",
    "proto/cmd_info.proto",
    "proto/notify.proto",
    "proto/notify_info.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for contract in CONTRACTS {
        println!("cargo::rerun-if-changed={contract}");
    }
    let files = protox::compile(CONTRACTS, ["proto"])?;
    tonic_prost_build::configure().emit_rerun_if_changed(false).compile_fds(files)?;
    Ok(())
}
