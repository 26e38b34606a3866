//! `virt-launcher probe`: whether the guest accepts connections at a port of its pod.
//!
//! netd's listeners accept before the guest is asked, so the kubelet's own TCP probe finds every port open that is
//! forwarded, whatever the guest does. This one is run in the pod for it: it connects as any client does, and asks netd
//! for the connection's state on the guest's side. The guest has accepted when that state is past the handshake, or
//! when it said or ended something; a reset means that it refused. Anything else is waited for until the time is up.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use podvirt_proto::netd::v1::{Flow, FlowFilter, FlowKind, FlowOrigin, ListFlowsRequest};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::cli::Probe;
use crate::pod::link;

/// Pause between two questions to netd, which doubles: most guests answer at once.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(80);
/// States of a connection whose handshake with the guest is not over, by their names in RFC 9293 and netd's own.
const UNANSWERED: [&str; 4] = ["CONNECTING", "SYN-SENT", "SYN-RECEIVED", "CLOSED"];

/// Connects to the port and returns once the guest has accepted.
///
/// # Errors
///
/// It refuses, it does not answer in time, the port is not forwarded, or netd cannot be asked.
pub async fn run(args: &Probe) -> Result<()> {
    let probe = async {
        let mut netd = link::client(&args.netd).await.with_context(|| unreachable(&args.netd))?;
        let addresses = link::addresses(&mut netd).await.with_context(|| unreachable(&args.netd))?;
        let address = addresses.first().context("the pod has no address")?;
        let address: IpAddr = address.parse().with_context(|| format!("the pod's address {address}"))?;
        let target = SocketAddr::new(address, args.port);
        let mut stream =
            TcpStream::connect(target).await.with_context(|| format!("connecting to {target}"))?;
        let local = stream.local_addr().context("the connection's own address")?;
        let mut pause = FIRST_PAUSE;
        let mut byte = [0];
        // netd looks the connection up, so that a probe does not cost the guest the telling of its whole table.
        let own = ListFlowsRequest {
            filter: Some(FlowFilter {
                kinds: vec![FlowKind::Tcp.into()],
                origin: FlowOrigin::Pod.into(),
                pod_peer: local.to_string(),
                ..FlowFilter::default()
            }),
            ..ListFlowsRequest::default()
        };
        loop {
            let flows = netd.list_flows(own.clone()).await.context("asking netd")?;
            let mut parts = flows.into_inner();
            while let Some(part) = parts.message().await.context("asking netd")? {
                if accepted(&part.flows, local) {
                    return Ok(());
                }
            }
            tokio::select! {
                said = stream.read(&mut byte) => return match said {
                    Ok(_) => Ok(()),
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                        bail!("the guest refuses connections at port {}", args.port)
                    }
                    Err(error) => Err(error).with_context(|| format!("the connection to {target}")),
                },
                () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    };
    match timeout(args.timeout, probe).await {
        Ok(result) => result,
        Err(_) => bail!("the guest does not answer at port {} within {:?}", args.port, args.timeout),
    }
}

fn unreachable(netd: &Path) -> String {
    format!("netd cannot be asked at {}", netd.display())
}

/// Whether the guest has accepted the connection whose other end in the pod is `local`.
fn accepted(flows: &[Flow], local: SocketAddr) -> bool {
    let is_it = |flow: &&Flow| {
        let peer = flow.pod_peer.parse::<SocketAddr>();
        flow.kind() == FlowKind::Tcp
            && !flow.from_guest
            && peer.is_ok_and(|p| p.port() == local.port() && p.ip().to_canonical() == local.ip())
    };
    flows.iter().filter(is_it).any(|flow| !UNANSWERED.contains(&flow.state.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(state: &str, pod_peer: &str) -> Flow {
        Flow { kind: FlowKind::Tcp.into(), state: state.into(), pod_peer: pod_peer.into(), ..Flow::default() }
    }

    #[test]
    fn the_guest_has_accepted_when_its_side_is_past_the_handshake() {
        let local: SocketAddr = "10.1.0.2:4000".parse().unwrap();
        for (state, expected) in [
            ("CONNECTING", false),
            ("SYN-SENT", false),
            ("SYN-RECEIVED", false),
            ("CLOSED", false),
            ("ESTABLISHED", true),
            ("CLOSE-WAIT", true),
            ("FIN-WAIT-1", true),
            ("TIME-WAIT", true),
        ] {
            assert_eq!(accepted(&[flow(state, "10.1.0.2:4000")], local), expected, "{state}");
        }
    }

    #[test]
    fn only_the_probes_own_connection_counts() {
        let local: SocketAddr = "10.1.0.2:4000".parse().unwrap();
        let other = |change: fn(&mut Flow)| {
            let mut flow = flow("ESTABLISHED", "10.1.0.2:4000");
            change(&mut flow);
            accepted(&[flow], local)
        };
        assert!(other(|_| ()));
        assert!(other(|f| f.pod_peer = "[::ffff:10.1.0.2]:4000".into()));
        assert!(!other(|f| f.pod_peer = "10.1.0.2:4001".into()));
        assert!(!other(|f| f.pod_peer = "10.1.0.3:4000".into()));
        assert!(!other(|f| f.from_guest = true));
        assert!(!other(|f| f.kind = FlowKind::Udp.into()));
        assert!(!accepted(&[], local));
        let six: SocketAddr = "[fd00::2]:4000".parse().unwrap();
        assert!(accepted(&[flow("ESTABLISHED", "[fd00::2]:4000")], six));
    }
}
