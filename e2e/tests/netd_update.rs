//! Another netd goes on where one stops: by `netctl upgrade`, by way of the hold, and after a crash.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use podvirt_e2e::artefacts::program_dir;
use podvirt_e2e::{Backend, BackendOptions, Bed, Boot, Family, NetOptions, PEER, PORT, Vhost, peer, until};

/// Something that happens by itself soon.
const SOON: Duration = Duration::from_secs(60);
/// Connections that are open meanwhile.
const IDLE: usize = 100;

fn options(config: &str) -> BackendOptions {
    let limits = "limits: {new_flows_per_second: 100000, new_flows_burst: 10000}\n";
    let config = format!("{limits}{config}");
    BackendOptions { tcp: vec![PORT, PORT + 1], udp: vec![PORT], config, ..Default::default() }
}

fn bed(boot: Boot, config: &str) -> Bed {
    Bed::new(Backend::Netd, boot, NetOptions::default(), &options(config), &Vhost::default()).unwrap()
}

fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100].as_secs_f64() * 1000.0
}

/// Everything is carried as ever; then the guest is switched off.
fn works(mut bed: Bed) {
    bed.guest.unserve(PORT).unwrap();
    bed.works().unwrap();
    bed.guest.shut_down().unwrap();
}

/// Updates under a bulk transfer in both directions and open connections; neither the guest nor a peer may notice.
fn updates(boot: Boot, count: u64) {
    let mut bed = bed(boot, "");
    let mut idle = bed.idle(IDLE).unwrap();
    let bulk = bed.bulk().unwrap();
    bulk.moves().unwrap();
    let mut pauses = Vec::new();
    for generation in 1..=count {
        bed.update(generation).unwrap();
        pauses.push(bed.running.pause().unwrap());
        bulk.moves().unwrap();
    }
    idle.check().unwrap();
    let [sent, out] = bed.finish_bulk(bulk).unwrap();
    assert_eq!(bed.running.counter("updates").unwrap(), count);
    assert_eq!(bed.running.counter("tcp_resets").unwrap(), 0);
    assert_eq!(bed.running.counter("frontend_connections").unwrap(), 1, "the frontend never came again");
    assert_eq!(bed.running.counter("ring_errors").unwrap(), 0);
    pauses.sort();
    let report = serde_json::json!({
        "updates": count, "bytes_in": sent, "bytes_out": out, "idle_connections": IDLE,
        "pause_ms_p50": percentile(&pauses, 50), "pause_ms_p95": percentile(&pauses, 95),
        "pause_ms_max": percentile(&pauses, 100),
    });
    println!("UPDATE {report}");
    if let Some(path) = std::env::var_os("PODVIRT_UPDATE_REPORT") {
        std::fs::write(path, format!("{report:#}\n")).unwrap();
    }
    works(bed);
}

#[test]
fn neither_side_notices_an_update() {
    updates(Boot::Uml, 5);
}

#[test]
fn long_neither_side_notices_a_hundred_updates() {
    updates(Boot::Uml, 100);
}

