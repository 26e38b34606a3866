//! The configuration of an Envoy as Istio's sidecars have it, reduced to what a pod's other end notices.
//!
//! | port | listener |
//! |---|---|
//! | 15001 | outbound: to the original destination, by way of what is known of it |
//! | 15006 | inbound: tells TLS, HTTP and the rest apart, and connects to the pod's own port from 127.0.0.6 or ::6 |
//! | 15021, 15090 | health, metrics |
//! | 15000, loopback | administration |
//!
//! It is either static, or read from files by the discovery services (LDS, CDS), which can be changed while it runs.

use std::net::IpAddr;

use serde_json::{Value, json};

/// Where the sidecar has its files.
pub(super) const FILES: &str = "/etc/istio/proxy";

/// What an inbound chain takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mtls {
    /// Plain text alone: TLS is the pod's own business.
    #[default]
    Disabled,
    /// Both.
    Permissive,
    /// TLS of the mesh alone.
    Strict,
}

/// What of a proxy is a mesh's own.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    outbound: u16,
    inbound: u16,
    /// Administration, on the loopback.
    pub(super) admin: u16,
    /// Where it connects from, to the pod's own ports; the pod's address unless it is said.
    from: Option<[&'static str; 2]>,
    /// Health and metrics are listeners of their own.
    beside: bool,
}

/// Istio's.
pub const ISTIO: Layout =
    Layout { outbound: 15001, inbound: 15006, admin: 15000, from: Some(["127.0.0.6", "::6"]), beside: true };
/// Linkerd's since 2.11.
pub const LINKERD: Layout = Layout { outbound: 4140, inbound: 4143, admin: 4191, from: None, beside: false };

/// A service that the proxy knows.
#[derive(Clone, Debug)]
pub struct Known {
    /// Where clients find it.
    pub at: IpAddr,
    /// Where it is.
    pub endpoint: IpAddr,
    /// Its port, at both.
    pub port: u16,
    /// Whether the endpoint is in the mesh, and takes TLS.
    pub tls: bool,
}

impl Known {
    /// The name of its cluster, which its counters have.
    pub fn cluster(&self) -> String {
        // Colons are the separators of the names of counters.
        format!("outbound_{}_{}", self.port, self.at.to_string().replace([':', '.'], "-"))
    }
}

/// A proxy's configuration.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// The mesh's ports and addresses.
    pub layout: Layout,
    /// What it takes from others.
    pub mtls: Mtls,
    /// Nothing leads to what is not known.
    pub registry_only: bool,
    /// What leads somewhere by a name of its own.
    pub known: Vec<Known>,
    /// Inbound ports that are declared to carry TCP: the proxy does not wait for what is said there.
    pub tcp: Vec<u16>,
}

impl Default for Proxy {
    fn default() -> Proxy {
        Proxy {
            layout: ISTIO,
            mtls: Mtls::Disabled,
            registry_only: false,
            known: Vec::new(),
            tcp: Vec::new(),
        }
    }
}

impl Proxy {
    /// Everything in one file.
    pub(super) fn fixed(&self) -> Value {
        let mut all = self.bootstrap();
        all["static_resources"] = json!({"listeners": self.listeners(), "clusters": self.clusters()});
        all
    }

    /// With the files of the discovery services.
    pub(super) fn discovering(&self) -> Value {
        let file = |name: &str| json!({"resource_api_version": "V3", "path_config_source": {"path": format!("{FILES}/{name}.json")}});
        let mut all = self.bootstrap();
        all["dynamic_resources"] = json!({"lds_config": file("lds"), "cds_config": file("cds")});
        all
    }

