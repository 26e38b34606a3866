//! The newest report of a machine, from whichever way it came.
//!
//! Events push reports and a pass asks for one; both can overtake each other, so the one with the higher number
//! wins ([`Domain::generation`]). A report holds words of the guest (its agent's) and comes from a launcher that the guest may have
//! taken over: its texts are cut to what an API object can bear, and take no more memory than that.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podvirt_proto::domain::{Backup, BackupDisk, Disk, Domain, GuestOsInfo, Interface, MemoryDump};

/// Bytes of a word that a launcher or its guest gives, at most.
const MAX_WORD_BYTES: usize = 256;
/// Bytes of a sentence of the launcher's, at most.
pub(crate) const MAX_SENTENCE_BYTES: usize = 1024;

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

/// The report with every text cut; its lists were bounded while they were read. Structures are taken apart, so that a field that
/// is added has to be cut here, too.
fn bounded(mut domain: Domain) -> Domain {
    let Domain {
        name,
        namespace,
        uid,
        status: _,
        reason,
        generation: _,
        status_since_ms: _,
        started_at_ms: _,
        graceful_shutdown_requested: _,
        kill_at_ms: _,
        ended_with_pod: _,
        machine,
        memory_kib: _,
        disks,
        volumes,
        kernel_boot: _,
        interfaces,
        agent_connected: _,
        agent_version,
        guest_os_info,
        filesystems_frozen: _,
        access_credentials,
        memory_dump,
        backup,
        migration,
        waiting_for,
        waiting_since_ms: _,
        message,
    } = &mut domain;
    words([name, namespace, uid, reason]);
    words([machine, agent_version].into_iter().flatten());
    words(volumes);
    for Disk { name, target, made_bytes: _, tracked: _, error } in disks {
        words([name, target, error]);
    }
    interfaces.iter_mut().for_each(bound_interface);
    if let Some(guest) = guest_os_info {
        bound_guest(guest);
    }
    let mut sentences = vec![waiting_for, message];
    sentences.extend(access_credentials.as_mut().map(|credentials| &mut credentials.message));
    if let Some(MemoryDump { file, volume, started_at_ms: _, ended_at_ms: _, failure }) = memory_dump {
        words([file, volume]);
        sentences.push(failure);
    }
    if let Some(backup) = backup {
        let Backup { name, asked_at_ms: _, checkpoint, disks, ended_at_ms: _, failed: _, message, unreached } =
            backup;
        words([name, checkpoint]);
        for BackupDisk { volume, target } in disks {
            words([volume, target]);
        }
        sentences.extend([message, unreached]);
    }
    if let Some(migration) = migration {
        words([&mut migration.uid]);
        sentences.push(&mut migration.failure_reason);
    }
    sentences.into_iter().for_each(|sentence| cut(sentence, MAX_SENTENCE_BYTES));
    domain
}

fn bound_interface(interface: &mut Interface) {
    let Interface {
        name,
        mac,
        ip,
        ips,
        interface_name,
        pod_interface_name,
        info_source,
        queue_count: _,
        link_state,
    } = interface;
    ips.retain(|ip| is_address(ip));
    ips.shrink_to_fit();
    if !is_address(ip) {
        *ip = String::new();
    }
    words([name, mac, interface_name, pod_interface_name, info_source, link_state]);
}

fn bound_guest(guest: &mut GuestOsInfo) {
    let GuestOsInfo { name, kernel_release, version, pretty_name, version_id, kernel_version, machine, id } =
        guest;
    words([name, kernel_release, version, pretty_name, version_id, kernel_version, machine, id]);
}

/// Cuts words.
fn words<'a>(words: impl IntoIterator<Item = &'a mut String>) {
    words.into_iter().for_each(|word| cut(word, MAX_WORD_BYTES));
}

fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// Cuts a text to at most `max` bytes, in memory as well.
pub(crate) fn cut(word: &mut String, max: usize) {
    if word.len() > max {
        word.truncate(word.floor_char_boundary(max));
    }
    word.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use podvirt_proto::domain::{AccessCredentials, MAX_DISKS, MAX_INTERFACES, Status};
    use podvirt_proto::migration::Migration;
    use serde_json::Value;

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

    /// A JSON value with every text in it as long as this.
    fn lengthened(value: Value, text: &str) -> Value {
        match value {
            Value::String(_) => Value::String(text.to_owned()),
            Value::Array(list) => list.into_iter().map(|value| lengthened(value, text)).collect(),
            Value::Object(map) => {
                map.into_iter().map(|(key, value)| (key, lengthened(value, text))).collect()
            }
            other => other,
        }
    }

    /// A report with all of its fields.
    fn full() -> Domain {
        let word = || "x".to_owned();
        Domain {
            machine: Some(word()),
            agent_version: Some(word()),
            disks: vec![Disk {
                name: word(),
                target: word(),
                made_bytes: None,
                tracked: false,
                error: word(),
            }],
            volumes: vec![word()],
            interfaces: vec![Interface {
                name: word(),
                mac: word(),
                ip: word(),
                ips: vec![word()],
                interface_name: word(),
                pod_interface_name: word(),
                info_source: word(),
                queue_count: 0,
                link_state: word(),
            }],
            guest_os_info: Some(GuestOsInfo {
                name: word(),
                kernel_release: word(),
                version: word(),
                pretty_name: word(),
                version_id: word(),
                kernel_version: word(),
                machine: word(),
                id: word(),
            }),
            access_credentials: Some(AccessCredentials { synchronized: false, message: word() }),
            memory_dump: Some(MemoryDump { failure: word(), ..MemoryDump::default() }),
            backup: Some(Backup {
                disks: vec![BackupDisk::default()],
                message: word(),
                unreached: word(),
                ..Backup::default()
            }),
            migration: Some(Migration { failure_reason: word(), ..Migration::default() }),
            waiting_for: word(),
            message: word(),
            ..Domain::default()
        }
    }

    #[test]
    fn every_text_of_a_report_is_cut() {
        let long = "ä".repeat(32 << 10);
        let report = lengthened(serde_json::to_value(full()).unwrap(), &long);
        // What is no state is read as `NoState`, and no other field has words of its own.
        let place = Newest::default();
        assert!(place.take(serde_json::from_value(report).unwrap()));
        let size = serde_json::to_string(&place.get()).unwrap().len();
        assert!(size < 64 << 10, "{size}");
    }

    #[test]
    fn a_report_of_many_megabytes_leaves_little_in_memory() {
        let address = r#""10.0.0.1""#;
        let lists = |element: &str| format!("[{}{element}]", format!("{element},").repeat(1_000_000));
        let text = format!(
            r#"{{"interfaces":{},"disks":{},"volumes":{},"backup":{{"disks":{}}}}}"#,
            lists("{}"),
            lists("{}"),
            lists(r#""""#),
            lists("{}"),
        );
        let place = Newest::default();
        assert!(place.take(serde_json::from_str(&text).unwrap()));
        let domain = place.0.lock().unwrap().take().unwrap();
        let capacities = [domain.interfaces.capacity(), domain.disks.capacity(), domain.volumes.capacity()];
        assert_eq!(capacities, [MAX_INTERFACES, MAX_DISKS, MAX_DISKS]);
        assert_eq!(domain.backup.unwrap().disks.capacity(), MAX_DISKS);

        let text = format!(r#"{{"interfaces": [{{"ip": "x", "ipAddresses": {}}}]}}"#, lists(address));
        place.take(serde_json::from_str(&text).unwrap());
        let interface = place.0.lock().unwrap().take().unwrap().interfaces.remove(0);
        assert_eq!((interface.ips.capacity(), interface.ip.as_str()), (MAX_INTERFACES, ""));
    }
}
