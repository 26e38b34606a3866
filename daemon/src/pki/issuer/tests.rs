//! Issuers against a made-up API server that counts versions as the real one does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::http::Method;
use serde_json::{Value, json};

use super::*;
use crate::testing::{self, failure};

#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    version: u64,
    writes: Vec<String>,
    conflicts: usize,
}

impl Server {
    fn answer(&mut self, method: &Method, path: &str, mut body: Value) -> (u16, Value) {
        let path = match *method {
            Method::POST => format!("{path}/{}", body["metadata"]["name"].as_str().unwrap()),
            _ => path.to_owned(),
        };
        let stored = self.objects.get(&path);
        if *method == Method::GET {
            return stored
                .map_or_else(|| failure(404, "NotFound", "NotFound"), |object| (200, object.clone()));
        }
        let fits = match (method, stored) {
            (&Method::POST, None) => true,
            (_, Some(object)) => object["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"],
            (_, None) => return failure(404, "NotFound", "NotFound"),
        };
        if !fits {
            self.conflicts += 1;
            return failure(409, "Conflict", "Conflict");
        }
        self.version += 1;
        body["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.writes.push(format!("{method} {}", path.rsplit('/').next().unwrap()));
        self.objects.insert(path, body.clone());
        (200, body)
    }
}

fn client(server: &Arc<Mutex<Server>>) -> Client {
    let server = Arc::clone(server);
    testing::client("default", move |method, uri, body| {
        server.lock().unwrap().answer(method, uri.path(), body)
    })
}

fn issuer(server: &Arc<Mutex<Server>>) -> Issuer {
    Issuer::new(
        client(server),
        "kubevirt",
        LeafRequest::of_the_daemons("kubevirt"),
        Policies::fixed(Policy::default()),
    )
}

#[tokio::test]
async fn replicas_that_start_together_make_everything_once() {
    let server = Arc::default();
    let (one, two, three) = (issuer(&server), issuer(&server), issuer(&server));
    let (a, b, c) = tokio::join!(one.ensure(), two.ensure(), three.ensure());
    a.and(b).and(c).unwrap();
    let mut server = server.lock().unwrap();
    assert!(server.conflicts > 0, "they did meet");
    server.writes.sort();
    assert_eq!(
        server.writes,
        [
            "POST kubevirt-ca",
            "POST kubevirt-ca",
            "POST kubevirt-controller-certs",
            "POST kubevirt-exportproxy-certs",
            "POST kubevirt-virt-api-certs",
            "POST kubevirt-virt-handler-certs",
        ],
        "a Secret and a ConfigMap kubevirt-ca, and the leaves"
    );
}

#[tokio::test]
async fn another_ca_is_kept_beside_the_first() {
    let server = Arc::default();
    issuer(&server).ensure().await.unwrap();
    server.lock().unwrap().writes.clear();
    let policies = Policies::fixed(Policy::default());
    let other =
        Issuer::new(client(&server), "kubevirt", Vec::new(), policies).with_ca("other-ca", "other-ca");
    other.ensure().await.unwrap();
    other.ensure().await.unwrap();
    assert_eq!(
        server.lock().unwrap().writes,
        ["POST other-ca", "POST other-ca"],
        "a Secret and a ConfigMap, once"
    );
}

#[tokio::test]
async fn what_is_in_order_is_not_written_again() {
    let server = Arc::default();
    issuer(&server).ensure().await.unwrap();
    let written = server.lock().unwrap().writes.len();
    issuer(&server).ensure().await.unwrap();
    assert_eq!(server.lock().unwrap().writes.len(), written);
}

#[tokio::test]
async fn a_spoilt_secret_is_replaced_and_keeps_its_labels() {
    let server = Arc::default();
    issuer(&server).ensure().await.unwrap();
    let path = "/api/v1/namespaces/kubevirt/secrets/kubevirt-virt-api-certs";
    {
        let mut server = server.lock().unwrap();
        let secret = server.objects.get_mut(path).unwrap();
        secret["data"]["tls.key"] = json!("bm8ga2V5");
        secret["metadata"]["labels"]["team"] = json!("infra");
    }
    issuer(&server).ensure().await.unwrap();
    let server = server.lock().unwrap();
    assert_eq!(server.writes.last().unwrap(), "PUT kubevirt-virt-api-certs");
    let secret: Secret = serde_json::from_value(server.objects[path].clone()).unwrap();
    assert!(usable(Some(&secret)).is_some());
    assert_eq!(secret.metadata.labels.unwrap()["team"], "infra");
}

#[tokio::test(start_paused = true)]
async fn an_emptied_secret_is_filled_when_word_of_it_comes() {
    let server = Arc::<Mutex<Server>>::default();
    let issuer = issuer(&server);
    issuer.ensure().await.unwrap();
    let path = "/api/v1/namespaces/kubevirt/secrets/kubevirt-controller-certs";
    let (tell, told) = futures::channel::mpsc::unbounded();
    let began = tokio::time::Instant::now();
    let spoil = async {
        // The first look finds nothing to do.
        tokio::time::sleep(Duration::from_millis(1)).await;
        server.lock().unwrap().objects.get_mut(path).unwrap()["data"] = json!({"tls.crt": "", "tls.key": ""});
        tell.unbounded_send(()).unwrap();
        while server.lock().unwrap().objects[path]["data"]["tls.crt"] == "" {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = spoil => {}
        () = issuer.run_on(told) => unreachable!("it runs for ever"),
    }
    assert!(began.elapsed() < Duration::from_secs(1), "after {:?}", began.elapsed());
}

#[tokio::test]
async fn a_server_that_refuses_is_an_error_that_says_what_was_tried() {
    let refusing = testing::client("x", |_, _, _| failure(403, "Forbidden", "no"));
    let issuer = Issuer::new(refusing, "kubevirt", Vec::new(), Policies::fixed(Policy::default()));
    let error = issuer.ensure().await.unwrap_err();
    assert_eq!(error.to_string(), "reading ConfigMap kubevirt-ca");
}
