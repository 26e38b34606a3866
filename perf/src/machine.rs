//! The machine a result comes from, the state of the sources, and the date.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use nix::sys::utsname::uname;
use podvirt_e2e::artefacts::program_dir;
use serde::{Deserialize, Serialize};

use crate::usage::kib;

/// What a figure depends on before any program of this project runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Release of the running kernel.
    pub(crate) kernel: String,
    /// The processor's own name for itself.
    pub(crate) cpu_model: String,
    /// Processors this program may use.
    pub(crate) cores: usize,
    /// Memory in GiB.
    pub(crate) memory_gib: f64,
}

impl Machine {
    /// The machine that this program runs on.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(crate) fn this() -> Result<Machine> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let memory_gib = kib(&meminfo, "MemTotal").context("/proc/meminfo")? / 1024.0 / 1024.0;
        Ok(Machine {
            kernel: uname()?.release().to_string_lossy().into_owned(),
            cpu_model: cpu_model(&cpuinfo).unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            memory_gib: (memory_gib * 10.0).round() / 10.0,
        })
    }
}

#[cfg(test)]
impl Machine {
    /// One that no machine is.
    pub(crate) fn sample() -> Machine {
        Machine { kernel: "6.18.0".into(), cpu_model: "Some CPU".into(), cores: 2, memory_gib: 23.5 }
    }
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// The commit that is checked out, `-dirty` if sources differ from it (results and their page are none); `unknown`
/// outside a repository.
pub(crate) fn commit() -> String {
    let git = |arguments: &[&str]| {
        let top = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let out = Command::new("git").args(["-C", top]).args(arguments).output();
        out.ok().filter(|o| o.status.success()).map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let others = ["diff", "--name-only", "HEAD", "--", ".", ":!perf/results", ":!docs/performance.md"];
    let clean = git(&others).is_some_and(|files| files.is_empty());
    if clean { commit } else { format!("{commit}-dirty") }
}

/// Makes sure that netd is of the build that this program is of.
///
/// # Errors
/// It is not there, or of another one: figures of a build without optimisations would pass for a release's.
pub(crate) fn is_one_build() -> Result<()> {
    let me = std::env::current_exe()?;
    let (own, netd) =
        (me.parent().context("no directory")?.canonicalize()?, program_dir("netd")?.canonicalize()?);
    ensure!(
        own == netd,
        "netd is in {}, and this program in {}: PODVIRT_BIN names another build",
        netd.display(),
        own.display()
    );
    Ok(())
}

/// The time now in UTC, as `2026-01-31T23:59Z`.
///
/// # Errors
/// The clock is before 1970.
pub(crate) fn now() -> Result<String> {
    Ok(utc(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs()))
}

fn utc(seconds: u64) -> String {
    let (days, minutes) = (seconds / 86_400, seconds % 86_400 / 60);
    // The calendar of 400 years repeats; a year that begins in March has its leap day at the end.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + later;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}Z", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00Z");
        assert_eq!(utc(1_709_164_800), "2024-02-29T00:00Z");
        assert_eq!(utc(1_735_689_599), "2024-12-31T23:59Z");
        assert_eq!(utc(4_107_542_400), "2100-03-01T00:00Z");
    }

    #[test]
    fn a_processor_has_a_name() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nstepping\t: 1\n";
        assert_eq!(cpu_model(cpuinfo), Some("Some CPU @ 2 GHz"));
        assert_eq!(cpu_model("processor\t: 0\n"), None);
    }
}
