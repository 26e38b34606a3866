//! What a frontend does whose guest migrates: it copies the memory while the guest runs, by the backend's dirty log and
//! its own, stops the rings, asks the backend for its state, and goes on with another backend and other memory.
//!
//! The order is QEMU's: SET_LOG_BASE, SET_FEATURES with LOG_ALL and the rings' addresses with the log, copying in rounds;
//! GET_VRING_BASE of every ring, the last round; SET_DEVICE_STATE_FD to save, read to the end, CHECK_DEVICE_STATE. At the
//! target: SET_DEVICE_STATE_FD to load before features and memory are set, written and closed, CHECK_DEVICE_STATE, and
//! then as any start. A migration that fails goes on at the source by such a start.

use std::fs::File;
use std::io::{Read, Write, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{
    VhostTransferStateDirection as Direction, VhostTransferStatePhase as Phase,
};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VringConfigData};

use crate::double::{Double, DoubleError};
use crate::ring::DriverRing;
use crate::sys::{GuestMem, PAGE};

/// VHOST_F_LOG_ALL.
const LOG_ALL: u64 = 1 << 26;
/// VHOST_VRING_F_LOG.
const LOG_RING: u32 = 1;

type Result<T> = std::result::Result<T, DoubleError>;

/// Size of a ring, and where its parts are.
pub(crate) type Area = (u16, (u64, u64, u64));

/// Where the rings of each pair stand.
pub type Position = [u16; 2];

/// Memory that is being copied.
pub(crate) struct Copying {
    log: GuestMem,
    target: Arc<GuestMem>,
}

impl Double {
    /// Begins to copy the memory. The guest may run meanwhile.
    ///
    /// # Errors
    /// When the backend refuses to log, or there is no memory.
    pub fn begin_copy(&mut self) -> Result<()> {
        let bits = (self.mem.start() + self.mem.size()) / PAGE;
        let log = GuestMem::new(0, bits.div_ceil(8).next_multiple_of(PAGE))?;
        let target = Arc::new(GuestMem::new(self.mem.start(), self.mem.size())?);
        self.mem.track(true);
        let file = log.region()?;
        let region = VhostUserDirtyLogRegion {
            mmap_size: log.size(),
            mmap_offset: file.mmap_offset,
            mmap_handle: file.mmap_handle.as_raw_fd(),
        };
        self.frontend.set_log_base(0, Some(region))?;
        self.frontend.set_features(self.features | LOG_ALL)?;
        self.set_addresses(true)?;
        for at in self.mem.pages() {
            self.mem.copy_page(at, &target);
        }
        self.copying = Some(Copying { log, target });
        Ok(())
    }

    /// Ends copying: the guest stays.
    ///
    /// # Errors
    /// When the backend is gone.
    pub fn end_copy(&mut self) -> Result<()> {
        self.mem.track(false);
        self.copying = None;
        self.set_addresses(false)?;
        Ok(self.frontend.set_features(self.features)?)
    }

    fn set_addresses(&mut self, log: bool) -> Result<()> {
        for (index, &(size, (desc, avail, used))) in self.areas.iter().enumerate() {
            let config = VringConfigData {
                queue_max_size: size,
                queue_size: size,
                flags: if log { LOG_RING } else { 0 },
                desc_table_addr: self.mem.user_address(desc),
                used_ring_addr: self.mem.user_address(used),
                avail_ring_addr: self.mem.user_address(avail),
                log_addr: log.then_some(used),
            };
            self.frontend.set_vring_addr(index, &config)?;
        }
        Ok(())
    }

    /// Copies what was written since the last time; how many pages.
    pub fn copy_dirty(&mut self) -> usize {
        let Some(copying) = &self.copying else { return 0 };
        let mut pages: Vec<u64> = copying.log.take_bits().into_iter().map(|bit| bit * PAGE).collect();
        pages.extend(self.mem.take_written());
        pages.sort_unstable();
        pages.dedup();
        let inside = self.mem.start()..self.mem.start() + self.mem.size();
        pages.retain(|at| inside.contains(at));
        for at in &pages {
            self.mem.copy_page(*at, &copying.target);
        }
        pages.len()
    }

    /// Pages whose copies differ: none once all writers stand still and what is dirty was copied.
    pub fn uncopied(&self) -> Vec<u64> {
        self.copying.as_ref().map(|c| self.mem.differing(&c.target)).unwrap_or_default()
    }

