//! Real frontends' conversations with [`serve`], and hostile ones. The sink is a double that runs rings by hand.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserHeaderFlag, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

mod bed;

use bed::{Guest, Netd, memory, regions};

use super::message::{Message, code};
use super::*;
use crate::counters::Counters;
use crate::ring::Iovs;
use crate::state::StateError;

const TIMEOUT: Duration = Duration::from_secs(20);
const BASE: u64 = 0x1_8000_0000;
const LEN: usize = 0x10_0000;
const SIZE: u16 = 8;

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Connected(bool),
    Features(u64),
    Start(usize, u16),
    Stop(usize),
    Save,
    Load(String),
    Resume,
}

fn started(features: u64) -> [Event; 4] {
    [Event::Connected(true), Event::Features(features), Event::Start(0, 0), Event::Start(1, 0)]
}

#[test]
fn rings_run_and_their_position_survives_a_stop() {
    let netd = Netd::new();
    let mut guest = Guest::new(netd.connect());
    guest.start();
    netd.expect(&started(guest.features()));
    for text in [b"one".as_slice(), b"two", b"three"] {
        guest.offer(1, Some(text));
    }
    assert_eq!(netd.sink.work(1, &[]), [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]);
    assert_eq!(guest.used_idx(1), 3);
    guest.offer(0, None);
    netd.sink.work(0, b"for you");
    assert!(guest.call[0].read().is_ok());

    assert_eq!(guest.frontend.get_vring_base(1).unwrap(), 3);
    netd.expect(&[Event::Stop(1)]);
    guest.set_ring(1, 3);
    netd.expect(&[Event::Start(1, 3)]);
    guest.offer(1, Some(b"four"));
    assert_eq!(netd.sink.work(1, &[]), [b"four".to_vec()]);
    assert_eq!(guest.used_idx(1), 4);
    netd.expect_nothing_more();
}

#[test]
fn a_transmit_ring_that_is_disabled_goes_on_to_be_emptied() {
    let netd = Netd::new();
    let mut guest = Guest::new(netd.connect());
    guest.start();
    netd.expect(&started(guest.features()));
    let disabled = || netd.sink.rings.lock().unwrap()[&1].is_disabled();
    assert!(!disabled());
    for (index, rest) in [(0, &[][..]), (1, &[Event::Start(1, 0)])] {
        guest.frontend.set_vring_enable(index, false).unwrap();
        netd.expect(&[Event::Stop(index)]);
        netd.expect(rest);
    }
    assert!(disabled());
    guest.offer(1, Some(b"too late"));
    netd.sink.work(1, &[]);
    assert_eq!(guest.used_idx(1), 1);
    guest.frontend.set_vring_enable(1, true).unwrap();
    netd.expect(&[Event::Stop(1), Event::Start(1, 1)]);
    assert!(!disabled());
    // One that was stopped and not enabled since may hold frames that are to be carried.
    guest.frontend.set_vring_enable(1, false).unwrap();
    netd.expect(&[Event::Stop(1), Event::Start(1, 1)]);
    assert_eq!(guest.frontend.get_vring_base(1).unwrap(), 1);
    netd.expect(&[Event::Stop(1)]);
    guest.set_ring(1, 1);
    netd.expect_nothing_more();
    guest.frontend.set_vring_enable(1, true).unwrap();
    netd.expect(&[Event::Start(1, 1)]);
}

#[test]
fn netd_connects_to_a_frontend_that_comes_later_and_again() {
    let netd = Netd::with(SocketMode::Client);
    for _ in 0..2 {
        let listener = UnixListener::bind(&netd.path).unwrap();
        let mut guest = Guest::new(listener.accept().unwrap().0);
        guest.start();
        netd.expect(&started(guest.features()));
        drop(guest);
        std::fs::remove_file(&netd.path).unwrap();
        netd.expect(&[Event::Stop(0), Event::Stop(1), Event::Connected(false)]);
    }
}

