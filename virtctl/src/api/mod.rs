//! The API server: a PUT for a state, a GET for objects, a DELETE, a WebSocket for a stream.
//!
//! All go through one kube client, so TLS, tokens, client certificates, exec plugins and impersonation are the
//! same for each. kube's own WebSocket call offers only the subprotocols of exec and attach, so the upgrade is done
//! here, by the same client, with `plain.kubevirt.io`: binary messages whose bytes are the stream.

use std::future::Future;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::config::Settings;
use crate::explain::{ApiError, Asked, Cause, cause};
use crate::target::{Object, Target};

mod change;
pub(crate) mod objects;

/// Group of the API that starts, stops and streams.
pub(crate) const SUBRESOURCES: &str = "subresources.kubevirt.io";
/// The WebSocket subprotocol of streams: binary messages, nothing around the bytes.
pub(crate) const SUBPROTOCOL: &str = "plain.kubevirt.io";
/// What a wrong server makes us hold at most; the largest right answer is a picture of a display.
const MAX_ANSWER: usize = 16 << 20;

/// A list of objects.
#[derive(serde::Deserialize)]
struct List {
    #[serde(default)]
    items: Vec<serde_json::Value>,
}

/// A stream into a machine.
pub(crate) type Stream = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// One cluster as one user.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: kube::Client,
    server: String,
    namespace: String,
    timeout: Option<Duration>,
}

impl Cluster {
    /// Prepares the client; connects when something is asked.
    ///
    /// # Errors
    /// When certificates or keys cannot be used.
    pub(crate) fn new(settings: Settings) -> anyhow::Result<Self> {
        let server = settings.config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = kube::Client::try_from(settings.config).map_err(|error| {
            anyhow::Error::new(error).context(format!("cannot make a client for {server}"))
        })?;
        Ok(Self { client, server, namespace: settings.namespace, timeout: settings.request_timeout })
    }

    /// The namespace of objects that name none.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Asks for a state: PUT of a subresource.
    ///
    /// # Errors
    /// When the answer is no success.
    pub(crate) async fn put(
        &self,
        object: &Object,
        subresource: &str,
        body: &impl Serialize,
    ) -> Result<(), ApiError> {
        let asked = asked("update", object, subresource);
        let fail = |cause| self.error(&asked, cause);
        let request = with_json(Method::PUT, path(object, subresource), body).map_err(fail)?;
        self.limited(self.answer(request)).await.map_err(fail)?;
        Ok(())
    }

