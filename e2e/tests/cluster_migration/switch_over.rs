//! Harm at the switch-over, exactly there: a process that the switch-over waits for is made to stand still, harm is done
//! while the others wait for it, and the process goes on.
//!
//! ```text
//!   memory is copied │ guest stopped, its netd asked │ state on its way, target's netd asked │ loaded, Finish sent │ runs there
//!   held by            the source's netd               the target's netd                       the target's libvirtd
//! ```
//!
//! The process that is held is asked something and does not read it: bytes that stand unread in its socket tell that
//! the moment is there.

use kube::ResourceExt;
use podvirt_api::migration::is_final;
use podvirt_api::v1::{
    VirtualMachineInstanceMigration as Migration, VirtualMachineInstanceMigrationState as State,
};
use podvirt_e2e::cluster::{Cluster, Namespace, Node, SOON, Security};

use crate::moving::{MOVE, Slowly, node};
use crate::streams::Busy;

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The guest stands still, and its netd is asked for its state.
    Before,
    /// The state is being given away, and taken.
    During,
    /// It was taken, and the guest is about to run there.
    After,
}

/// What.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// The target's pod is deleted, at once.
    PodDeleted,
    /// The target's hypervisor is killed.
    HypervisorKilled,
    /// virt-handler of the source is killed.
    SourceHandlerKilled,
    /// virt-handler of the target is killed.
    TargetHandlerKilled,
    /// The network between the nodes is cut, and stays so until the migration is over.
    NetworkCut,
}

/// The source's netd gives its state away. Where much waits in the connections' queues it does not come to the end of it
/// before the target's reads.
const GIVES: &str = "connections are to move";

/// A process that stands still until this is dropped.
struct Held<'c> {
    node: Node<'c>,
    pid: String,
}

