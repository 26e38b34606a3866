//! Which port of the pod a connection of the guest comes from.
//!
//! # Theory of operation
//!
//! Some servers look at the client's port: exports of NFS take none but those below 1024, and firewalls have rules for fixed ones.
//! So the pod's socket has the guest's own port where that is free, and the kernel's choice where not. There are two ways to
//! ask for a port, and the wrong one would do harm:
//!
//! | the guest's port | how | why |
//! |---|---|---|
//! | in the pod's ephemeral range | [`SourcePort::Chosen`] (IP_LOCAL_PORT_RANGE) | the kernel chooses as ever, from a range of one. A port that is bound would be closed to all other programs of the pod, to whatever peer they connect, and a busy guest has most of the range |
//! | another | [`SourcePort::Bound`] | no program of the pod gets such a port by chance |
//! | reserved | [`SourcePort::Any`] | it belongs to the mesh's proxy, which may start later |
//!
//! Another connection of the guest may have the same port, to another peer. A port is not free where a listener of the pod has it, where
//! the pod has the same connection in TIME-WAIT, and below 1024 where the process may not have such ports.

use std::net::IpAddr;

use crate::config::ports::{Ports, Reserved};
use crate::pod;
use crate::port::{PortRange, Proto};
use crate::sockets::SourcePort;

/// Linux's own range of ephemeral ports, for a pod that does not tell its own.
const USUAL_EPHEMERAL: (u16, u16) = (32_768, 60_999);

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct SourcePorts {
    reserved: Reserved,
    ephemeral: (u16, u16),
}

impl SourcePorts {
    /// In this process's network namespace, with these reserved ports.
    pub(super) fn of_pod(ports: &Ports) -> SourcePorts {
        SourcePorts::new(ports.reserved.clone(), pod::ephemeral_ports())
    }

    fn new(reserved: Reserved, ephemeral: Option<PortRange>) -> SourcePorts {
        SourcePorts { reserved, ephemeral: ephemeral.map_or(USUAL_EPHEMERAL, PortRange::bounds) }
    }

    /// The pod's port for a connection from `port` of the guest to `to`.
    pub(super) fn choose(&self, port: u16, to: IpAddr) -> SourcePort {
        // On the loopback a socket that connects to its own port would connect to itself.
        if port == 0 || to.is_loopback() || self.reserved.contains(Proto::Tcp, port) {
            return SourcePort::Any;
        }
        let (first, last) = self.ephemeral;
        if (first..=last).contains(&port) { SourcePort::Chosen(port) } else { SourcePort::Bound(port) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_asked_for_as_its_place_demands() {
        let ports = SourcePorts::new(Reserved::presets(), PortRange::new(40_000, 41_000));
        let (far, loopback) = ("192.0.2.1".parse().unwrap(), "::1".parse().unwrap());
        for (port, expected) in [
            (0, SourcePort::Any),
            (800, SourcePort::Bound(800)),
            // Istio's.
            (15_001, SourcePort::Any),
            (39_999, SourcePort::Bound(39_999)),
            (40_000, SourcePort::Chosen(40_000)),
            (41_000, SourcePort::Chosen(41_000)),
            (65_535, SourcePort::Bound(65_535)),
        ] {
            assert_eq!(ports.choose(port, far), expected);
            assert_eq!(ports.choose(port, loopback), SourcePort::Any);
        }
        let usual = SourcePorts::new(Reserved::default(), None);
        assert_eq!(usual.choose(50_000, far), SourcePort::Chosen(50_000));
        assert_eq!(usual.choose(32_767, far), SourcePort::Bound(32_767));
    }
}
