//! A guest's state as it comes from another machine: the stream, the sockets that it describes, and a worker that goes on
//! with what has come of it.
//!
//! Whatever the bytes are there is a state or an error that can be told. Sockets are made in a network namespace whose
//! only interface is its loopback ([`super::nowhere`]), connections put together by TCP_REPAIR with a helper of this
//! process' own, or without one. The worker then has its turns with frames of the guest, and what it says must be what a
//! guest would take, as in [`super::frames`].

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::{setsockopt, sockopt};
use podvirt_proto::repair::{Command, recv_request, send_reply};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::Bytes;
use super::frames::whole;
use super::link::{check_frame, link};
use super::state::records;
use crate::device::{Arrivals, read_arrivals};
use crate::repair::Helper;
use crate::wire::VNET_LEN;
use crate::worker::fuzz::Bench;

/// Tags of records, and one that is not known.
const TAGS: [u16; 13] = [0x01, 0x02, 0x10, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x40, 0x50, 0x50, 0x99];
const TURNS: usize = 8;

thread_local! {
    static HELPER: RefCell<Option<Helper>> = const { RefCell::new(None) };
}

/// Runs one input: its first byte says how the rest becomes a stream, and whether there is a helper. The calling thread
/// must be [`super::nowhere`].
pub fn arrival(data: &[u8]) {
    let mut b = Bytes::new(data);
    let shape = b.u8();
    let stream = if shape & 1 == 0 { b.rest().to_vec() } else { records(&mut b, &TAGS) };
    HELPER.with(|helper| {
        let mut helper = helper.borrow_mut();
        let helper = (shape & 2 == 0).then(|| &*helper.get_or_insert_with(helper_of_this_process));
        match read_arrivals(&stream, helper) {
            Ok(arrivals) => goes_on(arrivals, &mut b, shape),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

fn goes_on(arrivals: Arrivals, b: &mut Bytes<'_>, shape: u8) {
    let Arrivals { workers, fds, connections } = arrivals;
    let Some(first) = workers.into_iter().next() else { return };
    // What waited for the guest is given to it as it is: it comes from the guest's own netd, or from a process that
    // could have been that netd.
    let honest = first.waiting.is_empty();
    let mut bench = Bench::new(link(shape & 4 != 0), crate::vhost::feature::OFFERED, 0);
    if let Err(error) = bench.load(first, fds, connections) {
        assert!(!error.to_string().is_empty());
    }
    for _ in 0..TURNS {
        let len = usize::from(b.u8());
        let frame = [&[0; VNET_LEN][..], b.take(len)].concat();
        bench.offer(&frame, &[]);
        bench.turn();
        for frame in bench.received() {
            if honest {
                check_frame(&whole(&frame));
            }
        }
        if b.is_empty() {
            break;
        }
    }
    bench.end();
}

/// What the node's helper does, on a thread that ends with the connection.
fn helper_of_this_process() -> Helper {
    let (near, far) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    std::thread::spawn(move || {
        while let Ok(Some(request)) = recv_request(far.as_fd()) {
            let done = |s: &OwnedFd| match request.command {
                Command::Repair => setsockopt(s, sockopt::TcpRepair, &1),
                Command::Release => setsockopt(s, sockopt::TcpRepair, &0),
                _ => Ok(()),
            };
            let results: Vec<i32> =
                request.sockets.iter().map(|(s, _)| done(s).err().map_or(0, |e| e as i32)).collect();
            if send_reply(far.as_fd(), request.command, &results).is_err() {
                return;
            }
        }
    });
    Helper::connected(near).unwrap()
}
