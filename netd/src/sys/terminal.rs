//! The size of a terminal.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Lines and columns of a terminal; None when it is none, or does not know.
pub fn terminal_size(terminal: BorrowedFd<'_>) -> Option<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize (ioctl_tty(2)), which outlives the call.
    let rc = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &mut size) };
    (rc == 0 && size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}