    /// Asks a question: GET of a subresource, whose answer is JSON.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn ask(&self, object: &Object, subresource: &str) -> Result<String, ApiError> {
        let asked = asked("get", object, subresource);
        self.text(path(object, subresource)).await.map_err(|cause| self.error(&asked, cause))
    }

    /// Asks a question that has options: GET of a subresource with a body, whose answer is JSON.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn ask_with(
        &self,
        object: &Object,
        subresource: &str,
        options: &impl Serialize,
    ) -> Result<String, ApiError> {
        let asked = asked("get", object, subresource);
        let fail = |cause| self.error(&asked, cause);
        let request = with_json(Method::GET, path(object, subresource), options).map_err(fail)?;
        let body = self.limited(self.answer(request)).await.map_err(fail)?;
        text(body).map_err(fail)
    }

    /// Reads an object of `kubevirt.io`. The name and the namespace are checked ones.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn read(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<serde_json::Value, ApiError> {
        let asked = Asked { verb: "get", group: "kubevirt.io", resource: resource.into() };
        let path = format!("{}/{name}", collection(resource, Some(namespace)));
        self.json(path).await.map_err(|cause| self.error(&asked, cause))
    }

    /// Reads the object itself.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn get(&self, object: &Object) -> Result<serde_json::Value, ApiError> {
        let resource = object.kind.resource();
        let asked = Asked { verb: "get", group: "kubevirt.io", resource: resource.into() };
        let path = format!("/apis/kubevirt.io/v1/namespaces/{}/{resource}/{}", object.namespace, object.name);
        self.json(path).await.map_err(|cause| self.error(&asked, cause))
    }

    /// Reads objects of `kubevirt.io`: of a namespace or of all, with these labels or with any.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn list(
        &self,
        resource: &str,
        namespace: Option<&str>,
        selector: Option<&str>,
    ) -> Result<Vec<serde_json::Value>, ApiError> {
        let asked = Asked { verb: "list", group: "kubevirt.io", resource: resource.into() };
        let mut path = collection(resource, namespace);
        if let Some(selector) = selector {
            // Names and labels have no other characters that a query must not.
            path += &format!("?labelSelector={}", selector.replace('/', "%2F").replace('=', "%3D"));
        }
        let list: List = self.json(path).await.map_err(|cause| self.error(&asked, cause))?;
        Ok(list.items)
    }

    /// Deletes an object of `kubevirt.io`.
    ///
    /// # Errors
    /// When the answer is no success.
    pub(crate) async fn delete(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        dry_run: bool,
    ) -> Result<(), ApiError> {
        let asked = Asked { verb: "delete", group: "kubevirt.io", resource: resource.into() };
        let fail = |cause| self.error(&asked, cause);
        let query = if dry_run { "?dryRun=All" } else { "" };
        let request = Request::delete(format!("{}/{name}{query}", collection(resource, Some(namespace))))
            .header(header::ACCEPT, "application/json")
            .body(Body::empty())
            .map_err(|error| fail(Cause::Protocol(error.to_string())))?;
        self.limited(self.answer(request)).await.map_err(fail)?;
        Ok(())
    }

    /// Reads a virtual machine with its instance type and its preference in its template.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn expanded(&self, object: &Object) -> Result<serde_json::Value, ApiError> {
        let asked = asked("get", object, "expand-spec");
        self.json(path(object, "expand-spec")).await.map_err(|cause| self.error(&asked, cause))
    }

    /// The same of a manifest, which is not stored.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn expand(&self, manifest: &serde_json::Value) -> Result<serde_json::Value, ApiError> {
        let asked = Asked { verb: "update", group: SUBRESOURCES, resource: "expand-vm-spec".into() };
        let path = format!("/apis/{SUBRESOURCES}/v1/namespaces/{}/expand-vm-spec", self.namespace);
        let fail = |cause| self.error(&asked, cause);
        let request = with_json(Method::PUT, path, manifest).map_err(fail)?;
        self.decoded(request).await.map_err(fail)
    }

    /// Reads the version of the server.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn version<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let asked = Asked { verb: "get", group: SUBRESOURCES, resource: "version".into() };
        self.json(format!("/apis/{SUBRESOURCES}/v1/version")).await.map_err(|cause| self.error(&asked, cause))
    }

    /// Reads what the server tells of its image with libguestfs' tools.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn guestfs<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let asked = Asked { verb: "get", group: SUBRESOURCES, resource: "guestfs".into() };
        self.json(format!("/apis/{SUBRESOURCES}/v1/guestfs")).await.map_err(|cause| self.error(&asked, cause))
    }

    /// A picture of a machine's display.
    ///
    /// # Errors
    /// When the answer is no success.
    pub(crate) async fn screenshot(&self, object: &Object, move_cursor: bool) -> Result<Vec<u8>, ApiError> {
        let asked = asked("get", object, "vnc/screenshot");
        let path = path(object, &format!("vnc/screenshot?moveCursor={move_cursor}"));
        self.bytes(path).await.map_err(|cause| self.error(&asked, cause))
    }

    /// Opens a stream. `subresource` may have a query.
    ///
    /// # Errors
    /// When the answer is no WebSocket.
    pub(crate) async fn open(&self, object: &Object, subresource: &str) -> Result<Stream, ApiError> {
        let plain = subresource.split('?').next().unwrap_or(subresource);
        let asked = asked("get", object, plain.split('/').next().unwrap_or(plain));
        self.limited(self.upgrade(path(object, subresource))).await.map_err(|cause| self.error(&asked, cause))
    }

    /// The machine a target names. A dot divided name and namespace before 1.7, and still does here where no machine
    /// has the dotted name.
    ///
    /// # Errors
    /// When the target is no valid name.
    pub(crate) async fn resolve(&self, target: &Target) -> anyhow::Result<Object> {
        let namespace = target.namespace.as_deref().unwrap_or(&self.namespace);
        let object = Object::new(target.kind, &target.name, namespace)?;
        let Some((name, namespace)) = target.dotted() else { return Ok(object) };
        match self.get(&object).await {
            Err(error) if error.is_not_found() => {
                let meant = Object::new(target.kind, name, namespace)?;
                crate::output::complain(&format!(
                    "Warning: there is no {object}; taking {:?} as {}/{namespace}, which is how to write it.",
                    object.path(),
                    meant.path()
                ));
                Ok(meant)
            }
            _ => Ok(object),
        }
    }

    /// What is answered, if it is JSON.
    async fn text(&self, path: String) -> Result<String, Cause> {
        text(self.bytes(path).await?)
    }

    async fn json<T: DeserializeOwned>(&self, path: String) -> Result<T, Cause> {
        let body = self.bytes(path).await?;
        serde_json::from_slice(&body)
            .map_err(|error| Cause::Protocol(format!("the answer makes no sense: {error}")))
    }

    async fn bytes(&self, path: String) -> Result<Vec<u8>, Cause> {
        let request = Request::get(path)
            .header(header::ACCEPT, "application/json")
            .body(Body::empty())
            .map_err(|error| Cause::Protocol(error.to_string()))?;
        self.limited(self.answer(request)).await
    }

    /// The JSON of a success.
    async fn decoded<T: DeserializeOwned>(&self, request: Request<Body>) -> Result<T, Cause> {
        let body = self.limited(self.answer(request)).await?;
        serde_json::from_slice(&body)
            .map_err(|error| Cause::Protocol(format!("the answer makes no sense: {error}")))
    }

    /// The body of a success.
    async fn answer(&self, request: Request<Body>) -> Result<Vec<u8>, Cause> {
        let response = self.client.send(request).await.map_err(|error| cause(&error))?;
        let status = response.status();
        let body = body(response).await?;
        if status.is_success() { Ok(body) } else { Err(refusal(status, &body)) }
    }

    async fn upgrade(&self, path: String) -> Result<Stream, Cause> {
        let key = generate_key();
        let request = Request::get(path)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, &key)
            .header(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL)
            .body(Body::empty())
            .map_err(|error| Cause::Protocol(error.to_string()))?;
        let response = self.client.send(request).await.map_err(|error| cause(&error))?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(status, &body(response).await?));
        }
        check_handshake(response.headers(), &key)?;
        let upgraded = hyper::upgrade::on(response).await.map_err(|error| {
            Cause::Protocol(format!("the connection did not become a WebSocket: {error}"))
        })?;
        Ok(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await)
    }

    async fn limited<T>(&self, request: impl Future<Output = Result<T, Cause>>) -> Result<T, Cause> {
        match self.timeout {
            None => request.await,
            Some(after) => tokio::time::timeout(after, request).await.unwrap_or(Err(Cause::Timeout(after))),
        }
    }

    fn error(&self, asked: &Asked, cause: Cause) -> ApiError {
        ApiError { asked: asked.clone(), server: self.server.clone(), cause }
    }
}

