//! The device as the `vhost-user-backend` crate sees it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use vhost::vhost_user::{Backend, VhostUserProtocolFeatures};
use vhost_user_backend::VhostUserBackend;
use vmm_sys_util::epoll::EventSet;

use super::group::RingGroup;
use super::vring::{HookVring, Memory};
use super::{MAX_RING_SIZE, feature};

/// The network device of one connection.
pub(super) struct Device {
    group: Arc<RingGroup>,
    pairs: usize,
    /// The frontend's channel for requests of the backend. Unused, but the frontend wants it kept open.
    channel: Mutex<Option<Backend>>,
}

impl Device {
    pub(super) fn new(group: Arc<RingGroup>, pairs: usize) -> Device {
        Device { group, pairs, channel: Mutex::new(None) }
    }
}

impl VhostUserBackend for Device {
    type Bitmap = ();
    type Vring = HookVring;

    fn num_queues(&self) -> usize {
        2 * self.pairs
    }

    fn max_queue_size(&self) -> usize {
        usize::from(MAX_RING_SIZE)
    }

    fn features(&self) -> u64 {
        feature::offered(self.pairs)
    }

    fn acked_features(&self, features: u64) {
        self.group.set_features(features);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        // User Mode Linux takes the answer to GET_QUEUE_NUM, which counts pairs, for a number of rings.
        let pairs =
            if self.pairs > 1 { VhostUserProtocolFeatures::MQ } else { VhostUserProtocolFeatures::empty() };
        pairs
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::DEVICE_STATE
    }

    fn set_event_idx(&self, _enabled: bool) {
        // Each ring was told.
    }

    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        self.group.update_memory(&memory).map_err(io::Error::other)
    }

    fn set_backend_req_fd(&self, backend: Backend) {
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = Some(backend);
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        // No threads of the crate, no kick descriptors registered there.
        Vec::new()
    }

    fn handle_event(
        &self,
        _device_event: u16,
        _evset: EventSet,
        _vrings: &[HookVring],
        _thread_id: usize,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
