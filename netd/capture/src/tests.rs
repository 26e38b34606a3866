use std::time::Duration;

use netd_wire::MacAddr;

use crate::pcapng::{Interface, Statistics, Writer};
use crate::{Direction, Packet};

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Reads a block's options.
fn options(mut b: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut found = Vec::new();
    loop {
        let code = u16::from_le_bytes([b[0], b[1]]);
        let len = usize::from(u16::from_le_bytes([b[2], b[3]]));
        if code == 0 {
            assert_eq!((len, b.len()), (0, 4));
            return found;
        }
        found.push((code, b[4..4 + len].to_vec()));
        b = &b[4 + len.next_multiple_of(4)..];
    }
}

#[test]
fn a_capture_is_written_as_the_format_wants_it() {
    let at = Duration::new(1_700_000_000, 123_456_789);
    let interface = Interface {
        name: "vm1".into(),
        description: "guest".into(),
        mac: Some(MacAddr(A)),
        snaplen: 96,
        filter: "tcp".into(),
    };
    let mut w = Writer::new(Vec::new(), &interface, at).unwrap();
    let packet =
        Packet { at, direction: Direction::Inbound, len: 1500, gso_size: 9, data: vec![1, 2, 3, 4, 5] };
    w.packet(&packet).unwrap();
    w.packet(&Packet { direction: Direction::Outbound, gso_size: 0, ..packet }).unwrap();
    let file = w.finish(Statistics { matched: 5, dropped: 3 }, at).unwrap();

    let mut blocks = Vec::new();
    let mut rest = file.as_slice();
    let word = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
    while !rest.is_empty() {
        let len = word(rest, 4) as usize;
        assert_eq!((len % 4, word(rest, len - 4) as usize), (0, len));
        blocks.push((word(rest, 0), rest[8..len - 4].to_vec()));
        rest = &rest[len..];
    }
    assert_eq!(blocks.iter().map(|b| b.0).collect::<Vec<_>>(), [0x0a0d_0d0a, 1, 6, 6, 5]);
    assert_eq!(word(&blocks[0].1, 0), 0x1a2b_3c4d);
    assert_eq!((word(&blocks[1].1, 0), word(&blocks[1].1, 4)), (1, 96));
    let described = options(&blocks[1].1[8..]);
    for expected in [(2, b"vm1".to_vec()), (6, A.to_vec()), (9, vec![9]), (11, b"\0tcp".to_vec())] {
        assert!(described.contains(&expected), "{described:?}");
    }
    let first = &blocks[2].1;
    let ns = u64::from(word(first, 4)) << 32 | u64::from(word(first, 8));
    assert_eq!(u128::from(ns), at.as_nanos());
    assert_eq!((word(first, 12), word(first, 16), &first[20..25]), (5, 1500, &[1, 2, 3, 4, 5][..]));
    let said = options(&first[28..]);
    assert_eq!(said[0], (2, vec![1, 0, 0, 0]));
    assert!(String::from_utf8_lossy(&said[1].1).contains("9 payload bytes"));
    assert_eq!(options(&blocks[3].1[28..]), [(2, vec![2, 0, 0, 0])]);
    let statistics = options(&blocks[4].1[12..]);
    assert!(statistics.contains(&(5, 3u64.to_le_bytes().to_vec())));
    assert!(statistics.contains(&(8, 2u64.to_le_bytes().to_vec())));
}
