//! Which addresses a network has, and which of them a lease gets.
//!
//! A [`RangeSet`] gives each interface one address. It is a list of ranges of one family, each within a subnet; what
//! may be leased is cut into intervals of numbers once, so that a choice costs as many steps as there are leases at
//! worst, not as there are addresses: an IPv6 range has 2^64 of them.
//!
//! The search begins at a place that follows from the lease's identity, not at the first address: concurrent ADDs seldom
//! meet, and an address just freed is seldom the next one given.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// A part of a subnet from which addresses are leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The subnet, without host bits.
    pub subnet: IpNet,
    /// First address that may be leased.
    pub first: IpAddr,
    /// Last address that may be leased.
    pub last: IpAddr,
    /// The subnet's router, never leased.
    pub gateway: Option<IpAddr>,
    /// Never leased.
    pub exclude: Vec<IpNet>,
}

/// Ranges of one family of which an interface gets one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range>,
    /// What may be leased, as numbers, both ends included, ascending, disjoint.
    intervals: Vec<(u128, u128)>,
    ipv4: bool,
}

/// A range cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// A set has no range.
    #[error("the list is empty; allowed: at least one range")]
    Empty,
    /// Two families in one set.
    #[error("{0} is of another family than the set's first subnet; allowed: one family a set")]
    Family(IpNet),
    /// An address is not in its range's subnet.
    #[error("{field} {value} is not in the subnet {subnet}")]
    Outside {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The subnet.
        subnet: IpNet,
    },
    /// Nothing is left to lease.
    #[error(
        "no address of {0} can be leased; allowed: ranges with at least one address that is not excluded"
    )]
    Nothing(IpNet),
    /// Two ranges overlap.
    #[error("{0} and {1} overlap; allowed: ranges without a common address, sets without a common subnet")]
    Overlap(IpNet, IpNet),
}

impl Range {
    /// What of this range may be leased.
    fn intervals(&self) -> Result<Vec<(u128, u128)>, RangeError> {
        let within = |field, value: IpAddr| {
            let ok = self.subnet.contains(&value);
            let subnet = self.subnet;
            if ok { Ok(()) } else { Err(RangeError::Outside { field, value: value.to_string(), subnet }) }
        };
        within("rangeStart", self.first)?;
        within("rangeEnd", self.last)?;
        if let Some(gateway) = self.gateway {
            within("gateway", gateway)?;
        }
        let mut holes: Vec<(u128, u128)> = Vec::new();
        for net in &self.exclude {
            if !self.subnet.contains(net) {
                let value = net.to_string();
                return Err(RangeError::Outside { field: "exclude", value, subnet: self.subnet });
            }
            holes.push((number(net.network()), number(net.broadcast())));
        }
        holes.extend(self.gateway.map(|g| (number(g), number(g))));
        // The subnet itself: its network address (RFC 1122, section 3.2.1.3; of IPv6 the routers' anycast address,
        // RFC 4291, section 2.6.1) and IPv4's broadcast address. Links of two addresses have neither (RFC 3021,
        // RFC 6164).
        let (low, high) = (number(self.subnet.network()), number(self.subnet.broadcast()));
        if high - low > 1 {
            holes.push((low, low));
            if self.subnet.addr().is_ipv4() {
                holes.push((high, high));
            }
        }
        holes.sort_unstable();
        let (mut next, end) = (number(self.first), number(self.last));
        let mut intervals = Vec::new();
        for (from, to) in holes {
            if from > end || next > end {
                break;
            }
            if from > next {
                intervals.push((next, from - 1));
            }
            // At most the last of all addresses, and then there is nothing behind it.
            next = next.max(to.saturating_add(1));
        }
        if next <= end {
            intervals.push((next, end));
        }
        if intervals.is_empty() { Err(RangeError::Nothing(self.subnet)) } else { Ok(intervals) }
    }
}

impl RangeSet {
    /// A set of `ranges`.
    ///
    /// # Errors
    /// Ranges of two families, ranges that overlap, or that leave nothing to lease.
    pub fn new(ranges: Vec<Range>) -> Result<RangeSet, RangeError> {
        let ipv4 = ranges.first().ok_or(RangeError::Empty)?.subnet.addr().is_ipv4();
        let mut all: Vec<(u128, u128, IpNet)> = Vec::new();
        for range in &ranges {
            if range.subnet.addr().is_ipv4() != ipv4 {
                return Err(RangeError::Family(range.subnet));
            }
            all.extend(range.intervals()?.into_iter().map(|(a, b)| (a, b, range.subnet)));
        }
        all.sort_unstable();
        if let Some(pair) = all.windows(2).find(|pair| pair[1].0 <= pair[0].1) {
            return Err(RangeError::Overlap(pair[0].2, pair[1].2));
        }
        Ok(RangeSet { ranges, intervals: all.into_iter().map(|(a, b, _)| (a, b)).collect(), ipv4 })
    }

