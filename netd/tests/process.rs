//! The netd process from outside: it starts without privilege, tells what it does, and ends in order.

// The configuration's permission for tests does not reach helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "shared/daemon.rs"]
mod daemon;
#[path = "shared/pod.rs"]
mod pod;

use std::path::Path;
use std::process::Command;

use daemon::Daemon;
use netctl::client::Client;
use netctl::show::{self, PortRow, StatusView};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podvirt_proto::netd::v1 as proto;

/// Runs `test` in a pod.
fn in_pod<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    pod::in_pod(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    });
}

/// Starts netd with its sockets in `dir`.
fn start(dir: &Path, args: &[&str]) -> Daemon {
    Daemon::start(|command| {
        command
            .args(["--log", "info", "--socket"])
            .arg(dir.join("vm.sock"))
            .arg("--control")
            .arg(dir.join("control.sock"))
            .args(args)
    })
}

/// Sends `signal` and waits; the exit code.
fn end(netd: &mut Daemon, signal: Signal) -> Option<i32> {
    kill(Pid::from_raw(netd.0.id().try_into().unwrap()), signal).unwrap();
    netd.0.wait().unwrap().code()
}

/// A rule of the control interface.
fn tcp(pod: u32, guest: u32) -> proto::PortRule {
    proto::PortRule { transport: proto::Transport::Tcp.into(), pod, guest }
}

#[test]
fn it_serves_and_ends_in_order() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        in_pod(async move || {
            let dir = tempfile::tempdir().unwrap();
            let mut netd = start(dir.path(), &["-t", "8080,2222:22", "-u", "none"]);
            let mut client = Client::connect(&dir.path().join("control.sock")).await.unwrap();
            let status = client.status().await.unwrap();
            assert_eq!(status.link.unwrap().v4.unwrap().guest, "10.9.0.2");
            assert_eq!(status.listeners, 2);
            assert_eq!(client.add_ports(vec![tcp(9000, 9000)]).await.unwrap()[0].error, "");
            assert_eq!(client.ports().await.unwrap().len(), 3);
            drop(client);
            assert_eq!(end(&mut netd, signal), Some(0));
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the sockets are removed");
        });
    }
}

#[test]
fn it_has_no_privilege_and_is_filtered() {
    in_pod(async || {
        let dir = tempfile::tempdir().unwrap();
        let netd = start(dir.path(), &["-t", "8080", "-u", "none"]);
        let threads = format!("/proc/{}/task", netd.0.id());
        let mut count = 0;
        for thread in std::fs::read_dir(threads).unwrap() {
            // netd has threads that end when their task is done; such a thread may end between the
            // listing and the reading.
            let Ok(status) = std::fs::read_to_string(thread.unwrap().path().join("status")) else { continue };
            for expected in
                ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
            {
                assert!(status.contains(expected), "{expected}: {status}");
            }
            count += 1;
        }
        assert!(count >= 3, "the worker, the vhost-user server and the control thread");
        let mut client = Client::connect(&dir.path().join("control.sock")).await.unwrap();
        let metrics = client.metrics().await.unwrap();
        for metric in ["process_resident_memory_bytes", "process_open_fds"] {
            let value =
                metrics.lines().find_map(|l| l.strip_prefix(metric)).unwrap_or_else(|| panic!("{metrics}"));
            assert!(value.trim().parse::<f64>().unwrap() > 1.0, "{metric}{value}");
        }
    });
}

