//! The link between the guest and its pod: which of them has which address, and how addresses are translated.
//!
//! A [`Link`] is a snapshot. [`crate::pod`] builds one from the configuration and from what netlink and
//! resolv.conf say, and a new one whenever these change; the worker and the services of [`crate::guest`] only
//! read it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::{Ipv4Net, Ipv6Net};

use crate::counters::Reason;
use crate::egress::{Egress, Verdict};
use crate::flow::Kind;
use crate::wire::MacAddr;

/// How the guest's addresses relate to the pod's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The guest has the pod's own addresses.
    Passthrough,
    /// The guest has fixed private addresses, whatever the pod's are.
    Masquerade,
}

/// A route that the guest is told of: the destination and the next hop, none when it is on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<N, A> {
    /// Destination network.
    pub to: N,
    /// Next hop.
    pub via: Option<A>,
}

/// The IPv4 side of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkV4 {
    /// The guest's address.
    pub guest: Ipv4Addr,
    /// The guest's prefix length; 32 with an off-link gateway is usual in pods.
    pub prefix_len: u8,
    /// The guest's default gateway, which is netd itself.
    pub gateway: Ipv4Addr,
    /// The pod's own address (equal to `guest` in passthrough mode).
    pub pod: Ipv4Addr,
    /// Whether the guest is told that its default route is here.
    pub default_route: bool,
    /// Further routes.
    pub routes: Vec<Route<Ipv4Net, Ipv4Addr>>,
    /// An address that leads the guest to the pod's 127.0.0.1. None: closed.
    pub loopback: Option<Ipv4Addr>,
}

/// The IPv6 side of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkV6 {
    /// The guest's global address.
    pub guest: Ipv6Addr,
    /// The guest's prefix length.
    pub prefix_len: u8,
    /// The router's link-local address, which is netd itself: always `fe80::/10`.
    pub gateway: Ipv6Addr,
    /// The pod's own address (equal to `guest` in passthrough mode).
    pub pod: Ipv6Addr,
    /// Whether the guest is told that its default route is here.
    pub default_route: bool,
    /// Further routes.
    pub routes: Vec<Route<Ipv6Net, Ipv6Addr>>,
    /// An address that leads the guest to the pod's ::1. None: closed.
    pub loopback: Option<Ipv6Addr>,
}

/// A further DHCPv4 option: its code and its raw value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhcpOption {
    /// Option code.
    pub code: u8,
    /// Option value as it stands on the wire.
    pub value: Vec<u8>,
}

/// What a guest has configured for a family, wherever it got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Its address.
    pub guest: IpAddr,
    /// Its prefix length.
    pub prefix_len: u8,
    /// Its default gateway.
    pub gateway: IpAddr,
}

impl Home {
    /// Whether a guest can have this.
    pub fn is_sound(&self) -> bool {
        let host = |a: IpAddr| match a {
            IpAddr::V4(a) => !(a.is_unspecified() || a.is_loopback() || a.is_multicast() || a.is_broadcast()),
            IpAddr::V6(a) => {
                let none = a.is_unspecified() || a.is_loopback() || a.is_multicast();
                !none && a.to_ipv4_mapped().is_none()
            }
        };
        let longest = if self.guest.is_ipv4() { 32 } else { 128 };
        let one_family = self.guest.is_ipv4() == self.gateway.is_ipv4();
        let distinct = self.guest != self.gateway && self.prefix_len <= longest;
        host(self.guest) && host(self.gateway) && one_family && distinct
    }
}

/// One snapshot of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Addressing mode.
    pub mode: Mode,
    /// netd's own Ethernet address, the one every neighbour of the guest seems to have.
    pub mac: MacAddr,
    /// The guest's Ethernet address if it is configured. DHCP and the spoofing check use it; without it the
    /// worker learns the address from the guest's frames.
    pub guest_mac: Option<MacAddr>,
    /// MTU of the link in bytes, IP header included.
    pub mtu: u16,
    /// IPv4, if the pod has it.
    pub v4: Option<LinkV4>,
    /// IPv6, if the pod has it.
    pub v6: Option<LinkV6>,
    /// Resolvers for the guest, in order of preference.
    pub dns: Vec<IpAddr>,
    /// Search domains for the guest.
    pub search: Vec<String>,
    /// Host name for the guest.
    pub hostname: Option<String>,
    /// Fully qualified name for the guest.
    pub fqdn: Option<String>,
    /// Further DHCPv4 options (KubeVirt's `dhcpOptions`).
    pub dhcp_options: Vec<DhcpOption>,
    /// Every address by which the pod reaches itself, those of the families above included, sorted: they are closed to the
    /// guest. Loopback and link-local IPv6 addresses are missing; no address of their kind can be reached.
    pub local: Vec<IpAddr>,
    /// Which peers the guest may speak to, of those that can be reached at all.
    pub egress: Arc<Egress>,
}

