//! A mesh's injector: the webhook that puts a proxy into the pods that ask for one, as Istio's and Linkerd's do.
//!
//! ```text
//!   pod, sidecar.istio.io/inject: "true" ──> API server ──> this process ──> pod with istio-init and istio-proxy
//! ```
//!
//! Names, users, capabilities, ports, probes and places among the containers are the meshes'. Where Istio has its own image, the
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

use serde_json::{Value, json};

use super::envoy::FILES;
use super::rules;

/// The bed's image with Envoy.
pub const IMAGE: &str = "podvirt/mesh:dev";

/// Puts the proxy into the pod, if it asks for one.
pub(super) fn inject(pod: &mut Value) {
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
    // By these marks a pod is known to have a proxy.
    let (mark, value) = if istio {
        ("sidecar.istio.io/status", r#"{"containers":["istio-proxy"]}"#)
    } else {
        ("linkerd.io/proxy-version", "test")
    };
    pod["metadata"]["annotations"][mark] = json!(value);
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