#[test]
fn a_frontend_that_dies_leaves_nothing_and_the_next_one_is_served() {
    let netd = Netd::new();
    for _ in 0..3 {
        let mut guest = Guest::new(netd.connect());
        guest.start();
        netd.expect(&started(guest.features()));
        drop(guest);
        netd.expect(&[Event::Stop(0), Event::Stop(1), Event::Connected(false)]);
        assert!(netd.sink.rings.lock().unwrap().is_empty());
    }
}

#[test]
fn an_enable_before_the_features_takes_effect_after_them() {
    let netd = Netd::new();
    let stream = netd.connect();
    // Not by way of `Frontend`, which refuses to send what QEMU sends.
    let raw = stream.try_clone().unwrap();
    let mut guest = Guest::new(stream);
    for index in 0..2u32 {
        let body = [index.to_ne_bytes(), 1u32.to_ne_bytes()].concat();
        let enable = Message { code: code::SET_VRING_ENABLE, flags: 1 | 8, body, fds: Vec::new() };
        super::channel::send(&raw, &enable).unwrap();
        let reply = super::channel::recv(&raw).unwrap().unwrap();
        assert_eq!((reply.code, reply.u64(0)), (code::SET_VRING_ENABLE, Some(0)));
    }
    guest.frontend.set_features(guest.features()).unwrap();
    guest.set_ring(0, 0);
    guest.set_ring(1, 0);
    netd.expect(&started(guest.features()));
}

#[test]
fn a_reset_stops_the_rings_and_a_reboot_starts_them_again() {
    let netd = Netd::new();
    let mut guest = Guest::new(netd.connect());
    guest.start();
    netd.expect(&started(guest.features()));
    guest.frontend.reset_device().unwrap();
    netd.expect(&[Event::Stop(0), Event::Stop(1)]);
    // As QEMU does it: enable, then features, then the rings.
    guest.frontend.set_vring_enable(0, true).unwrap();
    guest.frontend.set_vring_enable(1, true).unwrap();
    guest.frontend.get_vring_base(0).unwrap();
    guest.frontend.get_vring_base(1).unwrap();
    guest.frontend.set_features(guest.features()).unwrap();
    guest.set_ring(0, 0);
    guest.set_ring(1, 0);
    netd.expect(&[Event::Features(guest.features()), Event::Start(0, 0), Event::Start(1, 0)]);
}

#[test]
fn a_new_memory_table_moves_running_rings() {
    let netd = Netd::new();
    let mut guest = Guest::new(netd.connect());
    guest.start();
    netd.expect(&started(guest.features()));
    guest.offer(1, Some(b"before"));
    netd.sink.work(1, &[]);

    let more = memory(&[(BASE + LEN as u64, 0x1000)]);
    let added = regions(&more).remove(0);
    guest.frontend.add_mem_region(&added).unwrap();
    netd.expect(&[Event::Stop(0), Event::Stop(1), Event::Start(0, 0), Event::Start(1, 1)]);
    // A buffer across the old region and the new one.
    let area = Guest::area(1);
    guest.mem.write_slice(b"ab", GuestAddress(BASE + LEN as u64 - 2)).unwrap();
    more.write_slice(b"cd", GuestAddress(BASE + LEN as u64)).unwrap();
    guest.offer(1, Some(b"xxxx"));
    guest.mem.write_obj(BASE + LEN as u64 - 2, GuestAddress(area + 16)).unwrap();
    assert_eq!(netd.sink.work(1, &[]), [b"abcd".to_vec()]);

    guest.frontend.remove_mem_region(&added).unwrap();
    netd.expect(&[Event::Stop(0), Event::Stop(1), Event::Start(0, 0), Event::Start(1, 2)]);
    guest.offer(1, Some(b"after"));
    assert_eq!(netd.sink.work(1, &[]), [b"after".to_vec()]);
}

