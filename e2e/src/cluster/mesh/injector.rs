//! A mesh's injector: the webhook that puts a proxy into the pods that ask for one, as Istio's and Linkerd's do.
//!
//! ```text
//!   pod, sidecar.istio.io/inject: "true" ──> API server ──> this process ──> pod with istio-init and istio-proxy
//! ```
//!
//! It is a server of this process, registered for one namespace alone, and gone with the value. Names,
//! users, capabilities, ports, probes and places among the containers are the meshes'. Where Istio has its own image, the
//! bed's stands, with the real Envoy; the rules are written by the same kind of init container.
//!
//! What it understands of a pod's annotations (Istio reads the first two as labels, too):
//!
//! | annotation | |
//! |---|---|
//! | `sidecar.istio.io/inject` | `"true"`: Istio |
//! | `linkerd.io/inject` | `enabled`: Linkerd |
//! | `sidecar.istio.io/nativeSidecar` | `"false"`: the proxy is an ordinary container, as it was before Kubernetes had sidecars |
//! | `traffic.sidecar.istio.io/excludeInboundPorts` | ports that go past the proxy |
//! | `istio.io/reroute-virtual-interfaces` | interfaces by which the pod's own guest sends |
//! | `mesh.test/config` | the ConfigMap with the proxy's configuration; `mesh` |
//! | `mesh.test/probe` | `inside`: the proxy is probed by a command, as nodes have no way to the pod's network |

use std::net::IpAddr;

use anyhow::Result;
use axum::routing::post;
use axum::{Json, Router};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use podvirt_daemon::pki::Identity;
use serde_json::{Value, json};
use tokio::io;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificates::Authority;
use super::envoy::FILES;
use super::rules;
use crate::cluster::Namespace;

/// The bed's image with Envoy.
pub const IMAGE: &str = "podvirt/mesh:dev";

/// The webhook of a namespace, until this is dropped.
pub(super) struct Injector<'n> {
    namespace: &'n Namespace<'n>,
}

impl<'n> Injector<'n> {
    pub(super) fn start(namespace: &'n Namespace<'n>) -> Result<Injector<'n>> {
        let cluster = namespace.cluster();
        let here = cluster.address();
        let authority = Authority::new()?;
        let server = authority.issue(&[here.to_string()])?;
        let tls =
            TlsAcceptor::from(Identity::fixed(&server, &authority.certificate())?.server_config(false)?);
        let listener = std::net::TcpListener::bind((here, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        // The cluster's own runtime runs only while this process waits for it.
        std::thread::spawn(move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let listener = Listener { tcp: TcpListener::from_std(listener)?, tls };
                Ok(axum::serve(listener, Router::new().route("/inject", post(review))).await?)
            })
        });
        let webhook = json!({
            "metadata": {"name": namespace.name()},
            "webhooks": [{
                "name": "injector.mesh.test", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "failurePolicy": "Fail", "timeoutSeconds": 10, "reinvocationPolicy": "Never",
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name()}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
                "clientConfig": {
                    "url": format!("https://{}/inject", host(here, port)),
                    "caBundle": ByteString(authority.certificate().into_bytes()),
                },
            }],
        });
        let api: Api<MutatingWebhookConfiguration> = Api::all(cluster.client());
        cluster.block_on(api.create(&PostParams::default(), &serde_json::from_value(webhook)?))?;
        Ok(Injector { namespace })
    }
}

impl Drop for Injector<'_> {
    fn drop(&mut self) {
        let cluster = self.namespace.cluster();
        let api: Api<MutatingWebhookConfiguration> = Api::all(cluster.client());
        drop(cluster.block_on(api.delete(self.namespace.name(), &DeleteParams::default())));
    }
}

fn host(address: IpAddr, port: u16) -> std::net::SocketAddr {
    (address, port).into()
}

struct Listener {
    tcp: TcpListener,
    tls: TlsAcceptor,
}

