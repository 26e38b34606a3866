//! `virt-launcher probe`: whether the guest accepts connections at a port of its pod.
//!
//! netd's listeners accept before the guest is asked, so the kubelet's own TCP probe finds every port open that is
//! forwarded, whatever the guest does. This probe is run in the pod for the kubelet: it connects as any client does,
//! and asks netd for the connection's state on the guest's side. The guest has accepted when that state is past the
//! handshake, or when it said or ended something; a reset means that it refused, and so does a refusal by netd in its
//! place. Anything else is waited for until the time is up.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use podvirt_proto::acceptance::{self, Acceptance};
use podvirt_proto::netd::v1::{ListPortsRequest, Port, PortRule, Transport};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::cli::Probe;
use crate::pod::link;

/// Pause between two questions to netd, which doubles: most guests answer at once.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(80);

/// Connects to the port and returns once the guest has accepted.
///
/// # Errors
///
/// It refuses, it does not answer in time, the port is not forwarded, or netd cannot be asked.
pub async fn run(args: &Probe) -> Result<()> {
    let probe = async {
        let mut netd = link::client(&args.netd);
        let addresses = link::addresses(&mut netd).await.with_context(|| unreachable(&args.netd))?;
        let address = addresses.first().context("the pod has no address")?;
        let address: IpAddr = address.parse().with_context(|| format!("the pod's address {address}"))?;
        let target = SocketAddr::new(address, args.port);
        let mut stream = match TcpStream::connect(target).await {
            // netd refuses for the guest, where it has asked it.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                let ports = netd.list_ports(ListPortsRequest {}).await.context("asking netd")?;
                if is_shut(&ports.into_inner().ports, args.port) {
                    bail!("the guest refuses connections at port {}", args.port)
                }
                return Err(error).with_context(|| format!("connecting to {target}"));
            }
            connected => connected.with_context(|| format!("connecting to {target}"))?,
        };
        let local = stream.local_addr().context("the connection's own address")?;
        let mut pause = FIRST_PAUSE;
        let mut byte = [0];
        loop {
            let flows = netd.list_flows(acceptance::question(local)).await.context("asking netd")?;
            let mut parts = flows.into_inner();
            while let Some(part) = parts.message().await.context("asking netd")? {
                if acceptance::judge(&part.flows, local) == Acceptance::Accepted {
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

/// Whether netd refuses connections to the pod's TCP port because the guest does.
fn is_shut(ports: &[Port], pod: u16) -> bool {
    let is = |rule: &PortRule| rule.transport() == Transport::Tcp && rule.pod == u32::from(pod);
    ports.iter().any(|p| p.shut && p.rule.as_ref().is_some_and(is))
}

fn unreachable(netd: &Path) -> String {
    format!("netd cannot be asked at {}", netd.display())
}
