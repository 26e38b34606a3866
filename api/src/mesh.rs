//! The service meshes that a machine asks for by its own labels and annotations, which are its pod's as well. What the labels of a
//! namespace ask for is not known here.

use serde::Deserialize as _;
use serde_json::Value;

use crate::kernel;
use crate::meta::ObjectMeta;
use crate::names::annotation;

/// A mesh that has pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mesh {
    /// Istio, by a proxy in the pod.
    Istio,
    /// Istio's ambient mode, by the node's proxy.
    Ambient,
    /// Linkerd.
    Linkerd,
}

impl Mesh {
    const ALL: [Mesh; 3] = [Mesh::Istio, Mesh::Ambient, Mesh::Linkerd];

    /// The key by which it is asked for.
    pub fn key(self) -> &'static str {
        match self {
            Mesh::Istio => annotation::ISTIO_INJECT,
            Mesh::Ambient => "istio.io/dataplane-mode",
            Mesh::Linkerd => "linkerd.io/inject",
        }
    }

    /// The meshes that a machine asks for.
    pub fn asked(metadata: &ObjectMeta) -> impl Iterator<Item = Mesh> {
        Mesh::ALL.into_iter().filter(|mesh| mesh.is_asked(metadata))
    }

    /// TCP ports that its proxy has in a pod, the same as netd reserves.
    fn proxy_ports(self) -> &'static [u16] {
        match self {
            Mesh::Istio => &[15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090],
            Mesh::Linkerd => &[4140, 4143, 4190, 4191],
            // The node's proxy has these sockets in each pod of its mesh.
            Mesh::Ambient => &[15001, 15006, 15008, 15053],
        }
    }

    /// Whether a machine asks for it.
    pub fn is_asked(self, metadata: &ObjectMeta) -> bool {
        let label = || metadata.labels.get(self.key()).map(String::as_str);
        let annotation = || metadata.annotations.get(self.key()).map(String::as_str);
        match self {
            // The annotation is made the pod's label, in place of one of the machine's.
            Mesh::Istio => {
                annotation().filter(|v| matches!(*v, "true" | "false")).or_else(label) == Some("true")
            }
            Mesh::Ambient => label() == Some("ambient"),
            Mesh::Linkerd => matches!(annotation(), Some("enabled" | "ingress")),
        }
    }
}

/// What tells of a proxy in the pod: variables of the container netd's environment, and the places in the pod's metadata that they
/// have their values from. Injectors write there when they put their proxies into a pod. The node's proxy of
/// Istio's ambient mode leaves no mark before a container starts, but has its sockets by then: netd finds its ports taken.
pub const MARKS: [(&str, &str); 2] = [
    ("ISTIO_SIDECAR_STATUS", "metadata.annotations['sidecar.istio.io/status']"),
    ("LINKERD_PROXY_VERSION", "metadata.annotations['linkerd.io/proxy-version']"),
];

/// Whether a mesh's proxy may be in the pod whose `environment` gives a variable's value. It may where a mark is not among the
/// variables: pods of earlier releases have none.
pub fn may_be_in_pod(environment: impl Fn(&str) -> Option<String>) -> bool {
    MARKS.iter().any(|(name, _)| environment(name).is_none_or(|mark| !mark.is_empty()))
}

/// Most warnings of a machine's ports.
const MAX_WARNINGS: usize = 16;

