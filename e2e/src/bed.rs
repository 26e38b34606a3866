//! A pod with a backend and a guest in it.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;

use crate::backend::{Backend, BackendOptions, RunningBackend};
use crate::guest::{Boot, Guest, Vhost};
use crate::net::{Net, NetOptions};
use crate::pod::Pod;

/// A port of the pod that leads to the guest, by TCP and UDP.
pub const PORT: u16 = 8001;
/// A port of the client.
pub const PEER: u16 = 7001;

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// As `ping` and socat call it.
    pub fn digit(self) -> char {
        match self {
            Family::V4 => '4',
            Family::V6 => '6',
        }
    }

    /// socat's word for a TCP or UDP address of the family, e.g. `TCP4`.
    pub fn word(self, transport: &str) -> String {
        format!("{transport}{}", self.digit())
    }

    /// A port of the pod.
    pub fn pod(self, port: u16) -> SocketAddr {
        let [v4, v6] = Net::pod_addresses(port);
        if self == Family::V4 { v4 } else { v6 }
    }
}

/// A pod with backend and guest.
pub struct Bed {
    /// Which backend.
    pub backend: Backend,
    /// The guest; it ends before the backend.
    pub guest: Guest,
    /// The backend.
    pub running: RunningBackend,
    /// The pod.
    pub pod: Pod,
}

impl Bed {
    /// Boots a guest behind a backend.
    ///
    /// # Errors
    /// One of them does not come up.
    pub fn new(
        backend: Backend,
        boot: Boot,
        net: NetOptions,
        options: &BackendOptions,
        vhost: &Vhost,
    ) -> Result<Bed> {
        let pod = Pod::new(net)?;
        let running = backend.start(&pod, options)?;
        let guest = Guest::boot(boot, &pod, vhost)?;
        Ok(Bed { backend, guest, running, pod })
    }

    /// Seconds after which a packet is taken for lost: none is with netd, while passt loses some by design.
    pub fn timeout(&self) -> u8 {
        if self.backend == Backend::Netd { 20 } else { 2 }
    }

    /// The client's address.
    pub fn client(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.pod.net.client4.into(),
            Family::V6 => self.pod.net.client6.into(),
        }
    }

    /// A port of the client.
    pub fn peer(&self, family: Family, port: u16) -> SocketAddr {
        (self.client(family), port).into()
    }

    /// Starts a command in the guest that talks with the test; [`Bed::finish`] waits for it.
    ///
    /// # Errors
    /// The guest is gone.
    pub fn begin(&mut self, command: &str) -> Result<()> {
        self.guest.sh(&format!("({command}) >/tmp/begun 2>&1 & begun=$!")).map(drop)
    }

    /// Waits for the command and returns what it printed.
    ///
    /// # Errors
    /// It goes on for more than a minute.
    pub fn finish(&mut self) -> Result<String> {
        Ok(self.guest.run("wait $begun; cat /tmp/begun")?.text)
    }
}