/// Whether the server agreed to a WebSocket that carries plain bytes (RFC 6455, 4.1).
fn check_handshake(headers: &HeaderMap, key: &str) -> Result<(), Cause> {
    let sent = |name: HeaderName| headers.get(name).map(HeaderValue::as_bytes);
    if sent(header::SEC_WEBSOCKET_ACCEPT) != Some(derive_accept_key(key.as_bytes()).as_bytes()) {
        return Err(Cause::Protocol("the server's WebSocket handshake does not fit the request".into()));
    }
    // Servers without subprotocols speak plain bytes too.
    match sent(header::SEC_WEBSOCKET_PROTOCOL) {
        Some(other) if other != SUBPROTOCOL.as_bytes() => {
            let other = String::from_utf8_lossy(other);
            Err(Cause::Protocol(format!(
                "the server chose the WebSocket subprotocol {other:?}, not {SUBPROTOCOL}"
            )))
        }
        _ => Ok(()),
    }
}

fn asked(verb: &'static str, object: &Object, subresource: &str) -> Asked {
    Asked { verb, group: SUBRESOURCES, resource: format!("{}/{subresource}", object.kind.resource()) }
}

/// An answer that is JSON.
fn text(body: Vec<u8>) -> Result<String, Cause> {
    let nonsense =
        |error: &dyn std::fmt::Display| Cause::Protocol(format!("the answer makes no sense: {error}"));
    let text = String::from_utf8(body).map_err(|error| nonsense(&error))?;
    serde_json::from_str::<serde::de::IgnoredAny>(&text).map_err(|error| nonsense(&error))?;
    Ok(text)
}

