use super::*;

fn file(len: u64) -> OwnedFd {
    let file = tempfile::tempfile().unwrap();
    file.set_len(len).unwrap();
    file.into()
}

fn table(count: u32, body: usize, file_len: u64) -> Message {
    let mut message = Message::request(code::SET_MEM_TABLE, vec![0; body]);
    message.body[..4].copy_from_slice(&count.to_ne_bytes());
    // guest 0x1804f000, length 0x4000, user 0x60000000, offset 0x1000
    for (at, field) in [(8, 0x1804_f000u64), (16, 0x4000), (24, 0x6000_0000), (32, 0x1000)] {
        message.body[at..at + 8].copy_from_slice(&field.to_ne_bytes());
    }
    message.fds.push(file(file_len));
    message
}

fn ring_addr(desc: u64, used: u64, avail: u64) -> Message {
    let mut body = vec![1, 0, 0, 0, 0, 0, 0, 0];
    for field in [desc, used, avail, 0] {
        body.extend(field.to_ne_bytes());
    }
    Message::request(code::SET_VRING_ADDR, body)
}

#[test]
fn a_memory_table_is_cut_to_its_regions() {
    let actions = Filter::new(1).handle(table(1, 72, 0x5000));
    assert!(matches!(&actions[..], [Action::Forward(m)] if m.body.len() == 40 && m.fds.len() == 1));
}

#[test]
fn a_memory_table_with_a_short_file_or_missing_regions_is_refused() {
    assert!(Filter::new(1).handle(table(1, 40, 0x4fff)).is_empty());
    assert!(Filter::new(1).handle(table(2, 40, 0x5000)).is_empty());
    assert!(Filter::new(1).handle(table(0, 40, 0x5000)).is_empty());
    assert!(Filter::new(1).handle(table(u32::MAX, 40, 0x5000)).is_empty());
}

#[test]
fn ring_addresses_must_be_in_memory_and_aligned_in_the_guest() {
    let mut filter = Filter::new(1);
    filter.handle(table(1, 40, 0x5000));
    let user = 0x6000_0000u64;
    let mut outcome =
        |desc, used, avail| filter.handle(ring_addr(user.wrapping_add(desc), user + used, user + avail));
    assert!(matches!(outcome(0, 0x2000, 0x1000)[..], [Action::Forward(_)]));
    for bad in [(8, 0x2000, 0x1000), (0, 0x2002, 0x1000), (0, 0x2000, 0x1001), (0, 0x4000, 0x1000)] {
        assert!(matches!(outcome(bad.0, bad.1, bad.2)[..], [Action::BadRing(1)]), "{bad:?}");
    }
    assert!(matches!(outcome(u64::MAX, 0x2000, 0x1000)[..], [Action::BadRing(1)]));
}

#[test]
fn ring_descriptors_that_may_block_are_refused() {
    let mut filter = Filter::new(1);
    let with = |code, fd: OwnedFd| Message { fds: vec![fd], ..Message::request(code, vec![0; 8]) };
    for code in [code::SET_VRING_KICK, code::SET_VRING_CALL, code::SET_VRING_ERR] {
        let event = nix::sys::eventfd::EventFd::new().unwrap().into();
        let pipe = nix::unistd::pipe().unwrap().1;
        let socket = std::os::unix::net::UnixStream::pair().unwrap().0.into();
        for fd in [event, pipe, socket] {
            assert!(matches!(filter.handle(with(code, fd))[..], [Action::Forward(_)]), "{code}");
        }
        for fd in [file(8), File::open("/dev/zero").unwrap().into(), File::open("/").unwrap().into()] {
            assert!(filter.handle(with(code, fd)).is_empty(), "{code}");
        }
    }
}

#[test]
fn nothing_is_acknowledged_that_the_daemon_does_not_acknowledge() {
    let mut filter = Filter::new(1);
    let mut mtu = Message::request(code::NET_SET_MTU, vec![0; 8]);
    mtu.flags |= 1 << 3;
    let agree = || Message::request(code::SET_PROTOCOL_FEATURES, REPLY_ACK.to_ne_bytes().to_vec());
    filter.handle(agree());
    assert!(!filter.expects_reply(&mtu), "acknowledged before the frontend asked for features");
    filter.handle(Message::request(code::GET_FEATURES, Vec::new()));
    assert!(filter.expects_reply(&mtu));
    assert!(matches!(&filter.handle(mtu)[..], [Action::Reply(_)]));
}

#[test]
fn an_early_enable_is_delivered_once_after_the_features() {
    let mut filter = Filter::new(1);
    let enable = |index: u32, on: u32| {
        Message::request(code::SET_VRING_ENABLE, [index.to_ne_bytes(), on.to_ne_bytes()].concat())
    };
    let features = |bits: u64| Message::request(code::SET_FEATURES, bits.to_ne_bytes().to_vec());
    assert!(filter.handle(enable(0, 1)).is_empty());
    assert!(filter.handle(enable(1, 1)).is_empty());
    assert!(filter.handle(enable(1, 0)).is_empty());
    let codes = |actions: Vec<Action>| {
        actions
            .into_iter()
            .map(|a| match a {
                Action::Forward(m) => (m.code, m.u32(0), m.u32(4)),
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>()
    };
    let both = codes(filter.handle(features(feature::PROTOCOL_FEATURES)));
    assert_eq!(both[1..], [(18, Some(0), Some(1)), (18, Some(1), Some(0))]);
    assert_eq!(codes(filter.handle(features(feature::PROTOCOL_FEATURES))).len(), 1);
    assert_eq!(codes(filter.handle(enable(0, 1))).len(), 1);

    filter.handle(Message::request(code::RESET_DEVICE, Vec::new()));
    assert!(filter.handle(enable(0, 1)).is_empty(), "features must be negotiated again");
    assert_eq!(codes(filter.handle(features(0))).len(), 1, "without protocol features all rings are enabled");
}
