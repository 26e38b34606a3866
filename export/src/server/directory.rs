//! The files of a claim, and lists of them as links.

use std::fmt::Write as _;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use http::Request;
use rustix::fs::{Dir, FileType};

use super::archive::NOT_THE_TENANTS;
use super::failed;
use super::image::{self, Image, blocking};
use super::root::Root;

/// Most entries of a list.
const MOST: usize = 10_000;

/// The routes below `base`, which ends with a slash.
pub(super) fn router(base: &str, root: Arc<Path>) -> Router {
    let base: Arc<str> = base.into();
    let own = base.clone();
    let handler = move |request: Request<Body>| {
        let (base, root) = (own.clone(), root.clone());
        async move { answer(&base, &root, request).await }
    };
    let to = base.to_string();
    let moved = move || {
        let to = to.clone();
        async move { (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, to)]) }
    };
    Router::new()
        .route(base.trim_end_matches('/'), get(moved))
        .route(&base, get(handler.clone()))
        .route(&format!("{base}{{*path}}"), get(handler))
}

/// Text of a path in which bytes may stand as `%41`.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let value = digit(bytes.next())? * 16 + digit(bytes.next())?;
        decoded.push(u8::try_from(value).ok()?);
    }
    Some(decoded)
}

/// A name as a link has it.
fn encoded(name: &[u8]) -> String {
    let mut text = String::new();
    for byte in name {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(byte) {
            text.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// A name as a page shows it.
fn escaped(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&#34;")
        .replace('\'', "&#39;")
}

fn list(directory: impl AsFd, is_root: bool) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)?.take(MOST) {
        let entry = entry?;
        let mut name = entry.file_name().to_bytes().to_vec();
        if name == b"." || name == b".." || is_root && name == NOT_THE_TENANTS.as_bytes() {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            name.push(b'/');
        }
        names.push(name);
    }
    names.sort_unstable();
    let links = names.iter().map(|name| format!("<a href=\"{}\">{}</a>\n", encoded(name), escaped(name)));
    Ok(format!("<!doctype html>\n<pre>\n{}</pre>\n", links.collect::<String>()))
}

async fn answer(base: &str, root: &Arc<Path>, request: Request<Body>) -> Response {
    use std::os::unix::ffi::OsStringExt;
    let rest = request.uri().path().strip_prefix(base).unwrap_or_default();
    let Some(path) = decoded(rest).filter(|path| !path.contains(&0)) else {
        return (StatusCode::BAD_REQUEST, "the path is not well formed\n").into_response();
    };
    let is_root = path.is_empty();
    let ends = is_root || path.ends_with(b"/");
    let name = std::path::PathBuf::from(std::ffi::OsString::from_vec(path));
    let own = root.clone();
    let found = blocking(move || {
        let place = Root::new(&own).place(name);
        let file = place.open()?;
        if file.metadata()?.is_dir() {
            return Ok(Err(if ends { list(&file, is_root)? } else { String::new() }));
        }
        Image::open(&place).map(Ok)
    });
    match found.await {
        Ok(Ok(image)) => image::answer(image, request.headers()),
        Ok(Err(page)) if ends => Html(page).into_response(),
        Ok(Err(_)) => {
            let location = format!("{}/", request.uri().path());
            (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, location)]).into_response()
        }
        Err(error) => failed(root, &error).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_travel_as_they_are() {
        let name = "a b%/ü\"<".as_bytes();
        assert_eq!(encoded(name), "a%20b%25/%C3%BC%22%3C");
        assert_eq!(decoded(&encoded(name)).unwrap(), name);
        assert_eq!((decoded("%4"), decoded("%zz")), (None, None));
        assert_eq!(escaped(b"<a&\"b\">"), "&lt;a&amp;&#34;b&#34;&gt;");
    }
}
