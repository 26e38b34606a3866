//! Forwarding UDP: one stream for each sender, one message for each datagram.
//!
//! A sender is gone when nothing was heard from it or for it for [`SILENCE`]. What does not fit into a queue is
//! dropped, as the network does.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::Message;

use super::doing;
use crate::api::Cluster;
use crate::output::complain;
use crate::target::{Forward, Object};

/// What most NATs grant UDP.
const SILENCE: Duration = Duration::from_secs(120);
/// Datagrams that wait for a stream.
const QUEUE: usize = 64;
/// Senders at a time: each has a connection to the API server.
const MAX_SENDERS: usize = 256;

/// Receives datagrams for ever.
pub(super) async fn serve(cluster: Cluster, object: Object, forward: Forward, socket: UdpSocket) {
    let socket = Arc::new(socket);
    let mut queues: HashMap<SocketAddr, mpsc::Sender<Vec<u8>>> = HashMap::new();
    let mut flows = JoinSet::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        tokio::select! {
            Some(ended) = flows.join_next() => {
                if let Ok(peer) = ended {
                    queues.remove(&peer);
                }
            }
            received = socket.recv_from(&mut buffer) => {
                let (length, peer) = match received {
                    Ok(received) => received,
                    // A sender that was answered and is gone (ICMP port unreachable).
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                    Err(error) => {
                        complain(&format!("cannot receive datagrams for port {}: {error}", forward.local));
                        sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                if !queues.contains_key(&peer) {
                    if queues.len() >= MAX_SENDERS {
                        complain(&format!("port {}: more than {MAX_SENDERS} senders, {peer} is not forwarded", forward.local));
                        continue;
                    }
                    tracing::info!(%peer, port = forward.remote, "opening a udp tunnel");
                    let (queue, datagrams) = mpsc::channel(QUEUE);
                    queues.insert(peer, queue);
                    let (cluster, object, socket) = (cluster.clone(), object.clone(), Arc::clone(&socket));
                    flows.spawn(async move {
                        flow(&cluster, &object, forward, &socket, peer, datagrams).await;
                        peer
                    });
                }
                if let (Some(queue), Some(datagram)) = (queues.get(&peer), buffer.get(..length)) {
                    let _ = queue.try_send(datagram.to_vec());
                }
            }
        }
    }
}

async fn flow(
    cluster: &Cluster,
    object: &Object,
    forward: Forward,
    socket: &UdpSocket,
    peer: SocketAddr,
    mut datagrams: mpsc::Receiver<Vec<u8>>,
) {
    let mut stream = match cluster.open(object, &forward.subresource()).await {
        Ok(stream) => stream,
        Err(error) => return complain(&format!("error: {}", error.explain(&doing(&forward), object))),
    };
    loop {
        let one = async {
            tokio::select! {
                datagram = datagrams.recv() => match datagram {
                    Some(datagram) => stream.send(Message::binary(datagram)).await.is_ok(),
                    None => false,
                },
                message = stream.next() => match message {
                    Some(Ok(Message::Binary(datagram))) => {
                        // A datagram that cannot be sent is lost, as any.
                        let _ = socket.send_to(&datagram, peer).await;
                        true
                    }
                    Some(Ok(Message::Close(_)) | Err(_)) | None => false,
                    Some(Ok(_)) => true,
                },
            }
        };
        if !timeout(SILENCE, one).await.unwrap_or(false) {
            break;
        }
    }
    let _ = timeout(Duration::from_secs(1), stream.close(None)).await;
}