/// What is told to the maker of a machine that lists ports which the proxy of a mesh that it asks for has in its pod: these reach the
/// proxy and not the guest. `machine` has `metadata` and `spec`, which stands at `field`.
pub fn warnings(machine: &Value, field: &str) -> Vec<String> {
    let metadata = ObjectMeta::deserialize(&machine["metadata"]).unwrap_or_default();
    if metadata.annotations.get(annotation::MASQUERADE).is_some_and(|way| way == kernel::BY_NFTABLES) {
        return Vec::new();
    }
    let meshes: Vec<Mesh> = Mesh::asked(&metadata).collect();
    let interfaces = machine["spec"]["domain"]["devices"]["interfaces"].as_array();
    let ports = interfaces.into_iter().flatten().enumerate().flat_map(|(n, interface)| {
        let ports = interface["ports"].as_array();
        ports.into_iter().flatten().enumerate().map(move |(place, port)| (n, place, port))
    });
    let warned = ports.flat_map(|(n, place, port)| {
        let is_tcp = port["protocol"].as_str().is_none_or(|name| name == "TCP" || name.is_empty());
        let number = port["port"].as_u64().filter(|_| is_tcp);
        let having = meshes.iter().filter(move |mesh| {
            mesh.proxy_ports().iter().any(|taken| Some(u64::from(*taken)) == number)
        });
        having.map(move |mesh| {
            format!(
                "{field}.domain.devices.interfaces[{n}].ports[{place}]: port {} is the mesh's own ({}): it is not forwarded to the guest",
                number.unwrap_or_default(),
                mesh.key()
            )
        })
    });
    warned.take(MAX_WARNINGS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Vec<Mesh> {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let metadata =
            ObjectMeta { labels: map(labels), annotations: map(annotations), ..ObjectMeta::default() };
        Mesh::asked(&metadata).collect()
    }

    #[test]
    fn a_listed_port_of_the_meshs_own_is_warned_of_where_the_machine_is_in_one() {
        let machine = |annotations: Value| {
            let ports = json!([{"port": 7777}, {"port": 4190}, {"port": 15090, "protocol": "TCP"}, {"port": 15053, "protocol": "UDP"}]);
            json!({"metadata": {"annotations": annotations},
                "spec": {"domain": {"devices": {"interfaces": [{"name": "default", "ports": ports}]}}}})
        };
        let told = |annotations: Value| warnings(&machine(annotations), "spec");
        assert_eq!(told(json!({})), [""; 0]);
        let istio = told(json!({"sidecar.istio.io/inject": "true"}));
        assert_eq!(istio.len(), 1);
        assert!(istio[0].starts_with("spec.domain.devices.interfaces[0].ports[2]: port 15090"), "{istio:?}");
        let linkerd = told(json!({"linkerd.io/inject": "enabled"}));
        assert!(linkerd.len() == 1 && linkerd[0].contains("ports[1]: port 4190"), "{linkerd:?}");
        let kernels = json!({"linkerd.io/inject": "enabled", annotation::MASQUERADE: "nftables"});
        assert_eq!(told(kernels), [""; 0]);
    }

    #[test]
    fn a_machine_in_ambient_mode_is_warned_of_the_ports_that_the_nodes_proxy_has_in_its_pod() {
        let ports = json!([{"port": 15008}, {"port": 15090}, {"port": 4190}]);
        let machine = json!({"metadata": {"labels": {"istio.io/dataplane-mode": "ambient"}},
            "spec": {"domain": {"devices": {"interfaces": [{"name": "default", "ports": ports}]}}}});
        let found = warnings(&machine, "spec");
        assert!(found.len() == 1 && found[0].contains("ports[0]: port 15008"), "{found:?}");
    }

    #[test]
    fn a_proxy_may_be_where_an_injector_has_left_its_mark_or_no_mark_is_known() {
        let pod = |istio: Option<&str>, linkerd: Option<&str>| {
            may_be_in_pod(|name| {
                let mark = if name == MARKS[0].0 { istio } else { linkerd };
                mark.map(str::to_owned)
            })
        };
        assert!(!pod(Some(""), Some("")), "no mesh, or Istio's ambient mode");
        assert!(pod(Some("{\"containers\":[\"istio-proxy\"]}"), Some("")), "Istio's sidecar");
        assert!(pod(Some(""), Some("edge-26.1.1")), "Linkerd");
        assert!(pod(None, None), "a pod of an earlier release");
    }

    #[test]
    fn a_machine_asks_where_the_mesh_looks() {
        const ISTIO: &str = annotation::ISTIO_INJECT;
        assert_eq!(asked(&[], &[(ISTIO, "true")]), [Mesh::Istio]);
        assert_eq!(asked(&[(ISTIO, "true")], &[]), [Mesh::Istio]);
        assert_eq!(asked(&[(ISTIO, "true")], &[(ISTIO, "false")]), []);
        assert_eq!(asked(&[(ISTIO, "true")], &[(ISTIO, "perhaps")]), [Mesh::Istio]);
        assert_eq!(asked(&[("istio.io/dataplane-mode", "ambient")], &[]), [Mesh::Ambient]);
        assert_eq!(asked(&[("istio.io/dataplane-mode", "none")], &[]), []);
        assert_eq!(asked(&[], &[("istio.io/dataplane-mode", "ambient")]), []);
        assert_eq!(asked(&[], &[("linkerd.io/inject", "enabled")]), [Mesh::Linkerd]);
        assert_eq!(asked(&[("linkerd.io/inject", "enabled")], &[("linkerd.io/inject", "disabled")]), []);
    }
}