impl axum::serve::Listener for Listener {
    type Io = TlsStream<TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            if let Ok((stream, from)) = self.tcp.accept().await
                && let Ok(stream) = self.tls.accept(stream).await
            {
                return (stream, from);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

async fn review(Json(review): Json<AdmissionReview<DynamicObject>>) -> Json<AdmissionReview<DynamicObject>> {
    let request: AdmissionRequest<DynamicObject> = match review.try_into() {
        Ok(request) => request,
        Err(error) => return Json(AdmissionResponse::invalid(error).into_review()),
    };
    let response = AdmissionResponse::from(&request);
    let pod = match serde_json::to_value(&request.object) {
        Ok(pod) => pod,
        Err(error) => return Json(AdmissionResponse::invalid(error).into_review()),
    };
    let mut injected = pod.clone();
    inject(&mut injected);
    let response = match response.with_patch(json_patch::diff(&pod, &injected)) {
        Ok(response) => response,
        Err(error) => AdmissionResponse::invalid(error),
    };
    Json(response.into_review())
}

/// Puts the proxy into the pod, if it asks for one.
fn inject(pod: &mut Value) {
    let says = |key: &str| {
        let meta = &pod["metadata"];
        let said = [&meta["labels"][key], &meta["annotations"][key]].into_iter().find_map(Value::as_str);
        said.map(str::to_owned)
    };
    let istio = says("sidecar.istio.io/inject").as_deref() == Some("true");
    let linkerd = says("linkerd.io/inject").as_deref() == Some("enabled");
    if !istio && !linkerd {
        return;
    }
    let native = says("sidecar.istio.io/nativeSidecar").as_deref() != Some("false");
    let past = says("traffic.sidecar.istio.io/excludeInboundPorts").unwrap_or_default();
    let inside = says("istio.io/reroute-virtual-interfaces").unwrap_or_default();
    let config = says("mesh.test/config").unwrap_or_else(|| "mesh".into());
    let probed_inside = says("mesh.test/probe").as_deref() == Some("inside");

    let (init, proxy) = if istio {
        // Where the proxy connects from over IPv6; 127.0.0.6 needs nothing.
        let address = "ip -6 addr add ::6/128 dev lo\n";
        (init("istio-init", address, &rules::istio(&past, &inside)), istio_proxy(native, probed_inside))
    } else {
        (init("linkerd-init", "", &rules::linkerd()), linkerd_proxy(native))
    };
    let spec = &mut pod["spec"];
    list(spec, "volumes", |all| {
        all.push(json!({"name": "istio-envoy", "emptyDir": {"medium": "Memory"}}));
        all.push(json!({"name": "istio-config", "configMap": {"name": config}}));
    });
    if native {
        // The rules, and then the proxy, are there before any container of the pod's own.
        list(spec, "initContainers", |all| drop(all.splice(0..0, [init, proxy])));
    } else {
        // Init containers of the pod's own reach the world without the proxy, which is not there yet.
        list(spec, "initContainers", |all| all.push(init));
        list(spec, "containers", |all| all.push(proxy));
    }
}

/// Changes a list of the pod's, which is made if the pod has none.
fn list(spec: &mut Value, name: &str, change: impl FnOnce(&mut Vec<Value>)) {
    if !spec[name].is_array() {
        spec[name] = json!([]);
    }
    if let Some(all) = spec[name].as_array_mut() {
        change(all);
    }
}

fn init(name: &str, before: &str, rules: &str) -> Value {
    let script = format!("{before}nft -f - <<'RULES'\n{rules}RULES\n");
    json!({
        "name": name, "image": IMAGE, "command": ["sh", "-ec", script],
        "securityContext": {
            "runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": false, "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true, "capabilities": {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]},
        },
    })
}

fn proxy(name: &str, user: u32, native: bool, command: &str) -> Value {
    let mut proxy = json!({
        "name": name, "image": IMAGE, "command": ["sh", "-ec", format!("cp --update=none /etc/istio/config/* {FILES}/\nexec {command}")],
        "securityContext": {
            "runAsUser": user, "runAsGroup": user, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true, "privileged": false, "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "volumeMounts": [{"name": "istio-envoy", "mountPath": FILES}, {"name": "istio-config", "mountPath": "/etc/istio/config"}],
    });
    if native {
        proxy["restartPolicy"] = json!("Always");
    }
    proxy
}

fn envoy() -> String {
    format!("envoy -c {FILES}/envoy.json --concurrency 1 --disable-hot-restart --drain-time-s 1 -l warning")
}

fn istio_proxy(native: bool, inside: bool) -> Value {
    let mut proxy = proxy("istio-proxy", rules::ISTIO, native, &format!("mesh-agent sidecar {}", envoy()));
    proxy["ports"] = json!([{"name": "http-envoy-prom", "containerPort": 15090, "protocol": "TCP"}]);
    let mut probe = if inside {
        json!({"exec": {"command": ["curl", "-sf", "http://127.0.0.1:15021/healthz/ready"]}})
    } else {
        json!({"httpGet": {"path": "/healthz/ready", "port": 15021}})
    };
    probe["timeoutSeconds"] = json!(3);
    probe["periodSeconds"] = json!(1);
    proxy["readinessProbe"] = probe.clone();
    probe["failureThreshold"] = json!(600);
    proxy["startupProbe"] = probe;
    proxy
}

fn linkerd_proxy(native: bool) -> Value {
    let mut proxy = proxy("linkerd-proxy", rules::LINKERD, native, &envoy());
    proxy["ports"] = json!([{"name": "linkerd-proxy", "containerPort": 4143}, {"name": "linkerd-admin", "containerPort": 4191}]);
    proxy
}
