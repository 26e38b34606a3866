//! Connections in both directions: content, ends, addresses, errors.

use std::io::Write;
use std::net::Shutdown;

use anyhow::Result;
use podvirt_e2e::{Bed, Family, PEER, PORT, peer};

use super::{CLOSED, ERRORS, Fact, OK, REFUSED, SILENT, told};

/// The guest ends its half, then is answered.
fn half_close_by_guest(bed: &mut Bed, family: Family) -> Result<String> {
    let address = bed.peer(family, PEER);
    let listener = bed.pod.net.listen(address)?;
    bed.begin(&format!("echo question | socat -t 60 - TCP{}:{address}", family.digit()))?;
    let mut stream = peer::accept(&listener)?;
    let question = peer::read_all(&mut stream)?;
    stream.write_all(b"answer\n")?;
    drop(stream);
    Ok(format!("{}{}", String::from_utf8(question)?, bed.finish()?).replace('\n', " "))
}

/// The client ends its half, then is answered.
fn half_close_by_client(bed: &mut Bed, family: Family) -> Result<String> {
    let answer = "'cat >/tmp/question; echo answer'";
    bed.guest
        .serve(PORT, &format!("socat -t 60 TCP{}-LISTEN:{PORT},reuseaddr SYSTEM:{answer}", family.digit()))?;
    let mut stream = bed.pod.net.connect(family.pod(PORT))?;
    stream.write_all(b"question\n")?;
    stream.shutdown(Shutdown::Write)?;
    let answer = peer::read_all(&mut stream)?;
    let question = bed.guest.sh(&format!("wait $(cat /tmp/{PORT}.pid); cat /tmp/question"))?;
    Ok(format!("{question} {}", String::from_utf8(answer)?.trim_end()))
}

/// From which address the guest sees a connection come, and to which of its own.
fn addresses(bed: &mut Bed, family: Family) -> Result<String> {
    let tell = "'echo $SOCAT_PEERADDR $SOCAT_SOCKADDR $SOCAT_SOCKPORT'";
    bed.guest.serve(PORT, &format!("socat TCP{}-LISTEN:{PORT},reuseaddr SYSTEM:{tell}", family.digit()))?;
    let mut stream = bed.pod.net.connect(family.pod(PORT))?;
    Ok(String::from_utf8(peer::read_all(&mut stream)?)?.trim_end().replace("0000:", "0:"))
}

/// Why the guest cannot connect, in the words of its own kernel.
fn reason(bed: &mut Bed, target: &str) -> Result<String> {
    let out = bed.guest.run(&format!("socat -u /dev/null {target},connect-timeout=30"))?;
    let reason = out.text.rsplit(": ").next().unwrap_or_default().to_owned();
    Ok(if out.status == 0 { "connected".into() } else { reason })
}

fn refused(bed: &mut Bed, family: Family) -> Result<String> {
    let address = bed.peer(family, CLOSED);
    reason(bed, &format!("TCP{}:{address}", family.digit()))
}

/// What the client sees of a port that is forwarded but on which the guest does not listen.
fn refused_by_guest(bed: &mut Bed, family: Family) -> Result<String> {
    let mut stream = match bed.pod.net.connect(family.pod(SILENT)) {
        Ok(stream) => stream,
        // The handshake is over, and the reset came before the client could look.
        Err(e) => return Ok(e.root_cause().to_string()),
    };
    match peer::read_all(&mut stream) {
        Ok(bytes) => Ok(format!("{} bytes", bytes.len())),
        Err(e) => Ok(e.root_cause().to_string()),
    }
}

/// Everything about TCP.
pub(crate) fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    for family in Family::BOTH {
        let v = family.digit();
        for bytes in [2 << 10, 5 << 10, 10 << 20] {
            facts.push(Fact::new(format!("TCP v{v} out, {bytes} bytes"), OK, move |b| {
                told(b.tcp_out(family, bytes))
            }));
            facts.push(Fact::new(format!("TCP v{v} in, {bytes} bytes"), OK, move |b| {
                told(b.tcp_in(family.pod(PORT), PORT, bytes))
            }));
        }
        let answered = "question answer";
        facts.push(Fact::new(format!("TCP v{v} half-close by the guest"), answered, move |b| {
            half_close_by_guest(b, family)
        }));
        facts.push(Fact::new(format!("TCP v{v} half-close by the client"), answered, move |b| {
            half_close_by_client(b, family)
        }));
        let seen = match family {
            Family::V4 => "10.9.0.1 10.9.0.2 8001",
            Family::V6 => "[fd00:0009:0:0:0:0:0:0001] [fd00:0009:0:0:0:0:0:0002] 8001",
        };
        facts.push(Fact::new(format!("TCP v{v} in, addresses that the guest sees"), seen, move |b| {
            addresses(b, family)
        }));
        facts.push(Fact::new(format!("TCP v{v} out, refused"), "Connection refused", move |b| {
            refused(b, family)
        }));
        let reset = "Connection reset by peer (os error 104)";
        let fact = Fact::new(format!("TCP v{v} in, refused by the guest"), reset, move |b| {
            refused_by_guest(b, family)
        });
        facts.push(fact.passt(REFUSED, "0 bytes"));
        // As the kernel translates what the router says, in each family (RFC 1812 5.2.7.1, RFC 4443 3.1).
        let (far, unreachable, kept, prohibited) = match family {
            Family::V4 => ("10.99.0.1", "No route to host", "10.98.0.1", "No route to host"),
            Family::V6 => ("[fd00:99::1]", "Network is unreachable", "[fd00:98::1]", "Permission denied"),
        };
        for (name, to, why) in [("unreachable", far, unreachable), ("prohibited", kept, prohibited)] {
            let target = format!("TCP{v}:{to}:80");
            let fact = Fact::new(format!("TCP v{v} out, {name}"), why, move |b| reason(b, &target));
            facts.push(fact.passt(ERRORS, "Connection refused"));
        }
    }
    let fact = Fact::new("TCP v4 out, a neighbour that is not there", "No route to host", |b| {
        reason(b, "TCP4:10.9.0.77:80")
    });
    facts.push(fact.passt(ERRORS, "Connection refused"));
    facts
}