#[test]
fn an_update_that_fails_leaves_everything_as_it_is() {
    let mut bed = bed(Boot::Uml, "");
    let mut idle = bed.idle(3).unwrap();
    std::fs::write(bed.pod.path("hangs"), "#!/bin/sh\nexec sleep 1000\n").unwrap();
    std::fs::set_permissions(bed.pod.path("hangs"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(bed.pod.path("text"), "not a program").unwrap();
    let cases: [(&[&str], &str); 6] = [
        (&["--binary", "/bin/false"], "has ended before it took over (exit status: 1)"),
        (&["--binary", "/bin/true"], "has ended before it took over (exit status: 0)"),
        (&["--binary", "/w/text"], "cannot run /w/text"),
        (&["--binary", "/w/nothing"], "cannot run /w/nothing"),
        (&["--binary", "/w/hangs", "--timeout", "2"], "did not take over within 2s"),
        // A netd that comes, sees that it cannot, and says so.
        (
            &["--binary", "/podvirt/netd", "--", "--socket", "/w/other.sock", "--control", "/w/netd.sock"],
            "has ended before it took over (exit status: 1)",
        ),
    ];
    for (i, (words, says)) in cases.iter().enumerate() {
        let mut failed = bed.running.upgrade(&bed.pod, &format!("failed-{i}"), words).unwrap();
        let status = failed.wait(SOON).unwrap();
        let log = failed.log();
        assert!(!status.success() && log.contains(says), "{words:?}: {status}\n{log}");
        assert!(log.contains("the running netd goes on"), "{log}");
        idle.check().unwrap();
    }
    assert!(bed.running.process.log().contains("this netd goes on"), "{}", bed.running.process.log());
    assert_eq!(bed.running.ask_generation(), Some(0));
    bed.update(1).unwrap();
    idle.check().unwrap();
    works(bed);
}

/// Ends netd and starts another by the same configuration; how long there was none.
fn replace(bed: &mut Bed, name: &str, generation: u64) -> Duration {
    let since = Instant::now();
    bed.running.process.signal(Signal::SIGTERM).unwrap();
    let status = bed.running.process.wait(SOON).unwrap();
    assert!(status.success(), "{status}: {}", bed.running.process.log());
    assert!(
        bed.running.process.log().contains("everything was handed over"),
        "{}",
        bed.running.process.log()
    );
    let container = bed.pod.container(name).unwrap().ro(&program_dir("netd").unwrap(), "/podvirt");
    bed.running.process = container.spawn(&["netd", "--config", "/w/netd.yaml"]).unwrap();
    until("the next netd", SOON, || Ok(bed.running.ask_generation().filter(|g| *g == generation))).unwrap();
    since.elapsed()
}

#[test]
fn a_netd_that_is_ended_leaves_everything_to_the_next_by_the_hold() {
    let mut bed = bed(Boot::Uml, "hold: {socket: /w/hold.sock}\n");
    // At the start there was no hold, which is no reason not to start.
    let hold = bed.pod.container("hold").unwrap().ro(&program_dir("netctl").unwrap(), "/podvirt");
    let mut hold = hold.spawn(&["netctl", "hold", "--keep", "60", "/w/hold.sock"]).unwrap();
    until("the hold", SOON, || Ok(bed.pod.path("hold.sock").exists().then_some(()))).unwrap();
    let mut idle = bed.idle(IDLE).unwrap();
    let bulk = bed.bulk().unwrap();
    for generation in 1..=3 {
        bulk.moves().unwrap();
        let without = replace(&mut bed, &format!("netd-{generation}"), generation);
        println!("HOLD {without:?} without a netd, the guest {:?}", bed.running.pause().unwrap());
    }
    bulk.moves().unwrap();
    idle.check().unwrap();
    bed.finish_bulk(bulk).unwrap();
    assert_eq!(bed.running.counter("tcp_resets").unwrap(), 0);
    bed.guest.unserve(PORT).unwrap();
    bed.works().unwrap();
    bed.guest.shut_down().unwrap();
    hold.signal(Signal::SIGTERM).unwrap();
    assert!(hold.wait(SOON).unwrap().success());
    assert!(hold.log().matches("the deposit was collected").count() == 3, "{}", hold.log());
}

#[test]
fn what_the_hold_drops_is_reset() {
    let mut bed = bed(Boot::Uml, "hold: {socket: /w/hold.sock}\n");
    let hold = bed.pod.container("hold").unwrap().ro(&program_dir("netctl").unwrap(), "/podvirt");
    let hold = hold.spawn(&["netctl", "hold", "--keep", "1", "/w/hold.sock"]).unwrap();
    until("the hold", SOON, || Ok(bed.pod.path("hold.sock").exists().then_some(()))).unwrap();
    bed.guest.serve(PORT, &format!("socat TCP4-LISTEN:{PORT},reuseaddr PIPE")).unwrap();
    let mut stream = bed.pod.net.connect(Family::V4.pod(PORT)).unwrap();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    bed.running.process.signal(Signal::SIGTERM).unwrap();
    assert!(bed.running.process.wait(SOON).unwrap().success());
    // No netd collects the deposit.
    // An end in order would say that the guest has closed.
    let end = stream.read(&mut [0]).map_err(|e| e.kind());
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
    // The connection ends with the deposit, which is dropped before or after the hold has said so.
    let said = || Ok(hold.log().contains("no netd has collected the deposit").then_some(()));
    until("the hold's word on the deposit", SOON, said).unwrap();
}

#[test]
fn after_a_crash_the_guest_hears_of_its_old_connections_and_opens_new_ones() {
    let mut bed = bed(Boot::Qemu, "");
    // A connection of the guest that waits for something to say.
    let address = bed.peer(Family::V4, PEER + 1);
    let listener = bed.pod.net.listen(address).unwrap();
    let says = format!("exec 3<>/tmp/says; socat -u - TCP4:{address} <&3; echo ended");
    bed.guest.sh(&format!("mkfifo /tmp/says; ({says}) >/tmp/old.log 2>&1 & true")).unwrap();
    let _stream = peer::accept(&listener).unwrap();
    bed.running.process.signal(Signal::SIGKILL).unwrap();
    bed.running.process.wait(SOON).unwrap();
    let since = Instant::now();
    bed.running = Backend::Netd.start(&bed.pod, &options("")).unwrap();
    until("the frontend", SOON, || {
        Ok((bed.running.ask("status")?["frontend_connected"] == true).then_some(()))
    })
    .unwrap();
    bed.tcp_out(Family::V4, 1000).unwrap();
    println!("CRASH new connections work after {:?}", since.elapsed());
    // The guest says something on the old connection and hears at once that there is none. What it says it may say too late: a fifo
    // that is opened for writing alone waits for a reader, which ends with the connection.
    let ended = "grep -q ended /tmp/old.log";
    let wait = format!(
        "i=0; until {ended} || [ $i = 600 ]; do i=$((i+1)); echo 1<>/tmp/says; usleep 50000; done; {ended}"
    );
    bed.guest.sh(&wait).unwrap();
    bed.guest.shut_down().unwrap();
}
