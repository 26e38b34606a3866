//! What the guest learns of the path to its peers: a narrow router, hops, a gateway outside its subnet.

use anyhow::Result;
use podvirt_e2e::{Bed, Family, PORT};

use super::{Fact, OK, told};

/// A port on which no program listens: a datagram that arrives is refused.
const DISCARD: u16 = 9;

/// Sends datagrams that are too large for the path, with the wish that they are not fragmented, until the guest's own
/// kernel refuses them because it has learned the path's MTU.
fn path_mtu(bed: &mut Bed, family: Family) -> Result<String> {
    let datagrams =
        "i=0; while [ $i -lt 50 ]; do i=$((i + 1)); head -c 1440 /dev/zero || break; usleep 100000; done";
    let to = format!("{}:{}", family.word("UDP"), bed.peer(family, DISCARD));
    let text = bed.guest.run(&format!("({datagrams}) 2>/dev/null | socat -b 1440 -u - {to}"))?.text;
    Ok(text.rsplit(": ").next().unwrap_or_default().to_owned())
}

/// Pings of which the first ones may be lost to the discovery of the path's MTU, in either direction.
fn ping(bed: &mut Bed, family: Family) -> Result<String> {
    let ping = format!("ping -{} -c 1 -W 1 -s 1440 {}", family.digit(), bed.client(family));
    let out = bed.guest.run(&format!("for i in 1 2 3 4 5 6 7 8 9; do {ping} && break; done"))?;
    Ok(if out.status == 0 { OK } else { "no answer" }.into())
}

fn hops(bed: &mut Bed, program: &str, family: Family) -> Result<String> {
    let command =
        format!("{program} -n -q 1 -m 3 -w 10 {} | awk 'NR > 1 {{print $2}}' | xargs", bed.client(family));
    bed.guest.sh(&command)
}

/// Facts of a pod behind a router that forwards at most 1400 bytes.
pub(crate) fn narrow() -> Vec<Fact> {
    let mut facts = Vec::new();
    for family in Family::BOTH {
        let v = family.digit();
        facts.push(Fact::new(format!("narrow path, TCP v{v} out"), OK, move |b| {
            told(b.tcp_out(family, 1 << 20))
        }));
        facts.push(Fact::new(format!("narrow path, TCP v{v} in"), OK, move |b| {
            told(b.tcp_in(family.pod(PORT), PORT, 1 << 20))
        }));
        let learned = "Message too long";
        let fact = Fact::new(format!("narrow path, MTU by UDP v{v}"), learned, move |b| path_mtu(b, family));
        facts.push(fact.passt("Path MTU", "Connection refused"));
        facts.push(Fact::new(format!("narrow path, ping v{v}"), OK, move |b| ping(b, family)));
        let (traceroute, hops_there) = match family {
            Family::V4 => ("traceroute", "10.9.0.1 10.9.1.1"),
            Family::V6 => ("traceroute6", "fd00:9::1 fd00:9:1::1"),
        };
        facts.push(Fact::new(format!("hops by UDP v{v}"), hops_there, move |b| hops(b, traceroute, family)));
        let traceroute = format!("{traceroute} -I");
        facts
            .push(Fact::new(format!("hops by echo v{v}"), hops_there, move |b| hops(b, &traceroute, family)));
    }
    facts
}

/// Facts of a pod with host addresses and a gateway that is in no subnet of its.
pub(crate) fn off_link() -> Vec<Fact> {
    let sh = |command: &'static str| move |bed: &mut Bed| bed.guest.sh(command);
    vec![
        Fact::new(
            "off-link, IPv4 address",
            "10.9.0.2/32",
            sh("ip -4 -o addr show dev eth0 scope global | awk '{print $4}'"),
        ),
        Fact::new(
            "off-link, IPv4 default route",
            "169.254.1.1 dev eth0",
            sh("ip -4 route show default | awk '{print $3, $4, $5}'"),
        ),
        Fact::new(
            "off-link, classless routes",
            "169.254.1.1/32 0.0.0.0 0.0.0.0/0 169.254.1.1",
            sh("sed -n 's/^staticroutes=//p' /tmp/dhcp.env"),
        ),
        Fact::new(
            "off-link, IPv6 default route",
            "via fe80",
            sh("ip -6 route show default | sed -n 's/.*via \\(fe80\\)::.*/via \\1/p'"),
        ),
        Fact::new("off-link, everything is carried", OK, |bed| told(bed.works())),
    ]
}
