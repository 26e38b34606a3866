//! The report of the machine, put together from what the parts know. Pure: the same knowledge gives the same report.

use std::time::{Duration, SystemTime};

use podvirt_proto::domain::{Domain, Interface, Status, info_source, reason};

use super::shared::{AgentFacts, Facts, Links, ManifestInterface};
use crate::hypervisor::DomainStatus;

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
    /// The machine type that it chose.
    pub(super) machine: Option<String>,
    pub(super) agent_connected: bool,
    pub(super) agent: AgentFacts,
    pub(super) links: Links,
    /// Whether a source has promised its word and not given it.
    pub(super) promised: bool,
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
        machine: seen.machine.clone(),
        interfaces: if alive { interfaces(&facts.interfaces, seen) } else { previous.interfaces.clone() },
        agent_connected: alive && seen.agent_connected,
        agent_version: seen.agent.version.clone(),
        guest_os_info: seen.agent.os.clone(),
        filesystems_frozen: alive && facts.frozen,
        migration: facts.migration.clone(),
        waiting_for: facts.waiting_for.clone(),
        waiting_since_ms: facts.waiting_since.map(millis),
        message: facts.ended.as_ref().map_or_else(|| facts.message.clone(), |ended| ended.message.clone()),
    };
    (report != *previous).then(|| Domain { generation: previous.generation + 1, ..report })
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
        DomainStatus { status, reason } => (status, reason),
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The manifest's interfaces with what is known of them, and those that only the guest knows of.
fn interfaces(manifest: &[ManifestInterface], seen: &Seen) -> Vec<Interface> {
    let agent = &seen.agent.interfaces;
    let own = manifest.iter().filter(|interface| !interface.unplugged).map(|interface| {
        let in_guest = agent.iter().find(|i| !i.mac.is_empty() && i.mac == interface.mac);
        // By these the guest is reached; its own view adds what it gave itself, unless that is behind a translation.
        let mut ips = seen.links.get(&interface.name).cloned().unwrap_or_default();
        if let (Some(guest), false) = (in_guest, interface.masquerade) {
            for ip in &guest.ips {
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
            queue_count: interface.queues,
            link_state: if interface.up { "up" } else { "down" }.to_owned(),
            pod_interface_name: interface.pod_interface.clone(),
        }
    });
    let others = agent.iter().filter(|i| !manifest.iter().any(|m| m.mac == i.mac)).map(|i| Interface {
        info_source: info_source::GUEST_AGENT.to_owned(),
        ip: i.ips.first().cloned().unwrap_or_default(),
        ..i.clone()
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
    fn without_an_agent_the_pods_addresses_are_the_guests() {
        let report = next(&Domain::default(), &facts(false), &running(), NOW).unwrap();
        let [interface] = report.interfaces.as_slice() else { panic!("{:?}", report.interfaces) };
        assert_eq!((interface.ip.as_str(), interface.ips.len()), ("10.1.0.7", 2));
        assert_eq!((interface.info_source.as_str(), interface.link_state.as_str()), ("domain", "up"));
        assert_eq!(interface.queue_count, 2);
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
