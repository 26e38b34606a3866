//! resolv.conf(5): the lines that concern the guest.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use crate::config::value::is_domain;

/// More resolvers or domains than this are not read; the C library uses 3 and 6.
const MAX_ENTRIES: usize = 16;

/// The resolvers and search domains of a resolv.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// Resolvers in order, loopback ones included.
    pub nameservers: Vec<IpAddr>,
    /// Search domains in order.
    pub search: Vec<String>,
}

impl ResolvConf {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(path: &Path) -> io::Result<ResolvConf> {
        Ok(ResolvConf::parse(&String::from_utf8_lossy(&std::fs::read(path)?)))
    }

    /// The same; a file that cannot be read counts as empty and is told in the log.
    pub fn read_or_empty(path: &Path) -> ResolvConf {
        ResolvConf::read(path).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "no resolvers and search domains could be read");
            ResolvConf::default()
        })
    }

    /// Reads the text of a resolv.conf.
    ///
    /// `domain` and `search` exclude each other, the last one counts. What is not understood is passed over,
    /// as the C library does; a resolver with a zone, too, since the guest has other zones.
    pub fn parse(text: &str) -> ResolvConf {
        let mut conf = ResolvConf::default();
        for line in text.lines().filter(|l| !l.starts_with(['#', ';'])) {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address: Option<IpAddr> = words.next().and_then(|w| w.parse().ok());
                    if conf.nameservers.len() < MAX_ENTRIES {
                        conf.nameservers.extend(address);
                    }
                }
                Some("domain") => conf.search = domains(words.take(1)),
                Some("search") => conf.search = domains(words),
                _ => {}
            }
        }
        conf
    }
}

fn domains<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    let words = words.map(|w| w.strip_suffix('.').unwrap_or(w));
    words.filter(|w| is_domain(w)).take(MAX_ENTRIES).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pods_file_is_read() {
        let conf = ResolvConf::parse(
            "# made by the kubelet\nsearch default.svc.cluster.local svc.cluster.local example.org.\n\
             nameserver 10.96.0.10\nnameserver fd00:96::a # second\n; nameserver 192.0.2.1\noptions ndots:5\n",
        );
        assert_eq!(conf.nameservers.len(), 2);
        assert_eq!(conf.search, ["default.svc.cluster.local", "svc.cluster.local", "example.org"]);
    }

    #[test]
    fn the_last_of_domain_and_search_counts() {
        assert_eq!(ResolvConf::parse("domain a.example b\nsearch c.example").search, ["c.example"]);
        assert_eq!(ResolvConf::parse("search c.example\ndomain a.example b").search, ["a.example"]);
    }

    #[test]
    fn what_is_not_understood_is_passed_over() {
        let conf = ResolvConf::parse(
            "nameserver\nnameserver x\nnameserver fe80::1%eth0\nsearch . a..b ok\nsortlist 1",
        );
        assert_eq!(conf, ResolvConf { nameservers: vec![], search: vec!["ok".into()] });
    }

    proptest! {
        #[test]
        fn any_text_is_read_within_bounds(text in "(nameserver|search|domain|#| |\n|[0-9a-f:.]{1,12}){0,80}") {
            let conf = ResolvConf::parse(&text);
            prop_assert!(conf.nameservers.len() <= MAX_ENTRIES && conf.search.len() <= MAX_ENTRIES);
        }
    }
}
