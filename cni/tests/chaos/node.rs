//! A node of the test: a network namespace with a bridge, pods' namespaces, and the program as a runtime starts it.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use futures::TryStreamExt;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use nix::sched::{CloneFlags, unshare};
use podvirt_cni::net::{netns, silence};
use rtnetlink::{LinkBridge, LinkUnspec};
use serde_json::{Value, json};

/// The program that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_podvirt-cni");

/// Runs `test` on a node of its own with the bridge `br1` and a loopback. Without the privilege to make a network
/// namespace the test is passed over, loudly.
pub(crate) fn on_node(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            eprintln!("SKIPPED: cannot make a network namespace: {error}");
            return;
        }
        netns::inside(None, |handle| async move {
            handle.link().add(LinkBridge::new("br1").up().build()).execute().await.unwrap();
            handle.link().set(LinkUnspec::new_with_name("lo").up().build()).execute().await.unwrap();
            Ok(())
        })
        .unwrap();
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Names of the interfaces of the calling thread's namespace.
pub(crate) fn interfaces() -> Vec<String> {
    netns::inside(None, |handle| async move {
        let links: Vec<_> = handle.link().get().execute().try_collect().await.unwrap();
        let name = |link: LinkMessage| {
            link.attributes.into_iter().find_map(|a| match a {
                LinkAttribute::IfName(name) => Some(name),
                _ => None,
            })
        };
        Ok(links.into_iter().filter_map(name).collect())
    })
    .unwrap()
}

/// A pod's network namespace.
pub(crate) struct PodNet(File);

impl PodNet {
    pub(crate) fn new() -> PodNet {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        PodNet(made.join().unwrap())
    }

    /// Where another process can open it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::inside(Some(&self.0), |_| async move { Ok(work()) }).unwrap()
    }

    pub(crate) fn is_silent(&self, interface: &str) -> bool {
        self.enter(|| silence::is_silent(interface)).unwrap()
    }

    pub(crate) fn interfaces(&self) -> Vec<String> {
        self.enter(interfaces)
    }
}

/// Writes what the installer writes.
pub(crate) fn set_up(directory: &Path, api: SocketAddr, token: &str) {
    std::fs::create_dir(directory).unwrap();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{api}")}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(directory.join("kubeconfig"), kubeconfig.to_string()).unwrap();
    std::fs::write(directory.join("node"), "node1\n").unwrap();
}

/// Starts the program in the calling thread's network namespace, with its files in `directory`.
pub(crate) fn start(directory: &Path, environment: &[(&str, String)], args: &[&str]) -> Child {
    let mut command = Command::new(PROGRAM);
    command.args(args).env("PODVIRT_CNI_DIR", directory);
    for (name, value) in environment {
        command.env(name, value);
    }
    if !args.is_empty() {
        command.env("KUBECONFIG", directory.join("kubeconfig"));
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Gives a call its configuration and waits for its end.
pub(crate) fn finish(mut child: Child, config: &Value) -> Output {
    // One that is killed does not read it.
    let _unread = child.stdin.take().unwrap().write_all(config.to_string().as_bytes());
    child.wait_with_output().unwrap()
}
