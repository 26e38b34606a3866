//! Volumes that come and go while a machine runs, and the pods that hold their claims.
//!
//! # Theory of operation
//!
//! A launcher pod keeps the volumes that it was made with. The claims of volumes that may come and go are held by an attachment pod
//! on the same node, from the time on when the launcher pod is ready: a machine starts once it has the disks of all that it has then.
//! There is one for each launcher pod ([`crate::template::attachment_pod`]); virt-handler carries the disks from there to the
//! launcher. What the machine's status tells of such a volume is written by both:
//!
//! ```text
//!              virt-controller                                        virt-handler
//!  Pending ──> Bound ──> AttachedToNode ──────────────────────> MountedToPod ──> Ready
//!    the claim's phase    an attachment pod has the claim;        virt-launcher   the guest
//!                         its UID is told once it is ready        has the disk    has it
//!
//!  (gone) <── Detaching <───────────────────────────────────── UnMountedFromPod <── Ready
//!    no pod has the claim  attachment pods with it are deleted    virt-launcher has closed the disk,
//!                                                                 as the specification has lost the volume
//! ```
//!
//! **One pod for all volumes.** An attachment pod cannot change either. So when a volume is added or removed, a new one is made with
//! all claims that are usable, and once it is ready the former one is deleted: a claim that both have stays attached to the
//! node. A volume that the machine still has, by the phases above, keeps its attachment pod. A claim that is not usable yet is
//! left out, so that it delays no other volume.
//!
//! An attachment pod that starts is let finish, and serves its volumes, while others are added: the next one has all that came
//! meanwhile. However fast volumes come, each waits for two starts of a pod at most. One that does not start within
//! [`START_LIMIT`], or says why it cannot, is replaced.
//!
//! **Claims whose storage waits for a first user** (`WaitForFirstConsumer`, or a DataVolume that does) get one: a pod that mounts the
//! claim on the machine's node and ends.
//!
//! **Migrations.** The target's launcher pod gets an attachment pod as soon as it is on a node, with the same claims. A volume that
//! moves to another claim ([`storage::moving`](podvirt_api::storage::moving)) is the exception: the target's attachment pod holds the new
//! claim, and the source's attachment pod keeps the former claim. While the machine moves, no attachment pod is made for the sake
//! of another volume, nor deleted.
//!
//! **Memory dumps.** The volume of one comes and goes in the same way, and has no disk: virt-handler tells of it `MemoryDumpInProgress`,
//! and `MemoryDumpCompleted` or `MemoryDumpFailed`, once the launcher has its file. The file's name is given here, before a pod has the claim.
//!
//! **Backups.** Of a volume that a backup writes to (`utilityVolumes`) the launcher gets the claim's directory, and no disk either.
//!
//! Attachment pods are controlled by their launcher pod, and go with it. Where a launcher pod has ended and is still there, they
//! are deleted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use podvirt_api::attachment::Attached;
use podvirt_api::memory_dump;
use podvirt_api::migration::is_under_way;
use podvirt_api::names::condition::{self as conditions, FALSE, reason};
use podvirt_api::names::{event, target_attachment_name};
use podvirt_api::storage::{claim, is_hotpluggable, is_utility, moving, volumes};
use podvirt_api::v1::{
    DomainMemoryDumpInfo, HotplugVolumeStatus, PersistentVolumeClaimInfo, VirtualMachineInstance,
    VirtualMachineInstancePhase as Phase, Volume, VolumePhase, VolumeStatus,
};

use super::claims::{Problem, Told};
use super::data::Filling;
use super::decide::{Action, Decision, Note, Observed};
use super::observe;
use super::status::{is_final, phase};
use crate::template::{self, Images, claims_of, volumes_of};

/// When to look again at an attachment pod that is not ready, so that its trouble is told.
const LOOK: Duration = Duration::from_secs(5);

/// How long an attachment pod may start while volumes wait that it does not have.
const START_LIMIT: SignedDuration = SignedDuration::from_secs(120);

/// Reason of a volume's phase that follows the claim's (upstream's word, also of a claim that is bound).
const CLAIM_NOT_READY: &str = "PVCNotReady";

/// Whether what is wrong with the claims of volumes that are to be plugged matters for the next decision.
pub(super) fn needs_claims(vmi: &VirtualMachineInstance) -> bool {
    has_pod(vmi) && plugged(vmi).any(|volume| !is_attached_at(vmi, &volume, false))
}

