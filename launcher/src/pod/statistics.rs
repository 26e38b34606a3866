//! What the machine has used so far, for virt-handler's metrics.
//!
//! The hypervisor counts the process, its memory, its virtual CPUs, its disks, and the interfaces that the kernel carries. The
//! packets of an interface that a netd serves are counted by that netd. The guest's agent tells the guest's load, from version 10
//! on.
//!
//! virt-handler asks at every scrape and may stop waiting: the hypervisor is asked by one thread at a time, so that a
//! hypervisor that hangs costs one thread and no more.

use std::sync::Arc;
use std::time::Duration;

use podvirt_proto::migration::Progress;
use podvirt_proto::netd::v1::netd_client::NetdClient;
use podvirt_proto::netd::v1::{Counter, CountersRequest, CountersResponse};
use podvirt_proto::stats::{DomainStats, Job, Load, Net};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Channel;
use tracing::debug;

use super::shared::{ManifestInterface, Shared};
use crate::hypervisor::HypervisorError;

/// How long netd and the guest's agent may take: virt-handler does not wait much longer.
const ANSWER: Duration = Duration::from_secs(2);
/// The first release of QEMU's agent that tells the guest's load.
const LOAD_SINCE: u32 = 10;
/// netd's reasons to drop what is on its way to the guest; all others are about what the guest has sent.
const TO_GUEST: [&str; 3] = ["no_rx_buffer", "no_guest", "too_large"];
/// netd's reasons that say that what the guest has sent is damaged.
const DAMAGED: [&str; 3] = ["malformed", "checksum", "bad_chain"];
/// How netd's reasons begin that are about connections that a migration ended: no packet was dropped.
const OF_MIGRATION: &str = "migration_";

/// Why it is not known what the machine has used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StatisticsError {
    /// One question is open at a time.
    #[error("the hypervisor has not answered the question before")]
    Busy,
    /// The hypervisor refuses.
    #[error(transparent)]
    Refused(#[from] HypervisorError),
}

/// What the machine has used; with an empty name while there is no machine.
///
/// # Errors
///
/// The hypervisor refuses, or an earlier question to it is still open.
pub(super) async fn statistics(shared: &Arc<Shared>) -> Result<DomainStats, StatisticsError> {
    let Ok(alone) = Arc::clone(&shared.counting).try_lock_owned() else {
        return Err(StatisticsError::Busy);
    };
    let counted = shared.call(move |hypervisor| {
        // The thread holds it, however long it takes: virt-handler may have gone away meanwhile.
        let _alone = alone;
        hypervisor.statistics()
    });
    let (counted, mut by_netd, load) = tokio::join!(counted, by_netd(shared), load(shared));
    let mut stats = match counted {
        Ok(stats) => stats,
        Err(HypervisorError::NotRunning(_)) => return Ok(DomainStats::default()),
        Err(error) => return Err(error.into()),
    };
    stats.net.retain(|net| !by_netd.iter().any(|other| other.alias == net.alias));
    stats.net.append(&mut by_netd);
    let migration = shared.facts.borrow().migration.clone();
    stats.job =
        migration.filter(podvirt_proto::migration::Migration::is_running).and_then(|m| m.progress).map(job);
    stats.load = load;
    Ok(stats)
}

fn job(progress: Progress) -> Job {
    Job {
        data_total: Some(progress.total),
        data_processed: Some(progress.processed),
        memory_bps: Some(progress.transfer_rate),
        data_remaining: Some(progress.remaining),
        dirty_rate: Some(progress.dirty_rate),
    }
}

/// The interfaces that a netd serves.
async fn by_netd(shared: &Shared) -> Vec<Net> {
    let interfaces = shared.facts.borrow().interfaces.clone();
    let mut asked = JoinSet::new();
    for interface in interfaces.into_iter().filter(|one| one.by_netd && !one.unplugged) {
        let netd = shared.netds.of(interface.index);
        asked.spawn(async move { Some((interface.index, netd_counts(netd, &interface).await?)) });
    }
    let mut counted: Vec<(usize, Net)> = asked.join_all().await.into_iter().flatten().collect();
    counted.sort_by_key(|(index, _)| *index);
    counted.into_iter().map(|(_, net)| net).collect()
}

/// What the netd of an interface has counted; none where the netd does not answer, as while it is started again.
async fn netd_counts(mut netd: NetdClient<Channel>, interface: &ManifestInterface) -> Option<Net> {
    match timeout(ANSWER, netd.counters(CountersRequest {})).await {
        Ok(Ok(counters)) => Some(carried(interface, counters.get_ref())),
        Ok(Err(error)) => {
            debug!(%error, interface = interface.name, "netd does not tell its counters");
            None
        }
        Err(_) => {
            debug!(interface = interface.name, "netd does not tell its counters in time");
            None
        }
    }
}

