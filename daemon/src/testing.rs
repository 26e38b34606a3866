//! An API server for tests, whose answers are a function's.
//!
//! Built for tests and by the feature `testing`, never into a daemon.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::http::{Method, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::{Json, Router};
use base64::Engine as _;
use kube::Client;
use serde_json::{Value, json};

use crate::pki::{CA_SECRET, KeyPairPem};

/// A client of a server that answers each request, whose body is `Null` when it is no JSON, by a code and a body.
pub fn client(
    namespace: &str,
    answer: impl Fn(&Method, &Uri, Value) -> (u16, Value) + Send + Sync + 'static,
) -> Client {
    let answer = Arc::new(answer);
    let served = move |method: Method, uri: Uri, body: Bytes| {
        let answer = Arc::clone(&answer);
        async move {
            // Lets others in between a reading and the writing that follows from it.
            tokio::task::yield_now().await;
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let (code, body) = answer(&method, &uri, body);
            (StatusCode::from_u16(code).expect("no status code"), Json(body))
        }
    };
    Client::new(Router::new().fallback(served), namespace)
}

/// A request: method and path without the query, and the body.
pub type Asked = (String, Value);

/// A client of a server that keeps what it is asked; `None` of `answer` sends back what came.
pub fn recorded(
    namespace: &str,
    answer: impl Fn(&Asked) -> Option<(u16, Value)> + Send + Sync + 'static,
) -> (Client, Arc<Mutex<VecDeque<Asked>>>) {
    let asked: Arc<Mutex<VecDeque<Asked>>> = Arc::default();
    let log = asked.clone();
    let client = client(namespace, move |method, uri, body| {
        let asked = (format!("{method} {}", uri.path()), body);
        let answer = answer(&asked).unwrap_or((200, asked.1.clone()));
        log.lock().unwrap_or_else(PoisonError::into_inner).push_back(asked);
        answer
    });
    (client, asked)
}

/// A failure as the API server tells it.
pub fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": reason, "message": message, "code": code});
    (code, status)
}

/// The Secret of a CA as the API server tells it.
pub fn ca_secret(ca: &KeyPairPem) -> Value {
    let data = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CA_SECRET}, "type": "kubernetes.io/tls",
        "data": {"tls.crt": data(&ca.certificate), "tls.key": data(&ca.key)}})
}

/// A client of a cluster without objects: lists are empty, and watches stay open and tell nothing. It keeps what was
/// asked: `LIST` or `WATCH` and the path of each.
pub fn idle(namespace: &str) -> (Client, Arc<Mutex<Vec<String>>>) {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = asked.clone();
    let served = move |uri: Uri| {
        let log = log.clone();
        async move {
            let watches = uri.query().is_some_and(|query| query.contains("watch=true"));
            let what = if watches { "WATCH" } else { "LIST" };
            log.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{what} {}", uri.path()));
            if watches {
                let never = futures::stream::pending::<Result<Bytes, std::convert::Infallible>>();
                return Body::from_stream(never).into_response();
            }
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": []});
            Json(list).into_response()
        }
    };
    (Client::new(Router::new().fallback(served), namespace), asked)
}
