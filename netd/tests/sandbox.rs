//! The sandbox from inside: each test starts itself again as a child that enters it and tries something.

// The configuration's permission for tests does not reach helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "shared/pod.rs"]
mod pod;

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use netd::config::cli::Args;
use netd::config::{Config, SandboxMode};
use netd::sandbox::files::{Files, watched};
use netd::sandbox::{Sandbox, confine};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

/// Names what the child does.
const DEED: &str = "NETD_SANDBOX_DEED";
/// The directory that the child may make sockets in.
const PLACE: &str = "NETD_SANDBOX_PLACE";
/// Private memory, more than any deed needs.
const MEMORY: u64 = 1 << 30;

/// Starts this program again to do `deed`.
fn start(deed: &str, place: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads", "1"])
        .env(DEED, deed)
        .env(PLACE, place)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What became of a child that did `deed`.
fn outcome(deed: &str) -> (ExitStatus, String) {
    let dir = tempfile::tempdir().unwrap();
    let out = start(deed, dir.path()).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    (out.status, text.into_owned())
}

fn succeeds(deed: &str) {
    let (status, text) = outcome(deed);
    assert!(status.success(), "{deed}: {status}\n{text}");
}

fn dies(deed: &str, signal: i32) {
    let (status, text) = outcome(deed);
    assert_eq!(status.signal(), Some(signal), "{deed}: {status}\n{text}");
}

fn enter(mode: SandboxMode, read: Vec<PathBuf>) -> Sandbox {
    let sockets = vec![std::env::var_os(PLACE).unwrap().into()];
    confine(mode, &Files { read: [vec!["/proc/self".into()], read].concat(), sockets }, MEMORY).unwrap()
}

/// The child. Not a test of its own.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    let place = PathBuf::from(std::env::var_os(PLACE).expect("not started by a test"));
    let mode =
        if std::env::var(DEED).unwrap().starts_with("log") { SandboxMode::Log } else { SandboxMode::Enforce };
    match std::env::var(DEED).unwrap().as_str() {
        "watch" => watch(&place),
        "execute" | "log, then execute" => {
            let _sandbox = enter(mode, vec![]);
            let status = Command::new("/bin/true").status().unwrap();
            assert!(status.success());
        }
        "replace itself" => {
            let _sandbox = enter(mode, vec![]);
            let error = nix::unistd::execv(c"/bin/true", &[c"/bin/true"]).unwrap_err();
            panic!("not even killed: {error}");
        }
        "leave the namespace" => {
            let _sandbox = enter(mode, vec![]);
            let error = unshare(CloneFlags::CLONE_NEWNET).unwrap_err();
            panic!("not even killed: {error}");
        }
        "abort" => {
            let _sandbox = enter(mode, vec![]);
            std::process::abort();
        }
        "try what is not allowed" => {
            std::fs::write(place.join("before"), "").unwrap();
            let _sandbox = enter(mode, vec![]);
            let refused = |what: std::io::Result<()>| {
                assert_eq!(what.unwrap_err().kind(), ErrorKind::PermissionDenied);
            };
            refused(File::open("/etc/passwd").map(drop));
            refused(File::open(place.join("before")).map(drop));
            refused(std::fs::read_dir("/").map(drop));
            refused(File::create(place.join("after")).map(drop));
            refused(File::options().write(true).open("/proc/self/comm").map(drop));
            refused(std::fs::rename(place.join("before"), place.join("after")));
            refused(std::fs::create_dir(place.join("after")));
            refused(UnixListener::bind("/tmp/netd-sandbox-elsewhere.sock").map(drop));
            refused(nix::unistd::chdir("/").map_err(Into::into));
            let packets = socket2::Socket::new(libc::AF_PACKET.into(), socket2::Type::DGRAM, None);
            refused(packets.map(drop));
            let audit = Some(socket2::Protocol::from(libc::NETLINK_AUDIT));
            refused(socket2::Socket::new(libc::AF_NETLINK.into(), socket2::Type::RAW, audit).map(drop));
        }
        "do what is allowed" => {
            let path = place.join("own.sock");
            let _sandbox = enter(mode, vec![]);
            let listener = UnixListener::bind(&path).unwrap();
            let stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
            drop((listener, stream));
            std::fs::remove_file(&path).unwrap();
            std::thread::spawn(|| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).join().unwrap();
            assert!(std::thread::spawn(|| panic!("on purpose")).join().is_err());
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let value = |name: &str| {
                let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
                line.trim_matches(['\t', ':']).to_owned()
            };
            assert_eq!((value("NoNewPrivs").as_str(), value("Seccomp").as_str()), ("1", "2"));
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert_eq!(u64::from_str_radix(&value(set), 16), Ok(0), "{set}");
            }
            assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() > 2);
            assert_eq!(nix::sys::prctl::get_dumpable(), Err(nix::errno::Errno::EPERM), "not on the list");
        }
        other => panic!("no such deed: {other}"),
    }
}