#[test]
fn new_descriptors_reach_a_running_ring() {
    let netd = Netd::new();
    let mut guest = Guest::new(netd.connect());
    guest.start();
    netd.expect(&started(guest.features()));
    guest.offer(0, None);
    netd.sink.work(0, b"1");
    let call = EventFd::new(EFD_NONBLOCK).unwrap();
    guest.frontend.set_vring_call(0, &call).unwrap();
    netd.expect(&[Event::Stop(0), Event::Start(0, 1)]);
    assert!(call.read().is_ok(), "a new call descriptor is signalled: an interrupt may have been lost");
    guest.mem.write_obj(1u16, GuestAddress(Guest::area(0) + 0x1004 + 2 * u64::from(SIZE))).unwrap();
    guest.offer(0, None);
    netd.sink.work(0, b"2");
    assert!(call.read().is_ok());
}

#[test]
fn a_ring_with_bad_addresses_harms_no_other_ring() {
    let netd = Netd::new();
    let mut guest = Guest::new(netd.connect());
    guest.frontend.set_features(guest.features()).unwrap();
    guest.set_ring(0, 0);
    // Not in memory; not aligned; beginning in memory and ending outside.
    let good = guest.config(0);
    let outside = VringConfigData { avail_ring_addr: 0x10, ..good };
    let crooked = VringConfigData { desc_table_addr: good.desc_table_addr + 8, ..good };
    let over = VringConfigData { used_ring_addr: guest.host(BASE + LEN as u64 - 4), ..good };
    assert!(guest.frontend.set_vring_addr(0, &outside).is_err());
    assert!(guest.err[0].read().is_ok());
    guest.frontend.set_vring_enable(0, true).unwrap();
    assert!(guest.frontend.set_vring_addr(0, &crooked).is_err());
    assert!(guest.err[0].read().is_ok());
    guest.frontend.set_vring_addr(0, &over).unwrap();
    assert!(guest.err[0].read().is_ok());

    guest.set_ring(1, 0);
    guest.frontend.set_vring_enable(1, true).unwrap();
    netd.expect(&[Event::Connected(true), Event::Features(guest.features()), Event::Start(1, 0)]);
    guest.frontend.set_vring_addr(0, &good).unwrap();
    netd.expect(&[Event::Start(0, 0)]);
}

#[test]
fn sizes_and_numbers_out_of_range_are_refused_without_harm() {
    let netd = Netd::new();
    let mut guest = Guest::new(netd.connect());
    assert!(guest.frontend.set_vring_num(0, 1000).is_err());
    assert!(guest.frontend.set_vring_num(0, 2048).is_err());
    assert!(guest.frontend.set_vring_num(0, 0).is_err());
    assert!(guest.frontend.set_vring_num(0, 1024).is_ok());
    let short = tempfile::tempfile().unwrap();
    short.set_len(0xfff).unwrap();
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: BASE * 2,
        memory_size: 0x1000,
        userspace_addr: 0x1000,
        mmap_offset: 0,
        mmap_handle: short.as_raw_fd(),
    };
    assert!(guest.frontend.add_mem_region(&region).is_err(), "a file that is too short");
    assert!(guest.frontend.set_mem_table(&[region]).is_err(), "a file that is too short");
    guest.start();
    netd.expect(&started(guest.features()));
}

#[test]
fn dirty_pages_are_logged_from_log_all_on_and_no_longer_without_it() {
    let netd = Netd::new();
    let mut guest = Guest::new(netd.connect());
    guest.start();
    netd.expect(&started(guest.features()));
    let log = tempfile::tempfile().unwrap();
    // One bit a page.
    let len = (BASE + LEN as u64) / 0x1000 / 8 + 1;
    log.set_len(len).unwrap();
    let dirty = |log: &File| {
        use std::os::unix::fs::FileExt;
        let mut bits = vec![0; LEN / 0x1000 / 8];
        log.read_exact_at(&mut bits, BASE / 0x1000 / 8).unwrap();
        let set = (0..LEN as u64 / 0x1000).filter(|p| bits[(p / 8) as usize] & (1 << (p % 8)) != 0);
        let set = set.collect::<Vec<_>>();
        log.write_all_at(&vec![0; bits.len()], BASE / 0x1000 / 8).unwrap();
        set
    };
    let region = VhostUserDirtyLogRegion { mmap_size: len, mmap_offset: 0, mmap_handle: log.as_raw_fd() };
    guest.frontend.set_log_base(0, Some(region)).unwrap();
    let turn = |guest: &mut Guest, on: bool| {
        let bit = if on { feature::LOG_ALL } else { 0 };
        guest.frontend.set_features(guest.features() | bit).unwrap();
        guest.offer(0, None);
        netd.sink.work(0, b"written");
    };
    turn(&mut guest, false);
    assert!(dirty(&log).is_empty());
    turn(&mut guest, true);
    assert_eq!(dirty(&log), [0x2, 0x4], "the used ring and the payload");
    // A new map inherits the log.
    guest.frontend.set_mem_table(&regions(&guest.mem)).unwrap();
    turn(&mut guest, true);
    assert_eq!(dirty(&log), [0x2, 0x4]);
    turn(&mut guest, false);
    assert!(dirty(&log).is_empty());
}

