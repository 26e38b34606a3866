//! A snapshot as a stream of records, and back.

use super::snapshot::{Snapshot, Worker};
use crate::codec::{DecodeError, Field, MAGIC, Reader, fields, nested, next_record, record};

/// Records by their tags. A tag is never used again for something else.
pub(crate) mod tag {
    /// [`crate::state::Origin`].
    pub(crate) const ORIGIN: u16 = 0x0001;
    /// [`crate::state::Listeners`].
    pub(crate) const LISTENERS: u16 = 0x0002;
    /// [`crate::state::Frontend`].
    pub(crate) const FRONTEND: u16 = 0x0010;
    /// [`crate::state::WorkerState`]: what follows belongs to this worker.
    pub(crate) const WORKER: u16 = 0x0020;
    /// [`crate::state::TcpFlow`].
    pub(crate) const TCP: u16 = 0x0021;
    /// [`crate::state::UdpFlow`].
    pub(crate) const UDP: u16 = 0x0022;
    /// [`crate::state::EchoFlow`].
    pub(crate) const ECHO: u16 = 0x0023;
    /// [`crate::state::Port`].
    pub(crate) const PORT: u16 = 0x0024;
    /// A frame that waits.
    pub(crate) const WAITING: u16 = 0x0025;
    /// [`crate::state::Outlet`].
    pub(crate) const OUTLET: u16 = 0x0026;
    /// [`crate::state::Steering`].
    pub(crate) const STEERING: u16 = 0x0030;
    /// A list of counters.
    pub(crate) const COUNTERS: u16 = 0x0040;
    /// `crate::device::socket::Socket`: a socket as another machine makes it anew.
    pub(crate) const SOCKET: u16 = 0x0050;
    /// Nothing follows.
    pub(crate) const END: u16 = 0x7fff;
}

/// A frame: bytes in one piece.
pub(crate) struct Frame(pub(crate) Vec<u8>);

impl Field for Frame {
    fn put(&self, out: &mut Vec<u8>) {
        nested(out, |out| out.extend(&self.0));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Frame(r.nested()?.rest().to_vec()))
    }
}

/// A list that is a record's whole body.
struct Counters {
    list: Vec<(String, u64)>,
}
fields!(Counters { list });

impl Snapshot {
    /// The stream.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let to = &mut out;
        record(to, tag::ORIGIN, true, &self.origin);
        record(to, tag::LISTENERS, true, &self.listeners);
        if let Some(frontend) = &self.frontend {
            record(to, tag::FRONTEND, true, frontend);
        }
        if let Some(steering) = &self.steering {
            record(to, tag::STEERING, true, steering);
        }
        for worker in &self.workers {
            record(to, tag::WORKER, true, &worker.state);
            worker.tcp.iter().for_each(|f| record(to, tag::TCP, true, f));
            worker.udp.iter().for_each(|f| record(to, tag::UDP, true, f));
            worker.echo.iter().for_each(|f| record(to, tag::ECHO, true, f));
            worker.ports.iter().for_each(|p| record(to, tag::PORT, true, p));
            // A successor that does not know them ends their flows with the guest's next datagrams.
            worker.outlets.iter().for_each(|o| record(to, tag::OUTLET, false, o));
            // A successor that does not know it loses a frame, as a wire may.
            worker.waiting.iter().for_each(|f| record(to, tag::WAITING, false, &Frame(f.clone())));
        }
        record(to, tag::COUNTERS, false, &Counters { list: self.counters.clone() });
        record(to, tag::END, true, &Frame(Vec::new()));
        out
    }
}

/// Reads a stream.
///
/// # Errors
/// When it is not one, is cut off, or holds something that must be understood and is not.
pub fn decode(bytes: &[u8]) -> Result<Snapshot, DecodeError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(DecodeError::Magic)?;
    let mut assembly = Assembly::default();
    let mut r = Reader::new(rest);
    while let Some((tag, mandatory, mut body)) = next_record(&mut r)? {
        if assembly.add(tag, mandatory, &mut body)? {
            return Ok(assembly.snapshot);
        }
    }
    Err(DecodeError::Truncated(bytes.len()))
}

/// A snapshot that is made of one record after the other.
#[derive(Default)]
pub(crate) struct Assembly {
    pub(crate) snapshot: Snapshot,
    origin: bool,
}

impl Assembly {
    /// Takes a record; true when it was the last.
    pub(crate) fn add(
        &mut self,
        tag: u16,
        mandatory: bool,
        body: &mut Reader<'_>,
    ) -> Result<bool, DecodeError> {
        let snapshot = &mut self.snapshot;
        match tag {
            tag::ORIGIN => {
                snapshot.origin = Field::take(body)?;
                if std::mem::replace(&mut self.origin, true) {
                    return Err(DecodeError::Misplaced(tag));
                }
            }
            tag::LISTENERS => snapshot.listeners = Field::take(body)?,
            tag::FRONTEND => once(&mut snapshot.frontend, tag, body)?,
            tag::STEERING => once(&mut snapshot.steering, tag, body)?,
            tag::WORKER => {
                snapshot.workers.push(Worker { state: Field::take(body)?, ..Worker::default() });
            }
            tag::TCP => worker(snapshot, tag)?.tcp.push(Field::take(body)?),
            tag::UDP => worker(snapshot, tag)?.udp.push(Field::take(body)?),
            tag::ECHO => worker(snapshot, tag)?.echo.push(Field::take(body)?),
            tag::PORT => worker(snapshot, tag)?.ports.push(Field::take(body)?),
            tag::OUTLET => worker(snapshot, tag)?.outlets.push(Field::take(body)?),
            tag::WAITING => worker(snapshot, tag)?.waiting.push(Frame::take(body)?.0),
            tag::COUNTERS => snapshot.counters = Counters::take(body)?.list,
            tag::END if self.origin => return Ok(true),
            tag::END => return Err(DecodeError::Misplaced(tag)),
            _ if mandatory => return Err(DecodeError::Unknown(tag)),
            _ => {}
        }
        Ok(false)
    }
}

fn once<T: Field>(to: &mut Option<T>, tag: u16, body: &mut Reader<'_>) -> Result<(), DecodeError> {
    match to.replace(T::take(body)?) {
        None => Ok(()),
        Some(_) => Err(DecodeError::Misplaced(tag)),
    }
}

/// The worker to which a record belongs.
fn worker(snapshot: &mut Snapshot, tag: u16) -> Result<&mut Worker, DecodeError> {
    snapshot.workers.last_mut().ok_or(DecodeError::Misplaced(tag))
}