#[test]
fn it_is_shown_and_steered() {
    in_pod(async || {
        let dir = tempfile::tempdir().unwrap();
        let _netd = start(dir.path(), &["-t", "8080", "-u", "none"]);
        let mut client = Client::connect(&dir.path().join("control.sock")).await.unwrap();
        let view = StatusView::from(client.status().await.unwrap());
        assert!(show::status(&view).contains("guest 10.9.0.2/24"));
        assert_eq!(serde_json::to_value(&view).unwrap()["v4"]["pod"], "10.9.0.2");
        let text =
            |ports: Vec<proto::Port>| show::ports(&ports.into_iter().map(PortRow::from).collect::<Vec<_>>());
        let added = client.add_ports(vec![tcp(9000, 90), tcp(9001, 91)]).await.unwrap();
        assert!(text(added).contains("9000-9001  90-91  listening"));
        let reserved = client.add_ports(vec![tcp(15001, 15001)]).await.unwrap();
        assert!(PortRow::from(reserved[0].clone()).failed(), "{reserved:?}");
        assert!(text(client.remove_ports(vec![tcp(8080, 8080)]).await.unwrap()).contains("8080"));
        assert!(!text(client.ports().await.unwrap()).contains("8080"));
        assert_eq!(client.flows(proto::ListFlowsRequest::default()).await.unwrap(), []);
        assert!(client.metrics().await.unwrap().ends_with("# EOF\n"));
    });
}

#[test]
fn wrong_settings_are_told_before_anything_starts() {
    let out = Command::new(env!("CARGO_BIN_EXE_netd"))
        .args(["--check", "--mtu", "3", "-t", "80,x"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    let text = String::from_utf8(out.stderr).unwrap();
    for field in ["vhost_user.socket: missing", "mtu: '3'", "ports.tcp[1]: 'x'"] {
        assert!(text.contains(field), "{text}");
    }
}

/// passt's options, with its files in `dir`.
fn passt(dir: &Path, more: &[&str]) -> Command {
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_netd"), dir.join("passt")).unwrap();
    let mut command = Command::new(dir.join("passt"));
    command.args(["--vhost-user", "--one-off", "--socket"]).arg(dir.join("vm.sock"));
    command.arg("--pid").arg(dir.join("pid")).args(more).env_remove("RUST_LOG");
    command
}

#[test]
fn as_passt_it_is_at_work_when_the_command_returns_and_ends_with_its_frontend() {
    in_pod(async move || {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let out = passt(dir.path(), &["--tcp-ports", "8080", "--log-file"]).arg(&log).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{said}");
        assert_eq!((said.as_str(), out.stdout.len()), ("", 0), "libvirt reads to the end of both");
        let frontend = std::os::unix::net::UnixStream::connect(dir.path().join("vm.sock")).unwrap();
        let port = std::net::TcpListener::bind("0.0.0.0:8080");
        assert_eq!(port.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
        let pid: i32 = std::fs::read_to_string(dir.path().join("pid")).unwrap().trim().parse().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // Process, parent, group and session.
        let words: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        assert_eq!(words[3], pid.to_string(), "a session of its own: {stat}");
        drop(frontend);
        while Path::new(&format!("/proc/{pid}")).exists() && !is_zombie(pid) {
            std::thread::yield_now();
        }
        assert!(!dir.path().join("vm.sock").exists());
        let log = std::fs::read_to_string(log).unwrap();
        assert!(log.contains("waiting for a frontend") && log.contains("the frontend has gone"), "{log}");
    });
}

/// Whether it has ended and only its parent, which need not be this test, does not know yet.
fn is_zombie(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

#[test]
fn as_passt_it_tells_why_it_cannot_work() {
    in_pod(async move || {
        let taken = std::net::TcpListener::bind("0.0.0.0:8080").unwrap();
        for (more, code, told) in [
            (&["--tcp-ports", "8080"][..], 1, "TCP 8080"),
            (&["--tcp-ports", "10.9.0.2/80"], 1, "--tcp-ports: '10.9.0.2/80'"),
            (&["--interface", "eth7"], 1, "eth7"),
            (&["--log-file", "/none/log"], 1, "--log-file: /none/log"),
            (&["--map-gw"], 2, "--map-gw"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let out = passt(dir.path(), more).output().unwrap();
            let said = String::from_utf8(out.stderr).unwrap();
            assert_eq!(out.status.code(), Some(code), "{more:?}: {said}");
            assert!(said.contains(told), "{more:?}: {said}");
            let left = std::fs::read_dir(dir.path()).unwrap().count();
            assert_eq!(left, 1, "{more:?}: nothing but the program is left");
        }
        drop(taken);
    });
}
