//! Health in the form of upstream's daemons, which its tools read: `GET /healthz` by HTTPS on port 8443.
//!
//! ```json
//! {"apiserver": {"connectivity": "ok"}, "config-resource-version": "1234"}
//! ```
//!
//! `config-resource-version` is the version of the KubeVirt object that the daemon goes by: a tool that has changed the
//! configuration waits until every daemon names this version or a later one. `connectivity` is what the watch of that
//! object said last; while it fails, the answer is 500 with the error. The probes of the kubelet ask
//! [`http`](crate::http) in place of this: a daemon is not started anew because the API server is away.

use std::sync::{Arc, PoisonError, RwLock};

use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::get};
use hyper::StatusCode;
use serde_json::json;

/// What a daemon knows of the API server and of its configuration. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<RwLock<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Of the KubeVirt object; none while there is no such object.
    version: Option<String>,
    /// Why the watch fails.
    failure: Option<String>,
}

impl Health {
    /// Notes that the daemon goes by the KubeVirt object of this resource version, or by the defaults because there is
    /// none.
    pub fn applied(&self, version: Option<String>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Known { version, failure: None };
    }

    /// Notes that the watch of the KubeVirt object fails. What was applied goes on to hold.
    pub fn failed(&self, why: &dyn std::error::Error) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).failure = Some(why.to_string());
    }

    /// The answer to `/healthz`.
    pub fn answer(&self) -> Response {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let version = known.version.as_deref().unwrap_or("0");
        let (status, apiserver) = match &known.failure {
            None => (StatusCode::OK, json!({"connectivity": "ok"})),
            Some(error) => {
                (StatusCode::INTERNAL_SERVER_ERROR, json!({"connectivity": "failed", "error": error}))
            }
        };
        let body = json!({"apiserver": apiserver, "config-resource-version": version});
        (status, Json(body)).into_response()
    }
}

/// Where [`Health::answer`] is served. The second is what upstream's tools ask for; servers in Go take it for the first.
pub const PATHS: [&str; 2] = ["/healthz", "//healthz"];

/// The routes, for daemons that serve nothing else by this server.
pub fn router(health: Health) -> Router {
    let answer = get(async move || health.answer());
    PATHS.into_iter().fold(Router::new(), |router, path| router.route(path, answer.clone()))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt;

    use super::*;

    async fn said(health: &Health) -> (StatusCode, serde_json::Value) {
        let answer = health.answer();
        let status = answer.status();
        let body = axum::body::to_bytes(answer.into_body(), 4096).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn the_version_that_is_applied_is_told_also_while_the_watch_fails() {
        let health = Health::default();
        let ok = json!({"connectivity": "ok"});
        let answer = |version: &str| json!({"apiserver": ok, "config-resource-version": version});
        assert_eq!(said(&health).await, (StatusCode::OK, answer("0")));
        health.applied(Some("17".into()));
        assert_eq!(said(&health).await, (StatusCode::OK, answer("17")));
        health.failed(&std::io::Error::other("refused"));
        let (status, body) = said(&health).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(body["apiserver"], json!({"connectivity": "failed", "error": "refused"}));
        assert_eq!(body["config-resource-version"], "17");
        health.applied(None);
        assert_eq!(said(&health).await, (StatusCode::OK, answer("0")));
    }

    #[tokio::test]
    async fn it_is_served_at_the_path_that_upstreams_tools_ask_for() {
        for path in PATHS {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let answer = router(Health::default()).oneshot(request).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK, "{path}");
        }
    }
}
