//! The link as it changes, and flows that a full table refuses, for a client that keeps its call open: it costs nothing while
//! nothing changes.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, stream};
use podvirt_proto::netd::v1 as proto;
use tokio::sync::watch;
use tonic::Status;

use super::convert;
use crate::control::RefusedFlows;
use crate::net::Link;

/// What the call answers.
pub(super) type LinkStream = Pin<Box<dyn Stream<Item = Result<proto::WatchLinkResponse, Status>> + Send>>;

/// The present link of `links`, and each that follows, until `ending` becomes true. A client that reads slowly misses
/// links that were replaced meanwhile.
///
/// With the link that holds then come the flows of `refused` that were refused since the call.
pub(super) fn stream(
    mut links: watch::Receiver<Arc<Link>>,
    mut refused: watch::Receiver<RefusedFlows>,
    ending: watch::Receiver<bool>,
) -> LinkStream {
    // The present one counts as new.
    links.mark_changed();
    // Those from before the call do not: a client that calls again would take them for others.
    let known = refused.borrow_and_update().count;
    Box::pin(stream::unfold(Watched { links, refused, known, ending }, Watched::message))
}

/// What a call watches.
struct Watched {
    links: watch::Receiver<Arc<Link>>,
    refused: watch::Receiver<RefusedFlows>,
    /// How many refused flows the client knows of.
    known: u64,
    ending: watch::Receiver<bool>,
}

impl Watched {
    /// The next message, once there is something to tell; none when the server ends.
    async fn message(mut self) -> Option<(Result<proto::WatchLinkResponse, Status>, Watched)> {
        tokio::select! {
            _ = self.ending.wait_for(|ending| *ending) => return None,
            changed = self.links.changed() => changed.ok()?,
            () = next_refusal(&mut self.refused) => {}
        }
        let link = convert::link(&self.links.borrow_and_update());
        let refused = *self.refused.borrow_and_update();
        let refused_flows = convert::refused_flows(refused, self.known);
        self.known = refused.count;
        Some((Ok(proto::WatchLinkResponse { link: Some(link), refused_flows }), self))
    }
}

/// Waits until flows are refused; for ever once the workers have ended.
async fn next_refusal(refused: &mut watch::Receiver<RefusedFlows>) {
    if refused.changed().await.is_err() {
        pending::<()>().await;
    }
}
