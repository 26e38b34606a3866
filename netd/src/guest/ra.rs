//! Router advertisements: what they say and when they are sent.
//!
//! An advertisement tells the guest that netd is its default router, the MTU, the resolvers and search
//! domains (RFC 8106), further routes (RFC 4191), which prefix is on the link, and that addresses come from
//! DHCPv6 (M and O flags). The prefix never has the A flag: an address the guest made from it would not be
//! the pod's, the cluster would not route it, and the translators would drop it.
//!
//! Everything is told with a lifetime of three of the longest intervals, as RFC 4861 section 6.2.1 has it, so
//! that what a former netd said (before a migration, say) fades without help; what *this* netd said and the
//! present [`Link`] no longer holds is withdrawn with lifetime zero in the next advertisements.
//!
//! Times follow RFC 4861 section 6.2.4: after [`Advertiser::link_up`] three advertisements at short
//! intervals, then one every 200 to 600 seconds. Solicited ones go to the asker at once: the random delay
//! of 6.2.6 spares routers that share a link, and here there is one.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use ipnet::Ipv6Net;
use smoltcp::wire::Icmpv6Message;

use super::frame::{self, IPV6, MacPair};
use super::name;
use super::ndp::{ALL_NODES, HOP_LIMIT, SOURCE_LINK_LAYER, push_link_layer};
use crate::net::{Link, LinkV6};
use crate::time::Time;
use crate::wire::MacAddr;

/// Longest and shortest interval between unsolicited advertisements (RFC 4861 section 6.2.1, the defaults).
const MAX_INTERVAL: Duration = Duration::from_secs(600);
const MIN_INTERVAL: Duration = Duration::from_secs(200);
/// MAX_INITIAL_RTR_ADVERT_INTERVAL and MAX_INITIAL_RTR_ADVERTISEMENTS (RFC 4861 section 10).
const INITIAL_INTERVAL: Duration = Duration::from_secs(16);
const INITIAL_COUNT: u8 = 3;
/// MIN_DELAY_BETWEEN_RAS (RFC 4861 section 10), for those to all nodes.
const MIN_DELAY: Duration = Duration::from_secs(3);

/// Lifetime of everything advertised, in seconds: three times the longest interval.
const LIFETIME: u16 = 1800;

/// Option types: RFC 4861 section 4.6, RFC 4191 section 2.3, RFC 8106 section 5.
const PREFIX_INFORMATION: u8 = 3;
const MTU: u8 = 5;
const ROUTE_INFORMATION: u8 = 24;
const RDNSS: u8 = 25;
const DNSSL: u8 = 31;

/// M and O flags: addresses and the rest by DHCPv6 (RFC 4861 section 4.2).
const MANAGED: u8 = 0x80;
const OTHER: u8 = 0x40;
/// L flag of prefix information (RFC 4861 section 4.6.2).
const ON_LINK: u8 = 0x80;

/// No advertisement is longer than every IPv6 link can carry (RFC 8200 section 5).
const MAX_LEN: usize = 1280 - IPV6;
/// How many resolvers one RDNSS option names; resolver libraries use three.
const MAX_RDNSS: usize = 8;

/// What an advertisement tells beside the router itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    prefixes: Vec<Ipv6Net>,
    routes: Vec<Ipv6Net>,
    dns: Vec<Ipv6Addr>,
    search: Vec<String>,
}

impl Told {
    fn of(link: &Link, v6: &LinkV6) -> Told {
        let mut told = Told::default();
        // A /128 says that nothing but the router is on the link.
        let own = Ipv6Net::new(v6.guest, v6.prefix_len).ok().filter(|n| n.prefix_len() < 128);
        told.prefixes.extend(own.map(|n| n.trunc()));
        for route in v6.routes.iter().filter(|r| r.to.prefix_len() > 0) {
            // A route without a next hop is a prefix on the link; the router lifetime is the default route.
            let list = if route.via.is_none() { &mut told.prefixes } else { &mut told.routes };
            let net = route.to.trunc();
            if !list.contains(&net) {
                list.push(net);
            }
        }
        let usable = |a: &Ipv6Addr| !a.is_loopback() && !a.is_unspecified() && !a.is_multicast();
        told.dns =
            link.dns.iter().filter_map(|a| if let IpAddr::V6(a) = a { Some(*a) } else { None }).collect();
        told.dns.retain(usable);
        told.dns.truncate(MAX_RDNSS);
        told.search = link.search.iter().filter(|n| name::encode(n).is_some()).cloned().collect();
        told
    }