/// Whether the machine runs, or a pod is ready to run it: it starts with the disks of its volumes.
fn has_pod(vmi: &VirtualMachineInstance) -> bool {
    matches!(phase(vmi), Phase::Scheduled | Phase::Running)
}

/// What the status tells of a volume.
fn told_of<'a>(vmi: &'a VirtualMachineInstance, name: &str) -> Option<&'a VolumeStatus> {
    vmi.status.volume_status.iter().find(|status| status.name == name)
}

/// Whether the claim of a volume is known to be usable: an attachment pod has had it.
fn is_attached(told: Option<&VolumeStatus>) -> bool {
    let phase = told.and_then(|told| told.phase.as_ref());
    matches!(phase, Some(VolumePhase::AttachedToNode | VolumePhase::MountedToPod | VolumePhase::Ready))
        || memory_dump::has_file(phase)
}

/// Whether the claim of a volume is known to be usable by the pod that runs the machine (`runs`), or by the target's pod. Of a volume that
/// moves, the two pods have different claims: nothing is known yet of the target's.
fn is_attached_at(vmi: &VirtualMachineInstance, volume: &Volume, runs: bool) -> bool {
    is_attached(told_of(vmi, &volume.name)) && (runs || moving(vmi, volume).is_none())
}

/// Whether the volume is plugged, or was, and the machine may have its disk open.
pub(crate) fn is_in_use(told: &VolumeStatus) -> bool {
    told.hotplug_volume.is_some()
        && (matches!(told.phase, Some(VolumePhase::MountedToPod | VolumePhase::Ready))
            || memory_dump::has_file(told.phase.as_ref()))
}

/// Volumes that are to be plugged and whose claims are usable, sorted by name: by the pod that runs the machine (`runs`), or by the
/// target's pod.
fn usable(
    vmi: &VirtualMachineInstance,
    problems: &[(String, Problem)],
    told: Option<&Told>,
    runs: bool,
) -> Vec<Attached> {
    let mut usable: Vec<Attached> = plugged(vmi)
        .filter_map(|volume| {
            let volume = volume.as_ref();
            let former =
                moving(vmi, volume).filter(|_| runs).and_then(|moved| moved.source_pvc_info.as_ref());
            let info = former.or_else(|| claim_of(volume, told))?;
            let name = info.claim_name.as_deref()?;
            // The pod is told the file's name.
            if volume.memory_dump.is_some()
                && told_of(vmi, &volume.name).and_then(memory_dump::file).is_none()
            {
                return None;
            }
            let bound = info.capacity.is_some() && !problems.iter().any(|(problem, _)| problem == name);
            (bound || is_attached_at(vmi, volume, runs)).then(|| attached(vmi, volume, info))
        })
        .collect();
    usable.sort_by(|a, b| a.name.cmp(&b.name));
    usable
}

/// Volumes of the specification that are plugged once the machine runs, and those that its backups write to.
fn plugged(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Cow<'_, Volume>> {
    volumes(vmi).filter(|volume| is_hotpluggable(volume))
}

fn claim_of<'a>(volume: &Volume, told: Option<&'a Told>) -> Option<&'a PersistentVolumeClaimInfo> {
    told?.get(claim(volume)?.name)
}

fn attached(vmi: &VirtualMachineInstance, volume: &Volume, info: &PersistentVolumeClaimInfo) -> Attached {
    let disk = vmi.spec.domain.devices.disks.iter().find(|disk| disk.name == volume.name);
    let is_drive = disk.is_some_and(|disk| disk.cdrom.is_some());
    let read_only = disk.and_then(|disk| disk.disk.as_ref()).and_then(|disk| disk.readonly) == Some(true);
    let read_only = is_drive || read_only || claim(volume).is_some_and(|claim| claim.read_only);
    let dump = volume.memory_dump.as_ref().and(told_of(vmi, &volume.name)).and_then(memory_dump::file);
    // How large it is changes; the pod's name follows from the names alone.
    Attached {
        name: volume.name.clone(),
        read_only,
        dump: dump.map(ToOwned::to_owned),
        is_directory: is_utility(vmi, &volume.name),
        claim: info.clone(),
    }
}

