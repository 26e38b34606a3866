//! The user's terminal: raw mode, undone however the command ends, and the key that leaves a console.

use std::io::{self, IsTerminal as _, Stdin};
use std::pin::Pin;
use std::task::{Context, Poll};

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::signal::unix::{SignalKind, signal};

/// What Ctrl+] and Ctrl+5 send.
const ESCAPE: u8 = 0x1d;

/// The terminal in raw mode: every key goes to the machine, Ctrl+C too. Dropping it restores what was before.
pub(crate) struct Raw {
    stdin: Stdin,
    before: Termios,
}

impl Raw {
    /// Makes stdin raw, if it is a terminal.
    ///
    /// # Errors
    /// When the terminal does not let itself be changed.
    pub(crate) fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&stdin, SetArg::TCSANOW, &raw)?;
        Ok(Some(Self { stdin, before }))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Whatever the terminal answers: there is nothing better to do.
        let _ = tcsetattr(&self.stdin, SetArg::TCSANOW, &self.before);
    }
}

/// Waits for a signal that ends the program, and tells its name.
///
/// # Errors
/// When signals cannot be watched.
pub(crate) async fn end_signal() -> io::Result<&'static str> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
        _ = hangup.recv() => "SIGHUP",
    })
}

/// A reader that ends at the escape key.
pub(crate) struct UntilEscape<R> {
    inner: R,
    escaped: bool,
}

impl<R> UntilEscape<R> {
    /// Reads `inner` up to the escape key.
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, escaped: false }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for UntilEscape<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.escaped {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        let new = buf.filled().iter().skip(before);
        if let Some(at) = new.into_iter().position(|byte| *byte == ESCAPE) {
            buf.set_filled(before + at);
            self.escaped = true;
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn reading_ends_at_the_escape_key() {
        for (typed, sent) in [
            (&b"ls\r"[..], &b"ls\r"[..]),
            (b"ls\r\x1drest", b"ls\r"),
            (b"\x1d", b""),
            (b"", b""),
            (b"a\x1d\x1db", b"a"),
        ] {
            let mut read = Vec::new();
            UntilEscape::new(typed).read_to_end(&mut read).await.unwrap();
            assert_eq!(read, sent);
        }
    }

    #[tokio::test]
    async fn nothing_is_read_behind_the_escape_key() {
        let (first, second) = (&b"one\x1d"[..], &b"two"[..]);
        let mut reader = UntilEscape::new(first.chain(second));
        let mut read = Vec::new();
        reader.read_to_end(&mut read).await.unwrap();
        reader.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"one");
    }
}
