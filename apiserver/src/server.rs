//! The HTTPS server's routes.
//!
//! Discovery, OpenAPI, version and health are open to every client that reaches the server: they tell nothing that is not
//! public. A review is answered at the path that the webhook configurations name, which no pod can guess
//! ([`WebhookPaths`]). The machines of a node are [`node`]'s. Every other path is a subresource: the front proxy has to
//! vouch for the user, and the API server has to allow the request, before its body is read. What bodies and reviews may
//! take of memory stands in [`limits`](crate::limits).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use kube::Client;
use podvirt_api::admission::Cluster;
use podvirt_api::budget::{self, MAX_REVIEW_TREE_BYTES};
use podvirt_api::problem::{Problem, Problems, Reason};
use podvirt_daemon::health::{self, Health};
use podvirt_daemon::pki::WebhookPaths;
use podvirt_daemon::shutdown::Shutdown;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tracing::{Instrument, debug, info, info_span};

use crate::admission::review::{Request as ReviewRequest, Response as ReviewResponse, Review};
use crate::admission::{self, Alone, HOOKS, Hook, Lookup, Task, instancetypes};
use crate::authorize::authorize;
use crate::discovery;
use crate::front_proxy::FrontProxy;
use crate::limits::{Held, Limits, TreePlace};
use crate::metrics::{AdmissionLabels, Metrics};
use crate::node;
use crate::presets::{Cached, Effects, LeftOut, Presets, PresetsError};
use crate::status::Status;
use crate::subresource::{MAX_DOCUMENT_BYTES, MAX_OPTIONS_BYTES, Subresources, labels};
use crate::target::{Action, GROUP, Target, VERSIONS};
use crate::tls::Peer;

/// Largest review: two objects of etcd's limit of 1.5 MiB each, and what is around them.
const MAX_REVIEW_BYTES: usize = 4 << 20;
/// Longest time from a review's last byte to its answer; the API server gives up a second later.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(9);
/// Largest answer to a review, in bytes: an object needs few defaults, and few causes of a refusal are told.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Bytes of a text from a review that are logged at most.
const SHOWN: usize = 1024;

/// What the routes share.
#[derive(Clone)]
pub struct App {
    /// Client of the API server.
    pub client: Client,
    /// The front proxy, which alone may name users.
    pub proxy: Arc<FrontProxy>,
    /// Carries out subresources.
    pub subresources: Subresources,
    /// The cluster's configuration.
    pub config: Arc<ArcSwap<Cluster>>,
    /// The presets of new instances.
    pub presets: Presets,
    /// Where reviews are answered.
    pub paths: WebhookPaths,
    /// What is known of the API server and of the configuration.
    pub health: Health,
    /// podvirt's namespace.
    pub namespace: Arc<str>,
    /// What callers may hold.
    pub limits: Arc<Limits>,
    /// Metrics.
    pub metrics: Metrics,
    /// When answers without an end of their own are ended.
    pub closing: Shutdown,
}

