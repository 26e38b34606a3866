//! What netd knows of the guest's network, by its control socket: the pod's addresses, which lead to the guest, and whether it refuses
//! new flows because there are too many.

use std::collections::BTreeMap;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use hyper_util::rt::TokioIo;
use podvirt_api::names::path;
use podvirt_proto::netd::v1::netd_client::NetdClient;
use podvirt_proto::netd::v1::{Link, StatusRequest, WatchLinkRequest, WatchLinkResponse};
use tokio::net::UnixStream;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};
use tracing::debug;

use super::flow_limit;
use super::shared::{Facts, Links, ManifestInterface, Shared};

/// The first pause before a netd that did not answer is asked again: a guest that starts is of most interest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The largest part of netd's answers.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// How long netd may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// A connection to each netd of the pod, by the interface that it serves: made when it is first used, and again after it broke.
#[derive(Debug, Default)]
pub(super) struct Netds(Mutex<BTreeMap<usize, NetdClient<Channel>>>);

impl Netds {
    /// The client of the netd that serves the interface of this index.
    pub(super) fn of(&self, index: usize) -> NetdClient<Channel> {
        let mut netds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        netds.entry(index).or_insert_with(|| client(&path::netd_control(index))).clone()
    }
}

/// Has each netd tell the addresses once the machine is there, and whenever they change; never ends.
pub(super) async fn watch(shared: &Shared) {
    let mut facts = shared.facts.subscribe();
    loop {
        let started = facts.wait_for(|facts| facts.started_at.is_some()).await.map(|f| f.interfaces.clone());
        let Ok(interfaces) = started else { return pending().await };
        let served = interfaces.iter().filter(|i| i.by_netd && !i.unplugged);
        let followed = join_all(served.map(|interface| follow(shared, interface)));
        tokio::select! {
            // None of them ends, but there may be none.
            () = followed.then(|_| pending()) => {}
            // One has come or gone.
            () = others(&mut facts, &interfaces) => {}
        }
    }
}

/// Notes the addresses that the netd of one interface tells; never ends.
async fn follow(shared: &Shared, interface: &ManifestInterface) {
    let mut pause = FIRST_PAUSE;
    loop {
        match told(shared, interface, &mut pause).await {
            // netd is being started again, or another one follows it: its last word holds.
            Ok(()) => debug!(interface = interface.name, "netd has ended"),
            Err(error) => debug!(%error, interface = interface.name, "netd does not answer"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Notes what the netd of `interface` tells until it tells no more; `pause` is the first one again once it has told something.
async fn told(shared: &Shared, interface: &ManifestInterface, pause: &mut Duration) -> Result<(), Status> {
    let mut netd = shared.netds.of(interface.index);
    let late = |_| Status::deadline_exceeded("no answer in time");
    let first = async {
        let mut links = netd.watch_link(WatchLinkRequest {}).await?.into_inner();
        Ok::<_, Status>((links.message().await?, links))
    };
    let (mut message, mut links) = timeout(ANSWER, first).await.map_err(late)??;
    while let Some(next) = message {
        *pause = FIRST_PAUSE;
        note(shared, interface, next);
        message = links.message().await?;
    }
    Ok(())
}

/// Notes what a message of the netd of `interface` says.
fn note(shared: &Shared, interface: &ManifestInterface, message: WatchLinkResponse) {
    let WatchLinkResponse { link, refused_flows } = message;
    if let Some(refused) = refused_flows {
        flow_limit::warn(shared, &interface.name, refused, Instant::now());
    }
    set(shared, Links::from([(interface.name.clone(), pod_addresses(link.unwrap_or_default()))]));
}

/// Until the machine's interfaces are others than these.
async fn others(facts: &mut Receiver<Facts>, known: &[ManifestInterface]) {
    if facts.wait_for(|facts| facts.interfaces != known).await.is_err() {
        pending::<()>().await;
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

/// A client of the netd that has this control socket; it connects when it is first used.
pub(crate) fn client(control: &Path) -> NetdClient<Channel> {
    let socket: PathBuf = control.to_owned();
    // The address is for form's sake: the connector knows the way.
    let channel =
        Endpoint::from_static("http://netd").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        }));
    NetdClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

/// The pod's addresses, IPv4 first.
pub(crate) async fn addresses(netd: &mut NetdClient<Channel>) -> Result<Vec<String>, Status> {
    let status = netd.status(StatusRequest {}).await?.into_inner();
    Ok(pod_addresses(status.link.unwrap_or_default()))
}

fn pod_addresses(link: Link) -> Vec<String> {
    let families = [link.v4, link.v6].into_iter().flatten();
    families.map(|family| family.pod).filter(|ip| !ip.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use podvirt_proto::netd::v1::{Family, RefusedFlows};
    use tokio::sync::mpsc;

    use super::super::shared::Identity;
    use super::*;

    #[test]
    fn netd_tells_the_pods_addresses_and_the_user_hears_of_flows_that_it_refuses() {
        let shared = Shared::new(Identity::default(), mpsc::channel(1).0);
        let interface = ManifestInterface { name: "default".into(), ..ManifestInterface::default() };
        let v4 = Family { pod: "10.1.0.7".into(), ..Family::default() };
        let link = Some(Link { v4: Some(v4), ..Link::default() });
        note(&shared, &interface, WatchLinkResponse { link: link.clone(), refused_flows: None });
        assert_eq!(shared.links.borrow()["default"], ["10.1.0.7"]);
        assert_eq!(shared.first_event(), None);
        let refused_flows = Some(RefusedFlows { limit: 4, count: 1 });
        note(&shared, &interface, WatchLinkResponse { link, refused_flows });
        assert_eq!(shared.first_event().unwrap().reason, "FlowLimit");
        assert_eq!(shared.links.borrow()["default"], ["10.1.0.7"]);
    }
}
