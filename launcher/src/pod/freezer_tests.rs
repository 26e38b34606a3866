//! virt-freezer before a launcher that serves its socket.

use std::sync::Arc;

use clap::Parser;
use podvirt_proto::domain::Status;
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use super::migration::fake::Fake;
use super::server::serve;
use super::shared::{Identity, Shared};
use crate::virt_freezer::{self, VirtFreezer};

#[tokio::test]
async fn virt_freezer_freezes_and_thaws_a_guest_that_has_an_agent() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("sock");
    let identity = Identity { name: "web".into(), namespace: "shop".into(), ..Identity::default() };
    let shared = Arc::new(Shared::new(identity, mpsc::channel(1).0));
    let server = tokio::spawn(serve(UnixListener::bind(&socket).unwrap(), Arc::clone(&shared)));
    let ask = async |name: &str, wish: &str| {
        let line =
            ["virt-freezer", "--socket", socket.to_str().unwrap(), "--namespace", "shop", "--name", name];
        let args = VirtFreezer::try_parse_from(line.iter().chain(&[wish])).unwrap();
        let done = virt_freezer::run(&args).await;
        (done.map(drop).map_err(|error| format!("{error:#}")), shared.facts.borrow().frozen)
    };
    assert_eq!(ask("web", "--freeze").await, (Ok(()), false), "there is no machine yet");
    let other = "this virt-launcher is for shop/web, not for shop/db";
    assert_eq!(ask("db", "--freeze").await, (Err(other.into()), false));

    shared.report.send_modify(|report| report.status = Status::Running);
    assert_eq!(ask("web", "--freeze").await, (Ok(()), false), "there is no agent");
    shared.report.send_modify(|report| report.agent_connected = true);
    let (failed, _) = ask("web", "--freeze").await;
    assert_eq!(
        failed,
        Err("freezing the guest's file systems: the guest's agent is not connected".to_owned()),
        "it went just now"
    );

    shared.agent_connected.send_replace(true);
    let (hypervisor, _end) = Fake::new(Status::Running);
    shared.view.send_modify(|view| view.hypervisor = Some(hypervisor));
    assert_eq!(ask("web", "--freeze").await, (Ok(()), true));
    assert_eq!(ask("web", "--unfreeze").await, (Ok(()), false));
    server.abort();
}
