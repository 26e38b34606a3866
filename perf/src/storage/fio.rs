//! fio in a guest: the archive with it, what it is told, and what is taken from its answer.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::disks::{Disk, Guest};

/// MiB of each disk that are read and written.
pub(super) const AREA_MIB: u32 = 192;
/// Seconds before each job that are not counted.
const WARM_UP: f64 = 0.5;
/// How much longer than its jobs fio may take: it is loaded by an emulated processor.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A job: its name in results, what it is called, and its lines.
struct Job {
    key: &'static str,
    name: &'static str,
    lines: &'static str,
    /// The part of the answer that counts.
    side: &'static str,
    unit: Unit,
}

/// What is told of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Operations a second.
    Operations,
    /// MiB a second.
    Mebibytes,
    /// The median time of one, in µs.
    Micros,
}

const JOBS: [Job; 6] = [
    Job {
        key: "random-read",
        name: "random reads of 4 KiB, 32 at a time, a second",
        lines: "rw=randread\nbs=4k\niodepth=32",
        side: "read",
        unit: Unit::Operations,
    },
    Job {
        key: "random-write",
        name: "random writes of 4 KiB, 32 at a time, a second",
        lines: "rw=randwrite\nbs=4k\niodepth=32",
        side: "write",
        unit: Unit::Operations,
    },
    Job {
        key: "read",
        name: "reads of 1 MiB in a row, 4 at a time, MiB/s",
        lines: "rw=read\nbs=1m\niodepth=4",
        side: "read",
        unit: Unit::Mebibytes,
    },
    Job {
        key: "write",
        name: "writes of 1 MiB in a row, 4 at a time, MiB/s",
        lines: "rw=write\nbs=1m\niodepth=4",
        side: "write",
        unit: Unit::Mebibytes,
    },
    Job {
        key: "commit",
        name: "writes of 4 KiB that are flushed one by one, a second",
        lines: "rw=randwrite\nbs=4k\niodepth=1\nfdatasync=1",
        side: "write",
        unit: Unit::Operations,
    },
    Job {
        key: "one-read",
        name: "one random read of 4 KiB, median, µs",
        lines: "rw=randread\nbs=4k\niodepth=1",
        side: "read",
        unit: Unit::Micros,
    },
];

/// The figures of a disk: a key, what it is called, whether more is better.
pub(super) fn figures() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    JOBS.iter().map(|job| (job.key, job.name, job.unit != Unit::Micros))
}

