//! Traffic whose content is compared, in both directions: the guest's part is done by programs on its console, the
//! client's by the test itself.

use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bed::{Bed, Family, PEER, PORT};
use crate::peer;

/// Largest datagram and some room.
const DATAGRAM: usize = 1 << 16;

impl Bed {
    /// A file of random bytes in the guest, and its hash.
    ///
    /// # Errors
    /// The guest has no room for it.
    pub fn file(&mut self, bytes: usize) -> Result<(String, String)> {
        let file = format!("/tmp/data.{bytes}");
        let make = format!("[ -f {file} ] || head -c {bytes} /dev/urandom >{file}; sha256sum <{file}");
        let hash = self.guest.sh(&make)?;
        Ok((file, hash.split_whitespace().next().context("no hash")?.to_owned()))
    }

    /// Sends random bytes by TCP from guest to client.
    ///
    /// # Errors
    /// They do not arrive, or others do.
    pub fn tcp_out(&mut self, family: Family, bytes: usize) -> Result<()> {
        let address = self.peer(family, PEER);
        let listener = self.pod.net.listen(address)?;
        let (file, sent) = self.file(bytes)?;
        self.begin(&format!("socat -u OPEN:{file} {}:{address}", family.word("TCP")))?;
        let received = peer::read_all(&mut peer::accept(&listener)?)?;
        let said = self.finish()?;
        ensure!(peer::sha256(&received)? == sent, "{} bytes arrived, damaged {said}", received.len());
        Ok(())
    }

    /// Sends random bytes by TCP from the client to a port of the pod, which leads to `port` of the guest.
    ///
    /// # Errors
    /// They do not arrive, or others do.
    pub fn tcp_in(&mut self, pod: SocketAddr, port: u16, bytes: usize) -> Result<()> {
        let family = if pod.is_ipv4() { Family::V4 } else { Family::V6 };
        let data = peer::random(bytes)?;
        self.guest
            .serve(port, &format!("socat -u {}-LISTEN:{port},reuseaddr - | sha256sum", family.word("TCP")))?;
        let mut stream = self.pod.net.connect(pod)?;
        stream.write_all(&data)?;
        stream.shutdown(Shutdown::Write)?;
        let received = self.guest.sh(&format!("wait $(cat /tmp/{port}.pid); cat /tmp/{port}.log"))?;
        ensure!(received.contains(&peer::sha256(&data)?), "damaged: {received}");
        Ok(())
    }

    /// The guest sends a random datagram and gets it back.
    ///
    /// # Errors
    /// `nothing arrived`, `no answer`, or it was damaged or came from another address than the pod's.
    pub fn udp_out(&mut self, family: Family, bytes: usize) -> Result<()> {
        let address = self.peer(family, PEER);
        let socket = self.pod.net.udp(address)?;
        socket.set_read_timeout(Some(Duration::from_secs(self.timeout().into())))?;
        let (file, sent) = self.file(bytes)?;
        // socat does not know that there is one answer only: it is ended once that is there.
        let ends = format!("OPEN:{file}!!CREATE:/tmp/answer {}:{address}", family.word("UDP"));
        self.begin(&format!("exec socat -b {DATAGRAM} -t 60 {ends}"))?;
        let mut buffer = vec![0; DATAGRAM];
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            self.guest.run("kill $begun")?;
            self.finish()?;
            anyhow::bail!("nothing arrived");
        };
        let received = buffer.get(..length).context("length")?;
        socket.send_to(received, from)?;
        let there = format!("[ $(stat -c %s /tmp/answer) = {bytes} ]");
        let wait = format!("i=0; until {there} || [ $i = 200 ]; do i=$((i + 1)); usleep 50000; done");
        self.guest.run(&format!("{wait}; kill $begun"))?;
        self.finish()?;
        ensure!(from.ip() == family.pod(0).ip(), "it came from {from}");
        ensure!(peer::sha256(received)? == sent, "damaged on its way out");
        ensure!(self.guest.sh("sha256sum </tmp/answer")?.contains(&sent), "no answer");
        Ok(())
    }

    /// The client sends a random datagram to a port of the pod, which leads to `port` of the guest; the hash of what
    /// the guest got comes back from the address to which it was sent.
    ///
    /// # Errors
    /// `no answer`, or it was damaged.
    pub fn udp_in(&mut self, pod: SocketAddr, port: u16, bytes: usize) -> Result<()> {
        let family = if pod.is_ipv4() { Family::V4 } else { Family::V6 };
        let socket = self.pod.net.udp(self.peer(family, 0))?;
        socket.set_read_timeout(Some(Duration::from_secs(self.timeout().into())))?;
        socket.connect(pod)?;
        let data = peer::random(bytes)?;
        let hash = format!("SYSTEM:'head -c {bytes} | sha256sum'");
        let receive = format!("{}-RECVFROM:{port},reuseaddr", family.word("UDP"));
        self.guest.serve(port, &format!("exec socat -b {DATAGRAM} {receive} {hash}"))?;
        socket.send(&data)?;
        let mut buffer = vec![0; DATAGRAM];
        let answer = socket.recv(&mut buffer);
        self.guest.unserve(port)?;
        let length = answer.ok().context("no answer")?;
        let answer = String::from_utf8_lossy(buffer.get(..length).context("length")?).into_owned();
        ensure!(answer.contains(&peer::sha256(&data)?), "damaged on its way in");
        Ok(())
    }

    /// One echo request of this many bytes.
    ///
    /// # Errors
    /// `no answer`.
    pub fn ping(&mut self, family: Family, bytes: u32) -> Result<()> {
        let (v, timeout, address) = (family.digit(), self.timeout(), self.client(family));
        let out = self.guest.run(&format!("ping -{v} -c 1 -W {timeout} -s {bytes} {address}"))?;
        ensure!(out.status == 0, "no answer");
        Ok(())
    }

    /// That everything is carried: a little of each kind, both families, both directions, by [`PORT`].
    ///
    /// # Errors
    /// What is not.
    pub fn works(&mut self) -> Result<()> {
        for family in Family::BOTH {
            self.ping(family, 56).with_context(|| format!("ping {family:?}"))?;
            self.tcp_out(family, 5000).with_context(|| format!("TCP {family:?} out"))?;
            self.tcp_in(family.pod(PORT), PORT, 5000).with_context(|| format!("TCP {family:?} in"))?;
            self.udp_out(family, 1000).with_context(|| format!("UDP {family:?} out"))?;
            self.udp_in(family.pod(PORT), PORT, 1000).with_context(|| format!("UDP {family:?} in"))?;
        }
        Ok(())
    }
}