/// The port of DNS over both transports (RFC 1035, section 4.2).
const DNS: u16 = 53;
/// `::6`, the source address of Istio's inbound passthrough over IPv6.
const ISTIO_V6: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6);

impl Link {
    /// The peer address that the guest sees for traffic that reached the pod from `src`.
    ///
    /// Everything is preserved but what the guest could not answer: 127/8, `::1`, `::6` and its own address
    /// become the gateway. None when the family is not configured.
    pub fn source_for_guest(&self, src: IpAddr) -> Option<IpAddr> {
        match src {
            IpAddr::V4(a) => {
                let l = self.v4.as_ref()?;
                let hidden = a.is_loopback() || a == l.guest || a.is_unspecified();
                Some(IpAddr::V4(if hidden { l.gateway } else { a }))
            }
            IpAddr::V6(a) => {
                let l = self.v6.as_ref()?;
                let hidden = a.is_loopback() || a == ISTIO_V6 || a == l.guest || a.is_unspecified();
                Some(IpAddr::V6(if hidden { l.gateway } else { a }))
            }
        }
    }

    /// The address to which the pod connects when the guest names `dst`; None when that is forbidden:
    /// loopback and the pod itself (unless opened), unspecified, multicast and broadcast addresses.
    pub fn destination_for_pod(&self, dst: IpAddr) -> Option<IpAddr> {
        let own = self.local.binary_search(&dst).is_ok();
        match dst {
            IpAddr::V4(a) => {
                let l = self.v4.as_ref()?;
                if l.loopback == Some(a) {
                    return Some(Ipv4Addr::LOCALHOST.into());
                }
                let own = own || a == l.pod || (self.mode == Mode::Masquerade && a == l.gateway);
                let forbidden =
                    own || a.is_loopback() || a.is_unspecified() || a.is_multicast() || a.is_broadcast();
                (!forbidden).then_some(dst)
            }
            IpAddr::V6(a) => {
                let l = self.v6.as_ref()?;
                if l.loopback == Some(a) {
                    return Some(Ipv6Addr::LOCALHOST.into());
                }
                let own = own || a == l.pod || a == l.gateway;
                let forbidden = own
                    || a.is_loopback()
                    || a.is_unspecified()
                    || a.is_multicast()
                    || a.is_unicast_link_local()
                    || a.to_ipv4_mapped().is_some();
                (!forbidden).then_some(dst)
            }
        }
    }

    /// The pod's peer for a flow that the guest opens to `peer`, its view of the destination.
    ///
    /// # Errors
    /// [`Reason::Denied`] for what is closed on every link, [`Reason::EgressDenied`] for what the policy closes.
    pub fn way_out(&self, kind: Kind, peer: SocketAddr) -> Result<SocketAddr, Reason> {
        let to = SocketAddr::new(self.destination_for_pod(peer.ip()).ok_or(Reason::Denied)?, peer.port());
        let resolver = kind != Kind::Echo && peer.port() == DNS && self.dns.contains(&peer.ip());
        match self.egress.allows(kind, to) {
            Verdict::Denied if !resolver => Err(Reason::EgressDenied),
            _ => Ok(to),
        }
    }

    /// The guest's address in the family of `like`.
    pub fn guest_address(&self, like: IpAddr) -> Option<IpAddr> {
        match like {
            IpAddr::V4(_) => self.v4.as_ref().map(|l| l.guest.into()),
            IpAddr::V6(_) => self.v6.as_ref().map(|l| l.guest.into()),
        }
    }