#[test]
fn a_state_is_saved_once_the_rings_have_stopped_and_a_kick_takes_it_back() {
    use VhostTransferStateDirection::SAVE;
    use VhostTransferStatePhase::STOPPED;
    let netd = Netd::new();
    let mut guest = Guest::new(netd.connect());
    guest.start();
    netd.expect(&started(guest.features()));
    let pipe = || nix::unistd::pipe().unwrap();
    assert!(guest.frontend.set_device_state_fd(SAVE, STOPPED, pipe().1).is_err(), "rings run");
    for index in 0..2 {
        guest.frontend.get_vring_base(index).unwrap();
        netd.expect(&[Event::Stop(index)]);
    }
    assert!(guest.frontend.check_device_state().is_err(), "there was no transfer");
    let (out, into) = pipe();
    assert!(guest.frontend.set_device_state_fd(SAVE, STOPPED, into).unwrap().is_none());
    let mut state = String::new();
    File::from(out).read_to_string(&mut state).unwrap();
    assert_eq!(state, "a state of some length");
    guest.frontend.check_device_state().unwrap();
    netd.expect(&[Event::Save]);
    assert!(guest.frontend.set_device_state_fd(SAVE, STOPPED, pipe().1).is_err(), "it was given away");
    // The migration has failed: the guest goes on here.
    guest.set_ring(0, 0);
    netd.expect(&[Event::Resume, Event::Start(0, 0)]);
    guest.set_ring(1, 0);
    netd.expect(&[Event::Start(1, 0)]);
    netd.expect_nothing_more();
}

#[test]
fn a_state_may_be_loaded_before_there_is_memory_and_one_that_is_not_taken_is_told() {
    use VhostTransferStateDirection::LOAD;
    use VhostTransferStatePhase::STOPPED;
    let netd = Netd::new();
    let mut frontend = Frontend::from_stream(netd.connect(), 2);
    frontend.set_owner().unwrap();
    frontend.get_features().unwrap();
    let protocol = frontend.get_protocol_features().unwrap();
    assert!(protocol.contains(VhostUserProtocolFeatures::DEVICE_STATE));
    frontend.set_protocol_features(protocol).unwrap();
    netd.expect(&[Event::Connected(true)]);
    for (text, good) in [("nonsense", false), ("fine", true)] {
        let (out, into) = nix::unistd::pipe().unwrap();
        assert!(frontend.set_device_state_fd(LOAD, STOPPED, out).unwrap().is_none());
        // Messages are answered while it is read.
        frontend.get_features().unwrap();
        File::from(into).write_all(text.as_bytes()).unwrap();
        assert_eq!(frontend.check_device_state().is_ok(), good, "{text}");
        netd.expect(&[Event::Load(text.into())]);
    }
}

