//! The machines of a node, for the virt-handler there.
//!
//! RBAC grants a kind of object, not those of a node: a virt-handler with the right to read VirtualMachineInstances would
//! read those of all nodes, and with them the user data that stands in them. It has no such right, and asks here instead.
//! Which node asks is the API server's word: the token of a pod names the pod's node.
//!
//! ```text
//!  list, watch   labelSelector names the asking node, as the machines' node or their migration's target
//!                ──> virt-api asks the same of the API server, and the answer goes through as it is
//!  get           any machine by its name ──> where it is, and nothing else of it
//! ```
//!
//! A virt-handler that has met a machine which neither watch shows any more asks by its name whether the machine is gone,
//! or elsewhere.

use axum::body::Body;
use axum::extract::{ConnectInfo, Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures::StreamExt as _;
use http::{HeaderMap, StatusCode, header};
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use kube::Api;
use podvirt_api::names::{NODE_MACHINES, label};
use podvirt_api::v1::VirtualMachineInstance;
use podvirt_daemon::pki::node_of_token;
use serde_json::{Value, json};
use tracing::debug;

use crate::authorize::allowed;
use crate::metrics::RequestLabels;
use crate::server::App;
use crate::status::Status;
use crate::target::{GROUP, VERSIONS};
use crate::tls::Peer;

/// Where the API server has the machines.
const MACHINES: &str = "/apis/kubevirt.io/v1/virtualmachineinstances";
/// Labels by which a node's machines are selected.
const LABELS: [&str; 2] = [label::NODE_NAME, label::MIGRATION_TARGET_NODE_NAME];
/// The parameter that selects by labels.
const SELECTOR: &str = "labelSelector";
/// Parameters that a list or a watch may have. The others than [`SELECTOR`] say how much and since when, not of what.
const PARAMETERS: [&str; 9] = [
    "allowWatchBookmarks",
    "continue",
    SELECTOR,
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];

/// The routes.
pub fn routes() -> Router<App> {
    let mut router = Router::new();
    for version in VERSIONS {
        let base = format!("/apis/{GROUP}/{version}");
        router = router.route(&format!("{base}/{NODE_MACHINES}"), axum::routing::get(list)).route(
            &format!("{base}/namespaces/{{namespace}}/{NODE_MACHINES}/{{name}}"),
            axum::routing::get(get),
        );
    }
    router
}

/// A list or a watch, as the API server is asked for it.
#[derive(Debug, PartialEq, Eq)]
struct Wish {
    query: String,
    selector: String,
    is_watch: bool,
}

impl Wish {
    /// Reads a `query`.
    ///
    /// # Errors
    ///
    /// It has a parameter that is not allowed, or one twice.
    fn read(query: &str) -> Result<Wish, Status> {
        let mut wish = Wish { query: String::new(), selector: String::new(), is_watch: false };
        let mut known = Vec::<&str>::new();
        // Written anew, so that the API server reads what was judged here.
        let mut asked = form_urlencoded::Serializer::new(String::new());
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let Some(allowed) = PARAMETERS.iter().find(|allowed| **allowed == name) else {
                let message = format!("{name}: not allowed here; {} are", PARAMETERS.join(", "));
                return Err(Status::bad_request(message));
            };
            if known.contains(allowed) {
                return Err(Status::bad_request(format!("{name}: given twice")));
            }
            known.push(allowed);
            asked.append_pair(allowed, &value);
            match *allowed {
                SELECTOR => wish.selector = value.into_owned(),
                // As the API server reads it.
                "watch" => wish.is_watch = !matches!(value.as_ref(), "" | "0" | "false"),
                _ => {}
            }
        }
        Ok(Wish { query: asked.finish(), ..wish })
    }

    /// Whether it is for machines of `node`, or such that come to it, alone.
    ///
    /// # Errors
    ///
    /// It is not.
    fn is_of(&self, node: &str) -> Result<(), Status> {
        let own = LABELS.map(|label| format!("{label}={node}"));
        if own.contains(&self.selector) {
            return Ok(());
        }
        let ([here, coming], selector) = (own, &self.selector);
        let message =
            format!("{SELECTOR}: '{selector}' is not allowed to node {node}; {here} and {coming} are");
        Err(Status::forbidden(message))
    }
}

