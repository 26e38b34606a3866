//! The server of an exporter pod.
//!
//! ```text
//!  /exportready                               whether it serves
//!  /volumes/CLAIM/disk.img                    an image, in part where a range is asked for   [`image`]
//!  /volumes/CLAIM/disk.img.gz                 an image, compressed                           [`gzip`]
//!  /volumes/CLAIM/dir/...                     files and lists of files                       [`directory`]
//!  /volumes/CLAIM/disk.tar.gz                 all files, packed and compressed               [`archive`]
//!  /{internal,external}/manifests/{all,secret}  manifests of the machine                     [`manifest`]
//!  /exports/VOLUME/{data,map}                 a disk of a backup, from the machine itself    [`backup`]
//!  /tunnel                                    where the machine of a backup dials to         [`backup`]
//! ```
//!
//! All but the first and the last want the token, in a header or as a parameter; the last one wants the machine's certificate. What an answer holds in memory is bounded: images are read in
//! chunks, no further ahead of the client than a few of them; holes of a sparse image are not read. What the claims hold is the
//! tenants' own: no link in it leads out of the claim.

pub mod archive;
pub mod backup;
pub mod config;
pub mod directory;
pub mod gzip;
pub mod image;
pub mod manifest;
mod named;
mod range;
mod root;
#[cfg(test)]
mod tests;
pub mod tls;
mod token;

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::Request;
use podvirt_api::export::READY_PATH;
use tokio::sync::Semaphore;

pub use config::{Backup, Config, ConfigError, Disk, Volume};

use root::Root;

/// Name of a machine's disk in a claim with a file system.
const DISK: &str = "disk.img";
/// Answers with the content of claims that are under way at a time.
const TRANSFERS: usize = 32;
/// Seconds after which a client that found no place may try again.
const RETRY_SECONDS: &str = "10";

/// A refusal.
pub(crate) type Refusal = (StatusCode, String);

fn failed(what: &Path, error: &std::io::Error) -> Refusal {
    tracing::warn!(path = %what.display(), %error, "not served");
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
        std::io::ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (code, format!("{error}\n"))
}

/// All routes.
pub fn router(config: &Config) -> Router {
    let transfers = Arc::new(Semaphore::new(TRANSFERS));
    let mut routes = Router::new();
    for volume in &config.volumes {
        routes = routes.merge(of_volume(volume));
    }
    let mut tunnel = Router::new();
    if let Some(backup) = &config.backup {
        let disks;
        (disks, tunnel) = backup::routers(backup);
        routes = routes.merge(disks);
    }
    routes = routes.layer(middleware::from_fn_with_state(transfers, hold));
    let manifests = manifest::router(config);
    let token = Arc::new(token::Token::new(config.token.clone()));
    routes
        .merge(manifests)
        .layer(middleware::from_fn_with_state(token, token::check))
        .route(READY_PATH, get(async || "OK"))
        .merge(tunnel)
}

fn of_volume(volume: &Volume) -> Router {
    let path: Arc<Path> = volume.path.as_path().into();
    let mut routes = Router::new();
    if let Some(raw) = &volume.raw {
        let path = path.clone();
        let handler = async move |request: Request<Body>| match image::Image::open(&disk(&path)) {
            Ok(image) => image::answer(image, request.headers()),
            Err(error) => failed(&path, &error).into_response(),
        };
        routes = routes.route(raw, get(handler));
    }
    if let Some(compressed) = &volume.gzip {
        let path = path.clone();
        let handler = async move || match image::Image::open(&disk(&path)) {
            Ok(image) => gzip::answer(image),
            Err(error) => failed(&path, &error).into_response(),
        };
        routes = routes.route(compressed, get(handler));
    }
    if let Some(packed) = &volume.archive {
        let path = path.clone();
        routes = routes.route(packed, get(async move || archive::answer(path.to_path_buf())));
    }
    if let Some(listed) = &volume.directory {
        routes = routes.merge(directory::router(listed, path));
    }
    routes
}

/// The image of a claim: the device itself, or the file in its file system.
fn disk(path: &Path) -> root::Place<'_> {
    if path.is_dir() { Root::new(path).place(DISK) } else { root::Place::device(path) }
}

/// Holds a place for an answer, until its last byte.
async fn hold(
    axum::extract::State(transfers): axum::extract::State<Arc<Semaphore>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let Ok(place) = transfers.try_acquire_owned() else {
        let refusal = (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, RETRY_SECONDS)]);
        return (refusal.0, refusal.1, "too many downloads at a time\n").into_response();
    };
    let (head, body) = next.run(request).await.into_parts();
    let mut data = body.into_data_stream();
    // The place is free again with the last chunk, or when the client has gone.
    let held = futures::stream::poll_fn(move |context| {
        let _place = &place;
        futures::Stream::poll_next(std::pin::Pin::new(&mut data), context)
    });
    Response::from_parts(head, Body::from_stream(held))
}
