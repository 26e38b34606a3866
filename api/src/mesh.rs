//! The service meshes that a machine asks for by its own labels and annotations, which are its pod's as well. What the labels of a
//! namespace ask for is not known here.

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

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Vec<Mesh> {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let metadata =
            ObjectMeta { labels: map(labels), annotations: map(annotations), ..ObjectMeta::default() };
        Mesh::asked(&metadata).collect()
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
