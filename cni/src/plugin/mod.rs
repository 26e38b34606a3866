//! The six commands of the specification.
//!
//! ADD takes the lease first, makes the interface second and asks for the lease once more at last: a program that frees
//! addresses looks for the pod after the lease is ending, so either ADD sees that it is ending, or the pod is seen. An
//! ADD that fails takes back the interface, and the lease of a pod; a machine's lease stays the machine's ([`ipam`]).
//!
//! DEL needs nothing: no namespace, no pod, no API server. What it cannot free is collected.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::args::{Attachment, Call, Command, PodName};
use crate::cluster::Cluster;
use crate::config::{Link, Network};
use crate::error::{Code, Error};
use crate::ipam::{self, Attached, Failures, Lease, Request, Store, StoreError};
use crate::net::attach::{self, Plan};
use crate::net::{NetError, netns};
use crate::owner::{self, Claimant, Machine};
use crate::result::{self, Made};

/// What a pod is read from, beside leases.
pub trait Pods: Store {
    /// The pod, if it is there.
    fn pod(&self, namespace: &str, name: &str) -> impl Future<Output = Result<Option<Pod>, StoreError>>;

    /// The VirtualMachineInstance, if it is there.
    fn machine(
        &self,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<Machine>, StoreError>>;

    /// Whether leases can be read.
    fn ready(&self) -> impl Future<Output = Result<(), StoreError>>;
}

impl Pods for Cluster {
    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, StoreError> {
        Cluster::pod(self, namespace, name).await
    }

    async fn machine(&self, namespace: &str, name: &str) -> Result<Option<Machine>, StoreError> {
        Cluster::machine(self, namespace, name).await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        Cluster::ready(self).await
    }
}

/// The plugin on one node.
#[derive(Debug)]
pub struct Plugin<P> {
    /// Where pods and leases are.
    pub api: P,
    /// The node's name.
    pub node: String,
}

impl<P: Pods> Plugin<P> {
    /// Carries out a call whose standard input is `config`; answers what is printed.
    ///
    /// # Errors
    /// What the runtime is to be told.
    pub async fn run(&self, call: &Call, config: &[u8]) -> Result<Option<Value>, Error> {
        match call.command {
            Command::Version => Ok(Some(result::versions())),
            Command::Add => Box::pin(self.add(call, config)).await.map(Some),
            Command::Check => self.check(call, config).await.map(|()| None),
            Command::Del => self.del(call, config).await.map(|()| None),
            Command::Gc => self.gc(config).await.map(|()| None),
            Command::Status => self.status(config).await.map(|()| None),
        }
    }

    async fn add(&self, call: &Call, config: &[u8]) -> Result<Value, Error> {
        let (attachment, path, named) = (call.attachment()?, call.netns()?, call.pod()?);
        let network = Network::read(config, call.mac())?;
        let namespace = open(&path)?;
        let claimant = self.claimant(&named, &attachment.ifname).await?;
        let lease = self.lease(&claimant, &network, &attachment).await?;
        let (addresses, mac) = match &lease {
            Some(lease) => (lease.addresses.clone(), lease.mac),
            None => (Vec::new(), None),
        };
        let mac =
            mac.unwrap_or_else(|| ipam::mac_without_lease(&network, &claimant.owner, &attachment.ifname));
        let plan = Plan {
            attachment: &attachment,
            network: &network,
            addresses: &addresses,
            mac,
            silent: claimant.silent,
        };
        let made = attach::make(&plan, &namespace).map_err(|e| kernel("the interface cannot be made", &e));
        let made = match (made, &lease) {
            (Ok(made), Some(lease)) => {
                let confirmed = ipam::confirm(&self.api, lease).await;
                confirmed.map(|()| made).inspect_err(|_| {
                    take_back(&attachment, &network, &namespace);
                })
            }
            (made, _) => made,
        };
        match made {
            Ok((host, pod)) => {
                let sandbox = path.display().to_string();
                Ok(result::added(&network, &Made { host, pod, sandbox, addresses }))
            }
            Err(error) => {
                if let Some(lease) = lease.filter(|lease| lease.attached.is_some()) {
                    self.release(&lease.key, &attachment.container).await;
                }
                Err(error)
            }
        }
    }

    /// The pod `named`, as a claimant of `interface`.
    async fn claimant(&self, named: &PodName, interface: &str) -> Result<Claimant, Error> {
        let pod = self.api.pod(&named.namespace, &named.name).await?;
        let missing = || {
            let msg = format!("there is no pod {}/{}", named.namespace, named.name);
            Error::new(Code::UnknownContainer, msg)
        };
        let pod = pod.ok_or_else(missing)?;
        let machine = match owner::machine_of(&pod.metadata) {
            Some(machine) => self.api.machine(&named.namespace, &machine.name).await?,
            None => None,
        };
        owner::claimant(named, &pod, machine.as_ref(), interface)
    }

    /// Its lease, where the network has addresses.
    async fn lease(
        &self,
        claimant: &Claimant,
        network: &Network,
        attachment: &Attachment,
    ) -> Result<Option<Lease>, Error> {
        if network.sets.is_empty() {
            return Ok(None);
        }
        let key = claimant.key(&network.name, &attachment.ifname);
        // A claim outlives the pod, whichever machine the pod is of.
        let of_pod = claimant.owner.is_pod() && claimant.claim.is_none();
        let request = Request {
            key,
            network,
            interface: &attachment.ifname,
            owner: &claimant.owner,
            machine: claimant.machine.as_deref(),
            attached: of_pod
                .then(|| Attached { node: self.node.clone(), container: attachment.container.clone() }),
        };
        ipam::acquire(&self.api, &request).await.map(Some)
    }

