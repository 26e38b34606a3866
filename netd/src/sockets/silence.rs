//! Listeners that leave peers without an answer.
//!
//! A filter of classic BPF takes no privilege. The kernel runs a listener's filter for each segment that it would give to it, a
//! SYN included. A SYN that the filter drops is one that was lost on the way: the peer's kernel sends it again.

use std::io;

use socket2::{SockFilter, Socket};

/// BPF_LD | BPF_B | BPF_ABS, BPF_JMP | BPF_JSET | BPF_K and BPF_RET | BPF_K (linux/filter.h).
const LOAD_BYTE: u16 = 0x30;
const JUMP_IF_SET: u16 = 0x45;
const RETURN: u16 = 0x6;
/// Where a TCP header has its flags, and SYN among them (RFC 9293 3.1). A socket's filter sees a segment from its header on.
const FLAGS_BYTE: u32 = 13;
const SYN_BIT: u32 = 2;

/// Drops each SYN and takes everything else. Handshakes that were answered before can end. What is accepted has the
/// listener's filter, which does it no harm: a filter that dropped everything would make deaf a connection that the
/// kernel makes in the same moment.
const DROP_SYN: [SockFilter; 4] = [
    SockFilter::new(LOAD_BYTE, 0, 0, FLAGS_BYTE),
    SockFilter::new(JUMP_IF_SET, 0, 1, SYN_BIT),
    SockFilter::new(RETURN, 0, 0, 0),
    SockFilter::new(RETURN, 0, 0, u32::MAX),
];

/// Has a listener leave every SYN without an answer, whatever filter it had.
///
/// # Errors
/// As setsockopt(2); SO_ATTACH_FILTER wants some kernel memory.
pub(crate) fn drop_syns(listener: &Socket) -> io::Result<()> {
    listener.attach_filter(&DROP_SYN)
}

/// Has a listener answer SYNs, whatever filter it had.
///
/// # Errors
/// As setsockopt(2).
pub(crate) fn answer_syns(listener: &Socket) -> io::Result<()> {
    match listener.detach_filter() {
        // It had none.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        detached => detached,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::sockets::{PeekOffset, accept, listen_tcp};

    /// Shorter than the pause before a SYN is sent again.
    const SHORT: Duration = Duration::from_millis(200);
    /// Longer than some such pauses.
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_silent_listener_neither_accepts_nor_refuses_and_has_the_client_later() {
        let listener = listen_tcp(0, PeekOffset::NONE, true).unwrap();
        let port = listener.local_addr().unwrap().as_socket().unwrap().port();
        for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            let at = SocketAddr::new(ip, port);
            drop_syns(&listener).unwrap();
            let e = TcpStream::connect_timeout(&at, SHORT).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::TimedOut, "{at}: {e}");
            assert!(accept(&listener).is_err());
            let waiting = std::thread::spawn(move || TcpStream::connect_timeout(&at, LONG));
            std::thread::sleep(SHORT);
            answer_syns(&listener).unwrap();
            let mut client = waiting.join().unwrap().unwrap();
            // It is there already for the client, and in the listener's queue.
            let (mut accepted, _) = accept(&listener).unwrap();
            client.write_all(b"x").unwrap();
            accepted.set_nonblocking(false).unwrap();
            accepted.set_read_timeout(Some(LONG)).unwrap();
            assert_eq!(accepted.read(&mut [0; 4]).unwrap(), 1);
        }
        answer_syns(&listener).unwrap();
    }

    #[test]
    fn what_was_accepted_before_and_what_is_accepted_with_the_filter_is_heard() {
        let listener = listen_tcp(0, PeekOffset::NONE, false).unwrap();
        let port = listener.local_addr().unwrap().as_socket().unwrap().port();
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let (mut accepted, _) = accept(&listener).unwrap();
        drop_syns(&listener).unwrap();
        // As a connection that is made while the filter comes: it has the filter, too.
        drop_syns(&accepted).unwrap();
        client.write_all(b"x").unwrap();
        accepted.set_nonblocking(false).unwrap();
        accepted.set_read_timeout(Some(LONG)).unwrap();
        assert_eq!(accepted.read(&mut [0; 4]).unwrap(), 1);
    }
}