/// All routes.
pub fn router(app: App) -> Router {
    let mut router = Router::new()
        .route("/", get(async || Json(discovery::roots())))
        .route("/version", get(async || Json(discovery::version())))
        .route("/openapi/v2", get(openapi_v2))
        .route("/openapi/v3", get(async || Json(discovery::openapi_v3_index())))
        .route("/openapi/v3/apis/{group}/{version}", get(openapi_v3));
    for path in health::PATHS {
        router = router.route(path, get(async |State(app): State<App>| app.health.answer()));
    }
    for slash in ["", "/"] {
        router = router
            .route(&format!("/apis{slash}"), get(async || Json(discovery::groups())))
            .route(&format!("/apis/{GROUP}{slash}"), get(async || Json(discovery::group())));
    }
    for version in VERSIONS {
        let at = |path: &str| format!("/apis/{GROUP}/{version}{path}");
        for slash in ["", "/"] {
            router = router.route(&at(slash), get(async move || Json(discovery::resources(version))));
        }
        router = router
            .route(&at("/version"), get(async || Json(discovery::version())))
            .route(&at("/healthz"), get(connectivity))
            .route(&at("/guestfs"), get(async || Status::not_supported("guestfs").into_response()));
    }
    for hook in HOOKS {
        let route = async move |State(app): State<App>,
                                ConnectInfo(peer): ConnectInfo<Peer>,
                                Path(token): Path<String>,
                                body: Body| {
            if !app.paths.admits(hook.path, &token).await {
                return misaddressed(&app, hook, &peer);
            }
            review(&app, hook, &peer, body).await.unwrap_or_else(IntoResponse::into_response)
        };
        let plain = async move |State(app): State<App>, ConnectInfo(peer): ConnectInfo<Peer>| {
            misaddressed(&app, hook, &peer)
        };
        router = router.route(&format!("{}/{{token}}", hook.path), post(route)).route(hook.path, post(plain));
    }
    router.merge(node::routes()).fallback(subresource).with_state(app)
}

/// Upstream's form of health: what is connected to what.
async fn connectivity(State(app): State<App>) -> Response {
    match app.client.apiserver_version().await {
        Ok(_) => Json(json!({"apiserver": {"connectivity": "ok"}})).into_response(),
        Err(error) => {
            let body = json!({"apiserver": {"connectivity": "failed", "error": error.to_string()}});
            (StatusCode::INTERNAL_SERVER_ERROR, Json(body)).into_response()
        }
    }
}

/// A document with its hash as ETag, so that the API server need not take it again.
fn tagged(document: &Value, headers: &HeaderMap) -> Response {
    let text = document.to_string();
    let tag = format!("\"{:016X}\"", discovery::hash(&text));
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known == tag.as_str()) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    ([(header::ETAG, tag), (header::CONTENT_TYPE, "application/json".to_owned())], text).into_response()
}

async fn openapi_v2(headers: HeaderMap) -> Response {
    tagged(&discovery::openapi_v2(), &headers)
}

async fn openapi_v3(Path((group, version)): Path<(String, String)>, headers: HeaderMap) -> Response {
    match VERSIONS.iter().find(|known| **known == version) {
        Some(version) if group == GROUP => tagged(&discovery::openapi_v3(version), &headers),
        _ => Status::no_such_path().into_response(),
    }
}

/// Refuses a review that the API server has not sent, without reading its body.
fn misaddressed(app: &App, hook: &'static Hook, peer: &Peer) -> Response {
    debug!(webhook = hook.name, address = %peer.address, "a review at a path that is not registered");
    let labels = AdmissionLabels { webhook: hook.name, operation: "other", allowed: "false" };
    app.metrics.admissions.get_or_create(&labels).inc();
    Status::no_such_path().into_response()
}

/// A review that was read, with the places that it holds.
struct Read {
    request: ReviewRequest,
    body: Held,
    place: TreePlace,
}

/// What a review needs behind its reading.
enum Next {
    /// Nothing: this is its answer.
    Done(Response),
    /// Other objects, by which it is judged.
    Lookup(Box<Read>),
    /// The presets of its namespace, which the cache has left out.
    Presets(Box<Read>, Arc<LeftOut>),
}

async fn review(app: &App, hook: &'static Hook, peer: &Peer, body: Body) -> Result<Response, Status> {
    let source = peer.address.ip();
    let body = app.limits.read(source, body, MAX_REVIEW_BYTES).await?;
    let judged = judged(app, hook, source, body);
    tokio::time::timeout(REVIEW_TIMEOUT, judged).await.unwrap_or_else(|_| {
        let seconds = REVIEW_TIMEOUT.as_secs();
        Err(Status::unavailable(format!("the review was not answered within {seconds} s: try again")))
    })
}

