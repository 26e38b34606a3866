//! What is measured on what: the setups of a whole measurement and the cases of each.
//!
//! A *setup* is a frontend with an MTU and an address family. Each round starts it once for each of its peers, one after
//! the other, and runs its *cases* on it. Figures are named by the case, then by what varies:
//!
//! | name | meaning |
//! |---|---|
//! | `tcp_g2h_1500` | one stream, guest to host, MTU 1500, IPv4, User Mode Linux |
//! | `tcp4_h2g_65520` | four streams, host to guest, MTU 65520 |
//! | `tcp_g2h_1500_v6` | IPv6 |
//! | `tcg_tcp_g2h_1500` | the guest runs under QEMU's TCG |
//! | `udp_echo_*`, `udp_tx_*` | testpmd is the frontend |
//! | `ring_*` | the double in a loop is the frontend |
//! | `receiver_*` | the double acknowledges TCP and reads nothing: no guest's own receiving is in it |
//! | `pairs_2_*` | the same with two queue pairs |
//! | `far_*` | a thousand connections to a peer that is 20 ms away |
//! | `peers_new_*`, `peers_one_*` | beside 100,000 datagrams a second, each from a new peer, or all from one |
//! | `peers_steered_*`, `peers_2_*` | the same to a steered port, and with two queue pairs |
//! | `names_*` | beside 5,000 questions a second of the guest, each from a fresh port |

use std::fmt;

use clap::ValueEnum;
use podvirt_e2e::Family;

/// What carries the guest's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// This project's.
    Netd,
    /// passt in vhost-user mode.
    Passt,
    /// A tap device, a bridge and nftables that masquerade, as a privileged node agent sets them up.
    Tap,
    /// QEMU's own user mode network.
    Slirp,
    /// No guest: its programs are processes of the pod, which shows what any backend in that pod can reach.
    Plain,
}

impl Peer {
    /// As in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Netd => "netd",
            Peer::Passt => "passt",
            Peer::Tap => "tap",
            Peer::Slirp => "slirp",
            Peer::Plain => "plain",
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What stands in the place of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Frontend {
    /// User Mode Linux: nearly as fast as the machine itself.
    Uml,
    /// The same guest under QEMU's TCG.
    Tcg,
    /// DPDK's testpmd: no guest, a driver that polls.
    Testpmd,
    /// This project's own frontend in a loop: what the rings allow.
    Double,
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Frontend::Uml => "uml",
            Frontend::Tcg => "tcg",
            Frontend::Testpmd => "testpmd",
            Frontend::Double => "double",
        })
    }
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// Memory, CPU time and wake-ups with nothing to do
    Idle,
    /// Round trips over one connection, both ways, and of datagrams
    Rr,
    /// Connection, one byte there and back, end; both ways
    Crr,
    /// One bulk TCP stream, both ways
    Tcp,
    /// Four of them
    Tcp4,
    /// Datagrams of several sizes by iperf3, both ways
    Udp,
    /// From 1 to 18,000 connections at once: set-up, memory, throughput beside them
    Flows,
    /// A thousand connections to a peer that is 20 ms away, each sending at a steady rate
    Far,
    /// What others have beside datagrams of ever new peers
    Peers,
    /// What others have beside questions from ever new ports
    Names,
    /// Datagrams that testpmd returns
    Echo,
    /// Datagrams that testpmd makes
    Txonly,
    /// Frames that lead nowhere, and datagrams, from a loop
    Ceiling,
    /// What one and several queue pairs carry, each filled by a loop
    Pairs,
    /// TCP streams of the host to a loop that acknowledges them
    Receiver,
    /// Parts of netd alone: rings, headers, flow table, timers
    Micro,
    /// All ports open
    Ports,
    /// A guest that moves, and its connections: a short one
    Migration,
}

impl Case {
    /// Whether a second time on the same setup finds the same: memory is compared with what was before.
    pub(crate) fn is_repeatable(self) -> bool {
        self != Case::Flows
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", |v| v.get_name()))
    }
}

/// A frontend in a network, and what is measured with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setup {
    /// The frontend.
    pub(crate) frontend: Frontend,
    /// The guest's MTU in bytes.
    pub(crate) mtu: u16,
    /// MTU of the pod's link in bytes, except for [`Peer::Tap`], which cannot have another one than the guest.
    pub(crate) link_mtu: u16,
    /// Address family.
    pub(crate) family: Family,
    /// What is measured, in this order.
    pub(crate) cases: Vec<Case>,
    /// With what, in the first round in this order.
    pub(crate) peers: Vec<Peer>,
    /// Sizes of datagrams in bytes.
    pub(crate) sizes: Vec<u16>,
    /// Every port is steered to netd by the node agent, which no other peer has.
    pub(crate) steered: bool,
    /// Queue pairs, which only netd has several of, and only the double drives here.
    pub(crate) pairs: usize,
    /// The most rounds.
    pub(crate) rounds: u32,
}

