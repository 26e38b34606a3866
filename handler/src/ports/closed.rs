//! Ports that are not steered, as the program reads them: one bit a port.

use podvirt_proto::steering::Ranges;

/// Words of one protocol's bits.
const WORDS: u32 = 1024;
/// Index of UDP's first word.
pub(super) const UDP_WORDS: u32 = WORDS;
/// Words of both.
pub(super) const ALL_WORDS: u32 = 2 * WORDS;

/// What listens in a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listening {
    /// Ports with a listening TCP socket.
    pub(super) tcp: Vec<u16>,
    /// Ports of UDP sockets that are not connected.
    pub(super) udp: Vec<u16>,
}

impl Listening {
    /// Without the ports of `own`.
    pub(super) fn without(mut self, own: &Ranges) -> Listening {
        let other = |ranges: &[(u16, u16)], port: u16| !ranges.iter().any(|(a, b)| (*a..=*b).contains(&port));
        self.tcp.retain(|p| other(&own.tcp, *p));
        self.udp.retain(|p| other(&own.udp, *p));
        self
    }

    /// Without the UDP ports that the look before did not see. `seen` holds the UDP ports of the look before, sorted;
    /// afterwards it holds those of `self`.
    pub(super) fn that_stay(mut self, seen: &mut Vec<u16>) -> Listening {
        let stay = self.udp.iter().copied().filter(|p| seen.binary_search(p).is_ok()).collect();
        *seen = std::mem::replace(&mut self.udp, stay);
        self
    }
}

/// The bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    /// All ports open.
    pub(super) fn new() -> Bits {
        Bits(vec![0; ALL_WORDS as usize])
    }

    /// The bits of ports that are closed for ever, and of those on which a process listens.
    pub(super) fn of(closed: &Ranges, listening: &Listening) -> Bits {
        let mut bits = Bits::new();
        for (first_word, ranges, ports) in
            [(0, &closed.tcp, &listening.tcp), (UDP_WORDS, &closed.udp, &listening.udp)]
        {
            let single = ports.iter().map(|p| (*p, *p));
            for (first, last) in ranges.iter().copied().chain(single) {
                for port in first..=last {
                    if let Some(word) = bits.0.get_mut(first_word as usize + usize::from(port >> 6)) {
                        *word |= 1 << (port & 63);
                    }
                }
            }
        }
        bits
    }

    /// The words that differ from `before`, by index.
    pub(super) fn changes<'a>(&'a self, before: &'a Bits) -> impl Iterator<Item = (u32, u64)> + 'a {
        let pairs = (0..).zip(self.0.iter().zip(&before.0));
        pairs.filter(|(_, (new, old))| new != old).map(|(i, (new, _))| (i, *new))
    }

    /// How many ports are closed: TCP, UDP.
    pub(super) fn count(&self) -> (u32, u32) {
        let (tcp, udp) = self.0.split_at(UDP_WORDS as usize);
        let count = |words: &[u64]| words.iter().map(|w| w.count_ones()).sum();
        (count(tcp), count(udp))
    }

    /// From words read back.
    pub(super) fn from_words(words: impl Iterator<Item = u64>) -> Bits {
        let mut bits = Bits(words.take(ALL_WORDS as usize).collect());
        bits.0.resize(ALL_WORDS as usize, 0);
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_the_bit_of_its_protocol() {
        let closed = Ranges { tcp: vec![(15000, 15001)], udp: vec![(65535, 65535)] };
        let listening = Listening { tcp: vec![8080], udp: vec![53] };
        let bits = Bits::of(&closed, &listening);
        assert_eq!(bits.count(), (3, 2));
        let changes: Vec<_> = bits.changes(&Bits::new()).collect();
        let expected = [
            (8080 >> 6, 1 << (8080 & 63)),
            (15000 >> 6, 3 << (15000 & 63)),
            (UDP_WORDS, 1 << 53),
            (ALL_WORDS - 1, 1 << 63),
        ];
        assert_eq!(changes, expected);
        assert_eq!(Bits::from_words(bits.0.iter().copied()), bits);
    }

    #[test]
    fn a_udp_port_is_seen_twice_before_it_is_closed() {
        let look = |udp: &[u16]| Listening { tcp: vec![80], udp: udp.to_vec() };
        let mut seen = vec![53];
        assert_eq!(look(&[53, 4000]).that_stay(&mut seen), look(&[53]));
        assert_eq!(look(&[53, 4000]).that_stay(&mut seen), look(&[53, 4000]));
        assert_eq!(look(&[4000]).that_stay(&mut seen), look(&[4000]));
    }

    #[test]
    fn a_listener_that_goes_opens_its_port_again() {
        let before = Bits::of(&Ranges::default(), &Listening { tcp: vec![80, 81], udp: vec![] });
        let after = Bits::of(&Ranges::default(), &Listening { tcp: vec![81], udp: vec![] });
        assert_eq!(after.changes(&before).collect::<Vec<_>>(), [(1, 1 << 17)]);
    }

    #[test]
    fn a_range_backwards_closes_nothing() {
        let closed = Ranges { tcp: vec![(9, 8)], udp: vec![] };
        assert_eq!(Bits::of(&closed, &Listening::default()), Bits::new());
    }
}