#[test]
fn requests_that_were_not_offered_are_answered_and_do_no_harm() {
    let netd = Netd::new();
    let stream = netd.connect();
    let ask = |code: u32, body: &[u8]| {
        let message = Message { code, flags: 1 | 8, body: body.to_vec(), fds: Vec::new() };
        super::channel::send(&stream, &message).unwrap();
        let reply = super::channel::recv(&stream).unwrap().unwrap();
        assert_eq!(reply.code, code);
        assert!(reply.is_reply());
        reply
    };
    ask(code::GET_FEATURES, &[]);
    ask(code::SET_PROTOCOL_FEATURES, &8u64.to_ne_bytes());
    assert_eq!(ask(code::SET_OWNER, &[]).u64(0), Some(0));
    assert_eq!(ask(code::SET_OWNER, &[]).u64(0), Some(0));
    assert_eq!(ask(code::SEND_RARP, &[0; 8]).u64(0), Some(0));
    assert_eq!(ask(code::NET_SET_MTU, &[0; 8]).u64(0), Some(0));
    assert_eq!(ask(code::SET_STATUS, &15u64.to_ne_bytes()).u64(0), Some(0));
    assert_eq!(ask(code::GET_STATUS, &[]).u64(0), Some(15));
    assert_eq!(ask(code::SET_LOG_FD, &[]).u64(0), Some(0));
    assert_eq!(ask(code::GET_CONFIG, &[9; 20]).u32(4), Some(0));
    assert_eq!(ask(28, &[]).u64(0), Some(1));
    assert_eq!(ask(99, &[1, 2, 3]).u64(0), Some(1));
    assert_eq!(ask(code::GET_VRING_BASE, &[7; 8]).u32(4), Some(0));
    assert_eq!(ask(code::GET_QUEUE_NUM, &[]).u64(0), Some(1));
    assert_eq!(ask(code::GET_FEATURES, &[]).u64(0), Some(feature::OFFERED));
}

/// User Mode Linux takes the number of pairs for one of rings, which is one too few for a single pair.
#[test]
fn a_single_pair_is_not_counted() {
    for (pairs, counted) in [(1, 0), (2, 1)] {
        let netd = Netd::with_pairs(SocketMode::Server, pairs);
        let stream = netd.connect();
        let ask = |code: u32| {
            let message = Message { code, flags: 1, body: Vec::new(), fds: Vec::new() };
            super::channel::send(&stream, &message).unwrap();
            super::channel::recv(&stream).unwrap().unwrap().u64(0).unwrap()
        };
        ask(code::GET_FEATURES);
        let offered = ask(code::GET_PROTOCOL_FEATURES);
        // Bit 0 is MQ.
        assert_eq!(offered & 1, counted, "{pairs} pairs");
    }
}

#[test]
fn queue_pairs_are_told_and_their_rings_are_the_only_ones() {
    for pairs in [2u64, 8] {
        let netd = Netd::with_pairs(SocketMode::Server, pairs as usize);
        let stream = netd.connect();
        let ask = |code: u32, body: &[u8]| {
            let message = Message { code, flags: 1 | 8, body: body.to_vec(), fds: Vec::new() };
            super::channel::send(&stream, &message).unwrap();
            super::channel::recv(&stream).unwrap().unwrap()
        };
        let offered = feature::OFFERED | feature::MQ;
        assert_eq!(ask(code::GET_FEATURES, &[]).u64(0), Some(offered));
        ask(code::SET_PROTOCOL_FEATURES, &9u64.to_ne_bytes());
        assert_eq!(ask(code::GET_QUEUE_NUM, &[]).u64(0), Some(pairs));
        let features = (offered & !feature::LOG_ALL).to_ne_bytes();
        assert_eq!(ask(code::SET_FEATURES, &features).u64(0), Some(0));
        let two = |a: u32, b: u32| [a.to_ne_bytes(), b.to_ne_bytes()].concat();
        let last = 2 * pairs as u32 - 1;
        for (index, answer) in [(0, 0), (last, 0), (last + 1, 1), (255, 1), (u32::MAX, 1)] {
            for code in [code::SET_VRING_NUM, code::SET_VRING_BASE] {
                assert_eq!(ask(code, &two(index, 64)).u64(0), Some(answer), "{code} {index}");
            }
            for on in [1, 0] {
                assert_eq!(ask(code::SET_VRING_ENABLE, &two(index, on)).u64(0), Some(answer), "{index}");
            }
            // No descriptor comes along (bit 8).
            let call = u64::from(index) | 0x100;
            assert_eq!(ask(code::SET_VRING_CALL, &call.to_ne_bytes()).u64(0), Some(answer), "{index}");
            assert_eq!(ask(code::GET_VRING_BASE, &two(index, 0)).u32(0), Some(index));
        }
        assert_eq!(ask(code::GET_FEATURES, &[]).u64(0), Some(offered), "still there");
    }
}

