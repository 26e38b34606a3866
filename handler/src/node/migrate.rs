//! A migration's part of a pass: what [`crate::migration`] decided is carried out.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as KubePod;
use podvirt_api::error::chain;
use podvirt_api::names::annotation::NETWORK_STATUS;
use podvirt_api::names::pod;
use podvirt_api::v1::VirtualMachineInstance;
use serde_json::Value;
use tokio::sync::oneshot;

use super::machine::{Machine, Task};
use super::{Node, pods, volumes};
use crate::launcher::client::{Client, Error, Order};
use crate::migration::network::{Armed, PodNetwork};
use crate::migration::proxy::{self, Inbound, Outbound, Pod};
use crate::migration::{self, ACTIVATIONS, Decision, Open, Session, Step, View};
use crate::podnet;
use crate::vm::Launcher;

/// What is open for a migration, and what was done.
#[derive(Debug, Default)]
pub(super) struct Moving {
    session: Session,
    /// Migration and UID of its target pod here.
    target: Option<(String, String)>,
    inbound: Option<Inbound>,
    outbound: Option<Outbound>,
    armed: Option<Box<dyn Armed>>,
    preparing: Option<(oneshot::Receiver<Result<(), Error>>, Task)>,
}

/// The pod on this node to which the machine of `vmi` comes; none when it is not known yet, or not the one.
pub(super) async fn target_pod(
    node: &Node,
    vmi: &VirtualMachineInstance,
    machine: &mut Machine,
) -> anyhow::Result<Option<String>> {
    let Some(state) = &vmi.status.migration_state else { return Ok(None) };
    let migration = state.migration_uid.clone().unwrap_or_default();
    if let Some((of, uid)) = &machine.moving.target
        && *of == migration
    {
        return Ok(Some(uid.clone()));
    }
    let Some(name) = state.target_pod.as_deref().filter(|name| !name.is_empty()) else { return Ok(None) };
    let Some(found) = pods::get(node, vmi, name).await? else { return Ok(None) };
    pods::check_target(&found, vmi, &node.name, &migration)?;
    let Some(uid) = found.metadata.uid else { return Ok(None) };
    machine.take_pod(uid.clone());
    machine.moving.target = Some((migration, uid.clone()));
    Ok(Some(uid))
}

/// Decides for the migration of `vmi`; writes into `new`.
pub(super) fn decide(
    node: &Node,
    machine: &mut Machine,
    vmi: &VirtualMachineInstance,
    new: &mut VirtualMachineInstance,
    launcher: Launcher,
    domain: Option<&podvirt_proto::domain::Domain>,
    now: Timestamp,
) -> Decision {
    machine.moving.answered(now);
    let uid = vmi.status.migration_state.as_ref().and_then(|state| state.migration_uid.as_deref());
    machine.moving.of(uid.unwrap_or_default());
    let progress = domain.and_then(|domain| domain.migration.as_ref()).filter(|m| m.is_running());
    node.metrics.moving(vmi, progress.and_then(|migration| migration.progress));
    machine.moving.session.note(vmi, &node.name, domain, now);
    let session = &machine.moving.session;
    migration::decide(&View { vmi, node: &node.name, launcher, domain, session, now }, new)
}

impl Moving {
    /// The session is of this migration from now on.
    fn of(&mut self, uid: &str) {
        // What another migration had open is closed by a step; the pod that was found is this migration's already.
        let idle = self.session.open.is_none() && !self.session.armed;
        if self.session.uid != uid && (idle || !uid.is_empty()) {
            let target = self.target.take();
            *self = Self { target, ..Self::default() };
            self.session.uid = uid.to_owned();
        }
    }

    /// Takes the answer to SyncMigrationTarget.
    fn answered(&mut self, now: Timestamp) {
        let Some((answer, _)) = &mut self.preparing else { return };
        let answer = match answer.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => return,
            Err(oneshot::error::TryRecvError::Closed) => Err(Error::Broken("the call was given up".into())),
            Ok(answer) => answer,
        };
        self.preparing = None;
        self.session.preparing = false;
        match answer {
            Ok(()) => self.session.prepared = true,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the target is not ready");
                let times = self.session.unprepared.as_ref().map_or(0, |(times, ..)| *times);
                self.session.unprepared = Some((times.saturating_add(1), now, chain(&error)));
            }
        }
    }

    fn shut(&mut self) {
        self.inbound = None;
        self.outbound = None;
        self.session.open = None;
    }
}

