//! The other side of a switch-over: what leaves is silent before it is heard elsewhere.
//!
//! A pod whose machine leaves still has the machine's addresses, and its kernel answers for them: to ARP and neighbour
//! solicitations, by retransmissions of connections that have been taken apart, by a RST to a peer that meets no socket any
//! more. One such frame, and the switch looks for the machine here again.
//!
//! Nothing comes in by a table as the target's ([`silence`]). What goes out is swallowed by a queueing discipline, and not
//! dropped by nftables: TCP hears of such a drop, takes it for a lack of buffers, probes a closed window every half second
//! and gives the connection up after some seconds, with a migration that fails after longer than that. The machine's
//! connections are to go on then. What comes in for the machine meanwhile is [kept](Kept).

use std::fs::File;
use std::net::IpAddr;

use futures::{StreamExt, TryStreamExt};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use rtnetlink::Handle;
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};

use super::activate::{global, name_of};
use super::kept::Kept;
use super::{NetError, attach, netns, silence};

/// The queueing discipline that swallows everything and says that it was sent: sch_blackhole, part of every kernel with any.
const SWALLOWS: &str = "blackhole";

/// What a machine leaves.
#[derive(Debug)]
pub struct Departed {
    /// Names of the interfaces that are silent.
    pub silent: Vec<String>,
    /// What comes in over them; none where the kernel has no such packet sockets.
    pub kept: Option<Kept>,
}

/// Makes the interfaces of the namespace `pod` silent whose addresses are all among `to`, where their machine goes.
/// [`activate`](super::activate()) has them speak again, if the machine stays. `deaf` is called in between: from then on
/// nothing comes in, and what comes is kept.
///
/// # Errors
/// There is no such namespace; the kernel refuses. What was made silent stays so.
pub fn depart(pod: &File, to: &[IpAddr], deaf: impl FnOnce() + Send) -> Result<Departed, NetError> {
    netns::inside(Some(pod), |handle| async move {
        let mut leaving = Vec::new();
        for link in attach::links(&handle).await? {
            let index = link.header.index;
            let addresses = attach::addresses(&handle, index).await?;
            let mut addresses = addresses.iter().map(ipnet::IpNet::addr).filter(global).peekable();
            let leaves = addresses.peek().is_some() && addresses.all(|address| to.contains(&address));
            leaving.extend(name_of(link).filter(|_| leaves).map(|name| (name, index)));
        }
        let (silent, indexes): (Vec<String>, Vec<u32>) = leaving.into_iter().unzip();
        let kept = Kept::open(&silent);
        silent.iter().try_for_each(|name| silence::deafen(name))?;
        let kept = kept.and_then(|kept| {
            kept.begin()?;
            Ok(kept)
        });
        let kept = kept.inspect_err(|error| {
            tracing::warn!(%error, "frames for the machine are lost until it is heard at its new place");
        });
        deaf();
        for index in indexes {
            swallow(&handle, index).await?;
        }
        Ok(Departed { silent, kept: kept.ok() })
    })
}

async fn swallow(handle: &Handle, index: u32) -> Result<(), NetError> {
    let failed = NetError::netlink("have frames swallowed");
    let mut message = TcMessage::with_index(index.cast_signed());
    message.header.parent = TcHandle::ROOT;
    message.attributes.push(TcAttribute::Kind(SWALLOWS.to_owned()));
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewQueueDiscipline(message));
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    let mut answers = match handle.clone().request(request) {
        Ok(answers) => answers,
        Err(error) => return Err(failed(error)),
    };
    while let Some(answer) = answers.next().await {
        if let NetlinkPayload::Error(error) = answer.payload
            && error.code.is_some()
        {
            return Err(failed(rtnetlink::Error::NetlinkError(error)));
        }
    }
    Ok(())
}

/// What goes out over the interface is sent again, if it was [swallowed](depart).
///
/// # Errors
/// The kernel refuses.
pub(super) async fn send(handle: &Handle, index: u32) -> Result<(), NetError> {
    let mut found = handle.qdisc().get().index(index.cast_signed()).execute();
    let mut swallows = false;
    while let Some(qdisc) = found.try_next().await.map_err(NetError::netlink("list queueing disciplines"))? {
        let is = |a: &TcAttribute| matches!(a, TcAttribute::Kind(kind) if kind == SWALLOWS);
        swallows |= qdisc.header.index == index.cast_signed() && qdisc.attributes.iter().any(is);
    }
    if swallows {
        let mut request = handle.qdisc().del(index.cast_signed());
        request.message_mut().header.parent = TcHandle::ROOT;
        match request.execute().await {
            // It is called for the machine that stays and for the one that has come: the other call has taken it away.
            Err(rtnetlink::Error::NetlinkError(e)) if e.raw_code() == -(nix::errno::Errno::ENOENT as i32) => {
            }
            done => done.map_err(NetError::netlink("send frames again"))?,
        }
    }
    Ok(())
}