    /// The files of the discovery services, by name.
    pub(super) fn discovered(&self) -> [(&'static str, Value); 2] {
        let of = |kind: &str, resources: Vec<Value>| {
            let typed = |mut value: Value| {
                value["@type"] = json!(format!("type.googleapis.com/envoy.config.{kind}"));
                value
            };
            json!({"resources": resources.into_iter().map(typed).collect::<Vec<_>>()})
        };
        // Clusters first: a listener may name a new one.
        [
            ("cds", of("cluster.v3.Cluster", self.clusters())),
            ("lds", of("listener.v3.Listener", self.listeners())),
        ]
    }

    fn bootstrap(&self) -> Value {
        json!({"node": {"id": "sidecar", "cluster": "mesh"}, "admin": {"address": socket("127.0.0.1", self.layout.admin)}})
    }

    fn clusters(&self) -> Vec<Value> {
        let original = |name: &str, from: Option<&str>| {
            let mut cluster = json!({"name": name, "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "10s"});
            if let Some(from) = from {
                cluster["upstream_bind_config"] =
                    json!({"source_address": {"address": from, "port_value": 0}});
            }
            cluster
        };
        let endpoint = |name: &str, address: &str, port: u16| {
            json!({"name": name, "type": "STATIC", "connect_timeout": "10s", "load_assignment": {"cluster_name": name,
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(address, port)}}]}]}})
        };
        let [from4, from6] = self.layout.from.map_or([None, None], |from| from.map(Some));
        let mut clusters = vec![
            original("PassthroughCluster", None),
            original("InboundPassthroughCluster", from4),
            original("InboundPassthroughClusterIpv6", from6),
            json!({"name": "BlackHoleCluster", "type": "STATIC", "connect_timeout": "10s"}),
            endpoint("prometheus_stats", "127.0.0.1", self.layout.admin),
        ];
        for known in &self.known {
            let mut cluster = endpoint(&known.cluster(), &known.endpoint.to_string(), known.port);
            if known.tls {
                cluster["transport_socket"] = tls("UpstreamTlsContext", json!({"sni": "outbound_.mesh"}));
            }
            clusters.push(cluster);
        }
        clusters
    }

    fn listeners(&self) -> Vec<Value> {
        let Layout { outbound, inbound, .. } = self.layout;
        let otherwise = if self.registry_only { "BlackHoleCluster" } else { "PassthroughCluster" };
        let mut listeners = vec![
            with(
                dual("virtualOutbound", outbound),
                json!({"use_original_dst": true, "filter_chains": [
                {"name": "blackhole", "filter_chain_match": {"destination_port": outbound}, "filters": tcp("BlackHoleCluster")},
                {"name": "catch-all", "filters": tcp(otherwise)}]}),
            ),
            // Istio has one for each port on which it knows of HTTP.
            with(
                dual("outbound_80", 80),
                json!({"bind_to_port": false, "filter_chains": [{"filters": http("outbound_80",
                &if self.registry_only { answer(502, "") } else { route("PassthroughCluster") })}]}),
            ),
            with(
                dual("virtualInbound", inbound),
                json!({"listener_filters": filters(&["original_dst", "tls_inspector", "http_inspector"], &self.tcp),
                "stat_prefix": "inbound", "listener_filters_timeout": "0s", "continue_on_listener_filters_timeout": true, "filter_chains": self.inbound()}),
            ),
        ];
        if self.layout.beside {
            listeners.push(with(dual("health", 15021), chain(http("health", &answer(200, "ready")))));
            listeners.push(with(dual("stats", 15090), chain(http("stats", &route("prometheus_stats")))));
        }
        listeners.extend(self.known.iter().map(|known| {
            let name = known.cluster();
            let address = json!({"name": name, "address": socket(&known.at.to_string(), known.port), "bind_to_port": false});
            with(address, chain(tcp(&name)))
        }));
        listeners
    }

    fn inbound(&self) -> Vec<Value> {
        let mut chains = vec![
            json!({"name": "blackhole", "filter_chain_match": {"destination_port": self.layout.inbound},
            "filters": tcp("BlackHoleCluster")}),
        ];
        for (prefix, cluster) in
            [("0.0.0.0", "InboundPassthroughCluster"), ("::", "InboundPassthroughClusterIpv6")]
        {
            let of = |more: Value| {
                with(json!({"prefix_ranges": [{"address_prefix": prefix, "prefix_len": 0}]}), more)
            };
            if self.mtls != Mtls::Disabled {
                chains.push(json!({"name": format!("{cluster}-mtls"), "filter_chain_match": of(json!({"transport_protocol": "tls"})),
                    "transport_socket": tls("DownstreamTlsContext", json!({"require_client_certificate": true})), "filters": tcp(cluster)}));
            }
            if self.mtls != Mtls::Strict {
                let plain = json!({"transport_protocol": "raw_buffer", "application_protocols": ["http/1.0", "http/1.1", "h2c"]});
                chains.push(json!({"name": format!("{cluster}-http"), "filter_chain_match": of(plain),
                    "filters": http(&format!("inbound_{cluster}"), &route(cluster))}));
                let rest = json!({"transport_protocol": "raw_buffer"});
                chains
                    .push(json!({"name": cluster, "filter_chain_match": of(rest), "filters": tcp(cluster)}));
            }
            if self.mtls == Mtls::Disabled {
                // The pod's own.
                let tls = json!({"transport_protocol": "tls"});
                chains.push(json!({"name": format!("{cluster}-tls"), "filter_chain_match": of(tls), "filters": tcp(cluster)}));
            }
        }
        chains
    }
}

