//! Silence: an interface that is complete and up, and over which no frame goes in either direction.
//!
//! It is an nftables table of the family netdev with two base chains, at the interface's ingress and egress, that have
//! no rule and the policy *drop*. They see every frame, whatever its protocol and its sender, packet sockets
//! included; adding and deleting the table are one transaction each. It works the same for veth and macvlan, needs
//! nothing on the node's side, and a program that enters the pod's namespace sees it: `nft list tables`. The table is the
//! state: the program that activates the interface needs no file and may begin anew at any time.
//!
//! The hook at egress is there from Linux 5.16 on (`CONFIG_NETFILTER_EGRESS`).
//!
//! The messages are those of `linux/netfilter/nf_tables.h`; numbers in them are big-endian.

use std::io;

use netlink_sys::constants::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::net::if_::if_nametoindex;

use super::{NetError, netns};

/// First part of the table's name; the interface's follows.
const TABLE: &str = "podvirt-silent-";

// linux/netlink.h
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_CREATE: u16 = 0x400;
const NLA_F_NESTED: u16 = 0x8000;
// linux/netfilter/nfnetlink.h
const SUBSYS_NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
// linux/netfilter.h
const NFPROTO_UNSPEC: u8 = 0;
const NFPROTO_NETDEV: u8 = 5;
const NF_NETDEV_INGRESS: u32 = 0;
const NF_NETDEV_EGRESS: u32 = 1;
const NF_DROP: u32 = 0;
// linux/netfilter/nf_tables.h
const NEWTABLE: u16 = 0;
const GETTABLE: u16 = 1;
const DELTABLE: u16 = 2;
const NEWCHAIN: u16 = 3;
const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;

/// Makes the interface silent, in the calling thread's namespace; also when it is.
///
/// # Errors
/// The kernel has no such hooks; there is no such interface.
pub fn silence(interface: &str) -> Result<(), NetError> {
    // Some kernels take hooks of interfaces that are still to come.
    if_nametoindex(interface)
        .map_err(|_| NetError::Missing { name: interface.to_owned(), place: "in the pod" })?;
    let mut batch = Batch::new();
    batch.table(NEWTABLE, NLM_F_CREATE, interface);
    batch.chain(interface, "in", NF_NETDEV_INGRESS);
    batch.chain(interface, "out", NF_NETDEV_EGRESS);
    batch.send().map_err(|source| NetError::Silence { interface: interface.to_owned(), source })
}

/// Has nothing come in over the interface, in the calling thread's namespace. It counts as silent.
///
/// # Errors
/// As [`silence`].
pub(super) fn deafen(interface: &str) -> Result<(), NetError> {
    let mut batch = Batch::new();
    batch.table(NEWTABLE, NLM_F_CREATE, interface);
    batch.chain(interface, "in", NF_NETDEV_INGRESS);
    batch.send().map_err(|source| NetError::Silence { interface: interface.to_owned(), source })
}

/// Ends the silence of the interface, in the calling thread's namespace; whether it was silent.
///
/// # Errors
/// The kernel refuses.
pub fn lift(interface: &str) -> Result<bool, NetError> {
    let mut batch = Batch::new();
    batch.table(DELTABLE, 0, interface);
    match batch.send() {
        Ok(()) => Ok(true),
        Err(e) if is_missing(&e) => Ok(false),
        Err(e) => Err(NetError::io(format!("cannot end the silence of {interface:?}"), e)),
    }
}

/// Whether the interface is silent, in the calling thread's namespace.
///
/// # Errors
/// The kernel refuses.
pub fn is_silent(interface: &str) -> Result<bool, NetError> {
    let mut message = Message::new(kind(GETTABLE), NLM_F_REQUEST | NLM_F_ACK, NFPROTO_NETDEV, 0, 1);
    message.text(TABLE_NAME, &table(interface));
    match exchange(&message.finish(), &[1]) {
        Ok(()) => Ok(true),
        Err(e) if is_missing(&e) => Ok(false),
        Err(e) => Err(NetError::io(format!("cannot see whether {interface:?} is silent"), e)),
    }
}

/// There is no such table, or the kernel cannot have one.
fn is_missing(error: &io::Error) -> bool {
    use nix::errno::Errno::{EAFNOSUPPORT, ENOENT, EOPNOTSUPP, EPROTONOSUPPORT};
    let number = error.raw_os_error().map(nix::errno::Errno::from_raw);
    number.is_some_and(|e| [ENOENT, EOPNOTSUPP, EPROTONOSUPPORT, EAFNOSUPPORT].contains(&e))
}

fn table(interface: &str) -> String {
    format!("{TABLE}{interface}")
}