/// Names the files of memory dumps that are to be written.
fn name_dumps(vmi: &mut VirtualMachineInstance, now: Timestamp) {
    let machine = vmi.metadata.name.as_deref().unwrap_or_default();
    for volume in &vmi.spec.volumes {
        let Some(source) = &volume.memory_dump else { continue };
        let told = vmi.status.volume_status.iter_mut().find(|told| told.name == volume.name);
        let Some(told) = told.filter(|told| memory_dump::file(told).is_none()) else { continue };
        told.memory_dump_volume = Some(DomainMemoryDumpInfo {
            claim_name: Some(source.claim_name.clone()),
            target_file_name: Some(memory_dump::file_name(machine, &volume.name, now)),
            ..DomainMemoryDumpInfo::default()
        });
    }
}

/// Keeps the attachment pods of the machine's launcher pods, and tells of the volumes. `current`: the pod that runs the machine.
pub(super) fn follow(seen: &Observed<'_>, current: Option<&Pod>, decision: &mut Decision, now: Timestamp) {
    for pod in seen.attachments.iter().filter(|pod| !observe::is_terminating(pod)) {
        let launcher = seen.pods.iter().find(|launcher| observe::controls(launcher, pod));
        if launcher.is_none_or(|launcher| observe::is_done(launcher)) {
            decision.actions.push(delete(pod));
        }
    }
    if is_final(&phase(&decision.vmi)) || seen.vmi.metadata.deletion_timestamp.is_some() {
        return;
    }
    name_dumps(&mut decision.vmi, now);
    let [here, there] =
        [true, false].map(|runs| usable(&decision.vmi, seen.plug_claims, seen.claims_told, runs));
    let moves = seen.vmi.status.migration_state.as_ref().is_some_and(is_under_way);
    if has_pod(&decision.vmi) && !moves {
        let launchers =
            seen.pods.iter().filter(|pod| !observe::is_done(pod) && !observe::is_terminating(pod));
        for launcher in launchers {
            let own: Vec<&Arc<Pod>> =
                seen.attachments.iter().filter(|pod| observe::controls(launcher, pod)).collect();
            let runs = current.is_some_and(|current| observe::uid(current) == observe::uid(launcher));
            keep(seen, launcher, &own, if runs { &here } else { &there }, runs, decision, now);
        }
    }
    let own: Vec<&Arc<Pod>> = seen
        .attachments
        .iter()
        .filter(|pod| current.is_some_and(|current| observe::controls(current, pod)))
        .collect();
    tell(seen, &own, &here, decision, now);
}

/// Keeps the attachment pod of one launcher pod, which has `own` so far. `runs`: the machine runs in the launcher pod;
/// otherwise it is to move there.
fn keep(
    seen: &Observed<'_>,
    launcher: &Pod,
    own: &[&Arc<Pod>],
    usable: &[Attached],
    runs: bool,
    decision: &mut Decision,
    now: Timestamp,
) {
    let Some(node) = observe::node(launcher).filter(|_| observe::compute_runs(launcher)) else { return };
    let images = seen.settings.images(seen.launcher_image, seen.limits);
    first_uses(seen, (launcher, node), own, &images, runs, decision);
    let own: Vec<&Pod> = own.iter().filter(|pod| !observe::is_consumer(pod)).map(AsRef::as_ref).collect();
    let Holders { wanted, starting, serving } = Holders::select(seen.vmi, &own, usable, now);
    // A target's attachment pods have one name.
    let starting = starting.filter(|_| runs);
    let waits = wanted.is_none() && starting.is_some();
    if waits {
        decision.look_again = Some(decision.look_again.map_or(LOOK, |known| known.min(LOOK)));
    }
    if wanted.is_none() && !waits && !usable.is_empty() {
        match template::attachment_pod(
            &decision.vmi,
            launcher,
            node,
            usable,
            &images,
            &seen.settings.configuration,
        ) {
            Ok(mut pod) => {
                if !runs {
                    // The target's virt-handler finds it by this name: the machine's status tells of its UID alone.
                    pod.metadata.name = Some(target_attachment_name(observe::uid(launcher)));
                }
                // One of the same name may have to go first.
                if !own.iter().any(|one| observe::name(one) == observe::name(&pod)) {
                    decision.actions.push(Action::Create(Box::new(pod)));
                }
            }
            Err(error) => decision.warn(event::FAILED_CREATE, format!("attachment pod: {error}")),
        }
    }
    let is =
        |pod: &Pod, other: Option<&Pod>| other.is_some_and(|other| observe::uid(other) == observe::uid(pod));
    let in_use = |name: &str| runs && told_of(&decision.vmi, name).is_some_and(is_in_use);
    let serving = serving.filter(|pod| runs || is(pod, wanted));
    let is_served = |name: &str| serving.is_some_and(|pod| volumes_of(pod).any(|one| one == name));
    // What the machine has in use stays on the node until the next pod has it, or the machine has let go of it.
    let stays = |pod: &Pod| {
        [wanted, starting, serving].into_iter().any(|needed| is(pod, needed))
            || volumes_of(pod).any(|name| in_use(name) && !is_served(name))
    };
    let superfluous = own.iter().filter(|pod| !observe::is_terminating(pod) && !stays(pod));
    let superfluous: Vec<Action> = superfluous.map(|pod| delete(pod)).collect();
    decision.actions.extend(superfluous);
}

