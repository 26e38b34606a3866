//! netd in a pod that it cannot work in: it says why and ends.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::time::Duration;

use podvirt_e2e::{Backend, BackendOptions, NetOptions, Pod, artefacts::program_dir};

/// netd's end, its status and what it said.
fn fails(pod: &Pod, arguments: &[&str]) -> String {
    let container = pod.container("netd").unwrap().ro(&program_dir("netd").unwrap(), "/podvirt");
    let mut process = container.spawn(&[&["netd"], arguments].concat()).unwrap();
    let status = process.wait(Duration::from_secs(60)).unwrap();
    assert_eq!(status.code(), Some(1), "{}", process.log());
    process.log()
}

#[test]
fn what_cannot_work_is_told_and_ends_netd() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let text = fails(&pod, &["--socket", "/w/missing/vu.sock"]);
    assert!(text.contains("directory /w/missing of the vhost-user socket does not exist"), "{text}");
    let text = fails(&pod, &["--socket", "/w/vu.sock", "--control", "/w/missing/netd.sock"]);
    assert!(text.contains("control.socket: /w/missing/netd.sock") && text.contains("No such file"), "{text}");
    let text = fails(&pod, &["--socket", "/etc/vu.sock"]);
    assert!(text.contains("/etc/vu.sock") && text.contains("Read-only file system"), "{text}");
    let text = fails(&pod, &["--socket", "/w/vu.sock", "--interface", "net1"]);
    assert!(text.contains("net1"), "{text}");
    let text = fails(&pod, &["--config", "/w/none.yaml"]);
    assert!(text.contains("/w/none.yaml") && text.contains("No such file"), "{text}");

    std::fs::write(pod.path("bad.yaml"), "vhost_user: {socket: /w/vu.sock, modus: server}\n").unwrap();
    let text = fails(&pod, &["--config", "/w/bad.yaml"]);
    assert!(text.contains("modus") && text.contains("socket") && text.contains("mode"), "{text}");
    std::fs::write(pod.path("bad.yaml"), "vhost_user: {mode: sever}\nmtu: 40\nports: {tcp: \"80,80\"}\n")
        .unwrap();
    let text = fails(&pod, &["--config", "/w/bad.yaml"]);
    for field in ["vhost_user.socket", "vhost_user.mode: 'sever'", "mtu: '40'", "ports.tcp"] {
        assert!(text.contains(field), "{field} in {text}");
    }
    // What failed has left nothing behind.
    assert!(!pod.path("vu.sock").exists());
}

#[test]
fn a_socket_that_is_served_is_not_taken_away() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let first = Backend::Netd.start(&pod, &BackendOptions::default()).unwrap();
    let text = fails(&pod, &["--socket", "/w/vu.sock"]);
    assert!(text.contains("/w/vu.sock"), "{text}");
    assert_eq!(first.ask("status").unwrap()["frontend_connected"], false);
}
