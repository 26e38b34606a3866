//! The command from outside, where no netd runs; with one it is seen by the tests of the guests.

use std::process::Command;

fn netctl() -> Command {
    Command::new(env!("CARGO_BIN_EXE_netctl"))
}

#[test]
fn a_socket_that_no_netd_serves_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = netctl().arg("--socket").arg(dir.path().join("control.sock")).arg("status").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(text.contains("control.sock") && text.contains("No such file"), "{text}");
}

#[test]
fn ports_that_cannot_be_are_refused_with_what_can() {
    for (ports, allowed) in
        [("0", "ports from 1 to 65535"), ("9-8", "from the lower"), ("1-2:3", "same number")]
    {
        let out = netctl().args(["ports", "add", "tcp", ports]).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{ports}");
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(text.contains(ports) && text.contains(allowed), "{text}");
    }
}

#[test]
fn each_command_has_its_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    assert!(netctl().arg("man").arg(dir.path()).status().unwrap().success());
    let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(page("netctl.1").contains(".SH OPTIONS"));
    assert!(page("netctl-ports-add.1").contains("2222:22"));
    assert!(!dir.path().join("netctl-man.1").exists(), "a hidden command");
}
