//! Which addresses are the API server's: those that have shown the front proxy's certificate.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long an address stays the API server's behind its last connection with the certificate. The API server asks
/// for discovery every minute or so.
const REMEMBERED: Duration = Duration::from_secs(3600);

#[derive(Debug)]
struct Seen {
    open: usize,
    last: Instant,
}

/// The addresses. Only holders of the certificate get into it.
#[derive(Debug, Default)]
pub(super) struct Callers(HashMap<IpAddr, Seen>);

impl Callers {
    /// A connection of `source` showed the certificate.
    pub(super) fn begins(&mut self, source: IpAddr, now: Instant) {
        self.0.retain(|_, seen| seen.open > 0 || now.duration_since(seen.last) < REMEMBERED);
        let seen = self.0.entry(source).or_insert(Seen { open: 0, last: now });
        seen.open += 1;
        seen.last = now;
    }

    /// Such a connection ended.
    pub(super) fn ends(&mut self, source: IpAddr, now: Instant) {
        if let Some(seen) = self.0.get_mut(&source) {
            seen.open -= 1;
            seen.last = now;
        }
    }

    /// Whether `source` is the API server.
    pub(super) fn is_api_server(&self, source: IpAddr, now: Instant) -> bool {
        let seen = self.0.get(&source);
        seen.is_some_and(|seen| seen.open > 0 || now.duration_since(seen.last) < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_api_servers_while_it_shows_the_certificate_and_an_hour_longer() {
        let (one, two) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut callers = Callers::default();
        assert!(!callers.is_api_server(one, start));
        callers.begins(one, start);
        callers.begins(one, at(10));
        callers.ends(one, at(20));
        assert!(callers.is_api_server(one, at(100_000)), "one connection stands");
        assert!(!callers.is_api_server(two, start));
        callers.ends(one, at(200));
        assert!(callers.is_api_server(one, at(200 + 3599)));
        assert!(!callers.is_api_server(one, at(200 + 3600)));
        callers.begins(two, at(200 + 3600));
        assert_eq!(callers.0.len(), 1, "what is forgotten takes no memory");
    }
}
