//! A tap device on a bridge, behind nftables that masquerade: what a privileged node agent makes for a virtual machine
//! whose backend is the kernel.
//!
//! ```text
//!   client ── veth ── eth0 │ nft: dnat of the ports, masquerade │ bridge ── tap ── guest
//! ```

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Result, ensure};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use podvirt_e2e::Pod;
use podvirt_e2e::artefacts::script;

use super::{BACKEND_MAC, linux};

/// Name of the tap device, which belongs to the pod's user.
pub(crate) const TAP: &str = "tap0";
/// The device node in the pod's directory.
pub(crate) const NODE: &str = "tun";
/// The guest's address.
pub(crate) const GUEST4: &str = "10.0.2.2/24";
/// The bridge's address, which is the guest's router.
pub(crate) const ROUTER4: &str = "10.0.2.1";
/// The guest's IPv6 address.
pub(crate) const GUEST6: &str = "fd10:0:2::2/120";
/// The guest's IPv6 router.
pub(crate) const ROUTER6: &str = "fd10:0:2::1";
/// Numbers of /dev/net/tun.
const TUN: (u64, u64) = (10, 200);

/// Makes it in the pod's network. These ports of the pod lead to the same ports of the guest, by TCP and UDP.
///
/// # Errors
/// The kernel lacks something of it.
pub(crate) fn set_up(pod: &Pod, mtu: u16, ports: &[u16]) -> Result<()> {
    let node = pod.path(NODE);
    mknod(&node, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(TUN.0, TUN.1))?;
    fs::set_permissions(&node, fs::Permissions::from_mode(0o666))?;
    let mut command = Command::new(script("sandbox"));
    command.args(["--root", "--ro", &format!("{}:/dev/net/tun", node.display()), pod.net.pod.name()]);
    let out = command.args(["sh", "-ec", &commands(mtu, ports)]).output()?;
    ensure!(out.status.success(), "the tap cannot be set up: {}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

/// What the guest does to have its addresses.
pub(crate) fn addresses(mtu: u16, six: bool) -> String {
    let four = linux::by_hand(mtu, GUEST4, ROUTER4);
    if !six {
        return four;
    }
    // Without duplicate detection an address can be used at once.
    format!(
        "{four} && echo 0 >/proc/sys/net/ipv6/conf/$nic/accept_dad && ip -6 addr add {GUEST6} dev $nic && \
         ip -6 route add default via {ROUTER6}"
    )
}

fn commands(mtu: u16, ports: &[u16]) -> String {
    let ports = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    let family = |nft: &str, guest: &str| {
        let guest = guest.split('/').next().unwrap_or_default();
        format!(
            "table {nft} nat {{
               chain in {{ type nat hook prerouting priority -100;
                 iifname eth0 meta l4proto {{tcp, udp}} th dport {{ {ports} }} counter dnat to {guest}; }}
               chain out {{ type nat hook postrouting priority 100; {nft} saddr {guest} counter masquerade; }}
             }}\n"
        )
    };
    // A guest that moves finds its router by the MAC address that it knows.
    format!(
        "ip link add br0 address {BACKEND_MAC} type bridge; ip tuntap add {TAP} mode tap user 107 group 107
         ip link set {TAP} mtu {mtu} master br0 up; ip link set br0 mtu {mtu} up
         ip addr add {ROUTER4}/24 dev br0; ip addr add {ROUTER6}/120 dev br0 nodad
         echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
         nft -f - <<'E'\n{}{}E\n",
        family("ip", GUEST4),
        family("ip6", GUEST6)
    )
}
