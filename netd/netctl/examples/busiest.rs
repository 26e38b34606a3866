//! Prints the flow that has carried the most bytes.
//!
//! Run it by `cargo run -p netctl --example busiest -- SOCKET`, where a netd serves `SOCKET`.

use std::path::PathBuf;

use netctl::client::Client;
use podvirt_proto::netd::v1 as proto;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args_os().nth(1).map_or_else(|| "/run/netd/control.sock".into(), PathBuf::from);
    let mut client = Client::connect(&socket).await?;
    let flows = client.flows(proto::ListFlowsRequest::default()).await?;
    match flows.iter().max_by_key(|flow| flow.bytes_to_pod + flow.bytes_to_guest) {
        Some(flow) => println!(
            "{} and {}: {} bytes to the pod, {} to the guest",
            flow.guest, flow.guest_peer, flow.bytes_to_pod, flow.bytes_to_guest
        ),
        None => println!("the guest has no flow"),
    }
    Ok(())
}
