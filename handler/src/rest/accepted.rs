//! Whether the guest has accepted a connection to its pod, for virt-api, which forwards ports.
//!
//! netd takes a connection before the guest is asked. virt-api connects to the pod as any peer does, asks here, and opens
//! its user's tunnel when the guest has accepted. netd is asked again and again until it says so:
//!
//! | answer | what it means |
//! |---|---|
//! | 204 | the guest has accepted |
//! | 404 | netd does not know the connection: it is over, or it ends before netd, at a mesh's proxy |
//! | 504 | the guest did not answer |
//!
//! A guest that refuses needs no answer: netd resets the connection, which virt-api sees first.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use hyper_util::rt::TokioIo;
use podvirt_api::names::{path, pod};
use podvirt_api::v1::VirtualMachineInstance;
use podvirt_proto::acceptance::{self, Acceptance};
use podvirt_proto::netd::v1::netd_client::NetdClient;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, Endpoint, Uri};

use super::{Failure, Server};

/// Longest time that a guest has to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// For how long netd may not know a connection that stands at its peer: it takes it in one of its next turns.
const TAKEN: Duration = Duration::from_secs(1);
/// Pause between two questions to netd, which doubles: most guests answer at once.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(80);
/// Longest time that netd may take for one answer.
const ASK: Duration = Duration::from_secs(5);
/// Largest part of an answer in bytes: one connection is asked for. A flow takes a hundred times its bytes in memory.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Which connection.
#[derive(Debug, Deserialize)]
pub(super) struct Connection {
    /// Its other end, as the pod sees it.
    peer: SocketAddr,
}

pub(super) async fn accepted(
    State(server): State<Server>,
    Path((namespace, name)): Path<(String, String)>,
    Query(Connection { peer }): Query<Connection>,
) -> Result<StatusCode, Failure> {
    let (vmi, pod_uid) = server.find(&namespace, &name)?;
    let index = primary(&vmi).ok_or_else(|| Failure::not_found("the machine is not on the pod's network"))?;
    let mut netd = netd(&server, &pod_uid, index).await?;
    let begin = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let known = timeout(ASK, ask(&mut netd, peer)).await;
        let known = known.map_err(|_| Failure::unavailable("netd does not answer"))?;
        match known.map_err(|status| Failure::unavailable(format!("netd: {}", status.message())))? {
            Acceptance::Accepted => return Ok(StatusCode::NO_CONTENT),
            Acceptance::Unknown if begin.elapsed() >= TAKEN => {
                return Err(Failure::not_found(format!("netd knows no connection from {peer}")));
            }
            Acceptance::Unanswered if begin.elapsed() >= ANSWER => {
                return Err(Failure::timeout(format!(
                    "the guest does not answer within {} s",
                    ANSWER.as_secs()
                )));
            }
            Acceptance::Unknown | Acceptance::Unanswered => sleep(pause).await,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Place of the interface that has the pod's first network.
fn primary(vmi: &VirtualMachineInstance) -> Option<usize> {
    let spec = &vmi.spec;
    let first = spec.networks.iter().find(|network| network.is_primary())?;
    spec.domain.devices.interfaces.iter().position(|interface| interface.name == first.name)
}

async fn netd(server: &Server, pod_uid: &str, index: usize) -> Result<NetdClient<Channel>, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::unavailable(format!("netd cannot be reached: {error}"));
    let socket = path::netd_control(index);
    let socket = socket.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let dir = Arc::new(server.volumes.dir(pod_uid, pod::volume::NETD, "").map_err(|e| failed(&e))?);
    let volumes = server.volumes.clone();
    let pod_uid = pod_uid.to_owned();
    // The authority is never looked at: there is one server behind the socket.
    let channel = Endpoint::from_static("http://netd").connect_timeout(ASK);
    let connect = tower::service_fn(move |_: Uri| {
        let (dir, volumes) = (Arc::clone(&dir), volumes.clone());
        let (socket, pod_uid) = (socket.clone(), pod_uid.clone());
        async move {
            let stream = dir.connect(&socket).await?;
            volumes.peer(&stream, &pod_uid)?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    let channel = channel.connect_with_connector(connect).await.map_err(|e| failed(&e))?;
    Ok(NetdClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES))
}

async fn ask(netd: &mut NetdClient<Channel>, peer: SocketAddr) -> Result<Acceptance, tonic::Status> {
    let mut parts = netd.list_flows(acceptance::question(peer)).await?.into_inner();
    let mut known = Acceptance::Unknown;
    while let Some(part) = parts.message().await? {
        match acceptance::judge(&part.flows, peer) {
            Acceptance::Unknown => {}
            found => known = found,
        }
    }
    Ok(known)
}
