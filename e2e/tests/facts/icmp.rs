//! Echo.

use podvirt_e2e::Family;

use super::{FRAGMENTS, Fact, OK, told};

/// Pings of one size; those beyond the MTU leave the guest as fragments.
fn ping(family: Family, bytes: u32) -> Fact {
    Fact::new(format!("ping v{} with {bytes} bytes", family.digit()), OK, move |b| {
        told(b.ping(family, bytes))
    })
}

/// Echo in both families, from nothing to more than the MTU.
pub(crate) fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    for family in Family::BOTH {
        facts.extend([0, 56, 1400, if family == Family::V4 { 1472 } else { 1452 }].map(|n| ping(family, n)));
        let reply = format!("ping -{} -c 1 -W 20", family.digit());
        let fact = Fact::new(format!("hops left in a reply, v{}", family.digit()), "64", move |bed| {
            let address = bed.client(family);
            bed.guest.sh(&format!("{reply} {address} | sed -n 's/.* ttl=\\([0-9]*\\) .*/\\1/p'"))
        });
        facts.push(fact.passt("Hops left", "255"));
        facts.push(ping(family, 4000).passt(FRAGMENTS, "no answer"));
    }
    facts
}
