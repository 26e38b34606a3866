//! Whether the node has tap devices.

use std::fs::OpenOptions;

use super::{Device, Verdict};

/// `/dev/net/tun`.
pub const TUN: Device = Device {
    name: "tap devices",
    resource: podvirt_api::names::pod::TUN_DEVICE,
    path: "/dev/net/tun",
    socket: "kubevirt-tun.sock",
    copy: "tun",
};

/// Looks at this node. Where the kernel's module is not loaded, opening the file loads it.
pub fn probe() -> Verdict {
    match OpenOptions::new().read(true).write(true).open(TUN.path) {
        Ok(_) => Verdict { usable: true, why: format!("{} opens", TUN.path) },
        Err(error) => Verdict { usable: false, why: format!("{}: {error}", TUN.path) },
    }
}
