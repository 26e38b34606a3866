//! Behaviour of the ring, one property a test.

use std::os::fd::AsFd;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use vm_memory::{Bytes, GuestAddress};

use super::test_driver::*;
use super::*;

fn pop(ring: &mut Ring) -> (Result<Option<Popped>, PopError>, Iovs, Iovs) {
    let (mut readable, mut writable) = (Iovs::new(), Iovs::new());
    let result = ring.pop(&mut readable, &mut writable);
    (result, readable, writable)
}

fn refusal(ring: &mut Ring) -> ChainError {
    let (mut readable, mut writable) = (Iovs::new(), Iovs::new());
    let before = Iovs::from_owned(vec![1, 2, 3]);
    readable.append(&before, 0, 3);
    match ring.pop(&mut readable, &mut writable) {
        Err(PopError::Chain { reason, .. }) => {
            assert_eq!((readable.len(), readable.bytes()), (1, 3), "something stayed appended");
            assert!(writable.is_empty());
            reason
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_chain_of_three_gives_its_slices_in_order() {
    let mut driver = Driver::new(8, 0, false);
    driver.desc(3, DATA, 12, NEXT, 5);
    driver.desc(5, DATA + 0x100, 100, NEXT, 0);
    driver.desc(0, DATA + 0x1000, 2000, WRITE, 7);
    driver.mem.write_slice(b"hello", GuestAddress(DATA + 0x100)).unwrap();
    driver.offer(3);
    let mut ring = driver.ring();
    let (popped, readable, writable) = pop(&mut ring);
    let expected = Popped { head: 3, readable: 112, writable: 2000, readable_slices: 2, writable_slices: 1 };
    assert_eq!(popped.unwrap(), Some(expected));
    let mut text = [0; 5];
    assert_eq!(readable.read(1, 0, &mut text), 5);
    assert_eq!(&text, b"hello");
    assert_eq!(writable.write(0, 10, b"answer"), 6);
    let mut back = [0; 6];
    driver.mem.read_slice(&mut back, GuestAddress(DATA + 0x1000 + 10)).unwrap();
    assert_eq!(&back, b"answer");
    assert!(pop(&mut ring).0.unwrap().is_none());
}

#[test]
fn slices_outlive_the_ring_and_its_map() {
    let mut driver = Driver::new(8, 0, false);
    driver.desc(0, DATA, 4, 0, 0);
    driver.mem.write_slice(b"kept", GuestAddress(DATA)).unwrap();
    driver.offer(0);
    let (_, readable, _) = pop(&mut driver.ring());
    drop(driver);
    let mut text = [0; 4];
    readable.read(0, 0, &mut text);
    assert_eq!(&text, b"kept");
}

#[test]
fn an_indirect_table_may_follow_direct_buffers_and_need_not_be_aligned() {
    let mut driver = Driver::new(8, 0, false);
    let table = DATA + 0x1001;
    driver.desc(0, DATA, 12, NEXT, 1);
    driver.desc(1, table, 32, INDIRECT | WRITE, 0);
    driver.desc_at(table, 0, DATA + 0x100, 20, NEXT, 1);
    driver.desc_at(table, 1, DATA + 0x200, 30, WRITE, 0);
    driver.offer(0);
    let (popped, ..) = pop(&mut driver.ring());
    let popped = popped.unwrap().unwrap();
    assert_eq!((popped.readable, popped.writable), (32, 30));
}

#[test]
fn a_buffer_across_adjacent_regions_becomes_two_slices() {
    let mut driver = Driver::new(8, 0, false);
    driver.desc(0, 0x3_0000 - 10, 25, 0, 0);
    driver.mem.write_slice(b"0123456789abcdefghijklmno", GuestAddress(0x3_0000 - 10)).unwrap();
    driver.offer(0);
    let (popped, readable, _) = pop(&mut driver.ring());
    assert_eq!(popped.unwrap().unwrap().readable_slices, 2);
    let mut text = [0; 25];
    assert_eq!(readable.read(0, 0, &mut text), 25);
    assert_eq!(&text, b"0123456789abcdefghijklmno");
}

#[test]
fn bad_chains_are_refused_whole_and_the_ring_goes_on() {
    let outside = |addr, len| ChainError::Unmapped { addr, len };
    let table = DATA + 0x1000;
    type Build = fn(&Driver, u64);
    let cases: Vec<(Build, ChainError)> = vec![
        (|d, _| d.desc(0, 0x4_0000, 1, 0, 0), outside(0x4_0000, 1)),
        (|d, _| d.desc(0, 0x4_0000 - 1, 2, 0, 0), outside(0x4_0000 - 1, 2)),
        (|d, _| d.desc(0, 0, 1, 0, 0), outside(0, 1)),
        (|d, _| d.desc(0, u64::MAX - 3, 16, WRITE, 0), outside(u64::MAX - 3, 16)),
        (|d, _| d.desc(0, DATA, u32::MAX, 0, 0), outside(DATA, u32::MAX)),
        (|d, _| d.desc(0, DATA, 0, 0, 0), ChainError::Empty),
        (|d, _| d.desc(0, DATA, 1, NEXT, 8), ChainError::Next(8)),
        (|d, _| d.desc(0, DATA, 1, NEXT, 0), ChainError::Loop),
        (
            |d, _| {
                d.desc(0, DATA, 1, WRITE | NEXT, 1);
                d.desc(1, DATA, 1, 0, 0);
            },
            ChainError::Order,
        ),
        (|d, t| d.desc(0, t, 0, INDIRECT, 0), ChainError::IndirectLength(0)),
        (|d, t| d.desc(0, t, 24, INDIRECT, 0), ChainError::IndirectLength(24)),
        (|d, t| d.desc(0, t, 16, INDIRECT | NEXT, 1), ChainError::IndirectNext),
        (|d, t| d.desc(0, t, 16 * 1025, INDIRECT, 0), ChainError::TooLong),
        (|d, _| d.desc(0, 0x3_0000 - 16, 32, INDIRECT, 0), outside(0x3_0000 - 16, 32)),
        (
            |d, t| {
                d.desc(0, t, 16, INDIRECT, 0);
                d.desc_at(t, 0, t, 16, INDIRECT, 0);
            },
            ChainError::IndirectNested,
        ),
        (
            |d, t| {
                d.desc(0, t, 16, INDIRECT, 0);
                d.desc_at(t, 0, DATA, 1, NEXT, 1);
            },
            ChainError::Next(1),
        ),
    ];
    for (build, expected) in cases {
        let mut driver = Driver::new(8, 0, false);
        let mut ring = driver.ring();
        build(&driver, table);
        driver.offer(0);
        assert_eq!(refusal(&mut ring), expected);
        ring.push_used(0, 0);
        driver.desc(2, DATA, 7, 0, 0);
        driver.offer(2);
        assert_eq!(pop(&mut ring).0.unwrap().unwrap().readable, 7, "after {expected}");
    }
}

#[test]
fn a_broken_available_ring_breaks_the_ring() {
    let mut driver = Driver::new(8, 0, false);
    let mut ring = driver.ring();
    driver.put_u16(AVAIL + 2, 9);
    let (result, ..) = pop(&mut ring);
    assert!(matches!(result, Err(PopError::Ring(RingError::AvailJump { from: 0, to: 9, size: 8 }))));

    driver.put_u16(AVAIL + 2, 0);
    driver.offer(8);
    assert!(matches!(pop(&mut ring).0, Err(PopError::Ring(RingError::Head(8)))));
    ring.break_down();
    assert!(pop(&mut ring).0.unwrap().is_none());
    assert!(!ring.request_kicks(), "a broken ring has nothing to wait for");
}

#[test]
fn a_driver_that_offers_more_than_the_ring_holds_breaks_the_ring() {
    let mut driver = Driver::new(2, 0, false);
    let mut ring = driver.ring();
    driver.desc(0, DATA, 1, 0, 0);
    for _ in 0..2 {
        driver.offer(0);
        assert!(pop(&mut ring).0.unwrap().is_some());
    }
    driver.offer(0);
    assert!(matches!(pop(&mut ring).0, Err(PopError::Ring(RingError::Overrun(2)))));
}

#[test]
fn a_ring_must_be_aligned_and_inside_one_region() {
    let driver = Driver::new(8, 0, true);
    let make = |change: fn(&mut RingLayout)| {
        let mut layout = driver.layout;
        change(&mut layout);
        Ring::new(layout, driver.map(), eventfd(), None, None).map(|_| ())
    };
    assert!(make(|_| ()).is_ok());
    assert!(matches!(make(|l| l.size = 0), Err(RingError::Size(0))));
    assert!(matches!(make(|l| l.size = 12), Err(RingError::Size(12))));
    assert!(matches!(make(|l| l.desc += 8), Err(RingError::Misaligned { area: Area::Descriptors, .. })));
    assert!(matches!(make(|l| l.avail += 1), Err(RingError::Misaligned { area: Area::Available, .. })));
    assert!(matches!(make(|l| l.used += 2), Err(RingError::Misaligned { area: Area::Used, .. })));
    assert!(matches!(make(|l| l.desc = 0x3_0000 - 64), Err(RingError::Unmapped { .. })));
    assert!(matches!(make(|l| l.used = 0x4_0000 - 64), Err(RingError::Unmapped { .. })));
    assert!(make(|l| l.used = 0x4_0000 - 72).is_ok());
    assert!(matches!(make(|l| l.avail = u64::MAX - 1), Err(RingError::Unmapped { .. })));
}

#[test]
fn nothing_is_visible_before_publish_and_everything_after() {
    let mut driver = Driver::new(4, 0xfffe, false);
    let mut ring = driver.ring();
    for i in 0..4 {
        driver.desc(i, DATA, 10, WRITE, 0);
        driver.offer(i);
    }
    for i in 0..4u32 {
        let (popped, ..) = pop(&mut ring);
        ring.push_used(popped.unwrap().unwrap().head, i + 1);
    }
    assert_eq!(driver.get_u16(USED + 2), 0xfffe);
    assert!(ring.publish());
    assert_eq!(driver.get_u16(USED + 2), 2);
    for i in 0..4u16 {
        assert_eq!(driver.used(0xfffe_u16.wrapping_add(i)), (u32::from(i), u32::from(i) + 1));
    }
    assert!(!ring.publish(), "nothing new: nothing to tell");
}

#[test]
fn no_interrupt_is_obeyed() {
    let mut driver = Driver::new(4, 0, false);
    let mut ring = driver.ring();
    driver.desc(0, DATA, 10, 0, 0);
    for flag in [1, 0] {
        driver.offer(0);
        driver.put_u16(AVAIL, flag);
        pop(&mut ring).0.unwrap();
        ring.push_used(0, 0);
        assert_eq!(ring.publish(), flag == 0);
    }
}

#[test]
fn event_index_asks_for_one_interrupt_when_it_is_passed() {
    let mut driver = Driver::new(4, 0xffff, true);
    let mut ring = driver.ring();
    driver.desc(0, DATA, 10, 0, 0);
    // Interrupt me when you have used entry 0, the second one from 0xffff.
    driver.set_used_event(0);
    let told: Vec<bool> = (0..3)
        .map(|_| {
            driver.offer(0);
            pop(&mut ring).0.unwrap();
            ring.push_used(0, 0);
            ring.publish()
        })
        .collect();
    assert_eq!(told, [false, true, false]);
}

#[test]
fn an_interrupt_that_was_put_off_is_wanted_until_the_driver_has_seen_what_it_is_for() {
    let mut driver = Driver::new(4, 0xfffe, true);
    let mut ring = driver.ring();
    driver.desc(0, DATA, 10, 0, 0);
    driver.set_used_event(0xffff);
    let mut complete = |driver: &mut Driver| {
        driver.offer(0);
        pop(&mut ring).0.unwrap();
        ring.push_used(0, 0);
        ring.publish()
    };
    assert_eq!([complete(&mut driver), complete(&mut driver), complete(&mut driver)], [false, true, false]);
    assert!(ring.wants_interrupt(2));
    assert!(!ring.wants_interrupt(1), "what was completed last is not what it waits for");
    // It has seen all three by itself, and waits for the next one.
    driver.set_used_event(1);
    assert!(!ring.wants_interrupt(2));
    assert!(!ring.wants_interrupt(usize::MAX));

    let driver = Driver::new(4, 0, false);
    let ring = driver.ring();
    for (flag, wanted) in [(0, true), (1, false)] {
        driver.put_u16(AVAIL, flag);
        assert_eq!(ring.wants_interrupt(1), wanted);
    }
}

#[test]
fn kicks_are_asked_for_by_event_index_or_by_flag() {
    let mut driver = Driver::new(4, 7, true);
    let mut ring = driver.ring();
    ring.suppress_kicks();
    assert!(!ring.request_kicks());
    assert_eq!(driver.avail_event(), 7);
    driver.offer(0);
    assert!(ring.request_kicks(), "a chain is there already");

    let driver = Driver::new(4, 7, false);
    let mut ring = driver.ring();
    ring.suppress_kicks();
    assert_eq!(driver.get_u16(USED), 1);
    assert!(!ring.request_kicks());
    assert_eq!(driver.get_u16(USED), 0);
}

#[test]
fn chains_that_were_not_enough_are_no_news() {
    for event_idx in [true, false] {
        let mut driver = Driver::new(4, 0xfffe, event_idx);
        let mut ring = driver.ring();
        driver.desc(0, DATA, 10, 0, 0);
        driver.offer(0);
        driver.offer(0);
        for _ in 0..2 {
            assert!(pop(&mut ring).0.unwrap().is_some());
        }
        assert!(pop(&mut ring).0.unwrap().is_none());
        ring.unpop(2);
        assert!(ring.request_kicks(), "there are chains");
        assert!(!ring.request_more(), "but they are known");
        if event_idx {
            assert_eq!(driver.avail_event(), 0, "behind the two");
        }
        driver.offer(0);
        assert!(ring.request_more());
        assert!(!ring.request_more(), "told once");
        for _ in 0..3 {
            assert!(pop(&mut ring).0.unwrap().is_some());
        }
        ring.unpop(3);
        driver.put_u16(AVAIL + 2, 100);
        assert!(ring.request_more());
        assert!(matches!(pop(&mut ring).0, Err(PopError::Ring(RingError::AvailJump { to: 100, .. }))));
        ring.break_down();
        assert!(!ring.request_more());
    }
}

#[test]
fn given_back_chains_come_again() {
    let mut driver = Driver::new(4, 0xffff, false);
    let mut ring = driver.ring();
    for i in 0..3 {
        driver.desc(i, DATA, u32::from(i) + 1, 0, 0);
        driver.offer(i);
    }
    for _ in 0..3 {
        pop(&mut ring).0.unwrap().unwrap();
    }
    ring.unpop(2);
    assert_eq!(ring.next_avail(), 0);
    assert_eq!(pop(&mut ring).0.unwrap().unwrap().head, 1);
    // More than is in flight cannot be given back.
    ring.unpop(100);
    assert_eq!(ring.next_avail(), 0xffff);
}

#[test]
fn a_full_call_descriptor_does_not_block_and_a_dead_one_does_no_harm() {
    let driver = Driver::new(4, 0, false);
    let (call, peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let ring = Ring::new(driver.layout, driver.map(), eventfd(), Some(call.into()), None).unwrap();
    for _ in 0..100_000 {
        ring.signal();
    }
    drop(peer);
    ring.signal();

    let call = EventFd::from_flags(EfdFlags::empty()).unwrap();
    let dup = call.as_fd().try_clone_to_owned().unwrap();
    let ring = Ring::new(driver.layout, driver.map(), eventfd(), Some(dup), None).unwrap();
    call.write(u64::MAX - 1).unwrap();
    ring.signal();
    assert_eq!(call.read().unwrap(), u64::MAX - 1);
}

#[test]
fn a_frontend_that_makes_its_descriptors_block_does_not_stop_the_device() {
    let driver = Driver::new(4, 0, false);
    let (call, err) = (EventFd::new().unwrap(), EventFd::new().unwrap());
    let dup = |fd: &EventFd| Some(fd.as_fd().try_clone_to_owned().unwrap());
    let mut ring = Ring::new(driver.layout, driver.map(), eventfd(), dup(&call), dup(&err)).unwrap();
    for fd in [&call, &err] {
        fd.write(u64::MAX - 1).unwrap();
        // The flag is the open file's, which the frontend shares.
        fcntl(fd, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    }
    ring.signal();
    ring.break_down();
    assert_eq!((call.read().unwrap(), err.read().unwrap()), (u64::MAX - 1, u64::MAX - 1));
    ring.signal();
    assert_eq!(call.read().unwrap(), 1);
}

#[test]
fn written_pages_are_logged_only_while_a_log_is_set() {
    let mut driver = Driver::new(4, 0, true);
    let map = driver.map();
    let mut ring = Ring::new(driver.layout, Arc::clone(&map), eventfd(), None, None).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let dirty = || {
        use std::os::unix::fs::FileExt;
        let mut bits = [0u8; 64];
        file.read_exact_at(&mut bits, 0).unwrap();
        (0..512u64).filter(|p| bits[(p / 8) as usize] & (1 << (p % 8)) != 0).collect::<Vec<_>>()
    };
    let mut serve = |driver: &mut Driver| {
        driver.desc(0, DATA + 0xff0, 0x1020, WRITE, 0);
        driver.offer(0);
        let (_, _, writable) = pop(&mut ring);
        writable.write(0, 0, &[1; 0x20]);
        ring.mark_written(&writable, 0, 0x20);
        ring.push_used(0, 0x20);
        ring.publish();
    };
    serve(&mut driver);
    assert!(dirty().is_empty());
    map.set_log(Some(DirtyLog::new(file.try_clone().unwrap(), 0, 4096).unwrap()));
    serve(&mut driver);
    assert_eq!(dirty(), [USED >> 12, DATA >> 12, (DATA >> 12) + 1]);
    assert!(DirtyLog::new(file.try_clone().unwrap(), 4096, 1).is_err(), "beyond the end of the file");
}