    /// What the guest has configured by this link, for both families.
    pub fn homes(&self) -> Vec<Home> {
        let v4 = self.v4.as_ref().map(|l| Home {
            guest: l.guest.into(),
            prefix_len: l.prefix_len,
            gateway: l.gateway.into(),
        });
        let v6 = self.v6.as_ref().map(|l| Home {
            guest: l.guest.into(),
            prefix_len: l.prefix_len,
            gateway: l.gateway.into(),
        });
        v4.into_iter().chain(v6).collect()
    }

    /// The link as it is for a guest that has these addresses ([`Home::is_sound`]), and will not ask for others: where they are not the
    /// pod's, they stand for the pod's from now on. A family that the pod does not have stays without.
    #[must_use]
    pub fn with_homes(mut self, homes: &[Home]) -> Link {
        if self.mode == Mode::Masquerade {
            return self;
        }
        for home in homes {
            match (home.guest, home.gateway) {
                (IpAddr::V4(guest), IpAddr::V4(gateway)) => {
                    let free = |l: &&mut LinkV4| l.guest != guest && l.loopback != Some(guest);
                    let Some(l) = self.v4.as_mut().filter(free) else { continue };
                    (l.guest, l.prefix_len, l.gateway) = (guest, home.prefix_len, gateway);
                    l.routes.iter_mut().for_each(|route| route.via = route.via.and(Some(gateway)));
                }
                (IpAddr::V6(guest), IpAddr::V6(_)) => {
                    let free = |l: &&mut LinkV6| l.guest != guest && l.loopback != Some(guest);
                    let Some(l) = self.v6.as_mut().filter(free) else { continue };
                    // The router's address is made of netd's own, which follows from the guest's.
                    (l.guest, l.prefix_len) = (guest, home.prefix_len);
                    let gateway = l.gateway;
                    l.routes.iter_mut().for_each(|route| route.via = route.via.and(Some(gateway)));
                }
                _ => {}
            }
        }
        self
    }

    /// The gateway's address in the family of `like`, as the guest sees it.
    pub fn gateway_address(&self, like: IpAddr) -> Option<IpAddr> {
        match like {
            IpAddr::V4(_) => self.v4.as_ref().map(|l| l.gateway.into()),
            IpAddr::V6(_) => self.v6.as_ref().map(|l| l.gateway.into()),
        }
    }
}