/// Watches a resolv.conf from inside the sandbox and writes the resolvers that the guest would get.
fn watch(place: &Path) {
    let place = place.to_owned();
    pod::in_pod(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let args = Args { socket: Some("vm.sock".into()), ..Args::default() };
            let config = Config::load(&args).unwrap();
            let resolv_conf = place.join("resolv.conf");
            let _sandbox = enter(SandboxMode::Enforce, watched(&resolv_conf));
            let tell = |link: &netd::net::Link| println!("resolvers {:?}", link.dns);
            let link = Arc::new(netd::pod::read(&config, &resolv_conf).await.unwrap());
            tell(&link);
            netd::pod::watch(Arc::new(config), resolv_conf, link, async |link| tell(&link)).await.unwrap();
        });
    });
}

#[test]
fn what_only_an_intruder_calls_kills_the_process() {
    for deed in ["execute", "replace itself", "leave the namespace"] {
        dies(deed, libc::SIGSYS);
    }
}

#[test]
fn what_is_not_on_the_lists_is_refused_and_the_process_goes_on() {
    succeeds("try what is not allowed");
}

#[test]
fn what_netd_needs_is_allowed_and_privilege_is_gone() {
    succeeds("do what is allowed");
}

#[test]
fn a_bug_ends_it_by_its_own_signal() {
    dies("abort", libc::SIGABRT);
}

#[test]
fn in_log_mode_nothing_is_refused() {
    succeeds("log, then execute");
}

#[test]
fn resolv_conf_is_followed_when_it_is_replaced() {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        assert!(
            !geteuid().is_root(),
            "cannot make a network namespace: {error}; root needs it for this test"
        );
        eprintln!("SKIPPED: cannot make a network namespace: {error}");
        return;
    }
    for kubelet in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let version = |n: u8| {
            if kubelet {
                // As the kubelet replaces a ConfigMap: one link is renamed over another.
                let data = format!("..{n}");
                std::fs::create_dir(dir.path().join(&data)).unwrap();
                std::fs::write(
                    dir.path().join(&data).join("resolv.conf"),
                    format!("nameserver 192.0.2.{n}\n"),
                )
                .unwrap();
                symlink(&data, dir.path().join("..new")).unwrap();
                std::fs::rename(dir.path().join("..new"), dir.path().join("..data")).unwrap();
            } else {
                let new = dir.path().join("resolv.conf.new");
                std::fs::write(&new, format!("nameserver 192.0.2.{n}\n")).unwrap();
                std::fs::rename(new, dir.path().join("resolv.conf")).unwrap();
            }
        };
        version(1);
        if kubelet {
            symlink("..data/resolv.conf", dir.path().join("resolv.conf")).unwrap();
        }
        let mut child = start("watch", dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut expect = |n: u8| {
            let wanted = format!("resolvers [192.0.2.{n}]");
            let mut seen = String::new();
            let found = lines.by_ref().map_while(Result::ok).any(|line| {
                seen = seen.clone() + &line + "\n";
                line.contains(&wanted)
            });
            assert!(found, "{wanted} never came: {seen}");
        };
        expect(1);
        for n in 2..5 {
            version(n);
            expect(n);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    std::io::stdout().flush().unwrap();
}
