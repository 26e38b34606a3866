//! Forwarding TCP: one stream for each connection.

use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::{LINGER, doing};
use crate::api::Cluster;
use crate::output::complain;
use crate::pump::pump;
use crate::target::{Forward, Object};

/// Accepts connections for ever.
pub(super) async fn serve(cluster: Cluster, object: Object, forward: Forward, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((connection, peer)) => {
                tracing::info!(%peer, port = forward.remote, "opening a tcp tunnel");
                tokio::spawn(connect(cluster.clone(), object.clone(), forward, connection));
            }
            // The client went away before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                complain(&format!("cannot accept a connection for port {}: {error}", forward.local));
                // Out of descriptors, for instance: others have to end first.
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connect(cluster: Cluster, object: Object, forward: Forward, connection: TcpStream) {
    let stream = match cluster.open(&object, &forward.subresource()).await {
        Ok(stream) => stream,
        Err(error) => return complain(&format!("error: {}", error.explain(&doing(&forward), &object))),
    };
    // What delays small writes is the machine's business, not ours.
    let _ = connection.set_nodelay(true);
    let (reader, writer) = connection.into_split();
    match pump(stream, reader, writer, LINGER).await {
        Ok(end) => {
            if let Some(trouble) = end.trouble() {
                complain(&format!("port {} of {object}: {trouble}", forward.remote));
            }
        }
        // The local client went away.
        Err(error) => tracing::info!("port {}: {error}", forward.remote),
    }
}