#[cfg(test)]
pub(crate) fn test_link() -> Link {
    Link {
        mode: Mode::Passthrough,
        mac: MacAddr([2, 0, 0x5e, 0x10, 0, 1]),
        guest_mac: Some(MacAddr([0x52, 0x54, 0, 0x11, 0x22, 0x33])),
        mtu: 1500,
        v4: Some(LinkV4 {
            guest: Ipv4Addr::new(10, 9, 0, 2),
            prefix_len: 24,
            gateway: Ipv4Addr::new(10, 9, 0, 1),
            pod: Ipv4Addr::new(10, 9, 0, 2),
            default_route: true,
            routes: vec![],
            loopback: None,
        }),
        v6: Some(LinkV6 {
            guest: "fd00:9::2".parse().unwrap(),
            prefix_len: 64,
            gateway: MacAddr([2, 0, 0x5e, 0x10, 0, 1]).link_local(),
            pod: "fd00:9::2".parse().unwrap(),
            default_route: true,
            routes: vec![],
            loopback: None,
        }),
        dns: vec!["10.96.0.10".parse().unwrap(), "fd00:96::a".parse().unwrap()],
        search: vec!["default.svc.cluster.local".into(), "svc.cluster.local".into()],
        hostname: Some("vm1".into()),
        fqdn: Some("vm1.example.org".into()),
        dhcp_options: vec![],
        local: vec!["10.9.0.2".parse().unwrap(), "172.17.0.1".parse().unwrap(), "fd00:9::2".parse().unwrap()],
        egress: Arc::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_sources_become_the_gateway() {
        let link = test_link();
        let seen = |s: &str| link.source_for_guest(s.parse().unwrap()).unwrap().to_string();
        assert_eq!(seen("127.0.0.6"), "10.9.0.1");
        assert_eq!(seen("10.9.0.2"), "10.9.0.1");
        assert_eq!(seen("192.0.2.7"), "192.0.2.7");
        let gateway = link.v6.as_ref().unwrap().gateway.to_string();
        assert_eq!(seen("::1"), gateway);
        assert_eq!(seen("::6"), gateway);
        assert_eq!(seen("fd00:9::2"), gateway);
        assert_eq!(seen("2001:db8::1"), "2001:db8::1");
    }

    #[test]
    fn a_guest_that_comes_with_other_addresses_keeps_them() {
        let there = test_link();
        let homes = there.homes();
        assert!(homes.len() == 2 && homes.iter().all(Home::is_sound));
        assert_eq!(there.clone().with_homes(&homes), there);
        let mut here = test_link();
        let (v4, v6) = (here.v4.as_mut().unwrap(), here.v6.as_mut().unwrap());
        v4.pod = Ipv4Addr::new(10, 8, 0, 7);
        (v4.guest, v4.gateway, v4.prefix_len) = (v4.pod, Ipv4Addr::new(10, 8, 0, 1), 16);
        let route = |via| Route { to: "10.80.0.0/16".parse().unwrap(), via };
        v4.routes = vec![route(Some(v4.gateway)), route(None)];
        v6.pod = "fd00:8::7".parse().unwrap();
        (v6.guest, v6.prefix_len) = (v6.pod, 80);
        let link = here.clone().with_homes(&homes);
        assert_eq!(link.homes(), homes);
        let v4 = link.v4.as_ref().unwrap();
        assert_eq!(v4.pod, Ipv4Addr::new(10, 8, 0, 7));
        assert_eq!(v4.routes, [route(Some(Ipv4Addr::new(10, 9, 0, 1))), route(None)]);
        assert_eq!(link.v6.as_ref().unwrap().pod, "fd00:8::7".parse::<Ipv6Addr>().unwrap());
        // The pod itself stays out of reach, and a peer that now has the guest's address is not taken for the guest.
        assert_eq!(link.destination_for_pod("10.8.0.7".parse().unwrap()), None);
        assert_eq!(link.source_for_guest("10.9.0.2".parse().unwrap()), link.gateway_address(homes[0].guest));
        // A masquerade's addresses are the configuration's; a family that is missing stays so.
        let masquerade = Link { mode: Mode::Masquerade, ..here.clone() };
        assert_eq!(masquerade.clone().with_homes(&homes), masquerade);
        assert_eq!(Link { v4: None, ..here }.with_homes(&homes).v4, None);
    }

    #[test]
    fn addresses_that_no_guest_can_have_are_not_sound() {
        let home = |guest: &str, prefix_len, gateway: &str| Home {
            guest: guest.parse().unwrap(),
            prefix_len,
            gateway: gateway.parse().unwrap(),
        };
        assert!(home("10.0.0.2", 32, "169.254.1.1").is_sound() && home("fd00::2", 128, "fe80::1").is_sound());
        for bad in [
            home("127.0.0.1", 8, "10.0.0.1"),
            home("224.0.0.1", 8, "10.0.0.1"),
            home("10.0.0.2", 33, "10.0.0.1"),
            home("10.0.0.2", 24, "fe80::1"),
            home("10.0.0.2", 24, "10.0.0.2"),
            home("::ffff:10.0.0.2", 64, "fe80::1"),
            home("::", 64, "fe80::1"),
        ] {
            assert!(!bad.is_sound(), "{bad:?}");
        }
    }

    #[test]
    fn pod_loopback_is_closed_unless_opened() {
        let mut link = test_link();
        let to = |l: &Link, s: &str| l.destination_for_pod(s.parse().unwrap()).map(|a| a.to_string());
        for closed in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "10.9.0.2", "::1", "ff02::1"] {
            assert_eq!(to(&link, closed), None, "{closed}");
        }
        assert_eq!(to(&link, "172.17.0.1"), None, "another interface's");
        assert_eq!(to(&link, "::ffff:127.0.0.1"), None);
        assert_eq!(to(&link, "10.9.0.1").as_deref(), Some("10.9.0.1"));
        link.v4.as_mut().unwrap().loopback = Some(Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(to(&link, "192.0.2.1").as_deref(), Some("127.0.0.1"));
    }
}
