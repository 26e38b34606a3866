//! The report of the machine, put together from what the parts know. Pure: the same knowledge gives the same report.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use podvirt_proto::domain::{AccessCredentials, Disk, Domain, Interface, Status, info_source, reason};

use super::shared::{AgentFacts, Facts, Links, ManifestInterface};
use crate::hypervisor::{DiskError, DomainStatus};

/// Time since 1970.
pub(super) fn now() -> Duration {
    // A clock before 1970 is a clock that was never set.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// What is known besides the launcher's own facts.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The hypervisor's last word.
    pub(super) domain: DomainStatus,
    /// What its XML tells.
    pub(super) shape: Shape,
    pub(super) agent_connected: bool,
    pub(super) agent: AgentFacts,
    pub(super) links: Links,
    /// Disks that have stopped the machine, by volume: why.
    pub(super) disk_errors: BTreeMap<String, DiskError>,
    /// Whether a source has promised its word and not given it.
    pub(super) promised: bool,
}

/// What the hypervisor's XML tells of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// The machine type that the hypervisor chose.
    pub(super) machine: Option<String>,
    /// Memory that the guest has at present.
    pub(super) memory_kib: Option<u64>,
    /// Places of the disks on their buses, by volume.
    pub(super) disks: BTreeMap<String, String>,
    /// Those of them whose changes are tracked.
    pub(super) tracked: BTreeSet<String>,
    /// Whether the channel of the guest's agent is open.
    pub(super) agent_connected: bool,
}

/// The report that follows `previous`; none when nothing has changed.
pub(super) fn next(previous: &Domain, facts: &Facts, seen: &Seen, now: Duration) -> Option<Domain> {
    let (status, reason) = state(facts, seen);
    let changed = (status, reason) != (previous.status, previous.reason.as_str());
    let alive = status.is_active();
    let report = Domain {
        name: previous.name.clone(),
        namespace: previous.namespace.clone(),
        uid: previous.uid.clone(),
        status,
        reason: reason.to_owned(),
        generation: previous.generation,
        status_since_ms: if changed { millis(now) } else { previous.status_since_ms },
        started_at_ms: facts.started_at.map(millis),
        graceful_shutdown_requested: facts.stop_requested,
        kill_at_ms: facts.kill_at.map(millis),
        ended_with_pod: facts.ended.as_ref().is_some_and(|ended| ended.with_pod),
        machine: seen.shape.machine.clone(),
        memory_kib: seen.shape.memory_kib,
        disks: disks(facts, seen),
        volumes: facts.volumes.iter().cloned().collect(),
        kernel_boot: facts.kernel_boot,
        interfaces: if alive { interfaces(&facts.interfaces, seen) } else { previous.interfaces.clone() },
        agent_connected: alive && seen.agent_connected,
        agent_version: seen.agent.version.clone(),
        guest_os_info: seen.agent.os.clone(),
        filesystems_frozen: alive && facts.frozen,
        access_credentials: facts.credentials.as_ref().filter(|_| alive).map(|result| AccessCredentials {
            synchronized: result.is_ok(),
            message: result.as_ref().err().cloned().unwrap_or_default(),
        }),
        memory_dump: facts.dump.clone(),
        backup: facts.backup.clone(),
        migration: facts.migration.clone(),
        waiting_for: facts.waiting_for.clone(),
        waiting_since_ms: facts.waiting_since.map(millis),
        message: facts.ended.as_ref().map_or_else(|| facts.message.clone(), |ended| ended.message.clone()),
    };
    (report != *previous).then(|| Domain { generation: previous.generation + 1, ..report })
}

/// The machine's disks: their places, and how large an image the launcher has made of the files of a volume.
fn disks(facts: &Facts, seen: &Seen) -> Vec<Disk> {
    let disks = seen.shape.disks.iter();
    disks
        .map(|(name, target)| Disk {
            name: name.clone(),
            target: target.clone(),
            made_bytes: facts.made.get(name).copied(),
            tracked: seen.shape.tracked.contains(name),
            error: seen.disk_errors.get(name).map(|error| error.message().to_owned()).unwrap_or_default(),
        })
        .collect()
}

