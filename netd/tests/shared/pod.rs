//! A network namespace with one interface, as a pod has it.

use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

/// Runs `test` on a thread in a network namespace with one interface, eth0 with 10.9.0.2/24. Processes that it starts
/// are in it, too. Without the privilege to make one the test fails for root and is passed over, loudly, for others.
pub(crate) fn in_pod(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            assert!(
                !geteuid().is_root(),
                "cannot make a network namespace: {error}; root needs it for this test"
            );
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
