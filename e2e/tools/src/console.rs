//! A guest's serial console, driven like a person would: type a line, read what comes.
//!
//! A thread collects everything the guest prints. A command is typed between two marks and is done when the second
//! one has come, which also carries its exit status. The guest's shell does not echo; the marks are typed broken in
//! two so that an echo would not be taken for them.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::wait;

/// What a command on the console did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Exit status.
    pub status: i32,
    /// What it printed, errors too, without the last newline.
    pub text: String,
}

#[derive(Default)]
struct Screen {
    text: Vec<u8>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    screen: Mutex<Screen>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Screen> {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A serial console.
pub struct Console {
    shared: Arc<Shared>,
    input: Box<dyn Write + Send>,
    commands: u32,
}

impl Console {
    /// A console over two byte streams: what the guest prints and what is typed.
    pub fn new(mut output: impl Read + Send + 'static, input: impl Write + Send + 'static) -> Console {
        let shared = Arc::new(Shared::default());
        let reader = Arc::clone(&shared);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let n = match output.read(&mut buffer) {
                    Ok(n) => n,
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    Err(_) => 0,
                };
                let mut screen = reader.lock();
                // Carriage returns are the terminal's, not the programs'.
                screen.text.extend(buffer.iter().take(n).filter(|&&b| b != b'\r'));
                screen.closed = n == 0;
                drop(screen);
                reader.changed.notify_all();
                if n == 0 {
                    break;
                }
            }
        });
        Console { shared, input: Box::new(input), commands: 0 }
    }

    /// The console behind a UNIX socket, which may be still to come.
    ///
    /// # Errors
    /// No process listens there within `limit`.
    pub fn connect(socket: &Path, limit: Duration) -> Result<Console> {
        let what = format!("console at {}", socket.display());
        let stream = wait::until(&what, limit, || Ok(UnixStream::connect(socket).ok()))?;
        Ok(Console::new(stream.try_clone()?, stream))
    }

    /// Everything the guest has printed.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.shared.lock().text).into_owned()
    }

    /// Whether nothing more can come: the guest, or what leads to it, is gone.
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    /// Waits until `find` makes something of the text.
    fn wait<T>(&self, what: &str, limit: Duration, find: impl Fn(&str) -> Option<T>) -> Result<T> {
        let end = Instant::now() + limit;
        let mut screen = self.shared.lock();
        loop {
            if let Some(found) = find(&String::from_utf8_lossy(&screen.text)) {
                return Ok(found);
            }
            ensure!(!screen.closed, "the console closed before {what}");
            let left = end.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "{what}: not on the console within {limit:?}");
            let woken = self.shared.changed.wait_timeout(screen, left);
            screen = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for a line that contains `text`, from the beginning of the console, and returns it.
    ///
    /// # Errors
    /// It did not come within `limit`, or the guest is gone.
    pub fn wait_for(&self, text: &str, limit: Duration) -> Result<String> {
        self.wait_for_nth(text, 1, limit)
    }

    /// Waits for the `nth` occurrence of `text`, counted from 1, and returns its line.
    ///
    /// # Errors
    /// As [`Console::wait_for`].
    pub fn wait_for_nth(&self, text: &str, nth: usize, limit: Duration) -> Result<String> {
        self.wait(text, limit, |screen| {
            let (at, _) = screen.match_indices(text).nth(nth.checked_sub(1)?)?;
            let start = screen.get(..at)?.rfind('\n').map_or(0, |n| n + 1);
            let end = at + screen.get(at..)?.find('\n')?;
            screen.get(start..end).map(str::to_owned)
        })
    }

    /// Types a line.
    ///
    /// # Errors
    /// The guest is gone.
    pub fn type_line(&mut self, line: &str) -> Result<()> {
        self.press(&format!("{line}\n"))
    }

    /// Presses keys, all at once.
    ///
    /// # Errors
    /// The guest is gone.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        self.input.write_all(keys.as_bytes()).context("typing on the console")?;
        Ok(self.input.flush()?)
    }

    /// Runs a shell command in the guest.
    ///
    /// # Errors
    /// It did not end within `limit` (it goes on in the guest), or the guest is gone.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<Output> {
        self.commands += 1;
        let mark = format!("MARK{}-{}", std::process::id(), self.commands);
        self.type_line(&format!("echo {mark}''-B; {{ {command}\n}} 2>&1; echo {mark}''-E:$?:"))?;
        let (begin, end) = (format!("{mark}-B\n"), format!("{mark}-E:"));
        self.wait(command, limit, |screen| {
            let text = screen.get(screen.find(&begin)? + begin.len()..)?;
            let (text, status) = text.split_once(&end)?;
            let status = status.split_once(':')?.0.parse().ok()?;
            Some(Output { status, text: text.trim_end_matches('\n').to_owned() })
        })
    }

    /// Runs a shell command that is expected to succeed and returns what it printed.
    ///
    /// # Errors
    /// As [`Console::run`], or it failed.
    pub fn sh(&mut self, command: &str, limit: Duration) -> Result<String> {
        let out = self.run(command, limit)?;
        if out.status != 0 {
            bail!("in the guest: {command}: status {}\n{}", out.status, out.text);
        }
        Ok(out.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    const LIMIT: Duration = Duration::from_secs(10);

    /// A shell in the place of a guest.
    struct Shell(Console, Child);

    impl Shell {
        fn new() -> Shell {
            let mut child = Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            Shell(Console::new(child.stdout.take().unwrap(), child.stdin.take().unwrap()), child)
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            self.1.kill().unwrap();
            self.1.wait().unwrap();
        }
    }

    #[test]
    fn a_command_returns_its_output_and_status() {
        let mut shell = Shell::new();
        let console = &mut shell.0;
        assert_eq!(
            console.run("echo a; echo b >&2; (exit 3)", LIMIT).unwrap(),
            Output { status: 3, text: "a\nb".into() }
        );
        assert_eq!(console.sh("printf x", LIMIT).unwrap(), "x");
        assert!(console.sh("false", LIMIT).is_err());
    }

    #[test]
    fn a_line_is_found_whenever_it_came() {
        let mut shell = Shell::new();
        let console = &mut shell.0;
        console.type_line("echo; echo one READY two").unwrap();
        assert_eq!(console.wait_for("READY", LIMIT).unwrap(), "one READY two");
        assert_eq!(console.wait_for("READY", LIMIT).unwrap(), "one READY two");
    }

    #[test]
    fn the_end_of_the_guest_is_an_error_not_a_wait() {
        let mut shell = Shell::new();
        let console = &mut shell.0;
        console.type_line("exit").unwrap();
        assert!(console.wait_for("never", LIMIT).unwrap_err().to_string().contains("closed"));
    }
}