/// A request with `body` as JSON, whose answer is to be JSON.
fn with_json(method: Method, path: String, body: &impl Serialize) -> Result<Request<Body>, Cause> {
    let body = serde_json::to_vec(body).map_err(|error| Cause::Protocol(error.to_string()))?;
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .body(Body::from(body))
        .map_err(|error| Cause::Protocol(error.to_string()))
}

fn collection(resource: &str, namespace: Option<&str>) -> String {
    let namespace = namespace.map_or_else(String::new, |name| format!("/namespaces/{name}"));
    format!("/apis/kubevirt.io/v1{namespace}/{resource}")
}

fn path(object: &Object, subresource: &str) -> String {
    let (namespace, resource, name) = (&object.namespace, object.kind.resource(), &object.name);
    format!("/apis/{SUBRESOURCES}/v1/namespaces/{namespace}/{resource}/{name}/{subresource}")
}

async fn body(response: Response<Body>) -> Result<Vec<u8>, Cause> {
    match Limited::new(response.into_body(), MAX_ANSWER).collect().await {
        Ok(body) => Ok(body.to_bytes().into()),
        Err(error) => Err(Cause::Protocol(format!("the answer broke off: {error}"))),
    }
}

/// An answer that is no success: Kubernetes' `Status`, or what a proxy on the way wrote.
fn refusal(status: StatusCode, body: &[u8]) -> Cause {
    #[derive(serde::Deserialize)]
    struct Status {
        kind: String,
        #[serde(default)]
        reason: String,
        #[serde(default)]
        message: String,
    }
    let code = status.as_u16();
    match serde_json::from_slice::<Status>(body) {
        Ok(Status { kind, reason, message }) if kind == "Status" => Cause::Status { code, reason, message },
        _ => {
            let text = String::from_utf8_lossy(body);
            let line = text.trim().lines().next().unwrap_or_default();
            let message = if line.is_empty() {
                format!("the answer is {status}")
            } else {
                line.chars().take(300).collect()
            };
            Cause::Status { code, reason: String::new(), message }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Kind;

    #[test]
    fn paths_are_the_aggregated_apis() {
        let object = Object::new(Kind::Vmi, "a", "b").unwrap();
        assert_eq!(
            path(&object, "portforward/22/tcp"),
            "/apis/subresources.kubevirt.io/v1/namespaces/b/virtualmachineinstances/a/portforward/22/tcp"
        );
    }

    #[test]
    fn answers_that_are_no_status_keep_their_first_line() {
        let Cause::Status { code, message, .. } = refusal(StatusCode::BAD_GATEWAY, b"<html>\nmore") else {
            panic!()
        };
        assert_eq!((code, message.as_str()), (502, "<html>"));
        let Cause::Status { message, .. } = refusal(StatusCode::NOT_FOUND, b"") else { panic!() };
        assert_eq!(message, "the answer is 404 Not Found");
        let json = br#"{"kind":"Status","reason":"Conflict","message":"VM is already running"}"#;
        let Cause::Status { reason, message, .. } = refusal(StatusCode::CONFLICT, json) else { panic!() };
        assert_eq!((reason.as_str(), message.as_str()), ("Conflict", "VM is already running"));
    }
}
