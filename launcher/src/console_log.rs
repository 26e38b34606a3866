//! The container `guest-console-log`: what the guest writes to its serial console, as the container's log.
//!
//! virtlogd keeps the console's log in a file of some megabytes: a file that is full gets another name, and a new one takes its place. The
//! tail follows the name: it reads the former file to its end before it goes on with the next one.
//!
//! The kubelet ends the container after the machine's. What the guest has written until then is copied first.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::cli::TailConsole;

/// The time between two looks at the file.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A file that is followed by its name.
struct Tail {
    path: PathBuf,
    file: Option<File>,
}

/// Copies the console's log to the standard output until the process is told to end.
///
/// # Errors
///
/// The file cannot be read, or the output not written.
pub async fn run(args: &TailConsole) -> Result<()> {
    let mut termination = signal(SignalKind::terminate()).context("cannot take SIGTERM")?;
    let mut tail = Tail { path: args.log_file.clone(), file: None };
    loop {
        let ends = tokio::select! {
            () = sleep(POLL_INTERVAL) => false,
            _ = termination.recv() => true,
        };
        tail.copy(&mut io::stdout().lock())
            .with_context(|| format!("cannot copy {}", tail.path.display()))?;
        if ends {
            return Ok(());
        }
    }
}

impl Tail {
    /// Copies what has come since the last call.
    fn copy(&mut self, out: &mut impl Write) -> io::Result<()> {
        loop {
            let Some(file) = &mut self.file else {
                match File::open(&self.path) {
                    Ok(file) => self.file = Some(file),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return out.flush(),
                    Err(error) => return Err(error),
                }
                continue;
            };
            // Asked before the end is read: nothing is added to a file that has lost its name.
            let is_current = is_at(file, &self.path)?;
            if file.metadata()?.len() < file.stream_position()? {
                file.seek(SeekFrom::Start(0))?;
            }
            copy_rest(file, out)?;
            if is_current {
                return out.flush();
            }
            self.file = None;
        }
    }
}

/// Whether the path still names the file, or nothing yet.
fn is_at(file: &File, path: &std::path::Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

fn copy_rest(file: &mut File, out: &mut impl Write) -> io::Result<()> {
    let mut part = vec![0; 64 << 10];
    loop {
        match file.read(&mut part)? {
            0 => return Ok(()),
            length => out.write_all(&part[..length])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{OpenOptions, rename, write};

    use super::*;

    #[test]
    fn a_log_is_followed_over_its_rotations_without_a_gap() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("virt-serial0-log");
        let (mut tail, mut out) = (Tail { path: path.clone(), file: None }, Vec::new());
        let append = |name: &std::path::Path, text: &str| {
            let mut file = OpenOptions::new().append(true).create(true).open(name).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        tail.copy(&mut out).unwrap();
        assert_eq!(out, b"", "the guest has not begun");
        append(&path, "one");
        tail.copy(&mut out).unwrap();
        append(&path, " two");
        let former = directory.path().join("virt-serial0-log.0");
        rename(&path, &former).unwrap();
        append(&former, " three");
        tail.copy(&mut out).unwrap();
        append(&path, " four");
        tail.copy(&mut out).unwrap();
        tail.copy(&mut out).unwrap();
        append(&path, " five");
        rename(&path, &former).unwrap();
        append(&path, " six");
        tail.copy(&mut out).unwrap();
        assert_eq!(String::from_utf8(out.clone()).unwrap(), "one two three four five six");
        write(&path, "!").unwrap();
        tail.copy(&mut out).unwrap();
        assert!(out.ends_with(b"six!"), "a file that was cut begins anew");
    }
}
