//! A vhost-user frontend with one or more queue pairs.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VringConfigData};

use crate::feature;
use crate::migrate::{Area, Copying};
use crate::pair::Pair;
use crate::sys::GuestMem;

/// Number of the ring that a pair receives on.
pub const RX: usize = 0;
/// Number of the ring that a pair sends on.
pub const TX: usize = 1;
/// Length of the virtio header in front of each frame (VIRTIO 1.2, 5.1.6.1).
pub const HEADER: usize = 12;
/// Room for a frame of 64 KiB with its headers.
pub(crate) const LARGE: u32 = 0x1_1000;

/// What a double is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Features to accept, of those that the backend offers.
    pub features: u64,
    /// Entries of each ring: a power of two, at most 1024 for most backends.
    pub queue_size: u16,
    /// Guest memory; more is taken when the buffers need it.
    pub mem_mib: u64,
    /// Guest-physical address of the memory.
    pub start: u64,
    /// Size of a receive buffer; none: as Linux does it, 4 KiB with MRG_RXBUF, otherwise whole frames.
    pub rx_buffer: Option<u32>,
    /// Queue pairs, all of which run at first.
    pub pairs: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            features: feature::ALL,
            queue_size: 256,
            mem_mib: 64,
            start: 0x4000_0000,
            rx_buffer: None,
            pairs: 1,
        }
    }
}

/// What can go wrong with a double.
#[derive(Debug, Error)]
pub enum DoubleError {
    /// The system refuses something.
    #[error("double cannot be set up")]
    Io(#[from] io::Error),
    /// The backend refuses something, or is gone.
    #[error("vhost-user request failed")]
    Protocol(#[from] vhost::Error),
    /// The backend lacks features without which a double cannot work.
    #[error("the backend offers features {0:#x}")]
    Features(u64),
    /// The backend is gone.
    #[error("the backend has closed the connection")]
    Closed,
    /// The backend offers fewer queue pairs than are wanted, or there is no such pair.
    #[error("{0} queue pairs are not to be had")]
    Pairs(usize),
    /// A frame is larger than a transmit buffer, or has no room for its header.
    #[error("a frame of {0} bytes cannot be sent")]
    FrameLength(usize),
    /// The backend completed something that was not offered.
    #[error("the backend completed head {head} with {len} bytes, which was not offered so")]
    Completion {
        /// The head.
        head: u32,
        /// The bytes.
        len: u32,
    },
}

type Result<T> = std::result::Result<T, DoubleError>;

/// A vhost-user frontend with guest memory and rings of its own. As a [`Pair`] it is its first one.
pub struct Double {
    pub(crate) frontend: Frontend,
    pub(crate) mem: Arc<GuestMem>,
    pub(crate) features: u64,
    pub(crate) pairs: Vec<Pair>,
    enabled: Vec<bool>,
    /// The rings' places, which stay.
    pub(crate) areas: Vec<Area>,
    pub(crate) copying: Option<Copying>,
}

impl Deref for Double {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.pairs[0]
    }
}

impl DerefMut for Double {
    fn deref_mut(&mut self) -> &mut Pair {
        &mut self.pairs[0]
    }
}

impl Double {
    /// Connects to a backend that listens on `path`, and starts all rings.
    ///
    /// # Errors
    /// When there is no such backend, or it refuses.
    pub fn connect(path: impl AsRef<Path>, options: &Options) -> Result<Double> {
        Double::from_stream(UnixStream::connect(path)?, options)
    }

    /// Listens on `path` for one backend that connects, and starts all rings.
    ///
    /// # Errors
    /// When the socket cannot be made, or the backend refuses.
    pub fn listen(path: impl AsRef<Path>, options: &Options) -> Result<Double> {
        let listener = UnixListener::bind(path)?;
        Double::from_stream(listener.accept()?.0, options)
    }

    /// Starts all rings with the backend at the other end of `stream`.
    ///
    /// # Errors
    /// When the backend refuses.
    pub fn from_stream(stream: UnixStream, options: &Options) -> Result<Double> {
        let pairs = options.pairs.max(1);
        let (frontend, features) = negotiate(&stream, options.features, pairs)?;
        frontend.set_features(features)?;
        let size = options.queue_size;
        let usual = if features & feature::MRG_RXBUF != 0 {
            4096
        } else if features & (feature::GUEST_TSO4 | feature::GUEST_TSO6) != 0 {
            LARGE
        } else {
            2048
        };
        let rx_buffer = options.rx_buffer.unwrap_or(usual);
        let each = Pair::bytes(size, rx_buffer).next_multiple_of(0x1000);
        let needed = each * pairs as u64;
        let bytes = needed.max(options.mem_mib << 20).next_multiple_of(0x1000);
        let mem = Arc::new(GuestMem::new(options.start, bytes)?);
        let stream = Arc::new(stream);
        let pair = |i: usize| {
            let at = options.start + each * i as u64;
            Pair::new(Arc::clone(&stream), Arc::clone(&mem), at, (size, rx_buffer), features)
        };
        let mut double = Double {
            frontend,
            features,
            pairs: (0..pairs).map(pair).collect::<Result<_>>()?,
            enabled: vec![true; pairs],
            areas: Vec::new(),
            copying: None,
            mem,
        };
        let rings = double.pairs.iter().flat_map(|pair| &pair.rings);
        double.areas = rings.map(|ring| (ring.size(), ring.areas())).collect();
        double.start(&vec![[0, 0]; pairs])?;
        for pair in &mut double.pairs {
            pair.ring(RX).publish();
        }
        Ok(double)
    }

