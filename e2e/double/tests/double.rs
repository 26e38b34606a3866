//! The double against netd's own rings: what goes out comes back.

mod reflect;

use std::time::Duration;

use frontend_double::{Descriptor, Double, HEADER, INDIRECT, NEXT, Options, RX, TX, WRITE, feature};
use reflect::Reflector;

const TIMEOUT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(20);

fn frame(len: usize, seed: usize) -> Vec<u8> {
    let mut frame = vec![0; HEADER];
    frame.extend((0..len).map(|i| (i * 7 + seed) as u8));
    frame
}

/// The frame, but for the number of buffers.
fn body(frame: &[u8]) -> &[u8] {
    &frame[HEADER..]
}

fn same(_: &mut [u8]) {}

#[test]
fn frames_come_back_whole_whatever_was_negotiated() {
    let reflector = Reflector::new(same);
    for features in [
        feature::ALL,
        feature::ALL & !feature::EVENT_IDX,
        feature::ALL & !feature::MRG_RXBUF,
        feature::PROTOCOL_FEATURES | feature::MRG_RXBUF,
    ] {
        for queue_size in [32, 1024] {
            let options = Options { features, queue_size, ..Options::default() };
            let mut double = Double::connect(reflector.path(), &options).unwrap();
            // The ring's index wraps around in the small ring.
            for round in 0..60 {
                for len in [1, 60, 1514, 4085, 9000, 65550] {
                    let sent = frame(len, round);
                    let indirect = round % 2 == 0 && features & feature::INDIRECT_DESC != 0;
                    let cuts = [[].as_slice(), &[HEADER], &[5, 100, 300]][round % 3];
                    assert!(double.send_parts(&sent, cuts, indirect).unwrap());
                    let got = double.recv(TIMEOUT).unwrap().expect("nothing came back");
                    assert!(body(&got) == body(&sent), "{features:#x} {queue_size} {len}");
                }
            }
            assert!(double.recv(Duration::ZERO).unwrap().is_none());
        }
    }
}

#[test]
fn of_a_frame_its_first_bytes_are_enough() {
    let reflector = Reflector::new(same);
    let mut double = Double::connect(reflector.path(), &Options::default()).unwrap();
    // More frames than the ring has buffers: each is offered again.
    for (round, len) in [1, 80, 9000, 65550].into_iter().cycle().take(200).enumerate() {
        let sent = frame(len, round);
        assert!(double.send(&sent).unwrap());
        let mut head = [0; 100];
        assert_eq!(double.recv_head(&mut head, TIMEOUT).unwrap(), Some(sent.len()));
        let known = sent.len().min(head.len());
        assert!(body(&head[..known]) == body(&sent[..known]), "{len}");
    }
}

#[test]
fn many_frames_in_flight_keep_their_order() {
    let reflector = Reflector::new(same);
    let mut double = Double::connect(reflector.path(), &Options::default()).unwrap();
    let (mut sent, mut got) = (0, 0);
    while got < 20_000 {
        while sent < 20_000 && double.queue(&frame(100, sent), &[], false).unwrap() {
            sent += 1;
        }
        double.flush();
        let back = double.recv(TIMEOUT).unwrap().expect("nothing came back");
        assert!(body(&back) == body(&frame(100, got)), "frame {got}");
        got += 1;
        while let Some(back) = double.recv(Duration::ZERO).unwrap() {
            assert!(body(&back) == body(&frame(100, got)), "frame {got}");
            got += 1;
        }
    }
    assert_eq!(got, sent);
}

#[test]
fn a_hostile_chain_is_completed_empty_and_the_ring_goes_on() {
    let reflector = Reflector::new(same);
    let mut double = Double::connect(reflector.path(), &Options::default()).unwrap();
    let start = double.mem().start();
    let chains: [Descriptor; 5] = [
        Descriptor { addr: 0x10, len: 100, flags: 0, next: 0 },
        Descriptor { addr: u64::MAX, len: 100, flags: 0, next: 0 },
        Descriptor { addr: start, len: 100, flags: NEXT, next: 0xffff },
        Descriptor { addr: start, len: 17, flags: INDIRECT, next: 0 },
        Descriptor { addr: start, len: 0, flags: WRITE, next: 0 },
    ];
    for chain in chains {
        let ring = double.ring(TX);
        let index = ring.reserve().unwrap();
        ring.write_descriptor(index, chain);
        ring.offer_raw(index);
        ring.publish();
        let sent = frame(200, 3);
        double.send(&sent).unwrap();
        let got = double.recv(TIMEOUT).unwrap().unwrap();
        assert!(body(&got) == body(&sent), "{chain:?}");
        let used = double.ring(TX).next_used().unwrap();
        assert_eq!((used.head, used.len, used.token), (u32::from(index), 0, None));
        assert!(double.ring(TX).next_used().unwrap().token.is_some());
    }
}

#[test]
fn a_hostile_index_breaks_its_ring_and_is_reported() {
    let reflector = Reflector::new(same);
    let mut double = Double::connect(reflector.path(), &Options::default()).unwrap();
    double.ring(TX).set_avail_idx(1000);
    double.ring(TX).kick_now();
    assert!(double.recv(SHORT).unwrap().is_none());
    let deadline = std::time::Instant::now() + TIMEOUT;
    while !double.ring(TX).broken() {
        assert!(std::time::Instant::now() < deadline, "not reported");
        std::thread::yield_now();
    }
    assert!(!double.ring(RX).broken());
}

#[test]
fn positions_are_given_back_and_a_crash_is_survived() {
    let reflector = Reflector::new(same);
    let options = Options { features: feature::ALL & !feature::MRG_RXBUF, ..Options::default() };
    let mut double = Double::connect(reflector.path(), &options).unwrap();
    for i in 0..5 {
        double.send(&frame(64, i)).unwrap();
        double.recv(TIMEOUT).unwrap().unwrap();
    }
    assert_eq!(double.disconnect().unwrap(), [5, 5]);

    let mut double = Double::connect(reflector.path(), &options).unwrap();
    let second = Reflector::new(same);
    for i in 0..5 {
        double.send(&frame(64, i)).unwrap();
        double.recv(TIMEOUT).unwrap().unwrap();
    }
    // The first backend dies, the second goes on with the rings.
    drop(reflector);
    double.reconnect(std::os::unix::net::UnixStream::connect(second.path()).unwrap()).unwrap();
    for i in 0..600 {
        let sent = frame(64, i);
        double.send(&sent).unwrap();
        let got = double.recv(TIMEOUT).unwrap().unwrap();
        assert!(body(&got) == body(&sent), "frame {i}");
    }
}

#[test]
fn the_end_of_the_backend_is_noticed() {
    let reflector = Reflector::new(same);
    let mut double = Double::connect(reflector.path(), &Options::default()).unwrap();
    drop(reflector);
    assert!(double.recv(TIMEOUT).is_err());
}
