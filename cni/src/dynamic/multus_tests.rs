use std::future::pending;

use hyper::body::Incoming;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use tokio::net::UnixListener;

use super::*;

/// A daemon that answers one request with this, and what it was asked.
async fn asked<T>(
    code: u16,
    answer: &'static str,
    work: impl AsyncFnOnce(Multus) -> T,
) -> (T, String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("multus.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let serving = async {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(|request: Request<Incoming>| async {
            let what = format!("{} {}", request.method(), request.uri());
            let body = request.into_body().collect().await?.to_bytes();
            tell.send((what, serde_json::from_slice(&body).unwrap())).unwrap();
            let body = Full::new(Bytes::from_static(answer.as_bytes()));
            Ok::<_, hyper::Error>(http::Response::builder().status(code).body(body).unwrap())
        });
        // Multus' daemon keeps no connections, either.
        server::Builder::new()
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service)
            .await
            .unwrap();
        pending::<()>().await;
    };
    let value = tokio::select! {
        () = serving => unreachable!(),
        value = work(Multus::at(&socket)) => value,
    };
    let (what, body) = told.recv().unwrap();
    (value, what, body)
}

const CONFIG: &str = r#"{"type": "bridge"}"#;

fn sandbox() -> Sandbox {
    Sandbox { id: "s1".into(), namespace: "/var/run/netns/cni-1".into() }
}

fn subject(sandbox: &Sandbox) -> Subject<'_> {
    Subject { namespace: "shop", name: "virt-launcher-web", uid: "u1", sandbox }
}

#[tokio::test]
async fn an_attachment_is_asked_for_and_told() {
    let answer = r#"{"Result": {"cniVersion": "1.0.0",
        "interfaces": [{"name": "br1", "mac": "02:00:00:00:00:ff"},
                       {"name": "podred", "mac": "02:00:00:00:00:05", "sandbox": "/var/run/netns/cni-1"}],
        "ips": [{"address": "10.0.0.5/24", "gateway": "10.0.0.1"}, {"address": "fd00::5/64"}],
        "dns": {"nameservers": ["10.0.0.1"]}}}"#;
    let element = Element {
        mac: Some("02:00:00:00:00:05".into()),
        arguments: Some(json!({"logicNetworkName": "red"})),
        ..Element::default()
    };
    let own = sandbox();
    let attach = async |multus: Multus| multus.attach(subject(&own), "podred", &element, CONFIG).await;
    let (made, what, body) = asked(200, answer, attach).await;
    assert_eq!(
        made.unwrap(),
        Made {
            mac: Some("02:00:00:00:00:05".into()),
            ips: vec!["10.0.0.5".into(), "fd00::5".into()],
            dns: json!({"nameservers": ["10.0.0.1"]}),
        }
    );
    assert_eq!(what, "POST /delegate");
    assert_eq!(body["env"]["CNI_COMMAND"], "ADD");
    assert_eq!(body["env"]["CNI_CONTAINERID"], "s1");
    assert_eq!(body["env"]["CNI_NETNS"], "/var/run/netns/cni-1");
    assert_eq!(body["env"]["CNI_IFNAME"], "podred");
    let arguments = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=virt-launcher-web;K8S_POD_UID=u1";
    assert_eq!(body["env"]["CNI_ARGS"], arguments);
    assert_eq!(STANDARD.decode(body["config"].as_str().unwrap()).unwrap(), CONFIG.as_bytes());
    let wishes = json!({"ips": [], "mac": "02:00:00:00:00:05", "cni-args": {"logicNetworkName": "red"}});
    assert_eq!(body["interfaceAttributes"], wishes);
}

#[tokio::test]
async fn a_plugin_without_words_has_made_what_it_was_asked_for() {
    let own = sandbox();
    let attach =
        async |multus: Multus| multus.attach(subject(&own), "podred", &Element::default(), CONFIG).await;
    let (made, _, body) = asked(200, r#"{"Result": {"cniVersion": "1.0.0", "dns": {}}}"#, attach).await;
    assert_eq!(made.unwrap(), Made { dns: json!({}), ..Made::default() });
    assert!(body.get("interfaceAttributes").is_none(), "{body}");
}

#[tokio::test]
async fn an_interface_is_given_up_by_the_same_words() {
    let own = sandbox();
    let detach = async |multus: Multus| multus.detach(subject(&own), "podred", CONFIG).await;
    let (done, what, body) = asked(200, "", detach).await;
    done.unwrap();
    assert_eq!((what.as_str(), &body["env"]["CNI_COMMAND"]), ("POST /delegate", &json!("DEL")));
}

#[tokio::test]
async fn a_refusal_is_told_as_the_plugin_says_it() {
    let own = sandbox();
    for (answer, told) in [
        (r#"{"code": 100, "msg": "no address is left", "details": "flat"}"#, "no address is left: flat"),
        (r#"{"code": 999, "msg": "no such bridge"}"#, "no such bridge"),
        ("missing CNI_ARGS\n", "missing CNI_ARGS"),
    ] {
        let detach = async |multus: Multus| multus.detach(subject(&own), "podred", CONFIG).await;
        let (done, ..) = asked(400, answer, detach).await;
        assert_eq!(done.unwrap_err().to_string(), told);
    }
}

#[tokio::test]
async fn where_there_is_no_daemon_the_socket_is_named() {
    let multus = Multus::at(Path::new("/nowhere/multus.sock"));
    assert!(!multus.serves().await);
    let own = sandbox();
    let error = multus.detach(subject(&own), "podred", CONFIG).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/multus.sock"), "{error}");
}
