//! The way to the API server, with answers as they come.
//!
//! The client library makes a request again, up to fifteen times and for minutes, that is answered with 429, 503 or 504, and tells
//! the program nothing meanwhile. A daemon has its own way with failures: it says what was refused, in an event or a condition, and
//! comes back to the object after a growing delay.

use kube::{Client, Config, Error};

/// A client by what the pod, or a kubeconfig, says.
///
/// # Errors
/// Neither is there, or it names no server that can be used.
pub async fn connect() -> kube::Result<Client> {
    with_answers_as_they_come(Config::infer().await.map_err(Error::InferConfig)?)
}

/// A client that makes each request once.
///
/// # Errors
/// The configuration names no server that can be used.
pub fn with_answers_as_they_come(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    Client::try_from(config)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[tokio::test]
    async fn a_server_that_is_not_available_is_asked_once_and_its_answer_is_told() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let answer = async move || {
            counted.fetch_add(1, SeqCst);
            (axum::http::StatusCode::SERVICE_UNAVAILABLE, "no endpoints available")
        };
        let router = Router::new().fallback(answer);
        let serving = tokio::spawn(async { axum::serve(listener, router).await });
        crate::crypto::install();
        let nodes: Api<Node> = Api::all(with_answers_as_they_come(Config::new(uri)).unwrap());
        let error = nodes.get("node1").await.unwrap_err();
        assert!(matches!(&error, Error::Api(status) if status.code == 503), "{error:?}");
        assert_eq!(asked.load(SeqCst), 1);
        serving.abort();
    }
}
