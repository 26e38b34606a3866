//! Generates the container runtime's gRPC interface.

use std::error::Error;

const CONTRACT: &str = "proto/cri.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={CONTRACT}");
    let files = protox::compile([CONTRACT], ["proto"])?;
    tonic_prost_build::configure().emit_rerun_if_changed(false).compile_fds(files)?;
    Ok(())
}
