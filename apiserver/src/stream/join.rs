//! Two connections made one.

use axum::body::Body;
use axum::response::Response;
use http::Request;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::{Instrument, debug};

use crate::handler::{Agreed, UPGRADE_HEADERS};

/// Buffer of each direction, in bytes: a screenful of VNC is many of them, a console is less than one.
const BUFFER_BYTES: usize = 16 * 1024;

/// Moves bytes both ways until both directions have ended or one failed. An end of one direction is passed on while
/// the other goes on. Returns the bytes moved to `far` and to `near`.
///
/// # Errors
///
/// One of the connections broke; both are dropped then.
pub async fn join<A, B>(near: &mut A, far: &mut B) -> std::io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    tokio::io::copy_bidirectional_with_sizes(near, far, BUFFER_BYTES, BUFFER_BYTES).await
}

/// Answers the client with virt-handler's agreement and joins the two from then on. `held` is dropped at the end.
pub fn respond<H: Send + 'static>(request: &mut Request<Body>, agreed: Agreed, held: H) -> Response {
    let upgrade = hyper::upgrade::on(request);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = agreed.response.status;
    for name in UPGRADE_HEADERS {
        for value in agreed.response.headers.get_all(&name) {
            response.headers_mut().append(name.clone(), value.clone());
        }
    }
    let mut far = agreed.stream;
    tokio::spawn(
        async move {
            let _held = held;
            match upgrade.await {
                Ok(near) => match join(&mut TokioIo::new(near), &mut far).await {
                    Ok((to_guest, to_client)) => debug!(to_guest, to_client, "stream ended"),
                    Err(error) => debug!(%error, "stream broke"),
                },
                Err(error) => debug!(%error, "the client went away before the stream began"),
            }
        }
        .in_current_span(),
    );
    response
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const PIPE_BYTES: usize = 1024;

    #[tokio::test]
    async fn a_side_that_does_not_read_stops_the_other_and_nothing_is_lost() {
        let (mut client, mut near) = tokio::io::duplex(PIPE_BYTES);
        let (mut guest, mut far) = tokio::io::duplex(PIPE_BYTES);
        let joined = tokio::spawn(async move { join(&mut near, &mut far).await });
        let mut sent = 0u64;
        // The runtime has one thread: after a turn of the joining task a write that waits stands still for good.
        loop {
            match client.write(&[7; 700]).now_or_never() {
                Some(length) => sent += length.unwrap() as u64,
                None => {
                    for _ in 0..8 {
                        tokio::task::yield_now().await;
                    }
                    match client.write(&[7; 700]).now_or_never() {
                        Some(length) => sent += length.unwrap() as u64,
                        None => break,
                    }
                }
            }
            assert!(sent < 1 << 20, "bytes pile up");
        }
        assert!(sent <= (BUFFER_BYTES + 2 * PIPE_BYTES) as u64, "{sent} bytes are held");

        let finish = async {
            client.shutdown().await.unwrap();
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
            rest
        };
        let serve = async {
            let mut got = Vec::new();
            guest.read_to_end(&mut got).await.unwrap();
            // The client's end was passed on; the guest may still speak.
            guest.write_all(b"bye").await.unwrap();
            guest.shutdown().await.unwrap();
            got.len() as u64
        };
        let (rest, got) = tokio::join!(finish, serve);
        assert_eq!((rest.as_slice(), got), (b"bye".as_slice(), sent));
        assert_eq!(joined.await.unwrap().unwrap(), (sent, 3));
    }
}
