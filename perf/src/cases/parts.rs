//! Parts of netd alone, without a frontend: the benchmarks of `netd/benches/micro.rs`, and what all open ports take.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::Found;
use crate::migration::Record;
use crate::ports;

/// What criterion wrote about a benchmark: how many things one turn of it does.
#[derive(Deserialize)]
struct Benchmark {
    throughput: Option<Throughput>,
}

#[derive(Deserialize)]
struct Throughput {
    #[serde(rename = "Elements")]
    elements: Option<f64>,
}

/// What criterion found.
#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    /// Nanoseconds of one turn.
    point_estimate: f64,
}

/// Those whose figures are required, as criterion's pattern.
const REQUIRED: &str = "^(ring/pop_push|flow/(find|memory)_.*)$";

/// Runs the benchmarks of netd's parts and reads what they found: nanoseconds by name. With `quick` only what is
/// required, and less precisely.
///
/// # Errors
/// They cannot be built or run.
pub(crate) fn micro(quick: bool) -> Result<Found> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut bench = Command::new(cargo);
    bench.args(["bench", "--quiet", "--locked", "--package", "netd", "--bench", "micro"]).current_dir(&top);
    let seconds = if quick { "0.5" } else { "1" };
    bench.args(["--", "--noplot", "--warm-up-time", "0.3", "--measurement-time", seconds]);
    if quick {
        bench.args(["--nresamples", "5000", REQUIRED]);
    }
    // A file system's clock may be a little behind this process's.
    let since = SystemTime::now() - Duration::from_secs(1);
    // What it finds is read from its files; a failing one says why.
    let out = bench.stdin(Stdio::null()).output()?;
    ensure!(out.status.success(), "netd's benchmarks: {}", String::from_utf8_lossy(&out.stderr));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| top.join("target"), PathBuf::from);
    read(&target.join("criterion"), since)
}

/// Everything below a directory of criterion's that was written since: `<group>/<name>/new/*.json`.
fn read(dir: &Path, since: SystemTime) -> Result<Found> {
    let mut found = Found::default();
    for group in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let group = group?;
        for name in fs::read_dir(group.path()).into_iter().flatten() {
            let name = name?;
            let new = name.path().join("new");
            let file = new.join("estimates.json");
            let Ok(estimates) = fs::read(&file) else { continue };
            if fs::metadata(&file)?.modified()? < since {
                continue;
            }
            let estimates: Estimates = serde_json::from_slice(&estimates)?;
            let benchmark: Benchmark = serde_json::from_slice(&fs::read(new.join("benchmark.json"))?)?;
            let elements = benchmark.throughput.and_then(|t| t.elements).unwrap_or(1.0);
            let label = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
            found.put(
                format!("{}_{}_ns", label(&group), label(&name)),
                estimates.median.point_estimate / elements,
            );
        }
    }
    ensure!(!found.figures.is_empty(), "{}: no benchmark has written anything", dir.display());
    Ok(found)
}

/// What all open ports take, and what a connection through them costs; also kept in the file of `results` if there is
/// such a directory.
///
/// # Errors
/// The network or the steering cannot be had.
pub(crate) fn all_ports(extent: ports::Extent, results: Option<&Path>) -> Result<Found> {
    let ports = ports::measure(extent)?;
    if let Some(results) = results {
        ports.write(results)?;
    }
    let mut found = Found::default();
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    found.put("all_ports_mib".into(), mib(ports.kernel_bytes + ports.user_bytes.unwrap_or(0.0)));
    found.put("all_ports_kernel_mib".into(), mib(ports.kernel_bytes));
    for (family, ratio) in ["v4", "v6"].iter().zip(ports.ratio) {
        found.put(format!("all_ports_accept_ratio_{family}"), ratio);
    }
    Ok(found)
}

/// A few migrations of a guest with netd and with passt, and of a thousand connections.
///
/// # Errors
/// Something does not come up, or a connection did not survive netd's.
pub(crate) fn migrations(out: &mut impl Write) -> Result<Found> {
    let record = Record::short(out)?;
    let mut found = Found::default();
    for (name, value) in record.figures() {
        found.put(name, value);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criterions_files_are_understood() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("ring/pop_push/new");
        fs::create_dir_all(&new).unwrap();
        let since = SystemTime::UNIX_EPOCH;
        assert!(read(dir.path(), since).is_err());
        let estimates = r#"{"mean": {"point_estimate": 1.0}, "median": {"confidence_interval": {}, "point_estimate": 640.0}}"#;
        fs::write(new.join("estimates.json"), estimates).unwrap();
        fs::write(new.join("benchmark.json"), r#"{"throughput": {"Elements": 64}, "group_id": "ring"}"#)
            .unwrap();
        assert_eq!(read(dir.path(), since).unwrap().figures, [("ring_pop_push_ns".to_owned(), 10.0)].into());
        fs::write(new.join("benchmark.json"), r#"{"throughput": null}"#).unwrap();
        assert_eq!(read(dir.path(), since).unwrap().figures["ring_pop_push_ns"], 640.0);
        // What an earlier measurement left is not taken for the new one's.
        assert!(read(dir.path(), SystemTime::now() + Duration::from_secs(60)).is_err());
    }
}
