//! `gsh SOCKET [--wait TEXT | COMMAND] [SECONDS]`: a guest's serial console for scripts.
//!
//! Runs COMMAND in the guest, prints what it printed and ends with its status; or waits for a line with TEXT and
//! prints it; at most SECONDS (60). The socket may be still to come. `--log FILE`, for `--wait`, looks at the file
//! in which the console is recorded instead, so that nothing printed before is missed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use podvirt_bed_tools::Console;
use podvirt_bed_tools::wait::until;

fn seconds(word: Option<String>) -> Result<Duration> {
    Ok(Duration::from_secs(word.map_or(Ok(60), |w| w.parse()).context("SECONDS is a number")?))
}

fn in_log(file: &Path, text: &str, limit: Duration) -> Result<String> {
    until(text, limit, || {
        let log = std::fs::read(file).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        // A line that is still being written is not looked at.
        let complete = log.rfind('\n').and_then(|end| log.get(..end)).unwrap_or_default();
        Ok(complete.lines().find(|l| l.contains(text)).map(|l| l.trim_end().to_owned()))
    })
}

fn main() -> Result<ExitCode> {
    let usage = "usage: gsh SOCKET COMMAND [SECONDS] | gsh SOCKET|--log FILE --wait TEXT [SECONDS]";
    let mut words = std::env::args().skip(1);
    let mut word = || words.next();
    let first = word().context(usage)?;
    let log = if first == "--log" { Some(PathBuf::from(word().context(usage)?)) } else { None };
    let command = word().context(usage)?;
    let out = std::io::stdout();
    if command == "--wait" {
        let text = word().context(usage)?;
        let limit = seconds(word())?;
        let line = match log {
            Some(file) => in_log(&file, &text, limit)?,
            None => Console::connect(Path::new(&first), limit)?.wait_for(&text, limit)?,
        };
        writeln!(&out, "{line}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let limit = seconds(word())?;
    let output = Console::connect(Path::new(&first), limit)?.run(&command, limit)?;
    if !output.text.is_empty() {
        writeln!(&out, "{}", output.text)?;
    }
    Ok(ExitCode::from(u8::try_from(output.status).unwrap_or(u8::MAX)))
}