impl<'c> Held<'c> {
    /// The process of the pod that the machine's hypervisor there is in; none while that does not run.
    fn new(node: Node<'c>, hypervisor: &str, program: &str) -> anyhow::Result<Option<Held<'c>>> {
        let command = format!(
            "pid=$(pgrep -fo '{hypervisor}') || exit 0; ns=$(readlink /proc/$pid/ns/net); for p in $(pgrep -x {program}); do \
             [ \"$(readlink /proc/$p/ns/net)\" != \"$ns\" ] || echo $p; done"
        );
        let pid = node.run(&["sh", "-c", &command])?.trim().to_owned();
        if pid.parse::<u32>().is_err() {
            return Ok(None);
        }
        node.run(&["kill", "-STOP", &pid])?;
        Ok(Some(Held { node, pid }))
    }

    /// Whether a program waits for an answer of it, by a socket that has a name: the hypervisor's, or libvirt's.
    fn is_asked(&self) -> anyhow::Result<bool> {
        let command = format!(
            "nsenter -t {0} -n ss -Hxp | awk '$2 == \"ESTAB\" && $3 > 0 && $5 ~ /sock$/ && /pid={0},/' | wc -l",
            self.pid
        );
        Ok(self.node.run(&["sh", "-c", &command])?.trim() != "0")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // It may be gone.
        drop(self.node.run(&["kill", "-CONT", &self.pid]));
    }
}

/// Moves the machine and does harm at the moment; it is to run where the instance says afterwards, with all its streams.
fn survives<'c>(namespace: &Namespace<'c>, busy: &mut Busy<'c>, moment: Moment, harm: Harm) {
    println!("{harm:?}, {moment:?}");
    let cluster = namespace.cluster();
    let hypervisor = format!("[q]emu.*guest={}_{},", namespace.name(), busy.machine.name());
    let slowly = Slowly::new(namespace);
    let source = busy.machine.pod();
    let migration = busy.machine.migrate();
    let state = busy.machine.wait_under_way(&migration);
    let (from, to) = (busy.machine.node(), node(cluster, state.target_node.as_ref().unwrap()));
    let (from_pod, target) = (source.name_any(), state.target_pod.clone().unwrap());
    let copied = || {
        Ok(busy.machine.virsh(&from_pod, &["domjobinfo"], &[])?.contains("Memory processed:").then_some(()))
    };
    namespace.until("memory that is copied", MOVE, copied).unwrap();
    let hold = |node: Node<'c>, program: &str| {
        namespace.until("a process to hold", SOON, || Held::new(node, &hypervisor, program)).unwrap()
    };
    let told = |pod: &str, what: &str| -> anyhow::Result<usize> {
        let log = namespace.kubectl(&["logs", pod, "-c", "netd"])?;
        Ok(log.lines().filter(|line| line.contains(what)).count())
    };
    // The source's may have been here before.
    let before = told(&from_pod, GIVES).unwrap();
    let wait = |held: &Held<'_>, pod: &str, what: &str, before: usize| {
        let there = || Ok((told(pod, what)? > before && held.is_asked()?).then_some(()));
        namespace.until(&format!("{moment:?} the device state, '{what}'"), SOON, there).unwrap();
    };
    let mut held = hold(if moment == Moment::Before { from } else { to }, "netd");
    busy.machine.virsh(&from_pod, &["migrate-setspeed"], &["4096"]).unwrap();
    match moment {
        Moment::Before => wait(&held, &from_pod, "", 0),
        Moment::During => wait(&held, &from_pod, GIVES, before),
        Moment::After => {
            wait(&held, &from_pod, GIVES, before);
            // Not from the beginning: libvirt takes one that is silent for half a minute for dead.
            held = hold(to, "libvirtd");
            wait(&held, &target, "a state has come", 0);
        }
    }
    let handler = "kill -9 $(pgrep -x virt-handler)";
    let mut cut = None;
    match harm {
        Harm::PodDeleted => {
            namespace
                .kubectl(&["delete", "pod", &target, "--wait=false", "--force", "--grace-period=0"])
                .unwrap();
            // The object goes first and the processes some seconds later: time enough for a machine to arrive and to die
            // with the pod that it is in then.
            let count = format!("pgrep -fc '{hypervisor}' || true");
            let gone = || Ok((to.run(&["sh", "-c", &count])?.trim() == "0").then_some(()));
            namespace.until("an end of the target's hypervisor", SOON, gone).unwrap();
        }
        Harm::HypervisorKilled => drop(to.run(&["pkill", "-9", "-f", &hypervisor]).unwrap()),
        Harm::SourceHandlerKilled => drop(from.run(&["sh", "-c", handler]).unwrap()),
        Harm::TargetHandlerKilled => drop(to.run(&["sh", "-c", handler]).unwrap()),
        Harm::NetworkCut => cut = Some(to.partition().unwrap()),
    }
    drop(held);
    drop(slowly);
    let over =
        namespace.wait(&migration, "the end of the migration", MOVE, |m: &Migration| is_final(m)).unwrap();
    println!("{:?}: {:?}", over.status.phase, over.status.migration_state.as_ref().map(reason));
    if let Some(cut) = cut {
        cut.repair().unwrap();
    }
    if over.status.phase.is_some_and(|phase| phase.as_str() == "Succeeded") {
        busy.machine.has_moved(&migration, &source);
    } else {
        busy.machine.has_stayed(&migration, &source, &target);
    }
    busy.goes_on();
}

fn reason(state: &State) -> (Option<&str>, Option<bool>) {
    (state.failure_reason.as_deref(), state.failed)
}

/// One after the other, and then it moves after all.
fn all(subnet: u8, harms: &[(Moment, Harm)]) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let mut busy = Busy::new(&namespace, subnet);
    for &(moment, harm) in harms {
        survives(&namespace, &mut busy, moment, harm);
    }
    let source = busy.machine.pod();
    let migration = busy.machine.migrate();
    busy.machine.has_moved(&migration, &source);
    busy.goes_on();
    if harms.len() > 1 {
        busy.leftovers.disarmed(&busy.machine);
    }
    busy.ends_whole();
}

const HARMS: [Harm; 4] =
    [Harm::PodDeleted, Harm::HypervisorKilled, Harm::SourceHandlerKilled, Harm::TargetHandlerKilled];

#[test]
fn long_the_target_dies_while_it_takes_the_device_state() {
    all(70, &[(Moment::During, Harm::HypervisorKilled)]);
}

#[test]
fn long_harm_before_the_device_state() {
    all(71, &HARMS.map(|harm| (Moment::Before, harm)));
}

#[test]
fn long_harm_while_the_device_state_moves() {
    all(72, &HARMS.map(|harm| (Moment::During, harm)));
}

#[test]
fn long_harm_after_the_device_state() {
    all(73, &HARMS.map(|harm| (Moment::After, harm)));
}

#[test]
fn long_the_network_is_cut_at_the_switch_over() {
    all(74, &[Moment::Before, Moment::During, Moment::After].map(|moment| (moment, Harm::NetworkCut)));
}