#[test]
fn hostile_frontends_do_not_stop_the_server() {
    let netd = Netd::new();
    let request = |code: u32, body: &[u8]| Message::request(code, body.to_vec()).encode();
    let mut stories: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0xff; 12],
        vec![0xff; 5000],
        vec![0; 12],
        vec![1, 0, 0, 0, 1],
        request(code::SET_FEATURES, &[]),
        request(code::SET_FEATURES, &[0xff; 8]),
        request(code::SET_FEATURES, &[0xff; 7]),
        request(code::SET_MEM_TABLE, &[0xff; 200]),
        request(code::SET_MEM_TABLE, &[]),
        request(code::SET_VRING_ADDR, &[0; 40]),
        request(code::SET_VRING_KICK, &[0; 8]),
        request(code::SET_LOG_BASE, &[0xff; 16]),
        request(code::GET_VRING_BASE, &[0; 3]),
        request(code::SET_BACKEND_REQ_FD, &[]),
        request(code::REM_MEM_REG, &[0; 40]),
        request(code::SET_FEATURES, &[0; 8])[..15].to_vec(),
    ];
    // Too long a body, and a reply that answers nothing.
    let mut oversize = request(code::SET_OWNER, &[]);
    oversize[8..12].copy_from_slice(&0x1001u32.to_ne_bytes());
    stories.push(oversize);
    stories.push(Message::reply(1, vec![0; 8]).encode());
    for story in &stories {
        let mut stream = netd.connect();
        // netd may hang up in the middle.
        let _ = stream.write_all(story);
        drop(stream);
    }
    // Descriptors where none belong, more than fit, and of the wrong kind.
    for (code, count, body) in [
        (code::SET_OWNER, 1, 0),
        (code::GET_FEATURES, 3, 0),
        (code::SET_VRING_CALL, 2, 8),
        (code::SET_MEM_TABLE, 32, 8),
    ] {
        let stream = netd.connect();
        let mut message = Message::request(code, vec![0; body]);
        message.fds = (0..count).map(|_| File::open("/dev/null").unwrap().into()).collect();
        super::channel::send(&stream, &message).unwrap();
    }
    let mut guest = Guest::new(netd.connect());
    guest.start();
    // Each of the hostile ones came and went, and none started a ring.
    for _ in 0..stories.len() + 4 {
        loop {
            match netd.events.recv_timeout(TIMEOUT).unwrap() {
                Event::Connected(false) => break,
                Event::Connected(true) | Event::Features(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    netd.expect(&started(guest.features()));
}

#[test]
fn the_socket_is_for_owner_and_group_and_replaces_a_stale_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    let bound = listen::Source::new(
        &ServerConfig { socket: path.clone(), mode: SocketMode::Server, queue_pairs: 1 },
        None,
        &Mover::default(),
    )
    .unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o660);
    drop(bound);
    assert!(!path.exists());
}

#[test]
fn a_socket_that_cannot_be_made_is_an_error_that_names_the_place() {
    let directory = tempfile::tempdir().unwrap();
    let attempt = |path: &Path| {
        let config = ServerConfig { socket: path.to_owned(), mode: SocketMode::Server, queue_pairs: 1 };
        listen::Source::new(&config, None, &Mover::default()).map(|_| ()).unwrap_err()
    };
    let missing = directory.path().join("missing");
    let error = attempt(&missing.join("s"));
    assert!(matches!(&error, ServeError::Directory { path } if *path == missing));
    assert!(error.to_string().contains(missing.to_str().unwrap()));

    let file = directory.path().join("file");
    File::create(&file).unwrap();
    assert!(matches!(attempt(&file), ServeError::NotASocket { path } if path == file));

    let used = directory.path().join("used");
    let _listener = UnixListener::bind(&used).unwrap();
    assert!(matches!(attempt(&used), ServeError::InUse { path } if path == used));
}
