//! The newest report of a machine, from whichever way it came.
//!
//! Events push reports and a pass asks for one; both can overtake each other, so the one with the higher number
//! wins ([`Domain::generation`]). A report holds words of the guest (its agent's), which are cut to what an API
//! object can bear: a guest may not fill etcd.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podvirt_proto::domain::Domain;

/// Interfaces of a machine and addresses of an interface that are told at most.
const LIST_MAX: usize = 64;
/// Disks of a machine that are told at most: more than fit into one.
const DISKS_MAX: usize = 512;
/// Bytes of a word of the guest's that are told at most.
const WORD_MAX: usize = 256;
/// Bytes of a sentence of the launcher's that are told at most.
pub(crate) const SENTENCE_MAX: usize = 1024;

/// Place of the newest report. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Newest(Arc<Mutex<Option<Domain>>>);

impl Newest {
    /// Takes a report unless a newer one is there. Returns whether it was taken.
    pub fn take(&self, domain: Domain) -> bool {
        let mut place = self.lock();
        if place.as_ref().is_some_and(|known| known.generation > domain.generation) {
            return false;
        }
        *place = Some(bounded(domain));
        true
    }

    /// The launcher says that it has no machine.
    pub fn clear(&self) {
        *self.lock() = None;
    }

    /// The newest report.
    pub fn get(&self) -> Option<Domain> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Domain>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The report with everything that the guest can make long cut.
fn bounded(mut domain: Domain) -> Domain {
    domain.disks.truncate(DISKS_MAX);
    domain.disks.iter_mut().for_each(|disk| cut(&mut disk.target, WORD_MAX));
    domain.interfaces.truncate(LIST_MAX);
    for interface in &mut domain.interfaces {
        interface.ips.retain(|ip| is_address(ip));
        interface.ips.truncate(LIST_MAX);
        if !is_address(&interface.ip) {
            interface.ip.clear();
        }
        let words = [
            &mut interface.name,
            &mut interface.mac,
            &mut interface.interface_name,
            &mut interface.pod_interface_name,
            &mut interface.info_source,
            &mut interface.link_state,
        ];
        words.into_iter().for_each(|word| cut(word, WORD_MAX));
    }
    if let Some(guest) = &mut domain.guest_os_info {
        let words = [
            &mut guest.name,
            &mut guest.kernel_release,
            &mut guest.version,
            &mut guest.pretty_name,
            &mut guest.version_id,
            &mut guest.kernel_version,
            &mut guest.machine,
            &mut guest.id,
        ];
        words.into_iter().for_each(|word| cut(word, WORD_MAX));
    }
    [&mut domain.agent_version, &mut domain.machine].into_iter().flatten().for_each(|w| cut(w, WORD_MAX));
    [&mut domain.name, &mut domain.namespace, &mut domain.uid, &mut domain.reason]
        .into_iter()
        .for_each(|word| cut(word, WORD_MAX));
    if let Some(migration) = &mut domain.migration {
        cut(&mut migration.uid, WORD_MAX);
        cut(&mut migration.failure_reason, SENTENCE_MAX);
    }
    cut(&mut domain.message, SENTENCE_MAX);
    cut(&mut domain.waiting_for, SENTENCE_MAX);
    domain
}

fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// Cuts a text to at most `max` bytes.
pub(crate) fn cut(word: &mut String, max: usize) {
    if word.len() > max {
        word.truncate(word.floor_char_boundary(max));
    }
}

#[cfg(test)]
mod tests {
    use podvirt_proto::domain::{GuestOsInfo, Interface, Status};

    use super::*;

    #[test]
    fn an_older_report_does_not_replace_a_newer_one() {
        let place = Newest::default();
        let report = |generation, status| Domain { generation, status, ..Domain::default() };
        assert!(place.take(report(2, Status::Shutoff)));
        assert!(!place.take(report(1, Status::Running)));
        assert_eq!(place.get().map(|d| d.status), Some(Status::Shutoff));
        assert!(place.take(report(2, Status::Crashed)), "the same one again may be read anew");
        place.clear();
        assert!(place.take(report(1, Status::Running)));
    }

    #[test]
    fn what_a_guest_says_is_cut() {
        let long = "ä".repeat(4000);
        let mut ips = vec![long.clone(), "10.0.0.1/24".to_owned()];
        ips.extend(vec!["fd00::1".to_owned(); 100]);
        let interface =
            Interface { interface_name: long.clone(), ip: long.clone(), ips, ..Default::default() };
        let domain = Domain {
            name: long.clone(),
            namespace: long.clone(),
            interfaces: vec![interface; 1000],
            guest_os_info: Some(GuestOsInfo { pretty_name: long.clone(), ..Default::default() }),
            message: long,
            ..Domain::default()
        };
        let place = Newest::default();
        place.take(domain);
        let size = serde_json::to_string(&place.get()).unwrap().len();
        assert!(size < 64 * (64 * 50 + 600) + 4096, "{size}");
        let first = place.get().unwrap().interfaces.remove(0);
        assert_eq!((first.ips.len(), first.ips[0].as_str(), first.ip.as_str()), (LIST_MAX, "fd00::1", ""));
    }
}