/// The attachment pods of a launcher pod that are of use.
struct Holders<'a> {
    /// Has all claims that are usable, and no others.
    wanted: Option<&'a Pod>,
    /// Is not ready yet, and has nothing but such claims.
    starting: Option<&'a Pod>,
    /// Is ready, and has nothing but such claims: the most of them.
    serving: Option<&'a Pod>,
}

impl<'a> Holders<'a> {
    fn select(vmi: &VirtualMachineInstance, own: &[&'a Pod], usable: &[Attached], now: Timestamp) -> Self {
        let parts = || {
            let living = own.iter().filter(|pod| !observe::is_terminating(pod) && !observe::is_done(pod));
            living.copied().filter(|pod| is_part(vmi, pod, usable))
        };
        Holders {
            wanted: own
                .iter()
                .copied()
                .find(|pod| !observe::is_terminating(pod) && has_these(vmi, pod, usable)),
            starting: parts().find(|pod| !observe::is_ready(pod) && !is_late(pod, now)),
            serving: parts().filter(|pod| observe::is_ready(pod)).max_by_key(|pod| volumes_of(pod).count()),
        }
    }

    /// The pod that a volume is to be taken from: one that is ready, or that is to be.
    fn for_volume(&self, name: &str) -> Option<&'a Pod> {
        let ready = |pod: &&Pod| observe::is_ready(pod);
        let in_order = [self.wanted.filter(ready), self.serving, self.wanted, self.starting];
        in_order.into_iter().flatten().find(|pod| volumes_of(pod).any(|one| one == name))
    }
}

/// Whether an attachment pod has claims of these volumes and no others.
fn is_part(vmi: &VirtualMachineInstance, pod: &Pod, volumes: &[Attached]) -> bool {
    let moves = |name: &str| plugged(vmi).any(|volume| volume.name == name && moving(vmi, &volume).is_some());
    claims_of(pod).all(|(name, claim)| {
        let mut volumes = volumes.iter().filter(|volume| volume.name == name);
        volumes.any(|volume| !moves(name) || volume.claim.claim_name.as_deref() == Some(claim))
    })
}

/// Whether an attachment pod does not start, or takes longer than others can wait for.
fn is_late(pod: &Pod, now: Timestamp) -> bool {
    let unscheduled = observe::condition(pod, conditions::POD_SCHEDULED).is_some_and(|c| c.status == FALSE);
    let made = pod.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    unscheduled || observe::waiting(pod, now).is_some() || now.duration_since(made) >= START_LIMIT
}

/// Whether an attachment pod has the claims of these volumes and no others. A target's attachment pod that was made before a volume began
/// to move has the volume's former claim, and so has not.
fn has_these(vmi: &VirtualMachineInstance, pod: &Pod, volumes: &[Attached]) -> bool {
    let is_moving =
        |name: &str| plugged(vmi).any(|volume| volume.name == name && moving(vmi, &volume).is_some());
    let mut has: Vec<(&str, &str)> = claims_of(pod).collect();
    has.sort_unstable();
    has.len() == volumes.len()
        && has.iter().zip(volumes).all(|((name, claim), volume)| {
            *name == volume.name && (!is_moving(name) || Some(*claim) == volume.claim.claim_name.as_deref())
        })
}

