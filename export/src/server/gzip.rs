//! Compressed images: as many processors as there are compress pieces of the image, each a member of its own (RFC 1952, section
//! 2.2), which follow each other in the order of the image. Readers of gzip take several members as one file. Pieces that are
//! holes are neither read nor compressed.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::OnceLock;

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{Stream, StreamExt, stream};

use super::image::{Extent, Image, blocking, steps};

/// Bytes of a piece.
pub(super) const PIECE: u64 = 1 << 20;
/// How well pieces are compressed: better takes much longer than the network.
const LEVEL: u32 = 3;
/// Most pieces that are compressed at a time.
const MOST: usize = 4;

/// A member with these bytes.
pub(super) fn member(bytes: &[u8]) -> io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 2), Compression::new(LEVEL));
    encoder.write_all(bytes)?;
    encoder.finish().map(Bytes::from)
}

/// Pieces to compress at a time.
pub(super) fn together() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MOST)
}

/// The member of a piece of zeroes.
fn zeroes(length: u64) -> io::Result<Bytes> {
    static WHOLE: OnceLock<Bytes> = OnceLock::new();
    let made = || member(&vec![0; usize::try_from(length).map_err(io::Error::other)?]);
    if length != PIECE {
        return made();
    }
    if let Some(whole) = WHOLE.get() {
        return Ok(whole.clone());
    }
    let whole = made()?;
    Ok(WHOLE.get_or_init(|| whole).clone())
}

/// Whether there are zeroes alone.
fn is_blank(bytes: &[u8]) -> bool {
    // Each byte is as the one before it, which compilers make a comparison of memory.
    bytes.first().is_none_or(|first| *first == 0)
        && bytes.get(1..).unwrap_or_default()
            == bytes.get(..bytes.len().saturating_sub(1)).unwrap_or_default()
}

fn piece(image: &Image, part: Range<u64>) -> io::Result<Bytes> {
    match image.extent(part.start, part.end) {
        Extent::Hole(end) if end >= part.end => zeroes(part.end - part.start),
        _ => {
            let length = part.end - part.start;
            let bytes = image.read(part)?;
            // Of a device nothing tells where its holes are.
            if is_blank(&bytes) { zeroes(length) } else { member(&bytes) }
        }
    }
}

/// The compressed image.
pub(super) fn members(image: Image) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let size = image.size();
    // An empty image is an empty member.
    let starts = steps(0..size.max(1), PIECE);
    let pieces = stream::iter(starts).map(move |start| {
        let image = image.clone();
        let part = start..size.min(start.saturating_add(PIECE));
        blocking(move || piece(&image, part))
    });
    pieces.buffered(together())
}

/// Answers with members.
pub(super) fn packed(members: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Response {
    let answer = Response::builder().header(header::CONTENT_TYPE, "application/gzip");
    let body = Body::from_stream(members);
    answer.body(body).unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// Answers with a compressed image.
pub(super) fn answer(image: Image) -> Response {
    packed(members(image))
}
