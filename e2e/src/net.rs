//! The pod's network: a pair of network namespaces, made by the script `e2e/net`.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use nix::sched::{CloneFlags, setns};

use crate::artefacts::script;

/// A named network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// The one of this name.
    pub fn named(name: &str) -> Netns {
        Netns { name: name.into() }
    }

    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file, as setns(2) takes it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// Carries out a command of ip(8) in the namespace: its words, with one space between them.
    ///
    /// # Errors
    /// It cannot be run, or fails.
    pub fn ip(&self, command: &str) -> Result<()> {
        let status = Command::new("ip").args(["-n", &self.name]).args(command.split(' ')).status()?;
        ensure!(status.success(), "ip {command}: {status}");
        Ok(())
    }

    /// Runs `work` on a thread inside the namespace. Sockets stay in the namespace they were made in, so a listener
    /// or a connection made here can be used outside.
    ///
    /// # Errors
    /// The namespace cannot be entered, or what `work` returned.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let namespace = File::open(self.path())?;
        let inside = move || {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            work()
        };
        match thread::scope(|scope| scope.spawn(inside).join()) {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// What kind of network it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetOptions {
    /// MTU of the pod's link in bytes; 1500 if not given.
    pub mtu: Option<u16>,
    /// A router between client and pod that forwards at most this many bytes.
    pub hop: Option<u16>,
    /// The pod has host addresses and a gateway outside of them.
    pub offlink: bool,
}

/// A pod's network namespace and its only neighbour, the client.
#[derive(Debug)]
pub struct Net {
    prefix: String,
    /// The pod: eth0 with [`Net::POD4`] and [`Net::POD6`].
    pub pod: Netns,
    /// The peer of the test, and the pod's router unless there is a hop between.
    pub client: Netns,
    /// The client's IPv4 address.
    pub client4: Ipv4Addr,
    /// The client's IPv6 address.
    pub client6: Ipv6Addr,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Net {
    /// The pod's IPv4 address.
    pub const POD4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
    /// The pod's IPv6 address.
    pub const POD6: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 2);

    /// The IPv4 address of a pod that [`Net::beside`] makes.
    pub const BESIDE4: Ipv4Addr = Ipv4Addr::new(10, 10, 0, 2);
    /// The IPv4 address of its router.
    pub const BESIDE_ROUTER4: Ipv4Addr = Ipv4Addr::new(10, 10, 0, 1);
    /// The IPv6 address of a pod that [`Net::beside`] makes.
    pub const BESIDE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 2, 0, 0, 0, 0, 2);

    /// The IPv4 address of the peer that [`Net::far`] makes.
    pub const FAR4: Ipv4Addr = Ipv4Addr::new(10, 11, 0, 2);
    /// The IPv6 address of the peer that [`Net::far`] makes.
    pub const FAR6: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 3, 0, 0, 0, 0, 2);
    /// The taps of its link, in the client's namespace and in its own.
    pub const FAR_TAP: &str = "far0";

    /// Makes a network of its own for this test.
    ///
    /// # Errors
    /// The script failed.
    pub fn up(options: NetOptions) -> Result<Net> {
        let prefix = format!("t{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut up = Command::new(script("net"));
        up.args(["up", &prefix]);
        if let Some(mtu) = options.mtu {
            up.args(["--mtu", &mtu.to_string()]);
        }
        if let Some(limit) = options.hop {
            up.args(["--hop", &limit.to_string()]);
        }
        if options.offlink {
            up.arg("--offlink");
        }
        let third = u8::from(options.hop.is_some());
        let net = Net {
            pod: Netns { name: format!("{prefix}-pod") },
            client: Netns { name: format!("{prefix}-client") },
            client4: Ipv4Addr::new(10, 9, third, 1),
            client6: Ipv6Addr::new(0xfd00, 9, u16::from(third), 0, 0, 0, 0, 1),
            prefix,
        };
        ensure!(up.status()?.success(), "the network cannot be made");
        Ok(net)
    }

    /// A second pod with the same addresses at the same client. `silence` is done in its namespace before its link comes
    /// up: until a helper or the caller makes the second pod heard, only the first one is.
    ///
    /// # Errors
    /// The script failed, or what `silence` returned.
    pub fn twin(&self, silence: impl FnOnce() -> Result<()> + Send) -> Result<Net> {
        let prefix = format!("{}b", self.prefix);
        let pod = Netns { name: format!("{prefix}-pod") };
        let (client, client4, client6) = (self.client.clone(), self.client4, self.client6);
        let twin = Net { prefix, pod, client, client4, client6 };
        let made = Command::new(script("net")).args(["twin", &self.prefix]).status()?;
        ensure!(made.success(), "the second pod cannot be made");
        twin.pod.enter(silence)?;
        let up = Command::new(script("net")).args(["routes", &twin.prefix]).status()?;
        ensure!(up.success(), "the second pod has no link");
        Ok(twin)
    }

    /// A second pod with addresses of its own ([`Net::BESIDE4`], [`Net::BESIDE6`]) at the router of a network with
    /// [`NetOptions::hop`]: two pods of one node, whose kernel translates what both send to the client.
    ///
    /// # Errors
    /// The script failed, as without a router.
    pub fn beside(&self) -> Result<Net> {
        let prefix = format!("{}b", self.prefix);
        let pod = Netns { name: format!("{prefix}-pod") };
        let (client, client4, client6) = (self.client.clone(), self.client4, self.client6);
        let other = Net { prefix, pod, client, client4, client6 };
        let made = Command::new(script("net")).args(["beside", &self.prefix]).status()?;
        ensure!(made.success(), "the second pod cannot be made");
        Ok(other)
    }

    /// A peer behind the client of a network without [`NetOptions::hop`], at [`Net::FAR4`] and [`Net::FAR6`]. The link to it has a tap
    /// [`Net::FAR_TAP`] at each end, and frames get from one to the other when a program carries them.
    ///
    /// # Errors
    /// The script failed.
    pub fn far(&self) -> Result<Netns> {
        let made = Command::new(script("net")).args(["far", &self.prefix]).status()?;
        ensure!(made.success(), "the far peer cannot be made");
        Ok(Netns { name: format!("{}-far", self.prefix) })
    }

    /// The router between client and pod of a network with [`NetOptions::hop`].
    pub fn router(&self) -> Netns {
        Netns { name: format!("{}-hop", self.prefix) }
    }

    /// The client's addresses, both families.
    pub fn client_addresses(&self) -> [IpAddr; 2] {
        [self.client4.into(), self.client6.into()]
    }

    /// A port of the pod, both families.
    pub fn pod_addresses(port: u16) -> [SocketAddr; 2] {
        [(Net::POD4, port).into(), (Net::POD6, port).into()]
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        drop(Command::new(script("net")).args(["down", &self.prefix]).status());
    }
}
