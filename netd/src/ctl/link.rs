//! The link as it changes, for a client that keeps its call open: it costs nothing while nothing changes.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, stream};
use podvirt_proto::netd::v1 as proto;
use tokio::sync::watch;
use tonic::Status;

use super::convert;
use crate::net::Link;

/// What the call answers.
pub(super) type LinkStream = Pin<Box<dyn Stream<Item = Result<proto::WatchLinkResponse, Status>> + Send>>;

/// The present link of `links`, and each that follows, until `ending` becomes true. A client that reads slowly misses
/// links that were replaced meanwhile.
pub(super) fn stream(mut links: watch::Receiver<Arc<Link>>, ending: watch::Receiver<bool>) -> LinkStream {
    // The present one counts as new.
    links.mark_changed();
    Box::pin(stream::unfold((links, ending), async |(mut links, mut ending)| {
        let link = tokio::select! {
            _ = ending.wait_for(|ending| *ending) => return None,
            changed = links.changed() => {
                changed.ok()?;
                convert::link(&links.borrow_and_update())
            }
        };
        Some((Ok(proto::WatchLinkResponse { link: Some(link) }), (links, ending)))
    }))
}
