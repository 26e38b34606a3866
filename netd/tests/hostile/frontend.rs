//! Frontends.

use std::io::Write;
use std::net::Shutdown;

use super::bed::{Netd, works};
use super::message::{
    CODES, GET_FEATURES, GET_VRING_BASE, Message, SET_FEATURES, SET_MEM_TABLE, SET_OWNER,
    SET_PROTOCOL_FEATURES, SET_VRING_ADDR, SET_VRING_BASE, SET_VRING_ENABLE, SET_VRING_ERR, SET_VRING_KICK,
    SET_VRING_NUM, drain, honest, send, wrong,
};
use super::pod::in_pod;

const NEGOTIATION: [u32; 4] = [SET_OWNER, GET_FEATURES, SET_PROTOCOL_FEATURES, SET_FEATURES];
const MEMORY: [u32; 1] = [SET_MEM_TABLE];
const RING: [u32; 7] = [
    SET_VRING_NUM,
    SET_VRING_BASE,
    SET_VRING_ADDR,
    SET_VRING_ERR,
    SET_VRING_KICK + 1,
    SET_VRING_KICK,
    SET_VRING_ENABLE,
];

/// What a frontend has said before, by name.
fn moments() -> Vec<(&'static str, Vec<u32>)> {
    let running = [&NEGOTIATION[..], &MEMORY, &RING].concat();
    vec![
        ("at once", vec![]),
        ("without memory", [&NEGOTIATION[..], &RING].concat()),
        ("with a ring that runs", running.clone()),
        ("with a ring that was stopped", [&running[..], &[GET_VRING_BASE]].concat()),
    ]
}

/// One connection: what was said before, the message, then the end, or something honest and then the end.
fn attempt(netd: &Netd, before: &[u32], what: &str, message: &Message) {
    let stream = netd.dial();
    let sent = before.iter().try_for_each(|code| honest(*code).send(&stream));
    // netd may have hung up already; whether it does is its own decision.
    let sent = sent.and_then(|()| message.send(&stream)).and_then(|()| honest(GET_FEATURES).send(&stream));
    if let Err(e) = sent {
        assert!(matches!(e.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)), "{what}: {e}");
    }
    let _ = stream.shutdown(Shutdown::Write);
    drain(&stream);
}

/// All that can be wrong with messages of these codes, at every moment.
fn trouble(netd: &mut Netd, codes: impl Iterator<Item = u32>) {
    for code in codes {
        for (moment, before) in moments() {
            for (what, message) in wrong(code) {
                attempt(netd, &before, &format!("{code} {moment}: {what}"), &message);
            }
        }
        println!("message {code}");
        drop(netd.plug());
    }
}

/// Does something twice; the second time must leave nothing more than the first.
fn leaves_nothing(netd: &mut Netd, mut work: impl FnMut(&mut Netd)) {
    work(netd);
    let double = netd.plug();
    let (descriptors, memory) = (netd.descriptors(), netd.memory());
    drop(double);
    work(netd);
    let _double = netd.plug();
    assert_eq!(netd.descriptors(), descriptors, "descriptors were left");
    let grown = netd.memory().saturating_sub(memory);
    assert!(grown <= 1024, "{grown} KiB more than before");
}

#[test]
fn messages_that_are_wrong_in_any_way_do_no_harm() {
    in_pod(|| {
        let mut neighbour = Netd::start();
        let mut guest = neighbour.plug();
        let mut netd = Netd::start();
        leaves_nothing(&mut netd, |netd| trouble(netd, 0..CODES));
        works(&mut guest);
    });
}

#[test]
fn codes_of_no_protocol_are_refused() {
    in_pod(|| {
        let mut netd = Netd::start();
        trouble(&mut netd, [CODES, 1000, 0x8000_0000, u32::MAX].into_iter());
    });
}

#[test]
fn a_frontend_that_stalls_in_a_message_makes_room_for_the_next() {
    in_pod(|| {
        let mut netd = Netd::start();
        let before = {
            let _double = netd.plug();
            netd.descriptors()
        };
        for bytes in [&[1u8, 0, 0][..], &[2, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 1]] {
            let stream = netd.dial();
            send(&stream, bytes, &honest(SET_MEM_TABLE).fds).unwrap();
            // It stays, and says no more. netd gives it up after a while.
            let _double = netd.plug();
            assert_eq!(netd.descriptors(), before);
            drop(stream);
        }
    });
}

#[test]
fn a_frontend_that_comes_and_goes_leaves_nothing() {
    in_pod(|| {
        let mut netd = Netd::start();
        leaves_nothing(&mut netd, |netd| {
            for n in 0..5000 {
                let mut stream = netd.dial();
                if n % 5 == 0 {
                    let _ = stream.write_all(&[n as u8; 12]);
                }
            }
        });
    });
}

#[test]
fn memory_that_is_replaced_while_rings_run_carries_on() {
    in_pod(|| {
        let mut netd = Netd::start();
        let mut double = netd.plug();
        let region = [double.mem().region().unwrap()];
        let (descriptors, memory) = (netd.descriptors(), netd.memory());
        for _ in 0..300 {
            use vhost::VhostBackend;
            double.frontend().set_mem_table(&region).unwrap();
            works(&mut double);
        }
        assert_eq!(netd.descriptors(), descriptors);
        let grown = netd.memory().saturating_sub(memory);
        assert!(grown <= 1024, "{grown} KiB more than before");
    });
}

#[test]
fn rings_that_are_set_up_anew_without_an_end_carry_on() {
    in_pod(|| {
        use vhost::VhostBackend;
        let mut netd = Netd::start();
        let mut double = netd.plug();
        for _ in 0..100 {
            // Enabled again, described again, its size told again, while it runs.
            let size = double.ring(0).size();
            double.frontend().set_vring_num(0, size).unwrap();
            double.frontend().set_vring_err(1, &vmm_sys_util::eventfd::EventFd::new(0).unwrap()).unwrap();
            works(&mut double);
        }
    });
}
