//! Images: read in chunks, ahead of the client by no more than a few, and without reading the holes of a sparse file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::range::{Asked, asked};
use super::root::Place;

/// Bytes that are read at a time.
const CHUNK: u64 = 512 << 10;
/// Chunks that are read ahead.
const AHEAD: usize = 3;
/// What holes read as.
static ZEROES: [u8; CHUNK as usize] = [0; CHUNK as usize];

/// An image that is open.
#[derive(Clone, Debug)]
pub struct Image {
    file: Arc<File>,
    size: u64,
    /// Which version of the image it is, where the file says when it was written.
    tag: Option<String>,
}

/// What is in a part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Something that has to be read, up to this place.
    Data(u64),
    /// Zeroes, up to this place.
    Hole(u64),
}

impl Image {
    /// Opens a file or a block device.
    pub(super) fn open(place: &Place<'_>) -> io::Result<Self> {
        let file = place.open()?;
        let metadata = file.metadata()?;
        let kind = metadata.file_type();
        let (size, tag) = if kind.is_file() {
            let tag = format!("\"{:x}-{:x}.{:x}\"", metadata.len(), metadata.mtime(), metadata.mtime_nsec());
            (metadata.len(), Some(tag))
        } else if kind.is_block_device() {
            (seek(&file, SeekFrom::End(0))?, None)
        } else {
            return Err(io::Error::other("it is neither a file nor a block device"));
        };
        Ok(Image { file: Arc::new(file), size, tag })
    }

    /// Its size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// What is at a place before `end`.
    pub(super) fn extent(&self, at: u64, end: u64) -> Extent {
        extent(&self.file, at, end)
    }

    /// Reads a part, all of it.
    pub(super) fn read(&self, part: Range<u64>) -> io::Result<Vec<u8>> {
        let length = usize::try_from(part.end.saturating_sub(part.start)).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, part.start)?;
        Ok(bytes)
    }

    /// A chunk: zeroes are not read.
    fn chunk(&self, part: Range<u64>) -> io::Result<Bytes> {
        match self.extent(part.start, part.end) {
            Extent::Hole(end) if end >= part.end => {
                let length = usize::try_from(part.end - part.start).map_err(io::Error::other)?;
                Ok(ZEROES.get(..length).map_or_else(|| vec![0; length].into(), Bytes::from_static))
            }
            _ => self.read(part).map(Bytes::from),
        }
    }

    /// The bytes of a part.
    fn stream(self, part: Range<u64>) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let end = part.end;
        let parts = stream::iter(steps(part, CHUNK)).map(move |start| {
            let image = self.clone();
            let chunk = start..end.min(start.saturating_add(CHUNK));
            blocking(move || image.chunk(chunk))
        });
        // Of an image that cannot be read the rest is not sent: the client sees that it is short.
        parts.buffered(AHEAD)
    }
}

/// What a file has at a place before `end`. Where the file system cannot tell, it is data.
pub(super) fn extent(file: &File, at: u64, end: u64) -> Extent {
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) if data > at => Extent::Hole(data.min(end)),
        Ok(_) => match seek(file, SeekFrom::Hole(at)) {
            Ok(hole) if hole > at => Extent::Data(hole.min(end)),
            _ => Extent::Data(end),
        },
        Err(Errno::NXIO) => Extent::Hole(end),
        Err(_) => Extent::Data(end),
    }
}

/// The starts of pieces of this length.
pub(super) fn steps(part: Range<u64>, length: u64) -> impl Iterator<Item = u64> + Send {
    std::iter::successors(Some(part.start), move |start| start.checked_add(length))
        .take_while(move |start| *start < part.end)
}

/// Runs what may block on a thread for that.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Answers with an image, or the part of it that is asked for.
pub(super) fn answer(image: Image, headers: &HeaderMap) -> Response {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    // A part of another version is of no use to the client.
    let current = text(header::IF_RANGE).is_none_or(|tag| Some(tag) == image.tag.as_deref());
    let size = image.size;
    let (code, part) = match asked(text(header::RANGE).filter(|_| current), size) {
        Asked::All => (StatusCode::OK, 0..size),
        Asked::Part(part) => (StatusCode::PARTIAL_CONTENT, part),
        Asked::Beyond => {
            let range = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
            return (StatusCode::RANGE_NOT_SATISFIABLE, range).into_response();
        }
    };
    let mut answer = Response::builder()
        .status(code)
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .header(header::CONTENT_LENGTH, part.end - part.start);
    if let Some(tag) = &image.tag {
        answer = answer.header(header::ETAG, tag);
    }
    if code == StatusCode::PARTIAL_CONTENT {
        answer =
            answer.header(header::CONTENT_RANGE, format!("bytes {}-{}/{size}", part.start, part.end - 1));
    }
    let body = Body::from_stream(image.stream(part));
    answer.body(body).unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}
