//! What an operator who watches netd sees: frames as tcpdump reads them, flows, rates, drops.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podvirt_e2e::{Backend, BackendOptions, Bed, Boot, Family, NetOptions, PORT, Vhost};

/// Every frame, and parts of them by filters that tcpdump is asked for as well; no more captures are allowed.
const FILTERS: [&str; 3] = ["", "tcp port 8001 and not arp", "udp or icmp or icmp6 and ip6"];

/// A capture that runs.
fn capture(bed: &Bed, file: &Path, arguments: &[&str]) -> Child {
    let mut all = vec!["pcap", "-B", "65536", "-w", file.to_str().unwrap()];
    all.extend(arguments);
    let mut netctl = bed.running.netctl_running(&all).unwrap();
    // The file's head is written when netd has said that it captures.
    while std::fs::metadata(file).map_or(0, |m| m.len()) == 0 {
        assert_eq!(netctl.try_wait().unwrap(), None, "netctl {all:?} ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    netctl
}

/// Ends a capture as ctrl-c does; nothing was lost.
fn end(netctl: Child) {
    kill(Pid::from_raw(netctl.id().cast_signed()), Signal::SIGINT).unwrap();
    let out = netctl.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.trim_end().ends_with(" 0 dropped"), "{said}");
}

fn tcpdump(file: &Path, arguments: &[&str]) -> String {
    let out = Command::new("tcpdump").args(["-nn", "-r"]).arg(file).args(arguments).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// How many frames of each time and length there are.
fn frames(file: &Path, filter: &str) -> BTreeMap<String, usize> {
    let mut frames = BTreeMap::new();
    for line in tcpdump(file, &["-e", "--nano", "-tt", "-q", filter]).lines() {
        // Each capture has a clock reading of its own; the text after it is the frame's.
        let frame = line.split_once(' ').unwrap().1.to_owned();
        *frames.entry(frame).or_default() += 1;
    }
    frames
}

#[test]
fn captures_are_what_tcpdump_reads_and_filters() {
    let options = BackendOptions { tcp: vec![PORT], udp: vec![PORT], ..Default::default() };
    let mut bed =
        Bed::new(Backend::Netd, Boot::Uml, NetOptions::default(), &options, &Vhost::default()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..4).map(|n| directory.path().join(format!("{n}.pcapng"))).collect();
    let mut running: Vec<Child> =
        FILTERS.iter().zip(&files).map(|(filter, file)| capture(&bed, file, &[filter])).collect();
    running.push(capture(&bed, &files[3], &["--segment"]));
    let fifth = bed.running.netctl(&["pcap", "-c", "1"]).unwrap();
    assert!(!fifth.success && fifth.errors.contains("4 captures"), "{}", fifth.errors);

    bed.works().unwrap();
    for family in Family::BOTH {
        bed.tcp_in(family.pod(PORT), PORT, 300_000).unwrap();
    }
    // The whole has begun first and ends last: what the guest says by itself meanwhile is in it.
    running.into_iter().rev().for_each(end);

    // Every checksum is right, whether the guest or netd was to write it; large frames are there, and segments where
    // they were asked for.
    for (n, file) in files.iter().enumerate() {
        let text = tcpdump(file, &["-vvv", "-e"]);
        // Not "bad" alone: a checksum of 0x2bad is as good as any.
        let wrong = ["incorrect", "[bad ", " bad "];
        let wrong: Vec<&str> = text.lines().filter(|l| wrong.iter().any(|said| l.contains(said))).collect();
        assert_eq!(wrong, Vec::<&str>::new(), "{n}");
        assert!(text.matches("(correct)").count() > 50 || n == 2, "{n}: {text}");
        let largest = |least: u32| tcpdump(file, &["-q", &format!("greater {least}")]).lines().count();
        assert_eq!(largest(1515) > 0, n < 2, "{n}");
    }
    // The filter of netd lets through what tcpdump's does, of frames that passed while all of them ran.
    for (filter, file) in FILTERS.iter().zip(&files).skip(1) {
        let (expected, mut found) = (frames(&files[0], filter), frames(file, ""));
        // netd's filter looks behind IPv6's extension headers, tcpdump's does not: a multicast report has one.
        found.retain(|frame, _| !frame.contains(" HBH "));
        // By IPv6 alone: an echo and its reply, and two datagrams each way. What else the guest's start adds may be over.
        assert!(found.len() >= 6, "{filter}: {found:?}");
        for (frame, count) in &found {
            assert!(expected.get(frame).is_some_and(|n| n >= count), "{filter}: {frame} is not in the whole");
        }
        let (all, some): (usize, usize) = (expected.values().sum(), found.values().sum());
        // The first capture has begun a little earlier and ended a little later than the others.
        assert!(all.abs_diff(some) <= 8, "{filter}: {all} by tcpdump, {some} by netd");
    }
}

#[test]
fn flows_rates_and_drops_are_told_by_what_is_asked_for() {
    let options = BackendOptions { tcp: vec![PORT], ..Default::default() };
    let mut bed =
        Bed::new(Backend::Netd, Boot::Uml, NetOptions::default(), &options, &Vhost::default()).unwrap();
    bed.guest.serve(PORT, "socat TCP4-LISTEN:8001,reuseaddr PIPE").unwrap();
    let mut stream = bed.pod.net.connect(Family::V4.pod(PORT)).unwrap();
    // The pod answers first, the guest later: an echo is the end of both handshakes.
    stream.write_all(b"open").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    let client = stream.local_addr().unwrap().to_string();
    let netctl = |arguments: &[&str]| {
        let out = bed.running.netctl(arguments).unwrap();
        assert!(out.success, "{arguments:?}: {}", out.errors);
        out.text
    };
    let has = |arguments: &[&str]| netctl(arguments).contains(&client);
    assert!(has(&["flows", "-p", "8001", "-k", "tcp", "-t", "established", "-b", "pod", "-o", "rtt"]));
    assert!(has(&["flows", "-a", "10.9.0.0/24"]));
    assert!(
        !has(&["flows", "-p", "8002"]) && !has(&["flows", "-k", "udp"]) && !has(&["flows", "-b", "guest"])
    );
    assert!(has(&["top", "-n", "1", "-i", "0.2"]));
    let top: serde_json::Value =
        serde_json::from_str(&netctl(&["--json", "top", "-n", "1", "-i", "0.2"])).unwrap();
    assert_eq!(top["flows"][0]["guest_peer"], *client);
    // The guest may not send from an address that is not its own.
    bed.guest.sh("ip addr add 10.9.0.99/24 dev eth0").unwrap();
    assert_ne!(bed.guest.run("ping -c 1 -W 1 -I 10.9.0.99 10.9.0.1").unwrap().status, 0);
    let netctl = |arguments: &[&str]| bed.running.netctl(arguments).unwrap().text;
    let drops = netctl(&["drops", "-i", "0.2", "-n", "2"]);
    assert!(
        drops.contains("spoofed ") && drops.contains("Per second") && !drops.contains("checksum "),
        "{drops}"
    );
    assert!(netctl(&["drops", "--all"]).contains("checksum "));
}
