//! Requests against a made-up API server that says of every sender on which node its token is valid.

use std::sync::{Arc, Mutex};

use axum::http::Method;
use serde_json::{Value, json};

use super::super::certificate::{Certificate, KeyPairPem, make_ca};
use super::super::node::is_node;
use super::super::policy::Policy;
use super::super::request::{AskError, ask};
use super::*;
use crate::testing::{self, failure};

struct Server {
    /// Node in the token of the client that makes a request.
    node: &'static str,
    request: Option<Value>,
    version: u64,
    writes: Vec<String>,
    ca: KeyPairPem,
}

impl Server {
    fn new(node: &'static str) -> Arc<Mutex<Self>> {
        let ca = make_ca(Timestamp::now(), Duration::from_secs(3600)).unwrap();
        Arc::new(Mutex::new(Server { node, request: None, version: 0, writes: Vec::new(), ca }))
    }

    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        if path.ends_with("/secrets/kubevirt-ca") {
            let text = |text: &str| ByteString(text.as_bytes().to_vec());
            let data = json!({"tls.crt": text(&self.ca.certificate), "tls.key": text(&self.ca.key)});
            return (200, json!({"metadata": {"name": "kubevirt-ca"}, "data": data}));
        }
        if *method != Method::GET {
            self.writes.push(format!("{method} {}", path.rsplit('/').next().unwrap()));
        }
        if *method == Method::POST {
            let mut made = body.clone();
            made["metadata"] = json!({"name": "r", "resourceVersion": "0"});
            made["spec"]["username"] = json!("system:serviceaccount:kubevirt:kubevirt-handler");
            made["spec"]["extra"] = json!({"authentication.kubernetes.io/node-name": [self.node]});
            self.request = Some(made.clone());
            return (201, made);
        }
        let Some(stored) = &mut self.request else { return failure(404, "NotFound", "NotFound") };
        if *method == Method::PATCH {
            if stored["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
                return failure(409, "Conflict", "Conflict");
            }
            self.version += 1;
            stored["metadata"]["resourceVersion"] = json!(self.version.to_string());
            for (field, value) in body["status"].as_object().unwrap() {
                stored["status"][field] = value.clone();
            }
        }
        (200, stored.clone())
    }

    fn client(server: &Arc<Mutex<Self>>) -> Client {
        let server = Arc::clone(server);
        testing::client("default", move |method, uri, body| {
            server.lock().unwrap().answer(method, uri.path(), &body)
        })
    }
}

fn signer(server: &Arc<Mutex<Server>>) -> Signer {
    Signer::new(Server::client(server), "kubevirt", "kubevirt-handler", Policies::fixed(Policy::default()))
}

/// Longer than an answer takes, in virtual time: a request without one is asked for without end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Asks for the certificate of `node` while `replicas` look at what was asked, until there is an answer.
async fn answered(server: &Arc<Mutex<Server>>, node: &str, replicas: usize) -> Result<KeyPairPem, AskError> {
    let requests: Api<CertificateSigningRequest> = Api::all(Server::client(server));
    let signers: Vec<_> = (0..replicas).map(|_| signer(server)).collect();
    let look = async {
        loop {
            let seen = server.lock().unwrap().request.clone();
            match seen {
                Some(seen) => {
                    let seen: CertificateSigningRequest = serde_json::from_value(seen).unwrap();
                    let answers = signers.iter().map(|signer| signer.answer(&seen));
                    for answer in futures::future::join_all(answers).await {
                        answer.unwrap();
                    }
                    std::future::pending::<()>().await;
                }
                None => tokio::task::yield_now().await,
            }
        }
    };
    tokio::select! {
        answer = tokio::time::timeout(TIMEOUT, ask(requests, node.to_owned())) => answer.expect("no answer"),
        () = look => unreachable!(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_gets_a_certificate_of_its_own_name_from_one_of_two_replicas() {
    let server = Server::new("node1");
    let pair = answered(&server, "node1", 2).await.unwrap();
    pair.certified_key().expect("the key is the one that was made");
    let leaf = Certificate::all_from_pem(&pair.certificate).unwrap().remove(0);
    assert!(is_node(&leaf.der, "node1") && !is_node(&leaf.der, "node2") && !is_node(&leaf.der, ""));
    assert_eq!(leaf.purpose, Some(Purpose::Node));
    let mut server = server.lock().unwrap();
    server.writes.sort();
    // The other replica's approval is refused as a conflict, and it writes no more.
    assert_eq!(
        server.writes,
        ["PATCH approval", "PATCH approval", "PATCH status", "POST certificatesigningrequests"]
    );
}

#[tokio::test(start_paused = true)]
async fn another_nodes_name_is_denied_and_the_asker_hears_why() {
    let server = Server::new("node2");
    let denied = answered(&server, "node1", 1).await.unwrap_err().to_string();
    assert!(denied.contains("Denied") && denied.contains("on node node2"), "{denied}");
    let request = server.lock().unwrap().request.clone().unwrap();
    assert_eq!(request["status"]["certificate"], Value::Null);
    // What has its answer is left alone.
    let writes = server.lock().unwrap().writes.len();
    signer(&server).answer(&serde_json::from_value(request).unwrap()).await.unwrap();
    assert_eq!(server.lock().unwrap().writes.len(), writes);
}

#[tokio::test(start_paused = true)]
async fn what_another_replica_left_half_done_is_finished_and_judged_again() {
    for (node, signed) in [("node1", true), ("node2", false)] {
        let server = Server::new(node);
        let requests: Api<CertificateSigningRequest> = Api::all(Server::client(&server));
        let asks = tokio::spawn(ask(requests, "node1".into()));
        let mut request = loop {
            tokio::task::yield_now().await;
            let seen = server.lock().unwrap().request.clone();
            if let Some(seen) = seen {
                break seen;
            }
        };
        request["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}]});
        signer(&server).answer(&serde_json::from_value(request).unwrap()).await.unwrap();
        let answer = tokio::time::timeout(TIMEOUT, asks).await.expect("no answer").unwrap();
        assert_eq!(answer.is_ok(), signed, "{answer:?}");
    }
}