async fn judged(app: &App, hook: &'static Hook, source: IpAddr, body: Held) -> Result<Response, Status> {
    let place = app.limits.tree(source, body.len()).await;
    let turn = app.limits.review(source).await;
    let own = app.clone();
    let next = apart(move || {
        let _turn = turn;
        let read = read(hook, body, place)?;
        match hook.task {
            Task::Alone(task) if !instancetypes::concerns(task, &read.request) => {
                let config = own.config.load_full();
                let answer = match task {
                    Alone::MutateInstance if read.request.operation == "CREATE" => {
                        let presets = match own.presets.cached(&read.request.namespace) {
                            Ok(Cached::Whole(presets)) => Ok(presets),
                            Ok(Cached::LeftOut(left_out)) => {
                                return Ok(Next::Presets(Box::new(read), left_out));
                            }
                            Err(error) => Err(error),
                        };
                        new_instance(&own, &read.request, &config, presets)
                    }
                    _ => admission::answer(task, &read.request, &config, &own.namespace),
                };
                finish(&own, hook, read, answer).map(Next::Done)
            }
            _ => Ok(Next::Lookup(Box::new(read))),
        }
    })
    .await?;
    let read = match next {
        Next::Done(response) => return Ok(response),
        Next::Presets(read, left_out) => {
            return Box::pin(judged_by_list(app, hook, source, *read, &left_out)).await;
        }
        Next::Lookup(read) => *read,
    };
    let lookup_turn = app.limits.lookup(source).await;
    let config = app.config.load_full();
    match hook.task {
        Task::Lookup(task) => {
            let lookup = admission::lookup::answer(task, &read.request, &config.configuration, &app.client);
            let answer = Box::pin(lookup).await;
            finish(app, hook, read, answer)
        }
        Task::Alone(task) => {
            let found = Box::pin(instancetypes::look_up(task, &read.request, &app.client)).await;
            drop(lookup_turn);
            let turn = app.limits.review(source).await;
            let own = app.clone();
            apart(move || {
                let _turn = turn;
                let answer = match found {
                    Ok(found) => found.judge(task, &read.request, &config, &own.namespace),
                    Err(answer) => answer,
                };
                finish(&own, hook, read, answer)
            })
            .await
        }
    }
}

/// Judges a new instance by presets that are listed for it.
async fn judged_by_list(
    app: &App,
    hook: &'static Hook,
    source: IpAddr,
    read: Read,
    left_out: &LeftOut,
) -> Result<Response, Status> {
    let (presets, list_turn) = app.presets.list(left_out, app.limits.preset_list(source)).await;
    let turn = app.limits.review(source).await;
    let own = app.clone();
    apart(move || {
        let _turns = (turn, list_turn);
        let answer = new_instance(&own, &read.request, &own.config.load_full(), presets);
        finish(&own, hook, read, answer)
    })
    .await
}

/// Does what takes a processor's time apart from the threads that serve connections.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Status::internal(format!("the review ended early: {error}"))))
}

/// Reads a review within its budget; its text is gone then.
fn read(hook: &Hook, mut body: Held, mut place: TreePlace) -> Result<Read, Status> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Status::bad_request(format!("the AdmissionReview cannot be read: {error}"))
    };
    let tree = budget::parse(&body, MAX_REVIEW_TREE_BYTES).map_err(|error| unreadable(&error))?;
    body.clear();
    let review = Review::deserialize(tree).map_err(|error| unreadable(&error))?;
    let mut request = review.into_request().map_err(|error| Status::bad_request(error.to_string()))?;
    if hook.task == Task::Lookup(Lookup::Evict) {
        // The mark of a machine is reviewed in turn: what waits for it must not keep the place that it needs.
        request.object =
            json!({"deleteOptions": {"dryRun": request.object["deleteOptions"]["dryRun"].clone()}});
        request.old_object = Value::Null;
    }
    place.shrink(budget::weigh(&request.object) + budget::weigh(&request.old_object));
    Ok(Read { request, body, place })
}

/// A text of a user's, as long as it may become in the log.
fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN)]
}