/// An interface as its netd has counted it.
fn carried(interface: &ManifestInterface, counters: &CountersResponse) -> Net {
    let total = |name: &str| counters.counters.iter().find(|one| one.name == name).map(|one| one.value);
    let dropped = |belongs: &dyn Fn(&str) -> bool| {
        let reasons = counters.dropped.iter().filter(|one| belongs(&one.name));
        Some(reasons.map(|Counter { value, .. }| value).sum())
    };
    let to_guest = |name: &str| TO_GUEST.contains(&name);
    let damaged = |name: &str| DAMAGED.contains(&name);
    Net {
        name: Some(interface.pod_interface.clone()),
        alias: Some(interface.name.clone()),
        rx_bytes: total("guest_rx_bytes"),
        rx_packets: total("guest_rx_frames"),
        // What reaches the guest is made by netd, and whole.
        rx_errors: Some(0),
        rx_dropped: dropped(&to_guest),
        tx_bytes: total("guest_tx_bytes"),
        tx_packets: total("guest_tx_frames"),
        tx_errors: dropped(&damaged),
        tx_dropped: dropped(&|name| !to_guest(name) && !damaged(name) && !name.starts_with(OF_MIGRATION)),
    }
}

/// The guest's load; none where its agent does not tell it.
async fn load(shared: &Shared) -> Option<Load> {
    let version = shared.agent.borrow().version.clone()?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    if major < LOAD_SINCE {
        return None;
    }
    match shared.agent_command("guest-get-load", Value::Null, ANSWER).await {
        Ok(told) => {
            let number = |field: &str| told.get(field).and_then(Value::as_f64);
            Some(Load { one: number("load1m"), five: number("load5m"), fifteen: number("load15m") })
        }
        Err(error) => {
            debug!(%error, "the guest's agent does not tell the load");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use podvirt_proto::domain::Status;
    use tokio::sync::mpsc;

    use super::super::migration::fake::Fake;
    use super::super::shared::Identity;
    use super::*;
    use crate::hypervisor::Hypervisor;
    use crate::life::runner::View;

    fn counters(counters: &[(&str, u64)], dropped: &[(&str, u64)]) -> CountersResponse {
        let all = |list: &[(&str, u64)]| {
            let counter = |(name, value): &(&str, u64)| Counter {
                name: (*name).into(),
                value: *value,
                ..Counter::default()
            };
            list.iter().map(counter).collect()
        };
        CountersResponse { counters: all(counters), dropped: all(dropped) }
    }

    #[test]
    fn what_netd_gives_to_the_guest_the_guest_receives() {
        let interface = ManifestInterface {
            name: "default".into(),
            pod_interface: "eth0".into(),
            ..ManifestInterface::default()
        };
        let told = counters(
            &[
                ("guest_tx_frames", 1),
                ("guest_tx_bytes", 60),
                ("guest_rx_frames", 2),
                ("guest_rx_bytes", 3000),
            ],
            &[
                ("no_rx_buffer", 5),
                ("no_guest", 7),
                ("checksum", 11),
                ("spoofed", 13),
                ("migration_local", 17),
            ],
        );
        let net = carried(&interface, &told);
        assert_eq!((net.name.as_deref(), net.alias.as_deref()), (Some("eth0"), Some("default")));
        assert_eq!((net.rx_packets, net.rx_bytes, net.rx_dropped), (Some(2), Some(3000), Some(12)));
        assert_eq!((net.tx_packets, net.tx_bytes, net.tx_dropped), (Some(1), Some(60), Some(13)));
        assert_eq!((net.rx_errors, net.tx_errors), (Some(0), Some(11)));
    }

    #[test]
    fn the_reasons_are_netds() {
        let known = |name: &&str| netd::counters::Reason::ALL.iter().any(|reason| reason.label() == *name);
        assert!(TO_GUEST.iter().chain(&DAMAGED).all(known));
        let totals = netd::counters::Counters::default().totals();
        for name in ["guest_rx_bytes", "guest_rx_frames", "guest_tx_bytes", "guest_tx_frames"] {
            assert!(totals.iter().any(|(known, ..)| *known == name), "{name}");
        }
    }

    #[tokio::test]
    async fn without_a_machine_there_are_no_numbers_and_one_question_is_open_at_a_time() {
        let shared = Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0));
        assert_eq!(statistics(&shared).await, Ok(DomainStats::default()));
        let hypervisor: Arc<dyn Hypervisor> = Fake::new(Status::Running).0;
        shared.view.send_replace(View { running: true, hypervisor: Some(hypervisor), ..View::default() });
        assert_eq!(statistics(&shared).await.unwrap().block[0].alias, "root");
        let open = shared.counting.lock().await;
        assert_eq!(statistics(&shared).await, Err(StatisticsError::Busy));
        drop(open);
        assert!(statistics(&shared).await.is_ok());
    }
}