/// Carries a step out.
///
/// # Errors
///
/// It is tried again by a later pass.
pub(super) async fn carry_out(
    node: &Node,
    vmi: &Arc<VirtualMachineInstance>,
    machine: &mut Machine,
    step: Step,
) -> anyhow::Result<()> {
    tracing::debug!(?step, "migration");
    match step {
        Step::Shut | Step::Close => {
            machine.moving.shut();
            if step == Step::Close {
                machine.moving.armed = None;
                machine.moving.session.armed = false;
            }
            let pod = Pod { volumes: node.volumes.clone(), uid: machine.pod_uid().to_owned() };
            proxy::sweep(&pod, &machine.moving.session.uid);
            machine.moving.session.swept = true;
            return be_heard(node, vmi, machine).await;
        }
        Step::Open(there) => return open(node, vmi, machine, there).await,
        _ => {}
    }
    let Some(client) = machine.client().cloned() else { bail!("the launcher is not reached") };
    let mut network = network_of(node, vmi, machine, &client);
    if step == Step::Arm && !migration::is_target(vmi, &node.name) {
        network.to = Some(target_addresses(node, vmi).await?);
    }
    let pod_uid = machine.pod_uid().to_owned();
    let moving = &mut machine.moving;
    let now = Timestamp::now();
    match step {
        Step::Arm => {
            // Connections are lost without it; the machine is not.
            moving.session.armed = true;
            match node.means.network.arm(&network) {
                Ok(armed) => moving.armed = Some(armed),
                Err(error) => tracing::warn!(%error, "connections will not be repaired"),
            }
        }
        Step::Prepare => prepare(node, vmi, pod_uid, moving, client),
        Step::Begin(options) => {
            // The target's interface may have had the guest's address for a moment.
            if let Err(error) = node.means.network.announce(&network).await {
                tracing::warn!(%error, "the networks are not told that the machine is here still");
            }
            moving.session.asked = true;
            match client.migrate(vmi, &options).await {
                Ok(()) => tracing::info!(migration = options.migration_uid, "the machine moves"),
                Err(error @ (Error::Refused(_) | Error::Unsupported(_))) => {
                    moving.session.asked = false;
                    moving.session.refused = format!("the source's launcher refuses: {}", chain(&error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Step::Cancel => {
            moving.session.cancelled = Some(now);
            match client.order(Order::CancelMigration, vmi).await {
                Err(Error::Refused(reason)) => {
                    tracing::info!(reason, "nothing is left to abort");
                    moving.session.asked = false;
                }
                result => result.context("the migration cannot be aborted")?,
            }
        }
        Step::Activate => {
            let activated = node.means.network.activate(&network).await;
            moving.session.silent += u32::from(activated.is_err());
            moving.session.activated = activated.is_ok() || moving.session.silent >= ACTIVATIONS;
            activated.context("addresses stay silent")?;
        }
        Step::Finalize => {
            moving.session.settled = Some(now);
            client.order(Order::FinalizeMigration, vmi).await.context("the migration is not finished")?;
            moving.session.finalized = true;
        }
        Step::Leave => {
            moving.session.settled = Some(now);
            client.order(Order::Leave, vmi).await.context("the target's launcher does not end")?;
        }
        Step::Kill => {
            moving.session.settled = Some(now);
            client.order(Order::Kill, vmi).await.context("the machine cannot be ended")?;
        }
        Step::Shut | Step::Close | Step::Open(_) => {}
    }
    Ok(())
}

/// A machine that a failed migration has left here is heard again, also when its backend did not say that it stays.
async fn be_heard(node: &Node, vmi: &VirtualMachineInstance, machine: &Machine) -> anyhow::Result<()> {
    let state = vmi.status.migration_state.as_ref();
    let failed = state.is_some_and(|state| state.failed == Some(true));
    let here = vmi.status.node_name.as_deref() == Some(node.name.as_str());
    let Some(client) = machine.client().filter(|_| failed && here && !migration::is_target(vmi, &node.name))
    else {
        return Ok(());
    };
    let network = network_of(node, vmi, machine, client);
    node.means.network.activate(&network).await.context("the machine stays, and its addresses are silent")
}

fn network_of(node: &Node, vmi: &VirtualMachineInstance, machine: &Machine, client: &Client) -> PodNetwork {
    let interfaces = vmi.spec.domain.devices.interfaces.iter();
    let incoming = migration::is_target(vmi, &node.name);
    PodNetwork {
        pod_uid: machine.pod_uid().to_owned(),
        launcher: client.process.clone(),
        sockets: node.volumes.path(machine.pod_uid(), pod::volume::NETD),
        interfaces: interfaces
            .enumerate()
            .filter(|(_, i)| vmi.by_netd(i))
            .map(|(index, i)| (index, i.name.clone()))
            .collect(),
        // What the machine is yet to get it gets at the target.
        bridged: if incoming { podnet::bridged(vmi) } else { podnet::attached(vmi).bridged },
        incoming,
        to: None,
    }
}

/// Addresses of the pod that the machine goes to.
async fn target_addresses(node: &Node, vmi: &VirtualMachineInstance) -> anyhow::Result<Vec<IpAddr>> {
    let state = vmi.status.migration_state.as_ref();
    let (Some(name), Some(on)) = (
        state.and_then(|state| state.target_pod.as_deref()).filter(|name| !name.is_empty()),
        state.and_then(|state| state.target_node.as_deref()),
    ) else {
        return Ok(Vec::new());
    };
    let Some(target) = pods::get(node, vmi, name).await? else { return Ok(Vec::new()) };
    pods::check(&target, vmi, on)?;
    Ok(addresses(&target))
}

/// A pod's addresses: on the pod network, and on the others by the word of Multus.
fn addresses(pod: &KubePod) -> Vec<IpAddr> {
    let own = pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten()).map(|ip| ip.ip.clone());
    let networks = pod.metadata.annotations.as_ref().and_then(|all| all.get(NETWORK_STATUS));
    let networks = networks.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_default();
    let others = networks.as_array().into_iter().flatten();
    let others = others.flat_map(|network| network["ips"].as_array().into_iter().flatten());
    let others = others.filter_map(|ip| ip.as_str().map(str::to_owned));
    own.chain(others).filter_map(|ip| ip.parse().ok()).collect()
}

fn prepare(
    node: &Node,
    vmi: &Arc<VirtualMachineInstance>,
    pod_uid: String,
    moving: &mut Moving,
    client: Client,
) {
    let (tell, answer) = oneshot::channel();
    let (triggers, vmi) = (node.triggers.clone(), Arc::clone(vmi));
    let (network, options) = (Arc::clone(&node.means.network), node.options.clone());
    let node = node.clone();
    let task = Task::spawn(async move {
        let given = async {
            network.make(&client.process, podnet::wanted(&vmi)).await?;
            volumes::deliver(&node, &vmi, &pod_uid, &[]).await?;
            client.receive(&vmi, options.get().await).await
        };
        // The caller waits no longer, or this process is ending.
        let _unheard = tell.send(given.await);
        let _ending = triggers.send(vmi.metadata.uid.clone().unwrap_or_default()).await;
    });
    moving.session.preparing = true;
    moving.preparing = Some((answer, task));
}

async fn open(
    node: &Node,
    vmi: &VirtualMachineInstance,
    machine: &mut Machine,
    there: Option<Open>,
) -> anyhow::Result<()> {
    let pod = Pod { volumes: node.volumes.clone(), uid: machine.pod_uid().to_owned() };
    let moving = &mut machine.moving;
    let opened = try_open(node, vmi, &pod, moving, there).await;
    moving.session.trouble = opened.as_ref().err().map(ToString::to_string).unwrap_or_default();
    opened.context("the migration's proxies")
}

async fn try_open(
    node: &Node,
    vmi: &VirtualMachineInstance,
    pod: &Pod,
    moving: &mut Moving,
    there: Option<Open>,
) -> io::Result<()> {
    let identity = node.means.identity.get();
    let identity = identity.ok_or_else(|| io::Error::other("this node has no certificate yet"))?;
    let uid = moving.session.uid.clone();
    // Each end speaks with the node that the controller has named, and with no other.
    let state = vmi.status.migration_state.clone().unwrap_or_default();
    let named = |field: &str, node: Option<String>| {
        let message = format!("status.migrationState.{field}: the name of a node is needed");
        node.filter(|node| !node.is_empty()).ok_or_else(|| io::Error::other(message))
    };
    match there {
        Some(there) => {
            let to = proxy::addresses(&there)?;
            let target = named("targetNode", state.target_node)?;
            // The old sockets have the same names.
            moving.outbound = None;
            moving.outbound = Some(Outbound::open(pod, &uid, identity, &target, &to)?);
            moving.session.open = Some(there);
        }
        None => {
            if node.means.address.is_empty() {
                return Err(io::Error::other("--migration-address: the address of this pod is needed"));
            }
            let source = named("sourceNode", state.source_node)?;
            let inbound = Inbound::open(pod.clone(), &uid, identity, &source).await?;
            let ports = inbound.ports().iter();
            let ports = ports.map(|(tcp, logical)| (tcp.to_string(), i64::from(*logical))).collect();
            moving.session.open = Some(Open { address: node.means.address.clone(), ports });
            moving.inbound = Some(inbound);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_has_the_addresses_of_all_its_networks() {
        let networks = json!([
            {"name": "cbr0", "ips": ["10.11.0.7"], "default": true},
            {"name": "shop/flat", "interface": "net1", "ips": ["172.30.0.9", "fd00:30::9"]},
            {"name": "shop/wire", "interface": "net2"},
        ]);
        let pod = |networks: &str| -> KubePod {
            let annotations = json!({NETWORK_STATUS: networks});
            let status = json!({"podIPs": [{"ip": "10.11.0.7"}, {"ip": "fd00:11::7"}]});
            serde_json::from_value(json!({"metadata": {"annotations": annotations}, "status": status}))
                .unwrap()
        };
        let at = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let all = ["10.11.0.7", "fd00:11::7", "10.11.0.7", "172.30.0.9", "fd00:30::9"];
        assert_eq!(addresses(&pod(&networks.to_string())), at(&all));
        assert_eq!(addresses(&pod("nonsense")), at(&["10.11.0.7", "fd00:11::7"]));
        assert_eq!(addresses(&KubePod::default()), at(&[]));
    }
}