impl Setup {
    /// As in results.
    pub(crate) fn name(&self) -> String {
        let pairs = if self.pairs > 1 { format!("-{}pairs", self.pairs) } else { String::new() };
        let steered = if self.steered { "-steered" } else { "" };
        format!("{}-{}-v{}{pairs}{steered}", self.frontend, self.mtu, self.family.digit())
    }

    /// What figures of peers have in their names.
    pub(crate) fn kind(&self) -> String {
        let pairs = if self.pairs > 1 { format!("_{}", self.pairs) } else { String::new() };
        let steered = if self.steered { "_steered" } else { "" };
        format!("{pairs}{steered}")
    }

    /// What the names of its figures begin with.
    pub(crate) fn prefix(&self) -> &'static str {
        if self.frontend == Frontend::Tcg { "tcg_" } else { "" }
    }

    /// What the names of its figures end with.
    pub(crate) fn suffix(&self) -> &'static str {
        if self.family == Family::V6 { "_v6" } else { "" }
    }

    fn new(frontend: Frontend, mtu: u16, cases: &[Case], peers: &[Peer]) -> Setup {
        Setup {
            frontend,
            mtu,
            link_mtu: 1500,
            family: Family::V4,
            cases: cases.to_vec(),
            peers: peers.to_vec(),
            sizes: vec![64, 1400],
            steered: false,
            pairs: 1,
            rounds: u32::MAX,
        }
    }
}

/// Everything that is measured with a frontend.
pub(crate) fn whole() -> Vec<Setup> {
    use Case::{Ceiling, Crr, Echo, Far, Flows, Idle, Pairs, Receiver, Rr, Tcp, Tcp4, Txonly, Udp};
    use Frontend::{Double, Tcg, Testpmd, Uml};
    use Peer::{Netd, Passt, Plain, Slirp, Tap};
    let user = [Netd, Passt];
    let all = [Netd, Passt, Tap, Plain];
    let jumbo = |setup: Setup| Setup { link_mtu: 9000, sizes: vec![8972], ..setup };
    vec![
        Setup::new(Uml, 1500, &[Idle, Rr, Crr, Tcp, Tcp4, Udp, Far], &all),
        Setup::new(Testpmd, 1500, &[Echo, Txonly], &user),
        Setup::new(Uml, 65520, &[Tcp, Tcp4], &all),
        // Nothing is required of these.
        Setup { family: Family::V6, rounds: 2, ..Setup::new(Uml, 1500, &[Tcp], &all) },
        Setup { rounds: 2, ..jumbo(Setup::new(Uml, 9000, &[Tcp, Udp], &all)) },
        Setup { rounds: 2, ..Setup::new(Uml, 1280, &[Tcp], &all) },
        Setup { rounds: 2, ..jumbo(Setup::new(Testpmd, 9000, &[Echo, Txonly], &user)) },
        Setup::new(Double, 1500, &[Ceiling, Pairs, Receiver], &user),
        Setup::new(Double, 65520, &[Receiver], &user),
        Setup { pairs: 2, ..Setup::new(Double, 1500, &[Pairs], &[Netd]) },
        // Each takes half a minute for each peer; what they are compared with is far away.
        Setup::new(Uml, 1400, &[Flows], &[Netd, Passt, Plain]),
        Setup { rounds: 1, ..Setup::new(Tcg, 1500, &[Rr, Tcp], &[Netd, Passt, Tap, Slirp]) },
    ]
}

/// What others have beside floods of short UDP flows.
pub(crate) fn crowds() -> Vec<Setup> {
    use Case::{Names, Peers};
    use Frontend::{Double, Uml};
    use Peer::{Netd, Passt};
    vec![
        Setup::new(Uml, 1500, &[Peers, Names], &[Netd, Passt]),
        Setup { steered: true, ..Setup::new(Uml, 1500, &[Peers], &[Netd]) },
        Setup { pairs: 2, ..Setup::new(Double, 1500, &[Peers], &[Netd]) },
        Setup { steered: true, pairs: 2, ..Setup::new(Double, 1500, &[Peers], &[Netd]) },
    ]
}

/// Where it is measured what it costs to ask the guest about its ports.
pub(crate) fn asking() -> Setup {
    // A guest of both families: it is asked in each.
    Setup { family: Family::V6, ..Setup::new(Frontend::Uml, 1500, &[Case::Crr], &[Peer::Netd]) }
}