/// The machine's state. The launcher's word on its end is the last one.
fn state(facts: &Facts, seen: &Seen) -> (Status, &'static str) {
    if let Some(ended) = &facts.ended {
        return (ended.status, ended.reason);
    }
    match seen.domain {
        // libvirt makes it stand still until it is complete: it is not there yet.
        DomainStatus { status: Status::Paused, reason: reason::STARTING_UP } => (Status::NoState, ""),
        // On its way here: where it comes from it is told of.
        DomainStatus { status: Status::Paused, reason }
            if facts.awaited
                && facts.started_at.is_none()
                && (reason == reason::MIGRATION || (reason == reason::USER && seen.promised)) =>
        {
            (Status::NoState, "")
        }
        // What ended is told with how: that is the launcher's to find out.
        DomainStatus { status, .. } if status.is_final() => (Status::NoState, ""),
        DomainStatus { status: Status::NoState, .. } => (Status::NoState, ""),
        // It may be stopped again in a moment.
        DomainStatus { status: Status::Running, .. } if facts.on_trial => (Status::Paused, reason::IO_ERROR),
        DomainStatus { status, reason } => (status, reason),
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Interfaces that only the guest knows of and that are told at most, as by upstream.
const GUEST_ONLY: usize = 10;

/// The manifest's interfaces with what is known of them, and those that only the guest knows of.
///
/// The agent's are found by the MAC address. What the guest has built on its card has the card's: a VLAN, a bridge that
/// the card is a port of. The card is the first of them, as the agent lists what the kernel has in its order; the others are
/// the guest's own, and the address of one of them is that of the card where the card has none.
fn interfaces(manifest: &[ManifestInterface], seen: &Seen) -> Vec<Interface> {
    let agent = &seen.agent.interfaces;
    let of = |mac: &str| {
        let mac = mac.to_owned();
        agent.iter().enumerate().filter(move |(_, told)| !told.mac.is_empty() && told.mac == mac)
    };
    let own = manifest.iter().filter(|interface| !interface.unplugged).map(|interface| {
        let in_guest = of(&interface.mac).next().map(|(_, told)| told);
        // By these the guest is reached; its own view adds what it gave itself, unless that is behind a translation.
        let mut ips = seen.links.get(&interface.name).cloned().unwrap_or_default();
        if !interface.masquerade {
            let told = of(&interface.mac).map(|(_, told)| &told.ips).find(|ips| !ips.is_empty());
            for ip in told.into_iter().flatten() {
                if !ips.contains(ip) {
                    ips.push(ip.clone());
                }
            }
        }
        Interface {
            name: interface.name.clone(),
            mac: interface.mac.clone(),
            ip: ips.first().cloned().unwrap_or_default(),
            ips,
            interface_name: in_guest.map(|i| i.interface_name.clone()).unwrap_or_default(),
            info_source: match in_guest {
                Some(_) => format!("{}, {}", info_source::DOMAIN, info_source::GUEST_AGENT),
                None => info_source::DOMAIN.to_owned(),
            },
            queue_count: if interface.foreign { 0 } else { interface.queues },
            link_state: match interface {
                ManifestInterface { foreign: true, .. } => "",
                ManifestInterface { up: true, .. } => "up",
                _ => "down",
            }
            .to_owned(),
            pod_interface_name: interface.pod_interface.clone(),
        }
    });
    // The agent may not have heard yet that a card is gone.
    let cards: Vec<usize> =
        manifest.iter().filter_map(|card| of(&card.mac).next().map(|(place, _)| place)).collect();
    let others = agent.iter().enumerate().filter(|(place, _)| !cards.contains(place)).take(GUEST_ONLY);
    let others = others.map(|(_, told)| Interface {
        info_source: info_source::GUEST_AGENT.to_owned(),
        ip: told.ips.first().cloned().unwrap_or_default(),
        ..told.clone()
    });
    own.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::super::shared::Final;
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);

    fn running() -> Seen {
        Seen {
            domain: DomainStatus { status: Status::Running, reason: reason::BOOTED },
            links: [("default".to_owned(), vec!["10.1.0.7".to_owned(), "fd00::7".to_owned()])].into(),
            ..Seen::default()
        }
    }

    fn facts(masquerade: bool) -> Facts {
        let interface = ManifestInterface {
            name: "default".into(),
            mac: "52:54:00:00:00:01".into(),
            queues: 2,
            up: true,
            masquerade,
            by_netd: true,
            ..ManifestInterface::default()
        };
        Facts { interfaces: vec![interface], ..Facts::default() }
    }

    fn agent() -> AgentFacts {
        let interface = |name: &str, mac: &str, ips: &[&str]| Interface {
            interface_name: name.into(),
            mac: mac.into(),
            ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
            ..Interface::default()
        };
        AgentFacts {
            version: Some("9.0".into()),
            interfaces: vec![
                interface("enp1s0", "52:54:00:00:00:01", &["10.1.0.7", "192.0.2.9"]),
                interface("docker0", "02:42:00:00:00:01", &["172.17.0.1"]),
            ],
            ..AgentFacts::default()
        }
    }

    #[test]
    fn a_report_follows_only_when_something_changed_and_is_numbered() {
        let first = next(&Domain::default(), &facts(false), &running(), NOW).unwrap();
        assert_eq!((first.generation, first.status, first.status_since_ms), (1, Status::Running, 1_000_000));
        assert_eq!(next(&first, &facts(false), &running(), NOW * 2), None);
        let stopping = Facts { stop_requested: true, ..facts(false) };
        let second = next(&first, &stopping, &running(), NOW * 2).unwrap();
        assert_eq!((second.generation, second.status_since_ms), (2, 1_000_000), "the state is the same");
        assert!(second.graceful_shutdown_requested);
    }

    #[test]
    fn a_machine_on_trial_is_told_as_stopped_with_the_disks_that_have_failed() {
        let errors = [("data".to_owned(), DiskError::NoSpace)].into();
        let shape = Shape { disks: [("data".to_owned(), "vda".to_owned())].into(), ..Shape::default() };
        let seen = Seen { disk_errors: errors, shape, ..running() };
        let trial = Facts { on_trial: true, ..facts(false) };
        let report = next(&Domain::default(), &trial, &seen, NOW).unwrap();
        assert_eq!((report.status, report.reason.as_str()), (Status::Paused, reason::IO_ERROR));
        assert_eq!(report.disks[0].error, "no space is left on its storage");
        let report = next(&report, &facts(false), &running(), NOW).unwrap();
        assert_eq!((report.status, report.disks.len()), (Status::Running, 0));
    }

    #[test]
    fn without_an_agent_the_pods_addresses_are_the_guests() {
        let report = next(&Domain::default(), &facts(false), &running(), NOW).unwrap();
        let [interface] = report.interfaces.as_slice() else { panic!("{:?}", report.interfaces) };
        assert_eq!((interface.ip.as_str(), interface.ips.len()), ("10.1.0.7", 2));
        assert_eq!((interface.info_source.as_str(), interface.link_state.as_str()), ("domain", "up"));
        assert_eq!(interface.queue_count, 2);
    }

    /// A guest with three cards, a bridge that the second is a port of, a macvlan that has the third one's MAC address,
    /// Docker's bridge and a tunnel: the answer of qemu-guest-agent 7.2 to `guest-network-get-interfaces`.
    const TOLD: &str = include_str!("agent_interfaces.json");

    /// The cards of that guest, each with a network of the machine's; all but the first are bound by a bridge.
    fn cards(masquerade: bool) -> Facts {
        let card = |(index, name): (usize, &str)| ManifestInterface {
            index,
            name: name.into(),
            mac: format!("52:54:00:00:00:0{}", index + 1),
            queues: 1,
            up: true,
            masquerade: masquerade && index == 0,
            pod_interface: format!("pod{name}"),
            ..ManifestInterface::default()
        };
        let interfaces = ["default", "blue", "red"].into_iter().enumerate().map(card).collect();
        Facts { interfaces, ..Facts::default() }
    }

    /// Name, source, name in the guest and addresses of each interface that is told.
    fn told(facts: &Facts) -> Vec<String> {
        let answer: serde_json::Value = serde_json::from_str(TOLD).unwrap();
        let agent =
            AgentFacts { interfaces: super::super::agent::read(&answer["return"]), ..AgentFacts::default() };
        let report =
            next(&Domain::default(), facts, &Seen { agent, agent_connected: true, ..running() }, NOW);
        let line = |i: &Interface| {
            assert_eq!(i.ip, i.ips.first().cloned().unwrap_or_default());
            format!("{}: {}: {} {}", i.name, i.info_source, i.interface_name, i.ips.join(" "))
        };
        report.unwrap().interfaces.iter().map(line).collect()
    }

    #[test]
    fn what_an_agent_tells_is_the_cards_or_the_guests_own() {
        assert_eq!(
            told(&cards(false)),
            [
                "default: domain, guest-agent: eth0 10.1.0.7 fd00::7 192.0.2.9 fd00:11::7",
                // The bridge has the card's addresses.
                "blue: domain, guest-agent: eth1 172.30.0.5 fd00:30::5",
                "red: domain, guest-agent: eth2 ",
                ": guest-agent: br0 172.30.0.5 fd00:30::5",
                ": guest-agent: docker0 172.17.0.1",
                ": guest-agent: mac2 ",
                ": guest-agent: tun0 10.8.0.2",
            ]
        );
        let behind = told(&cards(true));
        assert_eq!(behind[0], "default: domain, guest-agent: eth0 10.1.0.7 fd00::7");
        assert_eq!(behind[1..], told(&cards(false))[1..]);
    }

    #[test]
    fn a_card_that_was_plugged_is_the_domains_until_the_agent_tells_it() {
        let mut facts = cards(false);
        facts.interfaces.push(ManifestInterface {
            index: 3,
            name: "late".into(),
            mac: "52:54:00:00:00:04".into(),
            ..ManifestInterface::default()
        });
        assert_eq!(told(&facts)[3], "late: domain:  ");
    }

    #[test]
    fn of_a_device_of_the_node_no_link_and_no_queues_are_told() {
        let mut facts = facts(false);
        facts.interfaces[0].foreign = true;
        let told =
            |facts: &Facts| next(&Domain::default(), facts, &running(), NOW).unwrap().interfaces[0].clone();
        let device = told(&facts);
        assert_eq!((device.link_state.as_str(), device.queue_count), ("", 0));
        assert_eq!((device.mac.as_str(), device.info_source.as_str()), ("52:54:00:00:00:01", "domain"));
        facts.interfaces[0].foreign = false;
        let card = told(&facts);
        assert_eq!((card.link_state.as_str(), card.queue_count), ("up", 2));
    }

    #[test]
    fn a_card_that_was_unplugged_is_not_reported_though_the_agent_still_tells_it() {
        let mut facts = cards(false);
        facts.interfaces[1].unplugged = true;
        let told = told(&facts);
        assert!(!told.iter().any(|line| line.contains("eth1") || line.starts_with("blue")), "{told:?}");
        assert!(told.contains(&": guest-agent: br0 172.30.0.5 fd00:30::5".to_owned()), "{told:?}");
    }

    #[test]
    fn a_guest_tells_so_many_interfaces_of_its_own_and_no_more() {
        let veth = |n: usize| Interface {
            interface_name: format!("veth{n}"),
            mac: format!("02:42:00:00:00:{n:02x}"),
            ..Interface::default()
        };
        let agent = AgentFacts { interfaces: (0..40).map(veth).collect(), ..AgentFacts::default() };
        let seen = Seen { agent, agent_connected: true, ..running() };
        let report = next(&Domain::default(), &cards(false), &seen, NOW).unwrap();
        assert_eq!(report.interfaces.len(), 3 + GUEST_ONLY);
    }

    #[test]
    fn the_agent_adds_names_and_addresses_but_none_behind_a_translation() {
        let seen = Seen { agent: agent(), agent_connected: true, ..running() };
        let report = next(&Domain::default(), &facts(false), &seen, NOW).unwrap();
        assert_eq!(report.interfaces[0].ips, ["10.1.0.7", "fd00::7", "192.0.2.9"]);
        assert_eq!(report.interfaces[0].interface_name, "enp1s0");
        assert_eq!(report.interfaces[0].info_source, "domain, guest-agent");
        assert_eq!(report.interfaces[1].info_source, "guest-agent");
        assert_eq!(
            (report.interfaces[1].name.as_str(), report.interfaces[1].ip.as_str()),
            ("", "172.17.0.1")
        );
        let report = next(&Domain::default(), &facts(true), &seen, NOW).unwrap();
        assert_eq!(report.interfaces[0].ips, ["10.1.0.7", "fd00::7"]);
    }

    #[test]
    fn a_machine_in_the_making_is_none_yet_and_an_end_is_the_launchers_word() {
        let status = |domain: DomainStatus, facts: &Facts| state(facts, &Seen { domain, ..Seen::default() });
        let making = DomainStatus { status: Status::Paused, reason: reason::STARTING_UP };
        assert_eq!(status(making, &Facts::default()), (Status::NoState, ""));
        let moving = DomainStatus { status: Status::Paused, reason: reason::MIGRATION };
        assert_eq!(status(moving, &Facts::default()), (Status::Paused, reason::MIGRATION), "it leaves");
        let awaited = Facts { awaited: true, ..Facts::default() };
        assert_eq!(status(moving, &awaited), (Status::NoState, ""), "it comes");
        let off = DomainStatus { status: Status::Shutoff, reason: reason::CRASHED };
        assert_eq!(status(off, &Facts::default()), (Status::NoState, ""));
        let ended = Final {
            status: Status::Crashed,
            reason: reason::PANICKED,
            message: "crashed".into(),
            with_pod: false,
        };
        let facts = Facts { ended: Some(ended), ..Facts::default() };
        assert_eq!(status(off, &facts), (Status::Crashed, reason::PANICKED));
        let report = next(&Domain::default(), &facts, &Seen::default(), NOW).unwrap();
        assert_eq!(report.message, "crashed");
    }

    #[test]
    fn an_end_with_the_pod_is_told() {
        for with_pod in [false, true] {
            let ended =
                Final { status: Status::Shutoff, reason: reason::SHUTDOWN, message: String::new(), with_pod };
            let facts = Facts { ended: Some(ended), stop_requested: true, ..Facts::default() };
            let report = next(&Domain::default(), &facts, &Seen::default(), NOW).unwrap();
            assert_eq!((report.ended_with_pod, report.graceful_shutdown_requested), (with_pod, true));
        }
        let running = next(&Domain::default(), &facts(false), &running(), NOW).unwrap();
        assert!(!running.ended_with_pod);
    }

    #[test]
    fn what_is_waited_for_is_told_with_the_time_since_when() {
        let mut waits = facts(false);
        let told = |facts: &Facts| {
            let report = next(&Domain::default(), facts, &Seen::default(), NOW).unwrap_or_default();
            (report.waiting_for, report.waiting_since_ms)
        };
        waits.wait_for("the image", Duration::from_secs(5));
        assert_eq!(told(&waits), ("the image".into(), Some(5_000)));
        // Neither a second look nor what is found out about the wait begins it anew.
        waits.wait_for("the image", Duration::from_secs(7));
        waits.explain("the image; its registry is silent".into());
        assert_eq!(told(&waits), ("the image; its registry is silent".into(), Some(5_000)));
        waits.wait_for("QEMU", Duration::from_secs(9));
        assert_eq!(told(&waits), ("QEMU".into(), Some(9_000)));
        waits.wait_is_over();
        assert_eq!(told(&waits), (String::new(), None));
    }
}