/// Has the claims used first that wait for it, on the launcher pod's node, and deletes the pods that have done so.
fn first_uses(
    seen: &Observed<'_>,
    (launcher, node): (&Pod, &str),
    own: &[&Arc<Pod>],
    images: &Images,
    runs: bool,
    decision: &mut Decision,
) {
    let waiting: BTreeMap<String, Attached> = plugged(seen.vmi)
        .filter(|volume| !is_attached_at(&decision.vmi, volume, runs))
        .filter_map(|volume| {
            let info = claim_of(&volume, seen.claims_told)?;
            let name = claim(&volume)?.name;
            let problem =
                seen.plug_claims.iter().find(|(claim, _)| claim == name).map(|(_, problem)| problem);
            let waits = match problem {
                Some(problem) => *problem == Problem::Filling(Filling::WaitsForConsumer),
                None => info.capacity.is_none(),
            };
            waits.then(|| (volume.name.clone(), attached(seen.vmi, &volume, info)))
        })
        .collect();
    let first: Vec<_> = own.iter().filter(|pod| observe::is_consumer(pod)).collect();
    for pod in first.iter().filter(|pod| !observe::is_terminating(pod)) {
        if !volumes_of(pod).any(|name| waiting.contains_key(name)) {
            decision.actions.push(delete(pod));
        }
    }
    for (name, volume) in waiting {
        if !first.iter().any(|pod| volumes_of(pod).any(|one| one == name)) {
            match template::first_use_pod(
                seen.vmi,
                launcher,
                node,
                &volume,
                images,
                &seen.settings.configuration,
            ) {
                Ok(pod) => decision.actions.push(Action::Create(Box::new(pod))),
                Err(error) => decision.warn(event::FAILED_CREATE, format!("volume {name}: {error}")),
            }
        }
    }
}

fn delete(pod: &Pod) -> Action {
    Action::Delete { name: observe::name(pod).to_owned(), uid: observe::uid(pod).to_owned() }
}

/// Writes what the attachment pods of the machine's own pod mean to its volumes.
fn tell(
    seen: &Observed<'_>,
    own: &[&Arc<Pod>],
    usable: &[Attached],
    decision: &mut Decision,
    now: Timestamp,
) {
    let own: Vec<&Pod> = own.iter().filter(|pod| !observe::is_consumer(pod)).map(AsRef::as_ref).collect();
    let names: Vec<String> = plugged(seen.vmi).map(|volume| volume.name.clone()).collect();
    let holders = Holders::select(seen.vmi, &own, usable, now);
    let mut all = std::mem::take(&mut decision.vmi.status.volume_status);
    for status in &mut all {
        if names.contains(&status.name) {
            let holder = holders.for_volume(&status.name);
            let note = present(seen, status, holder, now);
            decision.notes.extend(note);
            if holder.is_some_and(|pod| !observe::is_ready(pod)) {
                decision.look_again = Some(decision.look_again.map_or(LOOK, |known| known.min(LOOK)));
            }
        } else if status.hotplug_volume.is_some() {
            removed(status, &own);
        }
    }
    // What no pod has any more is gone.
    all.retain(|status| {
        status.hotplug_volume.is_none()
            || names.contains(&status.name)
            || is_in_use(status)
            || own.iter().any(|pod| volumes_of(pod).any(|name| name == status.name))
    });
    decision.vmi.status.volume_status = all;
}

