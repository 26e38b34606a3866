//! A network namespace with one interface, as a pod has it.

use std::process::Command;

use nix::sched::{CloneFlags, unshare};

/// Runs `test` on a thread in a network namespace with one interface, eth0 with 10.9.0.2/24. Processes that it starts
/// are in it, too. Without the privilege to make one the test is passed over, loudly.
pub(crate) fn in_pod(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            eprintln!("SKIPPED: cannot make a network namespace: {error}");
            return;
        }
        for line in [
            "link add eth0 type veth peer name peer",
            "addr add 10.9.0.2/24 dev eth0",
            "link set eth0 up",
            "link set peer up",
        ] {
            let status = Command::new("ip").args(line.split(' ')).status().expect("ip does not run");
            assert!(status.success(), "ip {line}");
        }
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