    /// Stops all rings and answers where each stands.
    ///
    /// # Errors
    /// When the backend does not answer.
    pub fn stop_rings(&mut self) -> Result<Vec<Position>> {
        let base = |index| -> Result<u16> { Ok(self.frontend.get_vring_base(index)? as u16) };
        (0..self.pairs.len()).map(|pair| Ok([base(2 * pair)?, base(2 * pair + 1)?])).collect()
    }

    /// Asks the backend, whose rings stand still, for its state.
    ///
    /// # Errors
    /// When it has none, or says so at the end.
    pub fn save(&mut self) -> Result<Vec<u8>> {
        let (mut from, to) = pipe()?;
        self.frontend.set_device_state_fd(Direction::SAVE, Phase::STOPPED, OwnedFd::from(to))?;
        let mut state = Vec::new();
        from.read_to_end(&mut state)?;
        self.frontend.check_device_state()?;
        Ok(state)
    }

    /// Begins to save and reads nothing; what comes, if anything, is at the other end of this.
    ///
    /// # Errors
    /// When the backend refuses.
    pub fn begin_save(&mut self) -> Result<File> {
        let (from, to) = pipe()?;
        self.frontend.set_device_state_fd(Direction::SAVE, Phase::STOPPED, OwnedFd::from(to))?;
        Ok(OwnedFd::from(from).into())
    }

    /// Whether what was begun has succeeded.
    ///
    /// # Errors
    /// When it has not.
    pub fn check_state(&mut self) -> Result<()> {
        Ok(self.frontend.check_device_state()?)
    }

    /// Goes on where the rings were stopped.
    ///
    /// # Errors
    /// When the backend refuses.
    pub fn go_on(&mut self, positions: &[Position]) -> Result<()> {
        self.frontend.set_features(self.features)?;
        self.start(positions)?;
        self.pairs.iter().flat_map(|p| &p.rings).for_each(DriverRing::kick_now);
        Ok(())
    }

    /// Gives a state to another backend, which is to go on with it: see [`Double::arrive`]. Whatever goes wrong, the
    /// double is as it was.
    ///
    /// # Errors
    /// When the other backend does not take it.
    pub fn load(&self, stream: UnixStream, state: &[u8]) -> Result<Loaded> {
        let frontend = self.again(&stream)?;
        let (from, mut to) = pipe()?;
        frontend.set_device_state_fd(Direction::LOAD, Phase::STOPPED, OwnedFd::from(from))?;
        // A backend that gives up says why when it is asked.
        let written = to.write_all(state);
        drop(to);
        frontend.check_device_state()?;
        written?;
        Ok(Loaded { frontend, stream })
    }

    /// Has the backend, whose rings stand still, give its state to another backend, which reads while the first one
    /// writes, as both do with QEMU; how many bytes it has. Whatever goes wrong, the double is as it was.
    ///
    /// # Errors
    /// When one of them refuses, or says so at the end.
    pub fn transfer(&mut self, stream: UnixStream) -> Result<(Loaded, u64)> {
        let frontend = self.again(&stream)?;
        let (from, mut to) = pipe()?;
        frontend.set_device_state_fd(Direction::LOAD, Phase::STOPPED, OwnedFd::from(from))?;
        let mut state = self.begin_save()?;
        let copied = std::io::copy(&mut state, &mut to);
        drop((state, to));
        self.frontend.check_device_state()?;
        frontend.check_device_state()?;
        Ok((Loaded { frontend, stream }, copied?))
    }

    /// Leaves the backend for another one, in the memory that was copied; what is left of the source ends when it is
    /// dropped.
    ///
    /// # Errors
    /// When the new backend refuses.
    pub fn arrive(&mut self, loaded: Loaded, positions: &[Position]) -> Result<Source> {
        let source = Source { _frontend: std::mem::replace(&mut self.frontend, loaded.frontend) };
        let stream = Arc::new(loaded.stream);
        if let Some(Copying { target, .. }) = self.copying.take() {
            self.mem = target;
        }
        for pair in &mut self.pairs {
            pair.stream = Arc::clone(&stream);
            pair.set_mem(&self.mem);
        }
        self.go_on(positions)?;
        Ok(source)
    }
}

/// A backend that has taken a state and waits for its guest.
pub struct Loaded {
    frontend: vhost::vhost_user::Frontend,
    stream: UnixStream,
}

/// The connection with a backend whose guest has left.
pub struct Source {
    _frontend: vhost::vhost_user::Frontend,
}