/// A volume of the specification. `holder`: the attachment pod that has its claim.
fn present(
    seen: &Observed<'_>,
    status: &mut VolumeStatus,
    holder: Option<&Pod>,
    now: Timestamp,
) -> Option<Note> {
    let hotplug = status.hotplug_volume.get_or_insert_with(HotplugVolumeStatus::default);
    let Some(pod) = holder else {
        // The machine goes on with a disk that it has, also while another pod is being made for it.
        let phase = status.phase.as_ref();
        if !matches!(phase, Some(VolumePhase::Ready | VolumePhase::MountedToPod))
            && !memory_dump::has_file(phase)
        {
            *hotplug = HotplugVolumeStatus::default();
            return of_claim(seen, status);
        }
        return None;
    };
    hotplug.attach_pod_name = Some(observe::name(pod).to_owned());
    hotplug.attach_pod_uid = observe::is_ready(pod).then(|| observe::uid(pod).to_owned());
    if is_in_use(status) {
        return None;
    }
    let trouble = trouble(pod, now);
    let (reason, message) = trouble.clone().unwrap_or_else(|| {
        let message =
            format!("Created hotplug attachment pod {}, for volume {}", observe::name(pod), status.name);
        (event::SUCCESSFUL_CREATE.to_owned(), message)
    });
    let is_new = status.phase != Some(VolumePhase::AttachedToNode)
        || (trouble.is_some() && status.reason.as_ref() != Some(&reason));
    status.phase = Some(VolumePhase::AttachedToNode);
    (status.reason, status.message) = (Some(reason.clone()), Some(message.clone()));
    is_new.then_some(Note { warning: trouble.is_some(), reason, message })
}

/// Why an attachment pod does not become ready, once that lasts.
fn trouble(pod: &Pod, now: Timestamp) -> Option<(String, String)> {
    let of_pod = |message: &str| format!("attachment pod {}: {message}", observe::name(pod));
    let unscheduled = observe::condition(pod, conditions::POD_SCHEDULED).filter(|one| one.status == FALSE);
    if let Some(told) = unscheduled {
        let reason = told.reason.as_deref().unwrap_or(reason::UNSCHEDULABLE).to_owned();
        return Some((reason, of_pod(told.message.as_deref().unwrap_or("no node was found"))));
    }
    let held_up = observe::waiting(pod, now).or_else(|| observe::begins(pod, now)?.ok())?;
    Some((held_up.reason, of_pod(&held_up.message)))
}

/// A volume whose claim no attachment pod has: it waits for its claim.
fn of_claim(seen: &Observed<'_>, status: &mut VolumeStatus) -> Option<Note> {
    let volume = plugged(seen.vmi).find(|volume| volume.name == status.name)?;
    let name = claim(&volume)?.name;
    let problem = seen.plug_claims.iter().find(|(claim, _)| claim == name).map(|(_, problem)| problem);
    let bound = claim_of(&volume, seen.claims_told).is_some_and(|info| info.capacity.is_some());
    let (phase, why, message) = match problem {
        Some(Problem::Missing) => {
            (VolumePhase::Pending, reason::FAILED_PVC_NOT_FOUND, format!("PVC {name} not found"))
        }
        Some(Problem::Filling(Filling::Failed(why) | Filling::Goes(Some(why)))) => {
            (VolumePhase::Pending, reason::FAILED_DATA_VOLUME_IMPORT, why.clone())
        }
        Some(Problem::Filling(_)) => {
            (VolumePhase::Pending, CLAIM_NOT_READY, format!("PVC {name} is not filled yet"))
        }
        None if bound => (VolumePhase::Bound, CLAIM_NOT_READY, "PVC is in phase Bound".to_owned()),
        None => (VolumePhase::Pending, CLAIM_NOT_READY, "PVC is in phase ClaimPending".to_owned()),
    };
    let is_new = status.message.as_ref() != Some(&message);
    let warns = matches!(why, reason::FAILED_PVC_NOT_FOUND | reason::FAILED_DATA_VOLUME_IMPORT);
    status.phase = Some(phase);
    (status.reason, status.message) = (Some(why.to_owned()), Some(message.clone()));
    let message = format!("volume {}: {message}", status.name);
    (is_new && warns).then(|| Note { warning: true, reason: why.to_owned(), message })
}

/// A volume that the specification does not have any more.
fn removed(status: &mut VolumeStatus, own: &[&Pod]) {
    let Some(pod) = own.iter().find(|pod| volumes_of(pod).any(|name| name == status.name)) else { return };
    status.hotplug_volume = Some(HotplugVolumeStatus {
        attach_pod_name: Some(observe::name(pod).to_owned()),
        attach_pod_uid: Some(observe::uid(pod).to_owned()),
    });
    if is_in_use(status) {
        return;
    }
    status.phase = Some(VolumePhase::Detaching);
    if observe::is_terminating(pod) {
        status.reason = Some(event::SUCCESSFUL_DELETE.to_owned());
        status.message = Some(format!(
            "Deleted hotplug attachment pod {}, for volume {}",
            observe::name(pod),
            status.name
        ));
    }
}
