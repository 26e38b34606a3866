//! A guest that has receive buffers, but not enough for the next frame: netd sleeps until it offers more.

use std::net::Ipv4Addr;
use std::time::Duration;

use etherparse::PacketBuilder;
use frontend_double::{HEADER, Options};
use netd::counters::Reason;

use crate::bed::raw::{CLIENT_V4, GUEST_V4};
use crate::bed::{GUEST_MAC, MAC, Pod, Raw, Setup, TIMEOUT, content, eventually, with_pod};

/// Data of an echo request that makes a frame of nearly the link's MTU.
const DATA: usize = 8900;
/// Requests whose answers no turn may be spent on.
const ASKED: u64 = 300;

fn echo(raw: &mut Raw, to: Ipv4Addr, sequence: u16, len: usize) {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0)
        .ipv4(GUEST_V4.octets(), to.octets(), 64)
        .icmpv4_echo_request(1, sequence)
        .write(&mut frame, &content(sequence.into(), len))
        .unwrap();
    raw.send(&frame);
}

fn expect_reply(raw: &mut Raw, sequence: u16) {
    loop {
        let frame = raw.double.recv(TIMEOUT).unwrap().expect("no echo reply came");
        // Not what netd announces of itself.
        if frame.get(HEADER + 23) == Some(&1) {
            assert!(frame[HEADER + 42..] == content(sequence.into(), DATA));
            return;
        }
    }
}

/// Turns of the worker while it is asked [`ASKED`] times, which takes one each. A worker that does not sleep has
/// several between two questions.
fn turns(pod: &Pod) -> u64 {
    let before = pod.netd.counters().wakeups.get();
    for _ in 0..ASKED {
        pod.netd.status();
    }
    pod.netd.counters().wakeups.get() - before
}

/// A second answer finds what the first has left of 16 buffers of `rx_buffer` bytes.
fn second_answer_waits(rx_buffer: u32, event_idx: bool) {
    let setup = Setup { mtu: 9000, ..Setup::default() };
    with_pod(setup, move |pod| {
        let mut features = frontend_double::feature::ALL;
        if !event_idx {
            features &= !frontend_double::feature::EVENT_IDX;
        }
        let options = Options { queue_size: 16, rx_buffer: Some(rx_buffer), features, ..Options::default() };
        let mut raw = Raw::plug_as(&pod.netd, &options);
        let counters = pod.netd.counters();
        echo(&mut raw, CLIENT_V4, 1, DATA);
        expect_reply(&mut raw, 1);
        echo(&mut raw, CLIENT_V4, 2, DATA);
        // Only the taking of the first reply gives its buffers back, so the second reply is whole.
        expect_reply(&mut raw, 2);
        let empty = counters.guest_rx_empty.get();
        for sequence in [3, 4] {
            echo(&mut raw, CLIENT_V4, sequence, DATA);
        }
        eventually("a reply that does not fit", || (counters.guest_rx_empty.get() > empty).then_some(()));
        let turns = turns(pod);
        assert!(turns < 2 * ASKED, "{turns} turns for {ASKED} questions");
        expect_reply(&mut raw, 3);
        expect_reply(&mut raw, 4);
        raw.ping();
    });
}

#[test]
fn a_frame_that_waits_for_more_buffers_costs_no_turns() {
    second_answer_waits(1024, true);
    second_answer_waits(1024, false);
}

#[test]
fn answers_that_are_not_fetched_for_want_of_buffers_cost_no_turns() {
    second_answer_waits(640, true);
    second_answer_waits(640, false);
}

#[test]
fn a_frame_that_fits_into_no_ring_is_dropped() {
    with_pod(Setup { mtu: 9000, ..Setup::default() }, |pod| {
        let options = Options { queue_size: 16, rx_buffer: Some(512), ..Options::default() };
        let mut raw = Raw::plug_as(&pod.netd, &options);
        echo(&mut raw, CLIENT_V4, 1, DATA);
        eventually("the drop", || {
            // What netd announces of itself must not keep a buffer.
            raw.double.recv(Duration::ZERO).unwrap();
            (pod.netd.dropped(Reason::TooLarge) > 0).then_some(())
        });
        raw.ping();
    });
}
