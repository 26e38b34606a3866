//! What netd knows of the guest's network, by its control socket: the pod's addresses, which lead to the guest.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use podvirt_api::names::path;
use podvirt_proto::netd::v1::StatusRequest;
use podvirt_proto::netd::v1::netd_client::NetdClient;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint, Uri};
use tracing::debug;

use super::shared::{Facts, Links, ManifestInterface, Shared};

/// The first pause between two questions: a guest that starts is of most interest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause: a pod's addresses hardly ever change.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The largest part of netd's answers.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// How long netd may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Asks netd again and again once the machine is there; never ends.
pub(super) async fn poll(shared: &Shared) {
    let mut facts = shared.facts.subscribe();
    let mut pause = FIRST_PAUSE;
    loop {
        let started = facts.wait_for(|facts| facts.started_at.is_some()).await.map(|f| f.interfaces.clone());
        let Ok(interfaces) = started else { return std::future::pending().await };
        let asked = interfaces.clone();
        let mut links = Links::default();
        for interface in interfaces.into_iter().filter(|i| i.by_netd && !i.unplugged) {
            let control = path::netd_control(interface.index);
            let asked = async { addresses(&mut client(&control).await?).await };
            match timeout(ANSWER, asked).await {
                Ok(Ok(addresses)) => drop(links.insert(interface.name, addresses)),
                // netd is being started again: its last word holds.
                Ok(Err(error)) => debug!(%error, interface = interface.name, "netd does not answer"),
                Err(_) => debug!(interface = interface.name, "netd does not answer in time"),
            }
        }
        set(shared, links);
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            // One has come or gone.
            () = others(&mut facts, &asked) => pause = FIRST_PAUSE,
        }
    }
}

/// Until the machine's interfaces are others than these.
async fn others(facts: &mut watch::Receiver<Facts>, known: &[ManifestInterface]) {
    if facts.wait_for(|facts| facts.interfaces != known).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Notes the addresses of some of the interfaces.
pub(super) fn set(shared: &Shared, links: Links) {
    shared.links.send_if_modified(|present| {
        let before = present.clone();
        present.extend(links);
        *present != before
    });
}

/// A connection to netd's control socket.
pub(crate) async fn client(control: &Path) -> anyhow::Result<NetdClient<Channel>> {
    let socket: PathBuf = control.to_owned();
    // The address is for form's sake: the connector knows the way.
    let channel = Endpoint::from_static("http://netd")
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
        .await?;
    Ok(NetdClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES))
}

/// The pod's addresses, IPv4 first.
pub(crate) async fn addresses(netd: &mut NetdClient<Channel>) -> anyhow::Result<Vec<String>> {
    let status = netd.status(StatusRequest {}).await?.into_inner();
    let link = status.link.unwrap_or_default();
    let families = [link.v4, link.v6];
    Ok(families.into_iter().flatten().map(|family| family.pod).filter(|ip| !ip.is_empty()).collect())
}
