//! The stream: golden bytes, growth in both directions, and hostile input.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::codec::{DecodeError, Field, Reader, fields};
use crate::counters::Counters;
use crate::port::Proto;
use crate::tcp::{Config, Conn, Segment, Seq};
use crate::time::Time;
use crate::udp::{SendOptions, Session};
use crate::wire::{MacAddr, TcpFlags};

/// What the first version wrote for [`sample`], in hexadecimal. It stands as it is for ever: every later version reads
/// it. A version that appends fields adds a file of its own.
const V1: &str = include_str!("golden/v1.hex");
/// The same of the second: the helper's listener was appended to the listeners.
const V2: &str = include_str!("golden/v2.hex");
/// The same of the third: what the guest has configured was appended to the workers.
const V3: &str = include_str!("golden/v3.hex");
/// The same of the fourth: what a broken socket still has for the guest, and the interval of keepalives were appended to the
/// connections, the guest's TTL and DSCP to their flows.
const V4: &str = include_str!("golden/v4.hex");

/// What a guest opens a connection with.
pub(crate) fn syn() -> Segment {
    Segment {
        seq: Seq(1000),
        ack: Seq(0),
        flags: TcpFlags::SYN,
        window: 64_240,
        len: 0,
        mss: Some(1460),
        window_scale: Some(7),
    }
}

fn sample() -> Snapshot {
    let conn = Conn::open_by_guest(Config::default(), 77, &syn(), Time::from_millis(5));
    let mut session = Session::udp(&crate::limits::Timeouts::default(), Time::from_millis(6));
    session.on_guest(Time::from_millis(7));
    let guest = "10.9.0.2:4242".parse().unwrap();
    let worker = Worker {
        state: WorkerState {
            now: Time::from_millis(100),
            started: Time::from_millis(1),
            guest_mac: Some(MacAddr([0x52, 0x54, 0, 1, 2, 3])),
            seen_mac: None,
            station_seen: true,
            seen: vec!["10.9.0.2".parse().unwrap(), "fd00:9::2".parse().unwrap()],
            fragment_id: 9,
            homes: Vec::new(),
        },
        tcp: vec![TcpFlow {
            key: (guest, "192.0.2.1:80".parse().unwrap()),
            pod_peer: "192.0.2.1:80".parse().unwrap(),
            from_guest: true,
            socket: Some(Fd(3)),
            kernel_offset: true,
            peer_closed: false,
            near: true,
            acked_base: 1,
            bytes_to_pod: 2,
            bytes_to_guest: 3,
            used: Time::from_millis(90),
            conn,
            ttl: 0,
            dscp: 0,
        }],
        udp: vec![UdpFlow {
            key: (guest, "[2001:db8::1]:53".parse().unwrap()),
            pod_peer: "[2001:db8::1]:53".parse().unwrap(),
            local: None,
            from_guest: true,
            socket: Some(Fd(4)),
            listener: None,
            options: Some(SendOptions { ttl: 64, dont_fragment: true, class: 0 }),
            bytes_to_pod: 4,
            bytes_to_guest: 5,
            session,
        }],
        echo: vec![EchoFlow {
            guest,
            socket: Fd(5),
            ttl: Some(64),
            bytes_to_pod: 6,
            bytes_to_guest: 7,
            session: Session::echo(&crate::limits::Timeouts::default(), Time::from_millis(8)),
        }],
        ports: vec![ForwardedPort {
            place: 1,
            proto: Proto::Tcp,
            pod: 8080,
            guest: 80,
            socket: None,
            error: Some("address already in use".into()),
        }],
        outlets: vec![],
        waiting: vec![vec![1, 2, 3]],
    };
    Snapshot {
        origin: Origin { version: "0.1.0".into(), generation: 2, updates: 2, frozen_at: 123_456 },
        listeners: Listeners {
            vhost_user: Some(("/run/n.sock".into(), Fd(0))),
            control: None,
            metrics: Some(("[::]:9090".parse().unwrap(), Fd(1))),
            repair: None,
        },
        frontend: Some(Frontend {
            connection: Fd(2),
            owned: true,
            protocol_features: Some(9),
            features: Some(1 << 32),
            status: 15,
            regions: vec![Region { guest: 0, len: 4096, user: 0x7000_0000, offset: 0, file: Fd(6) }],
            log: Some(Log { offset: 0, len: 128, file: Fd(7) }),
            channel: Some(Fd(8)),
            rings: vec![
                VhostRing {
                    size: Some(256),
                    addresses: Some(Addresses { flags: 0, descriptors: 1, used: 2, available: 3, log: 4 }),
                    position: 41_504,
                    enabled: Some(true),
                    kick: Some(Fd(9)),
                    call: Some(Fd(10)),
                    err: None,
                },
                VhostRing::default(),
            ],
        }),
        steering: Some(Steering {
            listener: Some(("/run/n.ports".into(), Fd(11))),
            tcp: Some(Fd(12)),
            udp: None,
            held: vec![Fd(13), Fd(14), Fd(15)],
            peer: None,
            listening: false,
        }),
        workers: vec![worker, Worker::default()],
        // To the stream names are just words; the second is none that a netd has ever written.
        counters: vec![("wakeups".into(), 17), ("drop:malformed".into(), 1)],
    }
}

fn hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n";
    bytes.chunks(48).map(line).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

#[test]
fn former_versions_are_read_as_they_were_written() {
    for golden in [V1, V2, V3, V4] {
        let read = decode(&unhex(golden)).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", sample()));
    }
    // As long as nothing was appended it is also what is written.
    assert_eq!(hex(&sample().encode()), V4, "appended a field? add golden/v5.hex and keep these");
}