fn kind(message: u16) -> u16 {
    SUBSYS_NFTABLES << 8 | message
}

/// Messages that the kernel carries out together or not at all.
struct Batch {
    bytes: Vec<u8>,
    /// Those that are answered.
    sequence: u32,
}

impl Batch {
    fn new() -> Batch {
        let begin = Message::new(BATCH_BEGIN, NLM_F_REQUEST, NFPROTO_UNSPEC, SUBSYS_NFTABLES, 0);
        Batch { bytes: begin.finish(), sequence: 0 }
    }

    fn table(&mut self, message: u16, flags: u16, interface: &str) {
        let mut message = self.next(message, flags);
        message.text(TABLE_NAME, &table(interface));
        self.bytes.extend(message.finish());
    }

    fn chain(&mut self, interface: &str, name: &str, hook: u32) {
        let mut message = self.next(NEWCHAIN, NLM_F_CREATE);
        message.text(CHAIN_TABLE, &table(interface));
        message.text(CHAIN_NAME, name);
        message.nested(CHAIN_HOOK, |m| {
            m.number(HOOK_NUMBER, hook);
            // Before the chains of all other programs.
            m.number(HOOK_PRIORITY, i32::MIN.cast_unsigned());
            m.text(HOOK_DEVICE, interface);
        });
        message.number(CHAIN_POLICY, NF_DROP);
        message.text(CHAIN_TYPE, "filter");
        self.bytes.extend(message.finish());
    }

    fn next(&mut self, message: u16, flags: u16) -> Message {
        self.sequence += 1;
        Message::new(kind(message), NLM_F_REQUEST | NLM_F_ACK | flags, NFPROTO_NETDEV, 0, self.sequence)
    }

    fn send(mut self) -> io::Result<()> {
        let end = Message::new(BATCH_END, NLM_F_REQUEST, NFPROTO_UNSPEC, SUBSYS_NFTABLES, self.sequence + 1);
        self.bytes.extend(end.finish());
        exchange(&self.bytes, &(1..=self.sequence).collect::<Vec<_>>())
    }
}

/// Sends `bytes` and waits for the answers to the messages `sequences`; the first error of any.
fn exchange(bytes: &[u8], sequences: &[u32]) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(bytes, 0)?;
    let mut waiting = sequences.to_vec();
    let mut first: Option<io::Error> = None;
    while !waiting.is_empty() {
        let (answer, _) = socket.recv_from_full()?;
        for (kind, sequence, body) in messages(&answer) {
            if kind != NLMSG_ERROR {
                continue;
            }
            let code = body.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
            if code != 0 {
                first.get_or_insert(io::Error::from_raw_os_error(-code));
                // An error of the batch itself is answered once, under the sequence of its begin.
                if !waiting.contains(&sequence) {
                    waiting.clear();
                }
            }
            waiting.retain(|s| *s != sequence);
        }
    }
    netns::close_aside(socket);
    first.map_or(Ok(()), Err)
}

/// Type, sequence and body of each message in `bytes` (netlink(7)).
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<16>()?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let body = bytes.get(16..length)?;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let sequence = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, sequence, body))
    })
}

/// One message of nfnetlink.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16, family: u8, resource: u16, sequence: u32) -> Message {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        // struct nfgenmsg: family, version 0, resource.
        bytes.extend([family, 0]);
        bytes.extend(resource.to_be_bytes());
        Message(bytes)
    }

    fn text(&mut self, kind: u16, text: &str) {
        self.attribute(kind, &[text.as_bytes(), &[0]].concat());
    }

    fn number(&mut self, kind: u16, number: u32) {
        self.attribute(kind, &number.to_be_bytes());
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message(Vec::new());
        fill(&mut inner);
        self.attribute(kind | NLA_F_NESTED, &inner.0);
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        // Names and nests of this module are far below 64 KiB.
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_as_they_were_put_together() {
        let mut one = Message::new(kind(NEWTABLE), NLM_F_REQUEST, NFPROTO_NETDEV, 0, 7);
        one.text(TABLE_NAME, "abcd");
        let one = one.finish();
        // Header 16, nfgenmsg 4, attribute 4 and 5 bytes, 3 of padding.
        assert_eq!(one.len(), 32);
        let two = Message::new(BATCH_END, 0, 0, SUBSYS_NFTABLES, 8).finish();
        let both = [one, two].concat();
        let found: Vec<_> = messages(&both).map(|(k, s, b)| (k, s, b.len())).collect();
        assert_eq!(found, [(0x0a00, 7, 16), (0x11, 8, 4)]);
        assert_eq!(messages(&both[..10]).count(), 0);
        assert_eq!(
            messages(&[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).count(),
            0,
            "a length below the header"
        );
    }
}
