//! How clients outside the cluster find the proxy: the host of an Ingress, or of a Route of OpenShift's, that leads to it.
//!
//! The certificate that such a host shows is told in the links. Of an Ingress it is in the Secret that the Ingress names;
//! virt-controller may read it only where it is given that right (docs/export.md). Of a Route it is in OpenShift's ConfigMap.

use jiff::Timestamp;
use k8s_openapi::api::networking::v1::{Ingress, IngressBackend};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podvirt_api::export::PROXY;
use podvirt_daemon::pki::Certificate;
use serde::{Deserialize, Serialize};

/// ConfigMap of the CAs of Routes, and its key.
pub(super) const ROUTE_CA: (&str, &str) = ("kube-root-ca.crt", "ca.crt");

/// A host that leads to the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct External {
    /// Name of the host.
    pub host: String,
    /// Certificates by which a client can check it, as PEM; empty where they are not known.
    pub certificate: String,
}

/// Where the certificate of a host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// In a Secret.
    Secret(String),
    /// In [`ROUTE_CA`].
    Routes,
    /// It is not said.
    Nowhere,
}

/// What podvirt reads of a Route of OpenShift's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Route {
    /// Its name.
    pub metadata: ObjectMeta,
    /// Where it leads.
    pub spec: RouteSpec,
    /// The hosts that it has got.
    pub status: RouteStatus,
}

/// Where a Route leads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RouteSpec {
    /// A Service.
    pub to: RouteTarget,
}

/// A Service that a Route leads to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RouteTarget {
    /// Its name.
    pub name: String,
}

/// The hosts of a Route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RouteStatus {
    /// One for each router.
    pub ingress: Vec<RouteIngress>,
}

/// The host of a Route at a router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RouteIngress {
    /// Its name.
    pub host: String,
}

impl k8s_openapi::Resource for Route {
    const API_VERSION: &'static str = "route.openshift.io/v1";
    const GROUP: &'static str = "route.openshift.io";
    const KIND: &'static str = "Route";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "routes";
    type Scope = k8s_openapi::NamespaceResourceScope;
}

impl k8s_openapi::Metadata for Route {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn leads(backend: &IngressBackend) -> bool {
    backend.service.as_ref().is_some_and(|service| service.name == PROXY)
}

/// The host of an Ingress that leads to the proxy.
fn host_of(ingress: &Ingress) -> Option<String> {
    let spec = ingress.spec.as_ref()?;
    let mut rules = spec.rules.iter().flatten();
    if let Some(backend) = spec.default_backend.as_ref().filter(|backend| backend.service.is_some()) {
        return rules.next()?.host.clone().filter(|host| leads(backend) && !host.is_empty());
    }
    let mut leading = rules.filter(|rule| {
        rule.http.as_ref().is_some_and(|http| http.paths.iter().any(|path| leads(&path.backend)))
    });
    leading.find_map(|rule| rule.host.clone().filter(|host| !host.is_empty()))
}

/// The host that leads to the proxy, and where its certificate is.
pub(super) fn find<'a>(
    ingresses: impl IntoIterator<Item = &'a Ingress>,
    routes: impl IntoIterator<Item = &'a Route>,
) -> Option<(String, Shown)> {
    let of_ingress = |ingress: &Ingress| {
        let tls = ingress.spec.as_ref().and_then(|spec| spec.tls.as_ref()).into_iter().flatten();
        let secret = tls.filter_map(|one| one.secret_name.clone()).find(|name| !name.is_empty());
        Some((host_of(ingress)?, secret.map_or(Shown::Nowhere, Shown::Secret)))
    };
    let of_route = |route: &Route| {
        let host = route.status.ingress.first().map(|ingress| ingress.host.clone())?;
        (route.spec.to.name == PROXY && !host.is_empty()).then_some((host, Shown::Routes))
    };
    ingresses.into_iter().find_map(of_ingress).or_else(|| routes.into_iter().find_map(of_route))
}

