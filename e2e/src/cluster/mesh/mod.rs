//! A service mesh, with the real Envoy as the proxy of its pods.
//!
//! ```text
//!   client ──> pod: rules ──> Envoy ── 127.0.0.6 ──> netd ──> guest
//!              guest ──> netd ──> rules ──> Envoy ──> world
//! ```
//!
//! What is the mesh's own part is rebuilt: what its webhook does ([`injector`]), the rules ([`rules`]), the configuration that a
//! control plane would send ([`envoy`]).

pub(super) mod certificates;
mod envoy;
mod injector;
pub mod rules;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Cluster, Namespace, SOON, Webhook};
use crate::artefacts::image;
use certificates::Authority;
use envoy::FILES;
pub use envoy::{ISTIO, Known, LINKERD, Layout, Mtls, Proxy};
pub use injector::IMAGE;
use injector::inject;

impl Cluster {
    /// As [`Cluster::get`], with the image of the proxy in the nodes. To be called while the thread is on the machine's own
    /// network: what the image is made of may have to be fetched.
    ///
    /// # Errors
    /// The image cannot be made or loaded, or the cluster does not come up.
    pub fn get_with_mesh() -> Result<Cluster> {
        let image = image("mesh")?;
        let cluster = Cluster::get()?;
        cluster.load(&image)?;
        Ok(cluster)
    }
}

/// A mesh in a namespace, until this is dropped: pods that ask for a proxy get one.
pub struct Mesh<'n> {
    namespace: &'n Namespace<'n>,
    authority: Authority,
    _injector: Webhook<'n>,
}

impl<'n> Mesh<'n> {
    /// Registers its webhook.
    ///
    /// # Errors
    /// The webhook cannot be served or registered.
    pub fn new(namespace: &'n Namespace<'n>) -> Result<Mesh<'n>> {
        let injector = Webhook::start(namespace, &["CREATE"], inject)?;
        Ok(Mesh { namespace, authority: Authority::new()?, _injector: injector })
    }

    /// The proxies of pods that name this configuration have it, in one file.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn configure(&self, name: &str, proxy: &Proxy) -> Result<()> {
        self.apply(name, vec![("envoy.json", proxy.fixed())])
    }

    /// The same by files that can be changed: see [`Sidecar::tell`].
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn configure_discovering(&self, name: &str, proxy: &Proxy) -> Result<()> {
        let mut files = vec![("envoy.json", proxy.discovering())];
        files.extend(proxy.discovered().map(|(name, value)| match name {
            "cds" => ("cds.json", value),
            _ => ("lds.json", value),
        }));
        self.apply(name, files)
    }

    fn apply(&self, name: &str, files: Vec<(&str, Value)>) -> Result<()> {
        let pair = self.authority.issue(&[format!("{name}.mesh.test")])?;
        let mut data = json!({"ca.pem": self.authority.certificate(), "cert.pem": pair.certificate, "key.pem": pair.key});
        for (file, value) in files {
            data[file] = json!(value.to_string());
        }
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
        self.namespace.apply(&map.to_string())
    }
}

/// The proxy of a pod.
pub struct Sidecar<'n> {
    namespace: &'n Namespace<'n>,
    pod: String,
    container: &'static str,
    admin: u16,
}

impl<'n> Sidecar<'n> {
    /// That of a pod, by the name of its container.
    pub fn of(
        namespace: &'n Namespace<'n>,
        pod: &str,
        container: &'static str,
        layout: Layout,
    ) -> Sidecar<'n> {
        Sidecar { namespace, pod: pod.to_owned(), container, admin: layout.admin }
    }

    /// A command in its container.
    ///
    /// # Errors
    /// It failed; the message holds what the command said.
    pub fn exec(&self, command: &[&str]) -> Result<String> {
        self.namespace.kubectl(&[&["exec", &self.pod, "-c", self.container, "--"], command].concat())
    }

    /// What its administration answers.
    ///
    /// # Errors
    /// It answers with an error, or not.
    pub fn admin(&self, path: &str) -> Result<String> {
        self.exec(&["curl", "-sf", &format!("http://127.0.0.1:{}/{path}", self.admin)])
    }

    /// A counter.
    ///
    /// # Errors
    /// The proxy has none of this name, or does not answer.
    pub fn count(&self, counter: &str) -> Result<u64> {
        let text = self.admin(&format!("stats?filter=^{counter}$"))?;
        let value = text.trim().rsplit(' ').next().unwrap_or_default();
        value.parse().with_context(|| format!("{counter}: {text:?}"))
    }

    /// Waits until a counter is more than it was.
    ///
    /// # Errors
    /// It does not become more.
    pub fn counts_on(&self, counter: &str, was: u64) -> Result<()> {
        self.namespace.until(&format!("{counter} beyond {was}"), SOON, || {
            Ok((self.count(counter)? > was).then_some(()))
        })
    }

    /// Has it follow another configuration from now on.
    ///
    /// # Errors
    /// It does not take it.
    pub fn tell(&self, proxy: &Proxy) -> Result<()> {
        for (name, value) in proxy.discovered() {
            let taken = match name {
                "cds" => "cluster_manager.cds.update_success",
                _ => "listener_manager.lds.update_success",
            };
            let before = self.count(taken)?;
            // A rename is what it waits for.
            let write = format!("cat >{FILES}/new; mv {FILES}/new {FILES}/{name}.json");
            let args = [
                "-n",
                self.namespace.name(),
                "exec",
                "-i",
                &self.pod,
                "-c",
                self.container,
                "--",
                "sh",
                "-ec",
                &write,
            ];
            self.namespace.cluster().kubectl_with(&args, &value.to_string())?;
            self.counts_on(taken, before)?;
        }
        self.namespace.until("listeners that serve", SOON, || {
            Ok((self.count("listener_manager.total_listeners_warming")? == 0).then_some(()))
        })
    }
}
