//! How much memory a hostile answer takes while it is read. A process of its own: its peak is the kernel's figure.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use podvirt_proto::domain::Domain;
use podvirt_proto::stats::DomainStats;

/// Most memory that this process has had since the last call, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak = peak.trim().trim_end_matches(" kB").parse().unwrap();
    // The peak is what the process has now (proc_pid_clear_refs(5)).
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    peak
}

#[test]
fn a_hostile_answer_takes_little_more_memory_than_its_text() {
    let list = |element: &str, count: usize| format!("[{}{element}]", format!("{element},").repeat(count));
    let many = |element: &str| list(element, 1_400_000);
    // Maps within maps, nearly as deep as serde_json goes.
    let deep = format!("{}0{}", r#"{"":"#.repeat(100), "}".repeat(100));
    let stats = [
        format!(r#"{{"Block":{}}}"#, many("{}")),
        format!(r#"{{"Net":{}}}"#, many("{}")),
        format!(r#"{{"CPUMap":{}}}"#, many("[]")),
        format!(r#"{{"Cpu":{{"Later":{}}}}}"#, list(&deep, 8_000)),
        format!(r#"{{"Block":[{{"Later":{}}}]}}"#, list(&deep, 8_000)),
    ];
    let domains = [
        format!(r#"{{"interfaces":{}}}"#, many("{}")),
        format!(r#"{{"volumes":{}}}"#, many(r#""""#)),
        format!(r#"{{"backup":{{"disks":{}}}}}"#, many("{}")),
    ];
    // The peak of making the texts is forgotten.
    peak_kib();
    let before = peak_kib();
    for text in &stats {
        serde_json::from_str::<DomainStats>(text).unwrap();
    }
    for text in &domains {
        serde_json::from_str::<Domain>(text).unwrap();
    }
    let grown = peak_kib().saturating_sub(before);
    assert!(grown < 16 << 10, "{grown} KiB");
}