    /// Hands memory and rings to the backend, from these positions of the available rings on.
    pub(crate) fn start(&mut self, bases: &[[u16; 2]]) -> Result<()> {
        self.frontend.set_mem_table(&[self.mem.region()?])?;
        let pairs = self.pairs.iter().zip(&self.enabled).zip(bases).enumerate();
        for (number, ((pair, enabled), base)) in pairs {
            for (which, (ring, base)) in pair.rings.iter().zip(base).enumerate() {
                let index = 2 * number + which;
                let (desc, avail, used) = ring.areas();
                self.frontend.set_vring_num(index, ring.size())?;
                self.frontend.set_vring_base(index, *base)?;
                let config = VringConfigData {
                    queue_max_size: ring.size(),
                    queue_size: ring.size(),
                    flags: 0,
                    desc_table_addr: self.mem.user_address(desc),
                    used_ring_addr: self.mem.user_address(used),
                    avail_ring_addr: self.mem.user_address(avail),
                    log_addr: None,
                };
                self.frontend.set_vring_addr(index, &config)?;
                self.frontend.set_vring_call(index, &ring.call)?;
                self.frontend.set_vring_err(index, &ring.err)?;
                self.frontend.set_vring_kick(index, &ring.kick)?;
                self.frontend.set_vring_enable(index, *enabled)?;
            }
        }
        Ok(())
    }

    /// Enables or disables a queue pair, as a driver does that changes the number of its queues.
    ///
    /// # Errors
    /// When there is no such pair, or the backend refuses.
    pub fn enable(&mut self, pair: usize, on: bool) -> Result<()> {
        *self.enabled.get_mut(pair).ok_or(DoubleError::Pairs(pair))? = on;
        for which in [RX, TX] {
            self.frontend.set_vring_enable(2 * pair + which, on)?;
        }
        Ok(())
    }

    /// Stops all rings as a virtual machine does that shuts down, and closes the connection; returns the
    /// positions that the backend gives back for the first pair. (Dropping a double instead is a virtual machine
    /// that crashes.)
    ///
    /// # Errors
    /// When the backend does not answer.
    pub fn disconnect(self) -> Result<[u16; 2]> {
        let mut positions = Vec::new();
        for index in 0..2 * self.pairs.len() {
            positions.push(self.frontend.get_vring_base(index)? as u16);
        }
        Ok([positions[RX], positions[TX]])
    }

    /// Takes away the memory that it shares, as no honest frontend does, and is of no use afterwards but to be dropped:
    /// to touch its rings would end this process.
    ///
    /// # Errors
    /// When the file cannot be made shorter.
    pub fn take_memory_away(&self) -> Result<()> {
        Ok(self.mem.truncate()?)
    }

    /// Goes on with another backend, in the state in which the last one left the rings. The last one must be gone:
    /// two would take each other's kicks.
    ///
    /// # Errors
    /// When the new backend refuses.
    pub fn reconnect(&mut self, stream: UnixStream) -> Result<()> {
        self.frontend = self.again(&stream)?;
        self.frontend.set_features(self.features)?;
        let stream = Arc::new(stream);
        for pair in &mut self.pairs {
            pair.stream = Arc::clone(&stream);
        }
        // What was taken and not completed comes again.
        let base = |pair: &Pair| [pair.rings[RX].used_idx(), pair.rings[TX].used_idx()];
        let bases: Vec<_> = self.pairs.iter().map(base).collect();
        self.start(&bases)?;
        for ring in self.pairs.iter().flat_map(|p| &p.rings) {
            ring.kick_now();
        }
        Ok(())
    }

    /// Negotiates with another backend, which must offer the same.
    pub(crate) fn again(&self, stream: &UnixStream) -> Result<Frontend> {
        let (frontend, features) = negotiate(stream, self.features, self.pairs.len())?;
        if features != self.features {
            return Err(DoubleError::Features(features));
        }
        Ok(frontend)
    }

    /// The connection's own requests.
    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }

    /// The queue pairs.
    pub fn pairs(&mut self) -> &mut [Pair] {
        &mut self.pairs
    }

    /// Takes the queue pairs out, to be driven elsewhere; the double is of no use until they are back.
    pub(crate) fn take_pairs(&mut self) -> Vec<Pair> {
        std::mem::take(&mut self.pairs)
    }

    /// Puts the queue pairs back.
    pub(crate) fn put_pairs(&mut self, pairs: Vec<Pair>) {
        self.pairs = pairs;
    }
}

/// Negotiates features up to the point where they are accepted.
fn negotiate(stream: &UnixStream, wanted: u64, pairs: usize) -> Result<(Frontend, u64)> {
    let mut frontend = Frontend::from_stream(stream.try_clone()?, 2 * pairs as u64);
    frontend.set_owner()?;
    let offered = frontend.get_features()?;
    if offered & feature::VERSION_1 == 0 || offered & feature::PROTOCOL_FEATURES == 0 {
        return Err(DoubleError::Features(offered));
    }
    if pairs > 1 && offered & feature::MQ == 0 {
        return Err(DoubleError::Pairs(pairs));
    }
    let several = if pairs > 1 { feature::MQ } else { 0 };
    let wanted = wanted & !feature::MQ | several;
    let features = offered & wanted | feature::PROTOCOL_FEATURES;
    let protocol = frontend.get_protocol_features()?
        & (VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::DEVICE_STATE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);
    frontend.set_protocol_features(protocol)?;
    if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    }
    Ok((frontend, features))
}
