//! Parcels: bytes and descriptors that pass in many messages.

use std::os::fd::{AsFd, OwnedFd};

use super::wire::{Error, LARGEST, Message, Wire};

/// What a parcel may hold at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes.
    pub bytes: usize,
    /// Descriptors.
    pub fds: usize,
}

impl Default for Limits {
    /// 131,072 flows with room for as many listeners.
    fn default() -> Self {
        Limits { bytes: 256 << 20, fds: 1 << 18 }
    }
}

/// Bytes and descriptors.
#[derive(Debug, Default)]
pub struct Parcel {
    /// Bytes, whose meaning is the giver's.
    pub bytes: Vec<u8>,
    /// Descriptors in their order.
    pub fds: Vec<OwnedFd>,
}

impl Parcel {
    /// Sends it.
    ///
    /// # Errors
    /// As [`Wire::send`].
    pub fn send(&self, wire: &Wire) -> Result<(), Error> {
        wire.send_fds(&self.fds.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
        wire.send_bytes(&self.bytes)?;
        wire.send(&Message::End { bytes: self.bytes.len() as u64, fds: self.fds.len() as u64 })
    }

    /// Receives one; none when the peer has none.
    ///
    /// # Errors
    /// As [`Wire::recv`], or it exceeds `limits`, or is not whole.
    pub fn recv(wire: &Wire, limits: Limits) -> Result<Option<Parcel>, Error> {
        let mut parcel = Parcel::default();
        let mut buffer = vec![0; LARGEST];
        let wrong = |what, have: usize, allowed| Error::Parcel { what, have: have as u64, allowed };
        loop {
            match wire.recv_into(&mut buffer)? {
                Message::Bytes(bytes) => parcel.bytes.extend_from_slice(&bytes),
                Message::Fds(fds) => parcel.fds.extend(fds),
                Message::End { bytes, fds } => {
                    if parcel.bytes.len() as u64 != bytes {
                        return Err(wrong("bytes", parcel.bytes.len(), bytes));
                    }
                    if parcel.fds.len() as u64 != fds {
                        return Err(wrong("descriptors", parcel.fds.len(), fds));
                    }
                    return Ok(Some(parcel));
                }
                Message::Empty if parcel.bytes.is_empty() && parcel.fds.is_empty() => return Ok(None),
                other => return Err(Error::Message(format!("kind {} in a parcel", other.kind()))),
            }
            if parcel.bytes.len() > limits.bytes {
                return Err(wrong("bytes", parcel.bytes.len(), limits.bytes as u64));
            }
            if parcel.fds.len() > limits.fds {
                return Err(wrong("descriptors", parcel.fds.len(), limits.fds as u64));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::tests::pair;
    use super::*;

    #[test]
    fn a_parcel_of_many_messages_arrives_in_its_order() {
        let (a, b) = pair();
        let bytes: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut fds: Vec<OwnedFd> = (0..300).map(|_| read.try_clone().unwrap()).collect();
        fds.push(write);
        let sent = bytes.clone();
        let giver = std::thread::spawn(move || Parcel { bytes: sent, fds }.send(&a).unwrap());
        let got = Parcel::recv(&b, Limits::default()).unwrap().unwrap();
        giver.join().unwrap();
        assert_eq!((got.bytes, got.fds.len()), (bytes, 301));
        rustix::io::write(&got.fds[300], b"last").unwrap();
        let mut said = [0; 4];
        rustix::io::read(&got.fds[0], &mut said).unwrap();
        assert_eq!(&said, b"last");
    }

    #[test]
    fn what_is_too_large_or_not_whole_is_refused() {
        let (a, b) = pair();
        a.send_bytes(&[0; 100]).unwrap();
        let limits = Limits { bytes: 99, fds: 1 };
        assert!(matches!(Parcel::recv(&b, limits), Err(Error::Parcel { what: "bytes", .. })));
        let (a, b) = pair();
        a.send_fds(&[b.as_fd(), b.as_fd()]).unwrap();
        assert!(matches!(Parcel::recv(&b, limits), Err(Error::Parcel { what: "descriptors", .. })));
        let (a, b) = pair();
        a.send(&Message::End { bytes: 1, fds: 0 }).unwrap();
        assert!(matches!(Parcel::recv(&b, limits), Err(Error::Parcel { have: 0, allowed: 1, .. })));
        a.send_bytes(b"x").unwrap();
        drop(a);
        assert!(matches!(Parcel::recv(&b, limits), Err(Error::Closed)));
    }
}