/// Of the certificates in a PEM text those that a client needs for a host: the newest that names it, with what has signed it; all
/// that are valid where none names it.
pub(super) fn certificate_for(host: &str, pem: &str, now: Timestamp) -> String {
    let all = Certificate::all_from_pem(pem).unwrap_or_default();
    let valid: Vec<&Certificate> =
        all.iter().filter(|one| one.not_before <= now && now < one.not_after).collect();
    let wild = host.split_once('.').map(|(_, domain)| format!("*.{domain}"));
    let names = |one: &Certificate| {
        let mut names = one.dns_names.iter().chain([&one.common_name]);
        names.any(|name| name == host || Some(name) == wild.as_ref())
    };
    let named = valid.iter().filter(|one| names(one)).max_by_key(|one| one.not_after);
    let Some(named) = named else {
        return valid.iter().map(|one| one.to_pem()).collect::<String>().trim().to_owned();
    };
    let mut chain = vec![*named];
    while let Some(last) = chain.last().copied()
        && last.subject_key != last.authority_key
        && let Some(signer) = valid.iter().find(|one| {
            !last.authority_key.is_empty() && one.subject_key == last.authority_key && !chain.contains(one)
        })
    {
        chain.push(signer);
    }
    chain.iter().map(|one| one.to_pem()).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podvirt_daemon::pki::{Purpose, make_ca, make_leaf};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_ingress_or_a_route_that_leads_to_the_proxy_gives_the_host() {
        let ingress = |service: &str| -> Ingress {
            serde_json::from_value(json!({"spec": {
                "tls": [{"secretName": "shown"}],
                "rules": [{"host": "export.example.org", "http": {"paths": [
                    {"pathType": "Prefix", "path": "/", "backend": {"service": {"name": service, "port": {"number": 443}}}},
                ]}}],
            }}))
            .unwrap()
        };
        let whole: Ingress = serde_json::from_value(json!({"spec": {
            "defaultBackend": {"service": {"name": PROXY}}, "rules": [{"host": "all.example.org"}],
        }}))
        .unwrap();
        let route: Route = serde_json::from_value(json!({
            "spec": {"to": {"name": PROXY}}, "status": {"ingress": [{"host": "route.example.org"}]},
        }))
        .unwrap();
        let (own, other) = (ingress(PROXY), ingress("web"));
        let found = |ingresses: &[&Ingress], routes: &[&Route]| {
            find(ingresses.iter().copied(), routes.iter().copied())
        };
        assert_eq!(found(&[&other], &[]), None);
        let shown = Shown::Secret("shown".into());
        assert_eq!(found(&[&other, &own], &[&route]), Some(("export.example.org".into(), shown)));
        assert_eq!(found(&[&whole], &[]), Some(("all.example.org".into(), Shown::Nowhere)));
        assert_eq!(found(&[&other], &[&route]), Some(("route.example.org".into(), Shown::Routes)));
    }

    #[test]
    fn a_host_is_checked_by_the_certificate_that_names_it_and_what_has_signed_it() {
        let now = Timestamp::now();
        let day = Duration::from_secs(86_400);
        let (ca, other) = (make_ca(now, day).unwrap(), make_ca(now, day).unwrap());
        let names = ["*.example.org".to_owned()];
        let leaf = make_leaf(&ca, "web", &names, Purpose::Server, now, day).unwrap();
        let pem = format!("{}{}{}", other.certificate, ca.certificate, leaf.certificate);
        let bare = |pem: &str| pem.replace(['\r', '\n'], "");
        let wanted = format!("{}{}", leaf.certificate, ca.certificate);
        assert_eq!(bare(&certificate_for("export.example.org", &pem, now)), bare(&wanted));
        let all = certificate_for("elsewhere.example.com", &pem, now);
        assert_eq!(all.matches("BEGIN").count(), 3);
        assert_eq!(certificate_for("x", "no certificates", now), "");
    }
}