/// Writes an archive with this machine's fio and the libraries it is linked with, without directories.
///
/// # Errors
/// There is no fio.
pub(super) fn archive(to: &Path) -> Result<()> {
    let fio = Path::new("/usr/bin/fio");
    ensure!(fio.exists(), "{} is not there: run e2e/setup packages fio", fio.display());
    let out = Command::new("ldd").arg(fio).output()?;
    ensure!(out.status.success(), "ldd: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout)?;
    let libraries = libraries(&text);
    ensure!(!libraries.is_empty(), "fio is linked with nothing: {text}");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--dereference", "--absolute-names", "--transform=s|.*/||", "--file"])
        .arg(to)
        .arg(fio);
    let out = tar.args(libraries).output()?;
    ensure!(out.status.success(), "tar: {}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

/// The files that ldd tells of, the loader among them.
fn libraries(ldd: &str) -> Vec<&str> {
    ldd.split_whitespace().filter(|word| word.starts_with('/')).collect()
}

/// The job file for a device.
fn jobs(device: &str, seconds: f64) -> String {
    let mut text = format!(
        "[global]\nfilename={device}\nsize={AREA_MIB}m\nioengine=libaio\ndirect=1\ntime_based=1\nruntime={}ms\nramp_time={}ms\n",
        (seconds * 1000.0).round(),
        WARM_UP * 1000.0,
    );
    for job in &JOBS {
        text += &format!("[{}]\nstonewall\n{}\n", job.key, job.lines);
    }
    text
}

fn run(guest: &mut Guest, jobs: &str, limit: Duration) -> Result<Value> {
    guest.sh(&format!("cat >/tmp/jobs <<'EOF'\n{jobs}EOF"), TIMEOUT)?;
    let loader = "/tmp/bin/ld-linux-x86-64.so.2 --library-path /tmp/bin /tmp/bin/fio";
    let said = guest.sh(&format!("{loader} --output-format=json --eta=never /tmp/jobs 2>&1"), limit)?;
    // Notes may stand before it.
    let start = said.find('{').with_context(|| format!("fio: {said}"))?;
    serde_json::from_str(said.get(start..).unwrap_or_default()).with_context(|| format!("fio: {said}"))
}

/// Fills the part of a disk that is measured, so that no read finds a hole.
///
/// # Errors
/// fio fails.
pub(super) fn fill(guest: &mut Guest, disk: &Disk) -> Result<()> {
    let device = guest.device(disk.key)?;
    let fill = format!(
        "[fill]\nfilename={device}\nsize={AREA_MIB}m\nioengine=libaio\ndirect=1\nrw=write\nbs=1m\niodepth=4\n"
    );
    run(guest, &fill, TIMEOUT).map(drop)
}

/// Measures a disk; figures are called DISK.JOB.
///
/// # Errors
/// fio fails, or tells of an error of the disk's.
pub(super) fn measure(
    guest: &mut Guest,
    disk: &Disk,
    seconds: f64,
    figures: &mut BTreeMap<String, f64>,
) -> Result<()> {
    let device = guest.device(disk.key)?;
    #[allow(clippy::cast_precision_loss, reason = "a handful of jobs")]
    let limit = TIMEOUT + Duration::from_secs_f64((seconds + WARM_UP) * JOBS.len() as f64);
    let answer = run(guest, &jobs(&device, seconds), limit)?;
    for (key, value) in taken(&answer)? {
        figures.insert(format!("{}.{key}", disk.key), value);
    }
    Ok(())
}

/// The figure of each job in fio's answer.
fn taken(answer: &Value) -> Result<Vec<(&'static str, f64)>> {
    let all = answer.get("jobs").and_then(Value::as_array).context("fio tells of no jobs")?;
    let of = |job: &Job| {
        let found = all.iter().find(|one| one.get("jobname").and_then(Value::as_str) == Some(job.key));
        let found = found.with_context(|| format!("fio does not tell of {}", job.key))?;
        ensure!(found.get("error").and_then(Value::as_i64) == Some(0), "{}: {found}", job.key);
        let number = |path: &str| found.pointer(path).and_then(Value::as_f64).filter(|value| *value > 0.0);
        let value = match job.unit {
            Unit::Operations => number(&format!("/{}/iops", job.side)),
            Unit::Mebibytes => {
                number(&format!("/{}/bw_bytes", job.side)).map(|bytes| bytes / f64::from(1 << 20))
            }
            Unit::Micros => {
                number(&format!("/{}/clat_ns/percentile/50.000000", job.side)).map(|nanos| nanos / 1000.0)
            }
        };
        Ok((job.key, value.with_context(|| format!("{} has done nothing: {found}", job.key))?))
    };
    JOBS.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn libraries_are_what_ldd_names_by_path() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibaio.so.1 => /lib/x/libaio.so.1 (0x2)\n\t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        assert_eq!(libraries(text), ["/lib/x/libaio.so.1", "/lib64/ld-linux-x86-64.so.2"]);
    }

    #[test]
    fn jobs_follow_each_other() {
        let text = jobs("/dev/vdc", 1.5);
        assert!(text.contains("runtime=1500ms\nramp_time=500ms\n"), "{text}");
        assert_eq!(text.matches("\nstonewall\n").count(), JOBS.len());
    }

    fn answer() -> Value {
        let job = |job: &Job| {
            json!({"jobname": job.key, "error": 0, job.side: {"iops": 1000.0, "bw_bytes": 2_097_152,
                "clat_ns": {"percentile": {"50.000000": 5000}}}})
        };
        json!({"jobs": JOBS.iter().map(job).collect::<Vec<_>>()})
    }

    #[test]
    fn each_job_has_its_figure_in_its_unit() {
        let found = taken(&answer()).unwrap();
        let of = |key: &str| found.iter().find(|(name, _)| *name == key).unwrap().1;
        assert_eq!([of("random-read"), of("write"), of("one-read")], [1000.0, 2.0, 5.0]);
    }

    #[test]
    fn a_job_that_failed_or_did_nothing_is_no_figure() {
        let mut failed = answer();
        failed["jobs"][2]["error"] = json!(5);
        assert!(taken(&failed).is_err());
        let mut idle = answer();
        idle["jobs"][0]["read"]["iops"] = json!(0.0);
        assert!(taken(&idle).unwrap_err().to_string().contains("random-read has done nothing"));
    }
}
