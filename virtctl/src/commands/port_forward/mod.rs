//! `port-forward`: local ports, or the standard streams, as ports of a machine.
//!
//! Each TCP connection and each UDP sender gets a stream of its own. A connection that cannot be made is told and
//! closed; the others and the listeners go on.

mod tcp;
mod udp;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

use crate::api::Cluster;
use crate::args::PortForward;
use crate::output::{complain, say};
use crate::pump::{Options, pump};
use crate::target::{Forward, Kind, Object, Protocol, Target};
use crate::tty::end_signal;

/// A server that is silent so long after the client has said all it has to say is left.
const LINGER: Options = Options { linger: Duration::from_secs(30) };

pub(super) async fn run(cluster: &Cluster, args: &PortForward) -> anyhow::Result<()> {
    let target: Target = args.target.parse()?;
    let forwards = args.ports.iter().map(|port| port.parse()).collect::<Result<Vec<Forward>, _>>()?;
    if args.stdio && forwards.len() != 1 {
        bail!("--stdio forwards one port, not {}", forwards.len());
    }
    let object = cluster.resolve(&target).await?;
    if let (true, Some(forward)) = (args.stdio, forwards.first()) {
        return stdio(cluster, &object, forward).await;
    }

    let address = address(&args.address).await?;
    check(cluster, &object).await?;
    let mut servers = JoinSet::new();
    let mut lines = Vec::new();
    for forward in forwards {
        let asked = SocketAddr::new(address, forward.local);
        let cannot = || format!("cannot listen on {} {asked}", forward.protocol);
        let bound = match forward.protocol {
            Protocol::Tcp => {
                let listener = TcpListener::bind(asked).await.with_context(cannot)?;
                let bound = listener.local_addr().with_context(cannot)?;
                servers.spawn(tcp::serve(cluster.clone(), object.clone(), forward, listener));
                bound
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind(asked).await.with_context(cannot)?;
                let bound = socket.local_addr().with_context(cannot)?;
                servers.spawn(udp::serve(cluster.clone(), object.clone(), forward, socket));
                bound
            }
        };
        lines.push(format!("forwarding {} {bound} to {}", forward.protocol, forward.remote));
    }
    // Only when all ports are there: a program that waits for the last line can use the first port.
    for line in lines {
        say(&line)?;
    }
    tokio::select! {
        signal = end_signal() => signal.map(|_| ()).context("cannot watch signals"),
        Some(ended) = servers.join_next() => match ended {
            Ok(()) => Ok(()),
            Err(error) => bail!("a forwarder ended: {error}"),
        },
    }
}

async fn stdio(cluster: &Cluster, object: &Object, forward: &Forward) -> anyhow::Result<()> {
    let doing = doing(forward);
    let stream =
        cluster.open(object, &forward.subresource()).await.map_err(|error| error.explain(&doing, object))?;
    let end = pump(stream, tokio::io::stdin(), tokio::io::stdout(), LINGER).await?;
    match end.trouble() {
        None => Ok(()),
        Some(trouble) => bail!("port {} of {object}: {trouble}", forward.remote),
    }
}

fn doing(forward: &Forward) -> String {
    format!("forward {} port {} of", forward.protocol, forward.remote)
}

/// Sees to it that a wrong name is told now, not by the first connection.
async fn check(cluster: &Cluster, object: &Object) -> anyhow::Result<()> {
    match cluster.get(object).await {
        // A user who may forward ports need not be allowed to read the object.
        Err(error) if error.code() == Some(403) => {}
        Err(error) => return Err(error.explain("forward ports of", object)),
        Ok(found) => {
            let phase = found["status"]["phase"].as_str().unwrap_or_default();
            if object.kind == Kind::Vmi && !phase.is_empty() && phase != "Running" {
                complain(&format!(
                    "Warning: {object} is {phase}: connections will fail until it is Running."
                ));
            }
        }
    }
    Ok(())
}

/// The address to listen on; of a name's addresses the IPv4 one, as upstream.
async fn address(text: &str) -> anyhow::Result<IpAddr> {
    let cannot = || format!("--address {text:?} is no address of this machine");
    let mut found: Vec<_> =
        tokio::net::lookup_host((text.trim_matches(['[', ']']), 0)).await.with_context(cannot)?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.first().map(SocketAddr::ip).with_context(cannot)
}