    /// Whether `address` may be leased.
    pub fn offers(&self, address: IpAddr) -> bool {
        let value = number(address);
        address.is_ipv4() == self.ipv4 && self.intervals.iter().any(|(a, b)| (*a..=*b).contains(&value))
    }

    /// The range in whose subnet `address` is.
    pub fn range_of(&self, address: IpAddr) -> Option<&Range> {
        let mut of_subnet = self.ranges.iter().filter(|r| r.subnet.contains(&address));
        let first = of_subnet.next()?;
        // Of several ranges in one subnet one may be the one that names the router.
        Some(if first.gateway.is_some() {
            first
        } else {
            of_subnet.find(|r| r.gateway.is_some()).unwrap_or(first)
        })
    }

    /// `address` with the length of its subnet's prefix.
    pub fn with_prefix(&self, address: IpAddr) -> Option<IpNet> {
        let range = self.range_of(address)?;
        IpNet::new(address, range.subnet.prefix_len()).ok()
    }

    /// The first address from `start` on, around the set, that may be leased and is not in `taken`.
    pub fn choose(&self, start: u64, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let count = self.intervals.iter().fold(0u128, |n, (a, b)| n.saturating_add(b - a).saturating_add(1));
        let start = u128::from(start) % count;
        // Each step meets another address, so one more than are taken is enough.
        let steps = count.min(taken.len() as u128 + 1);
        (0..steps).map(|i| self.nth((start + i) % count)).find(|address| !taken.contains(address))
    }

    /// The first subnet that this set and `other` have in common.
    pub fn common_subnet(&self, other: &RangeSet) -> Option<(IpNet, IpNet)> {
        let pairs = self.ranges.iter().flat_map(|a| other.ranges.iter().map(|b| (a.subnet, b.subnet)));
        pairs.into_iter().find(|(a, b)| a.contains(b) || b.contains(a))
    }

    fn nth(&self, mut n: u128) -> IpAddr {
        for (from, to) in &self.intervals {
            if n <= to - from {
                return self.address(from + n);
            }
            n -= to - from + 1;
        }
        // `n` is below the count by construction.
        self.address(self.intervals.first().map_or(0, |i| i.0))
    }

