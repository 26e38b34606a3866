//! The workers as a frontend has them: their rings, and the device whose state moves with the guest.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use super::Device;
use crate::repair::Helper;
use crate::ring::Ring;
use crate::state::StateError;
use crate::vhost::{RingSink, feature};
use crate::worker::Handle;

/// The workers and the device of one netd. Clones are of the same ones.
#[derive(Clone, Debug)]
pub struct Backend {
    workers: Handle,
    device: Arc<Device>,
}

impl Backend {
    /// The backend of these workers; their guest is here.
    pub fn new(workers: Handle) -> Backend {
        Backend { workers, device: Arc::default() }
    }

    /// The workers.
    pub fn workers(&self) -> &Handle {
        &self.workers
    }

    /// Connections that move are repaired by this helper.
    pub fn repair_by(&self, helper: Helper) {
        self.device.repair_by(helper);
    }

    /// Path and listening socket of the helper.
    pub(crate) fn helper(&self) -> Option<(&Path, BorrowedFd<'_>)> {
        self.device.helper()
    }

    /// Whether the workers stand still for a migration.
    pub(crate) fn is_moving(&self) -> bool {
        self.device.is_moving()
    }
}

impl RingSink for Backend {
    fn start(&self, index: usize, ring: Ring) {
        self.workers.start_ring(index, ring);
    }

    fn stop(&self, index: usize) -> Option<Ring> {
        self.workers.stop_ring(index)
    }

    fn set_features(&self, acked: u64) {
        if acked & feature::LOG_ALL != 0 {
            self.device.copying(&self.workers);
        }
        self.workers.set_features(acked);
    }

    fn set_connected(&self, connected: bool) {
        if connected {
            self.device.frontend_came(&self.workers);
        } else {
            self.device.frontend_left(&self.workers);
        }
        self.workers.set_connected(connected);
    }

    fn save(&self, to: File) -> Result<(), StateError> {
        self.device.save(&self.workers, to)
    }

    fn load(&self, from: File) -> Result<(), StateError> {
        self.device.load(&self.workers, from)
    }

    fn resume(&self) {
        self.device.resume(&self.workers);
    }
}
