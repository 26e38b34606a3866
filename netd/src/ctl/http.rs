//! The metrics over TCP: `GET /metrics`, one request a connection.
//!
//! Prometheus needs no more of HTTP (RFC 9112) than this. Any client that can reach the pod can reach it, so a request is
//! bounded in size and time and there are few at once.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::metrics::{CONTENT_TYPE, Metrics};

/// More than any scraper's request line and header fields.
const MAX_REQUEST_BYTES: usize = 8192;
/// From the connection to the end of the answer.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Requests at once; more wait in the backlog.
const MAX_REQUESTS: usize = 4;
/// After an error of accept, which is usually a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens at `address`.
///
/// # Errors
///
/// What the system says.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Answers requests until it is dropped.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>) {
    let requests = Arc::new(Semaphore::new(MAX_REQUESTS));
    loop {
        let Ok(permit) = requests.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let metrics = metrics.clone();
                tokio::spawn(async move {
                    let _permit = permit;
                    match timeout(REQUEST_TIME, answer(stream, metrics)).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!(%peer, %error, "a metrics request failed"),
                        Err(_) => tracing::debug!(%peer, "a metrics request took too long"),
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a metrics connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, metrics: Arc<Metrics>) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        if request.len() >= MAX_REQUEST_BYTES {
            return respond(&mut stream, "431 Request Header Fields Too Large", "").await;
        }
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    match target(&request) {
        Some(("GET", "/metrics")) => {
            let text = tokio::task::spawn_blocking(move || metrics.text()).await?;
            respond(&mut stream, "200 OK", &text).await
        }
        Some(("GET", _)) => respond(&mut stream, "404 Not Found", "").await,
        Some(_) => respond(&mut stream, "405 Method Not Allowed", "").await,
        None => respond(&mut stream, "400 Bad Request", "").await,
    }
}

/// Method and path of the request line, without a query.
pub(super) fn target(request: &[u8]) -> Option<(&str, &str)> {
    let line = request.split(|b| *b == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let http = words.next()?.starts_with("HTTP/1.") && words.next().is_none();
    http.then(|| (method, path.split('?').next().unwrap_or(path)))
}

async fn respond(stream: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