/// The node that asks, once it is known that it may.
async fn asking(
    app: &App,
    peer: &Peer,
    headers: &HeaderMap,
    verb: &str,
    object: Option<(&str, &str)>,
) -> Result<String, Status> {
    let user = app.proxy.user(peer, headers)?;
    let attributes = ResourceAttributes {
        group: Some(GROUP.to_owned()),
        version: Some(VERSIONS[0].to_owned()),
        resource: Some(NODE_MACHINES.to_owned()),
        namespace: object.map(|(namespace, _)| namespace.to_owned()),
        name: object.map(|(_, name)| name.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    allowed(&app.client, &user, attributes).await?;
    let node = node_of_token(&user.extra).ok_or_else(|| {
        Status::forbidden("the token names no node; a token that is bound to virt-handler's pod does")
    })?;
    Ok(node.to_owned())
}

async fn list(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let listed = try_list(&app, &peer, &headers, query.as_deref().unwrap_or_default()).await;
    counted(&app, listed)
}

async fn try_list(app: &App, peer: &Peer, headers: &HeaderMap, query: &str) -> Result<Response, Status> {
    let wish = Wish::read(query)?;
    let verb = if wish.is_watch { "watch" } else { "list" };
    let node = asking(app, peer, headers, verb, None).await?;
    wish.is_of(&node)?;
    debug!(node, query = wish.query, "a node asks for its machines");
    let request = http::Request::get(format!("{MACHINES}?{}", wish.query)).body(kube::client::Body::empty());
    let request = request.map_err(|error| Status::internal(error.to_string()))?;
    let (parts, body) = app.client.send(request).await?.into_parts();
    // A watch would keep this process from its end.
    let closing = app.closing.clone();
    let place = wish.is_watch.then(|| app.limits.watches.admit(&node));
    let ended = async move {
        let displaced = async {
            match &place {
                Some(place) => place.displaced().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = closing.requested() => {}
            () = displaced => debug!(node, "a watch gives way to a newer one"),
        }
    };
    let body = Body::new(body).into_data_stream().take_until(Box::pin(ended));
    let mut response = Response::new(Body::from_stream(body));
    *response.status_mut() = parts.status;
    if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    Ok(response)
}

async fn get(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let found = try_get(&app, &peer, &headers, &namespace, &name).await;
    counted(&app, found.map(|place| Json(place).into_response()))
}

async fn try_get(
    app: &App,
    peer: &Peer,
    headers: &HeaderMap,
    namespace: &str,
    name: &str,
) -> Result<Value, Status> {
    asking(app, peer, headers, "get", Some((namespace, name))).await?;
    let missing = || Status::not_found("virtualmachineinstance", name);
    // They become a part of a path.
    if ![namespace, name].into_iter().all(is_dns_name) {
        return Err(missing());
    }
    let machines: Api<VirtualMachineInstance> = Api::namespaced(app.client.clone(), namespace);
    let machine = machines.get_opt(name).await?.ok_or_else(missing)?;
    Ok(place(&machine))
}

/// Whether a text has the characters of a DNS name, and none that means something in a path.
fn is_dns_name(text: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.bytes().all(allowed)
}

/// Which machine it is, and where: what any node may know of it.
fn place(machine: &VirtualMachineInstance) -> Value {
    let metadata = &machine.metadata;
    let labels = metadata.labels.iter().flatten().filter(|(key, _)| LABELS.contains(&key.as_str()));
    let state = machine.status.migration_state.as_ref();
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid,
            "labels": labels.collect::<std::collections::BTreeMap<_, _>>(),
        },
        "spec": {"domain": {"devices": {}}},
        "status": {
            "nodeName": machine.status.node_name,
            "migrationState": state.map(|state| json!({"targetNode": state.target_node})),
        },
    })
}

/// The answer, which is counted.
fn counted(app: &App, outcome: Result<Response, Status>) -> Response {
    let response = outcome.unwrap_or_else(|status| {
        debug!(code = status.code, message = status.message, "refused");
        status.into_response()
    });
    let code = u32::from(StatusCode::as_u16(&response.status()));
    let labels = RequestLabels { resource: NODE_MACHINES, subresource: "", code };
    app.metrics.requests.get_or_create(&labels).inc();
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "labelSelector=kubevirt.io%2FnodeName%3Dnode1";

    #[test]
    fn a_node_selects_its_own_machines_only() {
        let read = |query: &str| Wish::read(query).and_then(|wish| wish.is_of("node1").map(|()| wish));
        let here = read(HERE).unwrap();
        assert_eq!((here.query.as_str(), here.is_watch), (HERE, false));
        let coming =
            "labelSelector=kubevirt.io%2FmigrationTargetNodeName%3Dnode1&watch=true&resourceVersion=7";
        let watch = read(coming).unwrap();
        assert_eq!((watch.query.as_str(), watch.is_watch), (coming, true));
        for (query, code, why) in [
            ("", 403, "labelSelector: '' is not allowed to node node1"),
            (
                "labelSelector=kubevirt.io/nodeName%3Dnode2",
                403,
                "labelSelector: 'kubevirt.io/nodeName=node2'",
            ),
            ("labelSelector=kubevirt.io/nodeName", 403, "kubevirt.io/migrationTargetNodeName=node1 are"),
            ("labelSelector=kubevirt.io/nodeName%3Dnode1,a%3Db", 403, "labelSelector: "),
            (&format!("{HERE}&labelSelector=a"), 400, "labelSelector: given twice"),
            (&format!("{HERE}&fieldSelector=metadata.name%3Da"), 400, "fieldSelector: not allowed here"),
            (&format!("{HERE}&limit=1&limit=2"), 400, "limit: given twice"),
        ] {
            let refused = read(query).unwrap_err();
            assert_eq!(refused.code, code, "{query}");
            assert!(refused.message.contains(why), "{query}: {}", refused.message);
        }
        // What two readers may read differently is written so that they do not.
        let odd = read("labelSelector=kubevirt.io/nodeName%3Dnode1&limit=%zz").unwrap();
        assert_eq!(odd.query, format!("{HERE}&limit=%25zz"));
    }

    #[test]
    fn of_a_machine_elsewhere_its_place_is_told_and_nothing_else() {
        let machine: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "annotations": {"secret": "s3"},
                "labels": {"kubevirt.io/nodeName": "node2", "secret": "s2"}},
            "spec": {"domain": {"devices": {}},
                "volumes": [{"name": "i", "cloudInitNoCloud": {"userData": "s1"}}]},
            "status": {"nodeName": "node2", "phase": "Running", "migrationState": {"targetNode": "node1"},
                "interfaces": [{"ipAddress": "s4"}]},
        }))
        .unwrap();
        assert_eq!(
            place(&machine),
            json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": {"name": "a", "namespace": "n", "uid": "u",
                    "labels": {"kubevirt.io/nodeName": "node2"}},
                "spec": {"domain": {"devices": {}}},
                "status": {"nodeName": "node2", "migrationState": {"targetNode": "node1"}},
            })
        );
        for name in ["../pods/a", "a/b", "a%2fb", "A", "", ".", "..", "a?b"] {
            assert!(!is_dns_name(name), "{name}");
        }
        assert!(is_dns_name("web-0.shop"));
    }
}