#[test]
fn every_counter_goes_on_where_it_stood() {
    let old = Counters::distinct();
    let stream = Snapshot { counters: old.counted(), ..sample() }.encode();
    let new = Counters::default();
    new.restore(&decode(&stream).unwrap().counters);
    assert_eq!(new.all(), old.all());
}

#[test]
fn a_stream_that_is_cut_off_anywhere_is_refused() {
    let whole = sample().encode();
    for len in 0..whole.len() {
        assert!(decode(&whole[..len]).is_err(), "{len} of {}", whole.len());
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Old {
    a: u32,
}
fields!(Old { a });

#[derive(Debug, PartialEq, Eq)]
struct New {
    a: u32,
    b: Option<u16>,
    c: Vec<u8>,
    d: Duration,
}
fields!(New { a, b, c, d });

#[test]
fn an_older_version_ignores_new_fields_and_a_newer_one_gives_missing_ones_their_empty_value() {
    let mut bytes = Vec::new();
    New { a: 7, b: Some(8), c: vec![9], d: Duration::from_secs(1) }.put(&mut bytes);
    Old { a: 10 }.put(&mut bytes);
    let mut r = Reader::new(&bytes);
    assert_eq!(Old::take(&mut r).unwrap(), Old { a: 7 });
    let grown = New { a: 10, b: None, c: vec![], d: Duration::ZERO };
    assert_eq!(New::take(&mut r).unwrap(), grown, "what follows is not affected");
}

#[test]
fn outlets_are_read_and_an_older_version_steps_over_them() {
    let outlets = vec![Outlet { place: (1 << 18) + 53, socket: Fd(16) }];
    let mut snapshot = sample();
    snapshot.workers[0].outlets.clone_from(&outlets);
    let stream = snapshot.encode();
    assert_eq!(decode(&stream).unwrap().workers[0].outlets, outlets);
    // Tag, and no flag that it must be understood.
    let record = [0x26, 0, 0, 0];
    assert_eq!(stream.windows(4).filter(|w| *w == record).count(), 1);
}

#[test]
fn an_unknown_record_is_stepped_over_unless_it_is_mandatory() {
    let mut stream = sample().encode();
    // Before the end's record: tag, flags, length.
    stream.truncate(stream.len() - 8);
    let with = |flags: u16| {
        let mut stream = stream.clone();
        for part in [0x0999u16.to_le_bytes(), flags.to_le_bytes()] {
            stream.extend(part);
        }
        stream.extend([3, 0, 0, 0, 1, 2, 3]);
        stream.extend([0xff, 0x7f, 1, 0, 0, 0, 0, 0]);
        decode(&stream)
    };
    assert_eq!(with(0).unwrap().workers.len(), 2);
    assert_eq!(with(1).unwrap_err(), DecodeError::Unknown(0x0999));
}

#[test]
fn records_have_their_places() {
    let magic = crate::codec::MAGIC;
    let record = |tag: u16, body: &[u8]| {
        [&tag.to_le_bytes()[..], &[1, 0], &(body.len() as u32).to_le_bytes(), body].concat()
    };
    let stream = |records: &[Vec<u8>]| [&magic[..], &records.concat()].concat();
    assert_eq!(decode(&stream(&[record(0x7fff, b"")])).unwrap_err(), DecodeError::Misplaced(0x7fff));
    let origin = record(1, b"\0\0\0\0");
    assert!(decode(&stream(&[origin.clone(), record(0x7fff, b"")])).is_ok());
    assert_eq!(decode(&stream(&[origin.clone(), origin])).unwrap_err(), DecodeError::Misplaced(1));
    assert_eq!(decode(&stream(&[record(0x24, b"")])).unwrap_err(), DecodeError::Misplaced(0x24));
    assert_eq!(decode(b"podvirt-netd\0\x02\0\0").unwrap_err(), DecodeError::Magic);
}

#[test]
fn a_count_beyond_the_bytes_allocates_nothing() {
    let bytes = [0xff, 0xff, 0xff, 0xff, 0, 0];
    assert_eq!(Vec::<u8>::take(&mut Reader::new(&bytes)).unwrap_err(), DecodeError::Truncated(4));
}

impl TcpFlow {
    fn conn_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.conn.put(&mut bytes);
        bytes
    }
}

proptest! {
    #[test]
    fn a_connection_with_absurd_values_is_brought_into_bounds(
        damage in prop::collection::vec((4usize..1000, any::<u8>()), 1..20),
    ) {
        let mut bytes = sample().workers[0].tcp[0].conn_bytes();
        for (at, to) in damage {
            let at = 4 + at % (bytes.len() - 4);
            bytes[at] = to;
        }
        if let Ok(mut conn) = Conn::take(&mut Reader::new(&bytes)) {
            conn.adopt(Config::default());
            conn.on_timer(Time::from_millis(1));
            while conn.command().is_some() {}
            for _ in 0..100 {
                conn.poll(Time::from_millis(2));
            }
            let _ = (conn.budget(Time::from_millis(3)), conn.poll_at());
        }
    }

    #[test]
    fn whatever_the_bytes_are_there_is_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode(&bytes);
        let _ = decode(&[&crate::codec::MAGIC[..], &bytes].concat());
    }

    #[test]
    fn a_damaged_stream_is_an_error_or_another_state(at in 0usize..4000, to in any::<u8>()) {
        let mut stream = sample().encode();
        let at = at % stream.len();
        stream[at] = to;
        if let Ok(snapshot) = decode(&stream) {
            prop_assert!(snapshot.encode().len() < 2 * stream.len());
        }
    }
}
