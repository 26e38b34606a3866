//! Waiting for events, in finer steps than milliseconds.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollTimeout};

/// Waits on epoll sets: by epoll_pwait2(2) where it is, else by epoll_wait(2) in whole milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    fine: bool,
}

impl Waiter {
    /// Prepares the calling thread: timers run out at most a microsecond late, not 50 as is usual.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Waiter {
        // SAFETY: PR_SET_TIMERSLACK takes a number of nanoseconds and changes this thread alone.
        let set = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
        if set != 0 {
            tracing::debug!(error = %io::Error::last_os_error(), "timer slack not set");
        }
        Waiter { fine: true }
    }

    /// Whether waits shorter than a millisecond are possible, as far as is known.
    pub fn is_fine(&self) -> bool {
        self.fine
    }

    /// Fills `events` with what has happened and returns how many; waits for `timeout` at most, None: forever.
    /// Zero when a signal ended the wait.
    ///
    /// # Errors
    /// As epoll_wait(2), except EINTR.
    pub fn wait(
        &mut self,
        epoll: &Epoll,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        if self.fine {
            match pwait2(epoll, events, timeout) {
                Err(Errno::EINTR) => return Ok(0),
                // Before Linux 5.11, and under system call filters that do not know it.
                Err(Errno::ENOSYS | Errno::EPERM) => self.fine = false,
                other => return Ok(other?),
            }
        }
        match epoll.wait(events, coarse(timeout)) {
            Err(Errno::EINTR) => Ok(0),
            other => Ok(other?),
        }
    }
}

fn pwait2(epoll: &Epoll, events: &mut [EpollEvent], timeout: Option<Duration>) -> Result<usize, Errno> {
    // Longer than i64 seconds is forever.
    let timeout = timeout.and_then(|t| {
        let tv_sec = libc::time_t::try_from(t.as_secs()).ok()?;
        Some(libc::timespec { tv_sec, tv_nsec: t.subsec_nanos().into() })
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let room = libc::c_int::try_from(events.len()).unwrap_or(libc::c_int::MAX);
    // SAFETY: EpollEvent is a transparent epoll_event, of which the kernel writes `room` at most; the timeout is
    // null or lives through the call, and there is no signal mask.
    let n = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.0.as_raw_fd(),
            events.as_mut_ptr(),
            room,
            timeout,
            std::ptr::null::<libc::sigset_t>(),
            0usize,
        )
    };
    Errno::result(n).map(|n| usize::try_from(n).unwrap_or(0))
}

/// Up to the next millisecond: waking early would turn the loop for nothing.
fn coarse(timeout: Option<Duration>) -> EpollTimeout {
    let ms = timeout.map(|t| t.as_micros().div_ceil(1000));
    ms.map_or(EpollTimeout::NONE, |ms| EpollTimeout::from(u16::try_from(ms).unwrap_or(u16::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::epoll::{EpollCreateFlags, EpollFlags};
    use nix::sys::eventfd::EventFd;

    fn both() -> [Waiter; 2] {
        [Waiter::new(), Waiter { fine: false }]
    }

    #[test]
    fn an_event_ends_the_wait_and_comes_with_its_token() {
        for mut waiter in both() {
            let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
            let fd = EventFd::new().unwrap();
            epoll.add(&fd, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 7)).unwrap();
            let mut events = [EpollEvent::empty(); 4];
            assert_eq!(waiter.wait(&epoll, &mut events, Some(Duration::ZERO)).unwrap(), 0);
            fd.write(1).unwrap();
            assert_eq!(waiter.wait(&epoll, &mut events, None).unwrap(), 1);
            assert_eq!((events[0].data(), events[0].events()), (7, EpollFlags::EPOLLIN));
            // By edges: it is told once.
            assert_eq!(waiter.wait(&epoll, &mut events, Some(Duration::from_micros(50))).unwrap(), 0);
        }
    }

    #[test]
    fn a_wait_without_events_is_not_shorter_than_asked() {
        for mut waiter in both() {
            let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
            let begin = std::time::Instant::now();
            waiter.wait(&epoll, &mut [EpollEvent::empty()], Some(Duration::from_micros(1500))).unwrap();
            assert!(begin.elapsed() >= Duration::from_micros(1500));
        }
    }

    #[test]
    fn without_epoll_pwait2_milliseconds_are_rounded_up() {
        assert_eq!(coarse(None), EpollTimeout::NONE);
        assert_eq!(coarse(Some(Duration::ZERO)), EpollTimeout::ZERO);
        assert_eq!(coarse(Some(Duration::from_micros(1))), EpollTimeout::from(1u8));
        assert_eq!(coarse(Some(Duration::from_millis(2))), EpollTimeout::from(2u8));
        assert_eq!(coarse(Some(Duration::from_secs(3600))), EpollTimeout::from(u16::MAX));
    }
}
