//! A test's own namespace and what it does there.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::runtime::wait::await_condition;
use kube::{Api, Resource};
use podvirt_api::names::event;
use podvirt_bed_tools::wait;
use serde::de::DeserializeOwned;

use super::Cluster;

/// The Pod Security Standard a namespace enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// What virtual machines have to get by with.
    Restricted,
    /// Anything goes.
    Privileged,
}

/// A namespace with everything in it. Dropping it deletes it; if the test is failing, its state is shown.
pub struct Namespace<'c> {
    cluster: &'c Cluster,
    name: String,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// For what the control plane does on its own.
const SOON: Duration = Duration::from_secs(30);

impl<'c> Namespace<'c> {
    pub(super) fn new(cluster: &'c Cluster, security: Security) -> Result<Namespace<'c>> {
        let name = format!("t{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let level = match security {
            Security::Restricted => "restricted",
            Security::Privileged => "privileged",
        };
        let labels = format!("{{pod-security.kubernetes.io/enforce: {level}}}");
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let manifest = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {labels}, annotations: {{test: {test:?}}}}}\n"
        );
        cluster.kubectl_with(&["create", "-f", "-"], &manifest)?;
        let namespace = Namespace { cluster, name };
        // Without it the first pod is refused.
        namespace.wait::<ServiceAccount>("default", "the service account", SOON, |_| true)?;
        Ok(namespace)
    }

    /// The cluster it is in.
    pub fn cluster(&self) -> &'c Cluster {
        self.cluster
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The objects of a kind here.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.cluster.client(), &self.name)
    }

    /// Runs kubectl in this namespace.
    ///
    /// # Errors
    /// It failed; the message is kubectl's.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.cluster.kubectl(&[&["--namespace", &self.name], args].concat())
    }

    /// Applies a manifest of any number of documents.
    ///
    /// # Errors
    /// The API server refuses it; the message is its own.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        let args = ["--namespace", &self.name, "apply", "--server-side", "-f", "-"];
        self.cluster.kubectl_with(&args, manifest).map(drop)
    }

    /// Waits until an object is as wanted, and returns it.
    ///
    /// # Errors
    /// `what` did not happen within `limit`: with the object and the state of the namespace.
    pub fn wait<K>(&self, name: &str, what: &str, limit: Duration, ready: impl Fn(&K) -> bool) -> Result<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let seen = |object: Option<&K>| object.is_some_and(&ready);
        let waited = self.cluster.block_on(async {
            tokio::time::timeout(limit, await_condition(self.api::<K>(), name, seen)).await
        });
        match waited {
            Ok(object) => object?.with_context(|| format!("{what}: {name} is gone")),
            Err(_) => {
                let kind = K::kind(&()).into_owned();
                let object = self.kubectl(&["get", &kind, name, "-o", "yaml"]);
                let object = object.unwrap_or_else(|error| error.to_string());
                Err(anyhow!("{what}: not within {limit:?}\n{object}\n{}", self.report()))
            }
        }
    }

    /// Waits until an object is no longer there.
    ///
    /// # Errors
    /// It still is after `limit`.
    pub fn wait_gone<K>(&self, name: &str, limit: Duration) -> Result<()>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let gone = |object: Option<&K>| object.is_none();
        let waited = self.cluster.block_on(async {
            tokio::time::timeout(limit, await_condition(self.api::<K>(), name, gone)).await
        });
        match waited {
            Ok(result) => result.map(drop).map_err(Into::into),
            Err(_) => Err(anyhow!("{name} is still there after {limit:?}\n{}", self.report())),
        }
    }

    /// Waits until all the pod's containers are ready, and returns it.
    ///
    /// # Errors
    /// They are not within `limit`.
    pub fn wait_pod(&self, name: &str, limit: Duration) -> Result<Pod> {
        self.wait(name, &format!("pod {name} ready"), limit, |pod: &Pod| {
            let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
            conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
        })
    }

    /// Waits for something that is not an object's state: looks at it again and again.
    ///
    /// # Errors
    /// It did not come within `limit`, with the state of the namespace; or `ready` failed.
    pub fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        wait::until(what, limit, ready).map_err(|error| error.context(self.report()))
    }

    /// Runs a command in the first container of a pod and returns what it printed.
    ///
    /// # Errors
    /// It failed, or the pod does not run; the message holds what the command said.
    pub fn exec(&self, pod: &str, command: &[&str]) -> Result<String> {
        self.kubectl(&[&["exec", pod, "--"], command].concat())
    }

    /// What a person would look at first: objects, events, the last lines of every container.
    pub fn report(&self) -> String {
        let show = |args: &[&str]| self.kubectl(args).unwrap_or_else(|error| format!("{error:#}\n"));
        let mut report = format!("---- namespace {} ----\n", self.name);
        report += &show(&["get", "pods", "-o", "wide"]);
        let events = show(&["get", "events", "--sort-by=.lastTimestamp"]);
        report += &events;
        for pod in show(&["get", "pods", "-o", "name"]).lines() {
            report += &show(&["logs", pod, "--all-containers", "--prefix", "--tail=30"]);
        }
        if events.contains(event::LAUNCHER_SILENT) {
            report += &self.threads("virt-launcher");
        }
        report
    }

    /// Where in the kernel each thread of a program is, on both nodes.
    fn threads(&self, program: &str) -> String {
        let show = format!(
            "for task in $(pgrep -x {program} | sed 's|.*|/proc/&/task/*|'); do \
             echo \"$task $(cat $task/comm) $(sed -n 's/State://p' $task/status) $(cat $task/syscall)\"; cat $task/stack; done"
        );
        let of = |number| {
            let told = self.cluster.node(number).run(&["sh", "-c", &show]);
            format!(
                "---- {program} on node{number} ----\n{}\n",
                told.unwrap_or_else(|error| format!("{error:#}"))
            )
        };
        [of(1), of(2)].concat()
    }
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.report());
        }
        // Its end is not waited for: the next test has a namespace of its own.
        drop(self.cluster.kubectl(&["delete", "namespace", &self.name, "--wait=false"]));
    }
}