    fn without(&self, other: &Told) -> Told {
        fn minus<T: Clone + PartialEq>(a: &[T], b: &[T]) -> Vec<T> {
            a.iter().filter(|x| !b.contains(x)).cloned().collect()
        }
        Told {
            prefixes: minus(&self.prefixes, &other.prefixes),
            routes: minus(&self.routes, &other.routes),
            dns: minus(&self.dns, &other.dns),
            search: minus(&self.search, &other.search),
        }
    }

    fn is_empty(&self) -> bool {
        *self == Told::default()
    }

    /// Appends these facts as options, as many as fit.
    fn push(&self, message: &mut Vec<u8>, lifetime: u16) {
        let seconds = u32::from(lifetime).to_be_bytes();
        for net in &self.prefixes {
            let mut option = vec![PREFIX_INFORMATION, 4, net.prefix_len(), ON_LINK];
            // Valid and preferred lifetime, four reserved bytes.
            option.extend_from_slice(&[seconds, seconds, [0; 4]].concat());
            option.extend_from_slice(&net.addr().octets());
            push_option(message, &option);
        }
        if !self.dns.is_empty() {
            let mut option = vec![RDNSS, 0, 0, 0];
            option.extend_from_slice(&seconds);
            option.extend(self.dns.iter().flat_map(Ipv6Addr::octets));
            push_option(message, &option);
        }
        let mut names = &self.search[..];
        // Fewer domains rather than none where not all fit.
        while !names.is_empty() {
            let mut option = vec![DNSSL, 0, 0, 0];
            option.extend_from_slice(&seconds);
            option.extend_from_slice(&name::encode_all(names));
            if push_option(message, &option) {
                break;
            }
            names = names.split_last().map_or(&[], |(_, rest)| rest);
        }
        for net in &self.routes {
            // The preference bits stay zero: medium. The prefix is as long as it must be (RFC 4191 section
            // 2.3).
            let octets = net.addr().octets();
            let significant = if net.prefix_len() > 64 { &octets[..] } else { &octets[..8] };
            let mut option = vec![ROUTE_INFORMATION, 0, net.prefix_len(), 0];
            option.extend_from_slice(&seconds);
            option.extend_from_slice(significant);
            push_option(message, &option);
        }
    }
}

/// Appends an option, padded to units of eight bytes and its length written, if it fits.
fn push_option(message: &mut Vec<u8>, option: &[u8]) -> bool {
    let units = option.len().div_ceil(8);
    let (Ok(units_byte), true) = (u8::try_from(units), message.len() + units * 8 <= MAX_LEN) else {
        return false;
    };
    let start = message.len();
    message.extend_from_slice(option);
    message.resize(start + units * 8, 0);
    if let Some(len) = message.get_mut(start + 1) {
        *len = units_byte;
    }
    true
}

/// The router's side of router discovery.
#[derive(Debug, Default)]
pub(super) struct Advertiser {
    next: Option<Time>,
    initial_left: u8,
    last_to_all: Option<Time>,
    told: Told,
    retired: Told,
    retired_left: u8,
}

impl Advertiser {
    /// The link came up or what it says has changed: advertise soon and several times.
    pub(super) fn link_up(&mut self, now: Time) {
        self.initial_left = INITIAL_COUNT;
        self.next = Some(self.earliest_to_all(now));
    }

    /// When [`Advertiser::poll`] has something to do.
    pub(super) fn poll_at(&self) -> Option<Time> {
        self.next
    }

