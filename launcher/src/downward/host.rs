//! What the node uses, by its kernel's own files.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Metric, Value};

/// Ticks of a second in /proc/stat (proc(5): `USER_HZ`, which is 100 for programs on every architecture).
const TICKS: u32 = 100;
/// Bytes of a page, of amd64.
const PAGE: u64 = 4096;

/// The node's metrics, by the files below `proc` and `sys`. What cannot be read is left out, and told in the log.
pub fn metrics(proc: &Path, sys: &Path) -> Vec<Metric> {
    let mut metrics = Vec::new();
    let packages = packages(&sys.join("devices/system/cpu"));
    if packages > 0 {
        metrics.push(Metric::host("NumberOfPhysicalCPUs", None, Value::Signed(packages)));
    }
    let read = |name: &str| {
        let path = proc.join(name);
        let text = std::fs::read_to_string(&path);
        text.inspect_err(
            |error| tracing::warn!(path = %path.display(), %error, "a metric of the node is left out"),
        )
        .ok()
    };
    if let Some(seconds) = read("stat").as_deref().and_then(busy) {
        metrics.push(Metric::host("TotalCPUTime", Some("s"), Value::Seconds(seconds)));
    }
    let kib = |(name, amount)| Metric::host(name, Some("KiB"), Value::Unsigned(amount));
    metrics.extend(read("meminfo").iter().flat_map(|text| memory(text)).map(kib));
    metrics.extend(read("vmstat").iter().flat_map(|text| paged(text)).map(kib));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    metrics.push(Metric::host("Time", Some("s"), Value::Signed(i64::try_from(now).unwrap_or(i64::MAX))));
    metrics
}

/// How many packages the node's processors are in.
fn packages(directory: &Path) -> i64 {
    let processors = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let package = |entry: std::fs::DirEntry| {
        std::fs::read_to_string(entry.path().join("topology/physical_package_id")).ok()
    };
    let packages: BTreeSet<String> = processors.filter_map(package).collect();
    i64::try_from(packages.len()).unwrap_or(i64::MAX)
}

/// Seconds that the node's processors have worked: in user mode, at lower priority, in the kernel.
fn busy(stat: &str) -> Option<f64> {
    let mut words = stat.lines().find_map(|line| line.strip_prefix("cpu "))?.split_whitespace();
    let mut ticks = || words.next()?.parse::<u64>().ok();
    let sum = ticks()?.checked_add(ticks()?)?.checked_add(ticks()?)?;
    let hundredths = u64::from(1_000_000_000 / TICKS);
    Some(super::seconds(sum.checked_mul(hundredths)?))
}

/// The value behind a name at the beginning of a line.
fn value(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The node's memory, KiB.
fn memory(meminfo: &str) -> [(&'static str, u64); 4] {
    let of = |name: &str| value(meminfo, name);
    let (free, swap_free, total, swap) = (of("MemFree:"), of("SwapFree:"), of("MemTotal:"), of("SwapTotal:"));
    let caches = of("Buffers:").saturating_add(of("Cached:"));
    let used = total.saturating_sub(free).saturating_sub(caches);
    let virtually = total.saturating_add(swap).saturating_sub(free).saturating_sub(caches);
    [
        ("FreePhysicalMemory", free),
        ("FreeVirtualMemory", free.saturating_add(swap_free)),
        ("MemoryAllocatedToVirtualServers", used),
        ("UsedVirtualMemory", virtually.saturating_sub(of("SwapCached:"))),
    ]
}

/// What went to swap and came back, KiB.
fn paged(vmstat: &str) -> [(&'static str, u64); 2] {
    let kib = |name: &str| value(vmstat, name).saturating_mul(PAGE) / 1024;
    [("PagedInMemory", kib("pswpin ")), ("PagedOutMemory", kib("pswpout "))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_the_kernels_texts() {
        assert_eq!(busy("cpu  150 50 25 9000 1 2 3\ncpu0 1 1 1 1\n"), Some(2.25));
        assert_eq!([busy("cpu  1 x"), busy("intr 1")], [None, None]);
        let meminfo = "MemTotal:    1000 kB\nMemFree:   300 kB\nBuffers:  50 kB\nCached:   150 kB\nSwapCached:   5 kB\n\
                       SwapTotal:   200 kB\nSwapFree:   100 kB\n";
        assert_eq!(
            memory(meminfo),
            [
                ("FreePhysicalMemory", 300),
                ("FreeVirtualMemory", 400),
                ("MemoryAllocatedToVirtualServers", 500),
                ("UsedVirtualMemory", 695),
            ]
        );
        assert_eq!(paged("pswpin 3\npswpout 5\n",), [("PagedInMemory", 12), ("PagedOutMemory", 20)]);
    }

    #[test]
    fn the_metrics_of_this_node_are_there() {
        let names: Vec<&str> =
            metrics(Path::new("/proc"), Path::new("/sys")).iter().map(|metric| metric.name).collect();
        for name in ["TotalCPUTime", "FreePhysicalMemory", "UsedVirtualMemory", "PagedInMemory", "Time"] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let left: Vec<&str> = metrics(dir.path(), dir.path()).iter().map(|metric| metric.name).collect();
        assert_eq!(left, ["Time"]);
    }
}
