//! Datagrams in both directions.

use anyhow::Result;
use podvirt_e2e::{Bed, Family, PORT};

use super::{CLOSED, FRAGMENTS, Fact, OK, told};

fn refused(bed: &mut Bed, family: Family) -> Result<String> {
    let address = bed.peer(family, CLOSED);
    let text = bed.guest.run(&format!("echo x | socat -t 10 - UDP{}:{address}", family.digit()))?.text;
    Ok(text.rsplit(": ").next().unwrap_or_default().to_owned())
}

/// An error that the guest's kernel reports to a socket that did not ask for all of them.
fn prohibited(bed: &mut Bed, target: &str) -> Result<String> {
    let text = bed.guest.run(&format!("echo x | socat -t 10 - {target}"))?.text;
    Ok(text.rsplit(": ").next().unwrap_or_default().to_owned())
}

/// Everything about UDP.
pub(crate) fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    for family in Family::BOTH {
        let v = family.digit();
        let whole = if family == Family::V4 { 1472 } else { 1452 };
        for bytes in [1, whole] {
            facts.push(Fact::new(format!("UDP v{v} out and back, {bytes} bytes"), OK, move |b| {
                told(b.udp_out(family, bytes))
            }));
            facts.push(Fact::new(format!("UDP v{v} in and back, {bytes} bytes"), OK, move |b| {
                told(b.udp_in(family.pod(PORT), PORT, bytes))
            }));
        }
        for bytes in [5 << 10, 60_000] {
            let name = format!("UDP v{v} out and back, {bytes} bytes");
            facts.push(
                Fact::new(name, OK, move |b| told(b.udp_out(family, bytes)))
                    .passt(FRAGMENTS, "nothing arrived"),
            );
            let name = format!("UDP v{v} in and back, {bytes} bytes");
            facts.push(Fact::new(name, OK, move |b| told(b.udp_in(family.pod(PORT), PORT, bytes))));
        }
        facts.push(Fact::new(format!("UDP v{v} out, refused"), "Connection refused", move |b| {
            refused(b, family)
        }));
        let (kept, reason) = match family {
            Family::V4 => ("10.98.0.1", "No route to host"),
            Family::V6 => ("[fd00:98::1]", "Permission denied"),
        };
        facts.push(Fact::new(format!("UDP v{v} out, prohibited"), reason, move |b| {
            prohibited(b, &format!("UDP{v}:{kept}:80"))
        }));
    }
    facts
}