/// As [`whole`] in five minutes: what the required figures need.
pub(crate) fn quick() -> Vec<Setup> {
    let keep = |case: &Case| !matches!(case, Case::Tcp4 | Case::Udp | Case::Far | Case::Txonly);
    let mut setups = whole();
    setups.retain(|s| {
        let required = matches!(s.frontend, Frontend::Uml | Frontend::Testpmd);
        required && s.family == Family::V4 && s.mtu != 9000 && s.mtu != 1280
    });
    for setup in &mut setups {
        setup.cases.retain(keep);
        setup.peers.retain(|p| matches!(p, Peer::Netd | Peer::Passt));
        setup.sizes.truncate(1);
    }
    setups
}

/// What is left of the setups when only these cases, peers, frontends and MTUs are wanted; an empty list wants all.
pub(crate) fn only(
    mut setups: Vec<Setup>,
    cases: &[Case],
    peers: &[Peer],
    frontends: &[Frontend],
    mtus: &[u16],
) -> Vec<Setup> {
    for setup in &mut setups {
        setup.cases.retain(|c| cases.is_empty() || cases.contains(c));
        setup.peers.retain(|p| peers.is_empty() || peers.contains(p));
    }
    setups.retain(|s| {
        let wanted = frontends.is_empty() || frontends.contains(&s.frontend);
        wanted && (mtus.is_empty() || mtus.contains(&s.mtu)) && !s.cases.is_empty() && !s.peers.is_empty()
    });
    setups
}

/// The peers of a round: each round begins with another one, so that none always follows the same.
pub(crate) fn order(peers: &[Peer], round: u32) -> Vec<Peer> {
    let mut order = peers.to_vec();
    if !order.is_empty() {
        order.rotate_left(round as usize % peers.len());
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn peers_take_turns_at_being_first() {
        let both = [Peer::Netd, Peer::Passt];
        assert_eq!(order(&both, 0), both);
        assert_eq!(order(&both, 1), [Peer::Passt, Peer::Netd]);
        assert_eq!(order(&both, 2), both);
        assert_eq!(order(&[], 1), []);
    }

    #[test]
    fn no_two_setups_share_a_name_and_each_has_both_that_are_compared() {
        let (all, crowds) = (whole(), crowds());
        for setups in [&all, &crowds] {
            assert_eq!(setups.iter().map(Setup::name).collect::<BTreeSet<_>>().len(), setups.len());
        }
        for setup in all.iter().chain(&quick()).chain(&crowds) {
            let comparable = setup.pairs == 1 && !setup.steered;
            assert!(setup.peers.contains(&Peer::Netd), "{setup:?}");
            assert_eq!(setup.peers.contains(&Peer::Passt), comparable, "{setup:?}");
            assert!(!setup.cases.is_empty() && !setup.sizes.is_empty(), "{setup:?}");
            // slirp is a part of QEMU, and a tap has no vhost-user socket.
            assert!(setup.frontend == Frontend::Tcg || !setup.peers.contains(&Peer::Slirp));
            let guest = matches!(setup.frontend, Frontend::Uml | Frontend::Tcg);
            assert!(guest || !setup.peers.contains(&Peer::Tap));
            assert!(setup.frontend == Frontend::Uml || !setup.peers.contains(&Peer::Plain));
        }
    }

    #[test]
    fn the_short_one_has_what_is_required_and_nothing_else() {
        let cases: Vec<_> = quick().into_iter().map(|s| (s.name(), s.cases)).collect();
        let expected = [
            ("uml-1500-v4", vec![Case::Idle, Case::Rr, Case::Crr, Case::Tcp]),
            ("testpmd-1500-v4", vec![Case::Echo]),
            ("uml-65520-v4", vec![Case::Tcp]),
            ("uml-1400-v4", vec![Case::Flows]),
        ];
        assert_eq!(cases, expected.map(|(name, cases)| (name.to_owned(), cases)));
    }

    #[test]
    fn what_is_not_wanted_is_left_out() {
        let some = only(whole(), &[Case::Tcp], &[Peer::Netd], &[Frontend::Uml], &[1500]);
        assert_eq!(some.iter().map(Setup::name).collect::<Vec<_>>(), ["uml-1500-v4", "uml-1500-v6"]);
        assert!(some.iter().all(|s| s.cases == [Case::Tcp] && s.peers == [Peer::Netd]));
        assert_eq!(only(whole(), &[], &[], &[], &[]), whole());
        assert!(only(whole(), &[Case::Micro], &[], &[], &[]).is_empty());
    }
}
