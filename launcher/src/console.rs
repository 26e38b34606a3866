//! The terminal on the guest's serial console.
//!
//! Two threads carry bytes: standard input to the console's socket and the socket to standard output. `^]`
//! (as in telnet and virsh) ends the first one and gives the terminal back; the machine runs on. Input that
//! ends, as of a script, leaves the output on.
//!
//! A terminal is switched to raw mode, except that output is still processed: the launcher's log shares it, and
//! its lines would otherwise form stairs.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use nix::sys::termios::{OutputFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// `^]`.
const ESCAPE: u8 = 0x1d;

/// A terminal in raw mode; it is as it was before when this is left or dropped.
struct RawMode {
    before: Mutex<Option<Termios>>,
}

impl RawMode {
    fn enter() -> RawMode {
        // Not a terminal: nothing to do, and nothing to undo.
        let before = tcgetattr(io::stdin()).ok().filter(|before| {
            let mut raw = before.clone();
            cfmakeraw(&mut raw);
            raw.output_flags.insert(OutputFlags::OPOST | OutputFlags::ONLCR);
            tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).is_ok()
        });
        RawMode { before: Mutex::new(before) }
    }

    fn leave(&self) {
        let before = self.before.lock().map(|mut b| b.take()).unwrap_or_default();
        if let Some(before) = before {
            // Nothing can be done if the terminal is gone.
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &before);
        }
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A terminal that is attached to a console; dropping it detaches.
pub struct Console {
    socket: UnixStream,
    mode: Arc<RawMode>,
}

impl Console {
    /// Attaches standard input and output to the console behind `socket`.
    ///
    /// # Errors
    ///
    /// No process listens on the socket, or threads cannot be made.
    pub fn attach(socket: &Path) -> io::Result<Console> {
        let stream = UnixStream::connect(socket)?;
        let (to_guest, from_guest) = (stream.try_clone()?, stream.try_clone()?);
        let mode = Arc::new(RawMode::enter());
        let input_mode = mode.clone();
        thread::Builder::new().name("console-output".into()).spawn(move || {
            // The end of either side ends it; the machine's end is told elsewhere.
            let _ = carry_out(from_guest, io::stdout());
        })?;
        thread::Builder::new().name("console-input".into()).spawn(move || {
            if let Ok(Escape::Typed) = carry_in(io::stdin(), to_guest) {
                input_mode.leave();
                tracing::info!("detached from the console; the machine runs on");
            }
        })?;
        Ok(Console { socket: stream, mode })
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.mode.leave();
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Why input ended.
#[derive(Debug, PartialEq, Eq)]
enum Escape {
    /// `^]` was typed.
    Typed,
    /// There is no more.
    End,
}

/// Carries what is typed to the guest, up to the escape character.
fn carry_in(mut from: impl Read, mut to: impl Write) -> io::Result<Escape> {
    let mut buffer = [0u8; 1024];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(Escape::End),
            Ok(n) => buffer.get(..n).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let mut parts = read.splitn(2, |b| *b == ESCAPE);
        to.write_all(parts.next().unwrap_or_default())?;
        to.flush()?;
        if parts.next().is_some() {
            return Ok(Escape::Typed);
        }
    }
}

/// Carries what the guest sends, as it comes.
fn carry_out(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = [0u8; 4096];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                to.write_all(buffer.get(..n).unwrap_or_default())?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_bytes_reach_the_guest_up_to_the_escape() {
        let mut guest = Vec::new();
        assert_eq!(carry_in(&b"ls\r\x03"[..], &mut guest).unwrap(), Escape::End);
        assert_eq!(guest, b"ls\r\x03");
        let mut guest = Vec::new();
        assert_eq!(carry_in(&b"exit\r\x1dleft over"[..], &mut guest).unwrap(), Escape::Typed);
        assert_eq!(guest, b"exit\r");
    }

    #[test]
    fn what_the_guest_sends_comes_out_as_it_is() {
        let mut out = Vec::new();
        carry_out(&b"\x1b[0mlogin:\xff\x1d"[..], &mut out).unwrap();
        assert_eq!(out, b"\x1b[0mlogin:\xff\x1d");
    }
}
