//! Connections that do not get on or are cut, and those beside them that must not notice.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use podvirt_e2e::{Bed, Family, PEER, PORT, peer};

use super::{Fact, OK, REFUSED, SILENT, told};

/// A port of the client for a connection beside that of [`PEER`].
const OTHER: u16 = PEER + 1;
/// Three times as many bytes are more than all buffers on the way hold.
const THIRD: usize = 10 << 20;

fn beside(bed: &mut Bed) -> Result<()> {
    bed.ping(Family::V4, 56)?;
    bed.tcp_out(Family::V4, 1 << 20)?;
    bed.tcp_in(Family::V6.pod(PORT), PORT, 1 << 20)
}

/// The client does not read until others have been served.
fn out(bed: &mut Bed) -> Result<()> {
    let address = bed.peer(Family::V4, OTHER);
    let listener = bed.pod.net.listen(address)?;
    let (file, sent) = bed.file(THIRD)?;
    bed.guest.sh(&format!("(cat {file} {file} {file} | socat -u - TCP4:{address}) & stalled=$!"))?;
    let mut stream = peer::accept(&listener)?;
    beside(bed).context("beside a client that does not read")?;
    let received = peer::read_all(&mut stream)?;
    bed.guest.run("wait $stalled")?;
    ensure!(received.len() == 3 * THIRD, "{} bytes arrived", received.len());
    for third in received.chunks(THIRD) {
        ensure!(peer::sha256(third)? == sent, "damaged");
    }
    Ok(())
}

/// The guest does not read until others have been served.
fn inward(bed: &mut Bed) -> Result<()> {
    let read = "until [ -f /tmp/go ]; do usleep 50000; done; sha256sum";
    let program = format!("socat -u TCP4-LISTEN:{SILENT},reuseaddr SYSTEM:'{read}'");
    bed.guest.serve(SILENT, &format!("rm -f /tmp/go; {program}"))?;
    let mut stream = bed.pod.net.connect(Family::V4.pod(SILENT))?;
    let data = peer::random(3 * THIRD)?;
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            stream.write_all(&data)?;
            stream.shutdown(Shutdown::Write)
        });
        let beside = beside(bed).context("beside a guest that does not read");
        bed.guest.sh("touch /tmp/go")?;
        writer.join().ok().context("the writer")??;
        beside
    })?;
    let received = bed.guest.sh(&format!("wait $(cat /tmp/{SILENT}.pid); cat /tmp/{SILENT}.log"))?;
    ensure!(received.contains(&peer::sha256(&data)?), "damaged: {received}");
    Ok(())
}

fn cut(stream: TcpStream) -> Result<()> {
    setsockopt(&stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
    drop(stream);
    Ok(())
}

/// Waits until the guest's connection is open, with so much to be read.
fn established(bed: &mut Bed, unread: &str) -> Result<()> {
    let is = format!("ss -Hnt | grep -q '^ESTAB *{unread}.*:{PEER}'");
    bed.guest
        .sh(&format!("i=0; until {is}; do i=$((i + 1)); [ $i -lt 200 ] || exit 1; usleep 50000; done"))
        .map(drop)
}

/// The client resets the connection while the guest waits for its answer.
fn cut_by_client(bed: &mut Bed, family: Family) -> Result<String> {
    let address = bed.peer(family, PEER);
    let listener = bed.pod.net.listen(address)?;
    bed.begin(&format!("socat -u {}:{address} -", family.word("TCP")))?;
    let stream = peer::accept(&listener)?;
    // A reset that overtakes the guest's own handshake is another fact.
    established(bed, "")?;
    cut(stream)?;
    Ok(bed.finish()?.rsplit(": ").next().unwrap_or_default().to_owned())
}

/// The guest's program is killed with bytes that it has not read.
fn cut_by_guest(bed: &mut Bed, family: Family) -> Result<String> {
    let address = bed.peer(family, PEER);
    let listener = bed.pod.net.listen(address)?;
    bed.begin(&format!("exec socat -u EXEC:'sleep 1000' {}:{address}", family.word("TCP")))?;
    let mut stream = peer::accept(&listener)?;
    stream.write_all(b"unread")?;
    established(bed, "6 ")?;
    bed.guest.sh("kill -9 $begun")?;
    let end = peer::read_all(&mut stream);
    bed.finish()?;
    Ok(end.map_or_else(|e| e.root_cause().to_string(), |bytes| format!("{} bytes", bytes.len())))
}

/// What is cut off or held up, in both directions.
pub(crate) fn facts() -> Vec<Fact> {
    let mut facts = vec![
        Fact::new("TCP out, the client does not read for a while", OK, |b| told(out(b))),
        Fact::new("TCP in, the guest does not read for a while", OK, |b| told(inward(b))),
    ];
    for family in Family::BOTH {
        let v = family.digit();
        let reset = "Connection reset by peer";
        facts.push(Fact::new(format!("TCP v{v} out, reset by the client"), reset, move |b| {
            cut_by_client(b, family)
        }));
        let reset = "Connection reset by peer (os error 104)";
        let fact =
            Fact::new(format!("TCP v{v} out, reset by the guest"), reset, move |b| cut_by_guest(b, family));
        facts.push(fact.passt(REFUSED, "0 bytes"));
    }
    facts
}