    /// Sends the unsolicited advertisement that is due, if one is.
    pub(super) fn poll(&mut self, link: &Link, now: Time, out: &mut Vec<Vec<u8>>) {
        if self.next.is_none_or(|t| t > now) {
            return;
        }
        match &link.v6 {
            Some(v6) => self.advertise(link, v6, now, out),
            None => self.next = None,
        }
    }

    /// Answers a solicitation whose sender has an address.
    pub(super) fn answer(
        &self,
        link: &Link,
        v6: &LinkV6,
        mac: MacAddr,
        to: Ipv6Addr,
        out: &mut Vec<Vec<u8>>,
    ) {
        let told = Told::of(link, v6);
        let retired = self.retired.without(&told);
        out.extend(advertisement(link, v6, &told, &retired, (mac, to)));
    }

    /// Answers a solicitation whose sender has no address yet: to all nodes, at most every three seconds.
    pub(super) fn solicited_from_unspecified(
        &mut self,
        link: &Link,
        v6: &LinkV6,
        now: Time,
        out: &mut Vec<Vec<u8>>,
    ) {
        let earliest = self.earliest_to_all(now);
        if earliest <= now {
            self.advertise(link, v6, now, out);
        } else {
            self.next = Some(self.next.map_or(earliest, |t| t.min(earliest)));
        }
    }

    fn earliest_to_all(&self, now: Time) -> Time {
        self.last_to_all.map_or(now, |t| now.max(t + MIN_DELAY))
    }

    fn advertise(&mut self, link: &Link, v6: &LinkV6, now: Time, out: &mut Vec<Vec<u8>>) {
        let told = Told::of(link, v6);
        let gone = self.told.without(&told);
        if !gone.is_empty() {
            self.retired = gone;
            self.retired_left = INITIAL_COUNT;
        }
        self.retired = self.retired.without(&told);
        let to = (frame::multicast_mac(ALL_NODES), ALL_NODES);
        out.extend(advertisement(link, v6, &told, &self.retired, to));
        self.told = told;
        self.retired_left = self.retired_left.saturating_sub(1);
        if self.retired_left == 0 {
            self.retired = Told::default();
        }
        self.last_to_all = Some(now);
        let mut interval = jittered_interval(now);
        if self.initial_left > 0 {
            self.initial_left -= 1;
            interval = interval.min(INITIAL_INTERVAL);
        }
        self.next = Some(now + interval);
    }
}

/// An interval between the shortest and the longest. The moment itself is the source of chance: nothing
/// secret depends on it, and tests stay repeatable.
fn jittered_interval(now: Time) -> Duration {
    let spread = u64::try_from((MAX_INTERVAL - MIN_INTERVAL).as_millis()).unwrap_or(0);
    let mixed = now.as_micros().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    MIN_INTERVAL + Duration::from_millis(mixed % (spread + 1))
}

fn advertisement(
    link: &Link,
    v6: &LinkV6,
    told: &Told,
    retired: &Told,
    (mac, to): (MacAddr, Ipv6Addr),
) -> Option<Vec<u8>> {
    let mut ra = vec![u8::from(Icmpv6Message::RouterAdvert), 0, 0, 0, frame::TTL, MANAGED | OTHER];
    // Zero: a router, but no default router (RFC 4861 section 6.2.3).
    let lifetime = if v6.default_route { LIFETIME } else { 0 };
    ra.extend_from_slice(&lifetime.to_be_bytes());
    // Reachable and retransmission times are the guest's own affair: zero, unspecified.
    ra.extend_from_slice(&[0; 8]);
    push_link_layer(&mut ra, SOURCE_LINK_LAYER, link.mac);
    // A smaller value than every IPv6 link has would be ignored (RFC 4861 section 6.3.4).
    if link.mtu >= 1280 {
        let mut option = vec![MTU, 1, 0, 0];
        option.extend_from_slice(&u32::from(link.mtu).to_be_bytes());
        push_option(&mut ra, &option);
    }
    told.push(&mut ra, LIFETIME);
    retired.push(&mut ra, 0);
    frame::icmp6(MacPair { from: link.mac, to: mac }, (v6.gateway, to), HOP_LIMIT, ra)
}
