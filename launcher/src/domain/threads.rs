//! Threads that do the input and output of disks, counted as upstream counts them.

use podvirt_api::vmi::{Disk, DomainSpec, IoThreadsPolicy};

use super::schema::{DiskThread, DiskThreads};

/// The threads of a machine, and which of them the next disk gets.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// How many there are.
    pub(super) count: u32,
    /// How many of them are for disks that have none of their own; they come first.
    shared: u32,
    pool: bool,
    next_shared: u32,
    next_own: u32,
}

/// What a disk's driver is told.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Own {
    pub(super) thread: Option<u32>,
    pub(super) threads: Option<DiskThreads>,
}

impl Threads {
    /// The threads of the machine with the specification `spec`: none where neither a policy nor a disk asks for a thread.
    pub(super) fn of(spec: &DomainSpec) -> Threads {
        let disks = &spec.devices.disks;
        let own = u32::try_from(disks.iter().filter(|disk| has_own(disk)).count()).unwrap_or(u32::MAX);
        let pool = spec.io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count);
        let limit = match (spec.io_threads_policy, pool) {
            (None, _) if own == 0 => return Threads::default(),
            (Some(IoThreadsPolicy::SupplementalPool), Some(count)) => {
                return Threads { count, pool: true, ..Threads::default() };
            }
            (Some(IoThreadsPolicy::SupplementalPool), None) => 0,
            (None | Some(IoThreadsPolicy::Shared), _) => 1,
            (Some(IoThreadsPolicy::Auto), _) => processors(spec).saturating_mul(2),
        };
        let others = u32::try_from(disks.len()).unwrap_or(u32::MAX).saturating_sub(own);
        // One at least is for the disks that have none of their own.
        let shared =
            if others.saturating_add(own) > limit { limit.saturating_sub(own).max(1) } else { others };
        Threads { count: shared.saturating_add(own), shared, pool: false, next_shared: 0, next_own: shared }
    }

    /// The threads of a disk on the virtio bus that is plugged later: those that it shares with others.
    pub(super) fn later(mut self, disk: &Disk) -> Own {
        if self.pool || self.shared > 0 { self.next(disk) } else { Own::default() }
    }

    /// The threads of the next disk on the virtio bus.
    pub(super) fn next(&mut self, disk: &Disk) -> Own {
        if self.count == 0 {
            return Own::default();
        }
        if self.pool {
            let threads = (1..=self.count).map(|id| DiskThread { id }).collect();
            return Own { thread: None, threads: Some(DiskThreads { threads }) };
        }
        let thread = if has_own(disk) {
            self.next_own += 1;
            self.next_own
        } else {
            self.next_shared = self.next_shared % self.shared.max(1) + 1;
            self.next_shared
        };
        Own { thread: Some(thread), threads: None }
    }
}

fn has_own(disk: &Disk) -> bool {
    disk.dedicated_io_thread == Some(true)
}

/// Processors that the pod asks for, or has at most; 1 where nothing is said.
fn processors(spec: &DomainSpec) -> u32 {
    let resources = &spec.resources;
    let cpu = resources.requests.get("cpu").or_else(|| resources.limits.get("cpu"));
    cpu.map_or(1, |cpu| u32::try_from(cpu.value()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The count, and each disk's thread; `*` for all.
    fn given(domain: &str, disks: &[bool]) -> String {
        let disks: Vec<String> = disks
            .iter()
            .enumerate()
            .map(|(n, own)| format!("{{name: d{n}, dedicatedIOThread: {own}}}"))
            .collect();
        let text = format!("{{{domain} devices: {{disks: [{}]}}}}", disks.join(", "));
        let spec: DomainSpec = serde_saphyr::from_str(&text).unwrap();
        let mut threads = Threads::of(&spec);
        let each = spec.devices.disks.iter().map(|disk| match threads.next(disk) {
            Own { thread: Some(thread), .. } => thread.to_string(),
            Own { threads: Some(all), .. } => "*".repeat(all.threads.len()),
            Own { .. } => "-".into(),
        });
        let each: Vec<String> = each.collect();
        format!("{}: {}", threads.count, each.join(" "))
    }

    #[test]
    fn threads_are_counted_as_upstream_does() {
        for (domain, disks, expected) in [
            ("", &[false, false][..], "0: - -"),
            ("", &[false, true], "2: 1 2"),
            ("ioThreadsPolicy: shared,", &[false, false], "1: 1 1"),
            ("ioThreadsPolicy: shared,", &[true, false, true], "3: 2 1 3"),
            ("ioThreadsPolicy: auto,", &[false, false, false], "2: 1 2 1"),
            ("ioThreadsPolicy: auto, resources: {requests: {cpu: 2}},", &[false, true, false], "3: 1 3 2"),
            (
                "ioThreadsPolicy: supplementalPool, ioThreads: {supplementalPoolThreadCount: 2},",
                &[false, true],
                "2: ** **",
            ),
        ] {
            assert_eq!(given(domain, disks), expected, "{domain} {disks:?}");
        }
    }
}