/// A new instance, with its presets.
fn new_instance(
    app: &App,
    request: &ReviewRequest,
    config: &Cluster,
    presets: Result<Effects, PresetsError>,
) -> ReviewResponse {
    match presets {
        Ok(presets) => {
            let presets = presets.iter().map(|preset| &**preset);
            admission::new_instance(request, config, &app.namespace, presets)
        }
        Err(error @ PresetsError::Unknown) => ReviewResponse::failed(&request.uid, error.to_string()),
        Err(error @ PresetsError::TooMany) => {
            let problem = Problem {
                reason: Reason::FieldValueInvalid,
                message: error.to_string(),
                field: "metadata.namespace".into(),
            };
            admission::judged(request, Problems(vec![problem]))
        }
    }
}

/// Writes an answer; the review's tree is gone then.
fn finish(app: &App, hook: &'static Hook, read: Read, answer: ReviewResponse) -> Result<Response, Status> {
    let Read { request, body, place } = read;
    // Not the review's own text: a label of a metric lives as long as the process.
    let operation =
        hook.operations.iter().find(|known| **known == request.operation).copied().unwrap_or("other");
    if let Some(refusal) = &answer.status {
        info!(
            webhook = hook.name,
            operation,
            namespace = shown(&request.namespace),
            name = shown(&request.name),
            user = shown(&request.user_info.username),
            problems = shown(&refusal.message),
            "refused"
        );
    }
    let allowed = if answer.allowed { "true" } else { "false" };
    let labels = AdmissionLabels { webhook: hook.name, operation, allowed };
    app.metrics.admissions.get_or_create(&labels).inc();
    let text = serde_json::to_vec(&answer.into_review())
        .map_err(|error| Status::internal(format!("the answer cannot be written: {error}")))?;
    if text.len() > MAX_ANSWER_BYTES {
        return Err(Status::bad_request(format!(
            "the answer to the AdmissionReview has {} bytes; {MAX_ANSWER_BYTES} are allowed",
            text.len()
        )));
    }
    drop((request, place));
    let mut response = Response::new(());
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    body.answer(response, text)
}

async fn subresource(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request<Body>,
) -> Response {
    let Some(target) = Target::parse(request.uri().path()) else {
        return Status::no_such_path().into_response();
    };
    let span = info_span!(
        "subresource",
        namespace = target.namespace,
        resource = target.resource,
        object = target.name,
        subresource = target.subresource,
    );
    serve(&app, &peer, &target, request).instrument(span).await.unwrap_or_else(|status| {
        debug!(code = status.code, message = status.message, "refused");
        status.into_response()
    })
}

async fn serve(app: &App, peer: &Peer, target: &Target, request: Request<Body>) -> Result<Response, Status> {
    let user = app.proxy.user(peer, request.headers())?;
    authorize(&app.client, &user, request.method(), target).await?;
    let row = target.find(request.method())?;
    let mut turn = None;
    // What upgrades has no body but the stream itself.
    let (request, options) = if row.action.is_stream() {
        (request, Bytes::new())
    } else {
        let (parts, body) = request.into_parts();
        let max = if row.action == Action::Expand { MAX_DOCUMENT_BYTES } else { MAX_OPTIONS_BYTES };
        let body = app.limits.read(peer.address.ip(), body, max).await?;
        if row.action == Action::Expand {
            // The text keeps its place meanwhile.
            turn = Some(app.limits.document().await);
        }
        (Request::from_parts(parts, Body::empty()), body.into_bytes())
    };
    let outcome = app.subresources.serve(row, target, &user, request, options).await;
    drop(turn);
    let code = match &outcome {
        Ok(response) => response.status(),
        Err(status) => StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    };
    app.metrics.requests.get_or_create(&labels(row, code)).inc();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(shown("short"), "short");
        assert_eq!(shown(&format!("a{}", "ä".repeat(4000))).len(), SHOWN - 1);
    }
}