    fn address(&self, value: u128) -> IpAddr {
        match u32::try_from(value) {
            Ok(value) if self.ipv4 => Ipv4Addr::from(value).into(),
            _ => Ipv6Addr::from(value).into(),
        }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => u32::from(a).into(),
        IpAddr::V6(a) => a.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(subnet: &str, first: &str, last: &str, gateway: Option<&str>, exclude: &[&str]) -> Range {
        Range {
            subnet: subnet.parse().unwrap(),
            first: first.parse().unwrap(),
            last: last.parse().unwrap(),
            gateway: gateway.map(|g| g.parse().unwrap()),
            exclude: exclude.iter().map(|e| e.parse().unwrap()).collect(),
        }
    }

    fn all(set: &RangeSet) -> Vec<String> {
        let mut taken = BTreeSet::new();
        while let Some(address) = set.choose(0, &taken) {
            assert!(set.offers(address) && taken.insert(address) && taken.len() < 1000);
        }
        taken.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn network_broadcast_gateway_and_excluded_addresses_are_not_leased() {
        let set = RangeSet::new(vec![range(
            "10.0.0.0/28",
            "10.0.0.0",
            "10.0.0.15",
            Some("10.0.0.1"),
            &["10.0.0.4/30", "10.0.0.9/32"],
        )])
        .unwrap();
        let left = ["10.0.0.2", "10.0.0.3", "10.0.0.8"];
        let right = ["10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.14"];
        assert_eq!(all(&set), [&left[..], &right[..]].concat());
        assert!(!set.offers("10.0.0.5".parse().unwrap()));
        assert!(!set.offers("::10.0.0.2".parse().unwrap()));
    }

    #[test]
    fn links_of_two_addresses_lease_both() {
        let v4 = RangeSet::new(vec![range("10.0.0.2/31", "10.0.0.2", "10.0.0.3", None, &[])]).unwrap();
        assert_eq!(all(&v4), ["10.0.0.2", "10.0.0.3"]);
        let one = RangeSet::new(vec![range("10.0.0.2/32", "10.0.0.2", "10.0.0.2", None, &[])]).unwrap();
        assert_eq!(all(&one), ["10.0.0.2"]);
        let v6 = RangeSet::new(vec![range("fd00::2/127", "fd00::2", "fd00::3", None, &[])]).unwrap();
        assert_eq!(all(&v6), ["fd00::2", "fd00::3"]);
    }

    #[test]
    fn the_whole_of_ipv6_can_be_searched() {
        let all = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let set = RangeSet::new(vec![range("::/0", "::", all, None, &["8000::/1"])]).unwrap();
        assert!(set.choose(u64::MAX, &BTreeSet::new()).is_some());
        assert!(!set.offers("8000::1".parse().unwrap()));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        let refused = |ranges| RangeSet::new(ranges).unwrap_err().to_string();
        let r = |s, f, l| range(s, f, l, None, &[]);
        assert!(refused(vec![]).contains("empty"));
        assert!(refused(vec![r("10.0.0.0/24", "10.0.1.1", "10.0.0.9")]).contains("rangeStart 10.0.1.1"));
        assert!(refused(vec![r("10.0.0.0/24", "10.0.0.9", "10.0.0.8")]).contains("no address"));
        assert!(
            refused(vec![range("10.0.0.0/24", "10.0.0.1", "10.0.0.9", Some("10.1.0.1"), &[])])
                .contains("gateway")
        );
        assert!(
            refused(vec![range("10.0.0.0/24", "10.0.0.1", "10.0.0.9", None, &["10.0.0.0/24"])])
                .contains("no address")
        );
        let two = vec![r("10.0.0.0/24", "10.0.0.1", "10.0.0.9"), r("10.0.0.0/24", "10.0.0.9", "10.0.0.12")];
        assert!(refused(two).contains("overlap"));
        let mixed = vec![r("10.0.0.0/24", "10.0.0.1", "10.0.0.9"), r("fd00::/64", "fd00::1", "fd00::9")];
        assert!(refused(mixed).contains("family"));
    }

    #[test]
    fn the_router_is_known_from_any_range_of_the_subnet() {
        let set = RangeSet::new(vec![
            range("10.0.0.0/24", "10.0.0.10", "10.0.0.19", None, &[]),
            range("10.0.0.0/24", "10.0.0.30", "10.0.0.39", Some("10.0.0.1"), &[]),
        ])
        .unwrap();
        assert_eq!(
            set.range_of("10.0.0.10".parse().unwrap()).unwrap().gateway,
            Some("10.0.0.1".parse().unwrap())
        );
        assert_eq!(set.with_prefix("10.0.0.10".parse().unwrap()), Some("10.0.0.10/24".parse().unwrap()));
        assert_eq!(set.with_prefix("10.0.1.10".parse().unwrap()), None);
    }

    proptest! {
        /// Whatever is excluded and taken: a choice is free and offered, and there is one while there is any.
        #[test]
        fn a_choice_is_free_and_found_whenever_there_is_one(
            bounds in (0u8..=255, 0u8..=255),
            holes in proptest::collection::vec((0u8..=255, 26u8..=32), 0..4),
            taken in proptest::collection::btree_set(0u8..=255, 0..256),
            gateway in proptest::option::of(0u8..=255),
            start: u64,
        ) {
            let address = |last: u8| IpAddr::from([10, 0, 0, last]);
            let (first, last) = (bounds.0.min(bounds.1), bounds.0.max(bounds.1));
            let exclude: Vec<IpNet> = holes.iter().map(|(a, l)| IpNet::new(address(*a), *l).unwrap().trunc()).collect();
            let taken: BTreeSet<IpAddr> = taken.into_iter().map(address).collect();
            let usable = |a: u8| {
                (first..=last).contains(&a) && a != 0 && a != 255 && gateway != Some(a)
                    && !exclude.iter().any(|e| e.contains(&address(a)))
            };
            let set = RangeSet::new(vec![Range {
                subnet: "10.0.0.0/24".parse().unwrap(),
                first: address(first), last: address(last), gateway: gateway.map(address), exclude: exclude.clone(),
            }]);
            match set {
                Err(_) => prop_assert!(!(0..=255).any(usable)),
                Ok(set) => {
                    for a in 0..=255 { prop_assert_eq!(set.offers(address(a)), usable(a), "{}", a); }
                    let free = (0..=255).filter(|a| usable(*a) && !taken.contains(&address(*a))).count();
                    match set.choose(start, &taken) {
                        None => prop_assert_eq!(free, 0),
                        Some(chosen) => prop_assert!(set.offers(chosen) && !taken.contains(&chosen)),
                    }
                }
            }
        }
    }
}