    async fn check(&self, call: &Call, config: &[u8]) -> Result<(), Error> {
        let (attachment, path, named) = (call.attachment()?, call.netns()?, call.pod()?);
        let network = Network::read(config, call.mac())?;
        let expected = result::expected(&network, &attachment.ifname)?;
        let namespace = open(&path)?;
        attach::check(&attachment, &network, &expected, &namespace)
            .map_err(|e| kernel("the attachment is not as it was made", &e))?;
        if network.sets.is_empty() {
            return Ok(());
        }
        let claimant = self.claimant(&named, &attachment.ifname).await?;
        let key = claimant.key(&network.name, &attachment.ifname);
        let lease = self.api.find(&key).await?;
        if lease.is_some_and(|lease| lease.addresses == expected.addresses) {
            return Ok(());
        }
        let msg = format!("the lease {}/{} does not have the pod's addresses", key.namespace, key.name);
        Err(Error::new(Code::Changed, msg))
    }

    async fn del(&self, call: &Call, config: &[u8]) -> Result<(), Error> {
        let attachment = call.attachment()?;
        let network = match Network::read_for_removal(config) {
            Ok(network) => network,
            // No ADD was served with it, and a pod whose ADD was refused comes here, too.
            Err(error) if matches!(error.code, Code::Config | Code::UnsupportedField) => {
                eprintln!("podvirt-cni: nothing is removed: {error}");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // A namespace that is gone has taken the interface with it.
        let namespace = call.netns().ok().and_then(|path| netns::open(&path).ok());
        attach::remove(&attachment, &network, namespace.as_ref())
            .map_err(|e| kernel("the interface cannot be removed", &e))?;
        if let Ok(PodName { namespace, name, uid: Some(uid) }) = call.pod() {
            let key = owner::key_of_pod(&namespace, &name, &uid, &network.name, &attachment.ifname);
            self.release(&key, &attachment.container).await;
        }
        Ok(())
    }

    async fn gc(&self, config: &[u8]) -> Result<(), Error> {
        let network = Network::read(config, None)?;
        let Some(valid) = &network.valid else {
            // Without the list nothing is known to be needless.
            let msg = "cni.dev/valid-attachments is missing: GC needs it";
            return Err(Error::new(Code::Config, msg));
        };
        let removed = attach::collect(&network, valid);
        let removed = removed.map_err(|e| kernel("what is left over cannot be removed", &e));
        for alias in removed.iter().flatten() {
            eprintln!("podvirt-cni: removed {alias}, which the runtime does not know");
        }
        let mut failures = Failures::default();
        for lease in self.api.leases().await?.found {
            let Some(attached) = &lease.attached else { continue };
            let known = |v: &Attachment| v.container == attached.container && v.ifname == lease.interface;
            if attached.node == self.node && lease.network == network.name && !valid.iter().any(known) {
                failures.note(ipam::end(&self.api, &lease).await)?;
            }
        }
        failures.finish()?;
        removed.map(|_| ())
    }

    async fn status(&self, config: &[u8]) -> Result<(), Error> {
        let network = Network::read(config, None)?;
        let (Link::Bridge(lower) | Link::Macvlan(lower)) = &network.link;
        netns::inside(None, |handle| async move {
            attach::required(&handle, lower, "on the node").await.map(|_| ())
        })
        .map_err(|e| Error::because(Code::Unavailable, "no interface can be made", &e))?;
        let ready = self.api.ready().await;
        ready.map_err(|e| Error::because(Code::Unavailable, "no address can be leased", &e))
    }

    /// Ends the lease of a pod, if it is this container's still.
    async fn release(&self, key: &ipam::Key, container: &str) {
        /// Another program changes a pod's lease at most once, and then it is no more ours.
        const ATTEMPTS: usize = 3;
        for _ in 0..ATTEMPTS {
            let result = match self.api.find(key).await {
                Ok(Some(lease)) if lease.attached.as_ref().is_some_and(|a| a.container == container) => {
                    ipam::end(&self.api, &lease).await
                }
                Ok(_) => return,
                Err(e) => Err(e),
            };
            match result {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    eprintln!(
                        "podvirt-cni: the lease {}/{} is freed later: {error}",
                        key.namespace, key.name
                    );
                    return;
                }
            }
        }
    }
}

fn open(path: &Path) -> Result<std::fs::File, Error> {
    netns::open(path).map_err(|e| Error::because(Code::UnknownContainer, "CNI_NETNS cannot be opened", &e))
}

fn take_back(attachment: &Attachment, network: &Network, namespace: &std::fs::File) {
    if let Err(error) = attach::remove(attachment, network, Some(namespace)) {
        eprintln!("podvirt-cni: {} stays until DEL: {error}", attachment.ifname);
    }
}

fn kernel(what: &str, error: &NetError) -> Error {
    let code = match error {
        NetError::Changed(_) => Code::Changed,
        NetError::Kind { .. } | NetError::Missing { place: "on the node", .. } => Code::Config,
        NetError::Silence { .. } => Code::Silence,
        _ => Code::Io,
    };
    Error::because(code, what, error)
}

#[cfg(test)]
mod tests;
