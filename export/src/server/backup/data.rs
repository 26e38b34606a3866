//! Disks' data: read in chunks, ahead of the client by no more than a few.

use std::ops::Range;

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use tokio::sync::mpsc;

use super::super::image::steps;
use super::nbd::{NbdError, Session};
use super::pool::{Pool, Stream};
use super::query::Part;

/// Bytes that are read at a time.
const CHUNK: u32 = 512 << 10;
/// Chunks that are read ahead.
const AHEAD: usize = 2;

/// Answers with a disk's data, or the part of it that is asked for.
pub(super) async fn answer(pool: &Pool, volume: &str, uri: &Uri) -> Response {
    let part = match Part::of(uri) {
        Ok(part) => part,
        Err(refusal) => return refusal.into_response(),
    };
    let (session, part) = match super::open(pool, volume, &[], part).await {
        Ok(opened) => opened,
        Err(refusal) => return refusal,
    };
    let length = part.end - part.start;
    let (chunks, mut read) = mpsc::channel(AHEAD);
    tokio::spawn(send(session, part, chunks, volume.to_owned()));
    let body = Body::from_stream(stream::poll_fn(move |context| read.poll_recv(context)));
    let answer = Response::builder()
        .status(StatusCode::OK)
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .header(header::CONTENT_LENGTH, length);
    answer.body(body).unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// Sends a part in chunks, until its end or until the client has gone. Where it cannot be read, the client sees that the answer is short.
async fn send(
    mut session: Session<Stream>,
    part: Range<u64>,
    chunks: mpsc::Sender<Result<Bytes, NbdError>>,
    volume: String,
) {
    let end = part.end;
    for start in steps(part, CHUNK.into()) {
        let length = u32::try_from(end - start).map_or(CHUNK, |left| left.min(CHUNK));
        let read = tokio::select! {
            read = session.read(start, length) => read,
            // What is read then is of no use, and the stream to the machine ends.
            () = chunks.closed() => return,
        };
        let failed = read.is_err();
        if let Err(error) = &read {
            let error = error as &dyn std::error::Error;
            tracing::warn!(volume, start, error, "the disk's data is not served to its end");
        }
        let sent = chunks.send(read.map(Bytes::from)).await;
        if failed {
            return;
        }
        if sent.is_err() {
            break;
        }
    }
    session.close().await;
}