fn with(mut value: Value, more: Value) -> Value {
    if let (Some(all), Value::Object(more)) = (value.as_object_mut(), more) {
        all.extend(more);
    }
    value
}

fn typed(kind: &str, value: Value) -> Value {
    with(json!({"@type": format!("type.googleapis.com/envoy.extensions.{kind}")}), value)
}

fn socket(address: &str, port: u16) -> Value {
    json!({"socket_address": {"address": address, "port_value": port}})
}

/// At all addresses of both families.
fn dual(name: &str, port: u16) -> Value {
    json!({"name": name, "address": socket("0.0.0.0", port), "additional_addresses": [{"address": socket("::", port)}]})
}

fn chain(filters: Value) -> Value {
    json!({"filter_chains": [{"filters": filters}]})
}

/// Listener filters; those that wait for the client's first bytes do not look at the ports `but`.
fn filters(names: &[&str], but: &[u16]) -> Value {
    let kind = |name: &str| match name {
        "original_dst" => "OriginalDst",
        "tls_inspector" => "TlsInspector",
        _ => "HttpInspector",
    };
    let port = |&port: &u16| json!({"destination_port_range": {"start": port, "end": u32::from(port) + 1}});
    // A set of one is refused.
    let disabled = match but {
        [] => None,
        [one] => Some(port(one)),
        all => Some(json!({"or_match": {"rules": all.iter().map(port).collect::<Vec<_>>()}})),
    };
    let filter = |name: &&str| {
        let mut filter = json!({"name": format!("envoy.filters.listener.{name}"),
            "typed_config": typed(&format!("filters.listener.{name}.v3.{}", kind(name)), json!({}))});
        if let Some(disabled) = disabled.as_ref().filter(|_| *name != "original_dst") {
            filter["filter_disabled"] = disabled.clone();
        }
        filter
    };
    names.iter().map(filter).collect()
}

fn tcp(cluster: &str) -> Value {
    json!([{"name": "tcp", "typed_config": typed("filters.network.tcp_proxy.v3.TcpProxy", json!({"stat_prefix": cluster, "cluster": cluster}))}])
}

fn route(cluster: &str) -> Value {
    json!({"route": {"cluster": cluster, "timeout": "0s"}})
}

fn answer(status: u16, body: &str) -> Value {
    json!({"direct_response": {"status": status, "body": {"inline_string": body}}})
}

fn http(name: &str, action: &Value) -> Value {
    let route = with(json!({"match": {"prefix": "/"}}), action.clone());
    let manager = json!({"stat_prefix": name, "server_name": "istio-envoy",
        "route_config": {"name": name, "virtual_hosts": [{"name": name, "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "router", "typed_config": typed("filters.http.router.v3.Router", json!({}))}]});
    json!([{"name": "http", "typed_config": typed("filters.network.http_connection_manager.v3.HttpConnectionManager", manager)}])
}

fn tls(context: &str, more: Value) -> Value {
    let file = |name: &str| json!({"filename": format!("{FILES}/{name}")});
    let common = json!({"alpn_protocols": ["istio-peer-exchange", "istio"],
        "tls_certificates": [{"certificate_chain": file("cert.pem"), "private_key": file("key.pem")}],
        "validation_context": {"trusted_ca": file("ca.pem")}});
    let context = typed(
        &format!("transport_sockets.tls.v3.{context}"),
        with(json!({"common_tls_context": common}), more),
    );
    json!({"name": "tls", "typed_config": context})
}
