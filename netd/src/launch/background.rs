//! Into the background, with a word to the process that was started when the work has begun.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::fcntl::OFlag;
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, pipe2, setsid};

use super::LaunchError;
use crate::config::passt::Passt;
use crate::sys::{Fork, fork};

/// What the child writes when it is at work; nothing that explains a failure begins with it.
const READY: u8 = b'+';
/// Permissions of the files that are made.
const FILE_MODE: u32 = 0o644;

/// The way to the process that waits.
#[derive(Debug)]
pub(super) struct Parent(Mutex<Option<File>>);

impl Parent {
    /// Says that the work has begun.
    pub(super) fn ready(&self) {
        self.say(&[READY]);
    }

    /// Says why it does not begin.
    pub(super) fn failed(&self, why: &str) {
        self.say(why.as_bytes());
    }

    fn say(&self, words: &[u8]) {
        let pipe = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut pipe) = pipe {
            // The process that started it may have been killed.
            let _ = pipe.write_all(words);
        }
    }
}

/// Which process this is.
pub(super) enum Role {
    /// The one that is to work, with the way to the one that waits, if that is another.
    Work(Option<Parent>),
    /// The one that has waited; the other is at work.
    Waited,
}

/// Writes the files that the options name and goes into the background unless they say otherwise.
pub(super) fn enter(options: &Passt) -> Result<Role, LaunchError> {
    let open = |option, path: &PathBuf, how: &mut OpenOptions| {
        let file = how.create(true).mode(FILE_MODE).open(path);
        file.map_err(|source| LaunchError::File { option, path: path.clone(), source })
    };
    let log = options.log_file.as_ref().map(|p| open("--log-file", p, OpenOptions::new().append(true)));
    let log = log.transpose()?;
    let pid = options.pid.as_ref().map(|p| open("--pid", p, OpenOptions::new().write(true).truncate(true)));
    let pid = pid.transpose()?;
    let parent = if options.foreground { None } else { split(options.pid.as_deref())? };
    if parent.is_none() && !options.foreground {
        return Ok(Role::Waited);
    }
    if let (Some(mut file), Some(path)) = (pid, &options.pid) {
        let number = format!("{}\n", std::process::id());
        let written = file.write_all(number.as_bytes());
        // The child's own error goes to the standard error that it still has.
        written.map_err(|source| LaunchError::File { option: "--pid", path: path.clone(), source })?;
    }
    if parent.is_some() {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        dup2_stdin(&null).map_err(io::Error::from)?;
        dup2_stdout(&null).map_err(io::Error::from)?;
        if log.is_none() {
            dup2_stderr(&null).map_err(io::Error::from)?;
        }
    }
    if let Some(log) = log {
        dup2_stderr(log).map_err(io::Error::from)?;
    }
    Ok(Role::Work(parent))
}

/// Forks, and waits in the first process for what the second one says: none is there, when that is good.
fn split(pid_file: Option<&Path>) -> Result<Option<Parent>, LaunchError> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
    if fork()? == Fork::Child {
        drop(reader);
        setsid().map_err(io::Error::from)?;
        return Ok(Some(Parent(Mutex::new(Some(File::from(writer))))));
    }
    drop(writer);
    let outcome = outcome(File::from(reader));
    if let (Err(_), Some(path)) = (&outcome, pid_file) {
        // The number in it is that of a process that has ended.
        let _ = std::fs::remove_file(path);
    }
    outcome.map(|()| None)
}

/// What the child says in the end.
fn outcome(mut child: impl Read) -> Result<(), LaunchError> {
    let mut words = Vec::new();
    match child.read_to_end(&mut words) {
        Ok(0) => Err(LaunchError::Silent),
        Ok(_) if words.first() == Some(&READY) => Ok(()),
        Ok(_) => Err(LaunchError::Child(String::from_utf8_lossy(&words).into_owned())),
        Err(error) => Err(LaunchError::Unheard(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_a_failure() {
        assert!(outcome(&b"+"[..]).is_ok());
        assert_eq!(outcome(&b"port 80 is taken"[..]).unwrap_err().to_string(), "port 80 is taken");
        assert!(matches!(outcome(&b""[..]), Err(LaunchError::Silent)));
    }

    #[test]
    fn one_word_is_said() {
        let (reader, writer) = io::pipe().unwrap();
        let parent = Parent(Mutex::new(Some(File::from(std::os::fd::OwnedFd::from(writer)))));
        parent.ready();
        parent.failed("later");
        assert!(outcome(reader).is_ok(), "the pipe is closed behind the first");
    }
}
