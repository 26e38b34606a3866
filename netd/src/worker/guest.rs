//! What is known of the guest and of its frontend.

use std::sync::Arc;

use crate::guest::Services;
use crate::net::{Home, Link};

/// The guest, as a worker knows it.
pub(super) struct Guest {
    /// The link as the pod has it; the port has it as the guest does.
    pub(super) own: Arc<Link>,
    /// What the guest had configured when it came from elsewhere.
    pub(super) homes: Vec<Home>,
    /// Features that the driver has accepted.
    pub(super) features: u64,
    /// A frontend is connected.
    pub(super) connected: bool,
    /// The present frontend has shown the guest's Ethernet address.
    pub(super) station_seen: bool,
    /// ARP, NDP and DHCP.
    pub(super) services: Services,
}

impl Guest {
    /// A guest of which nothing is known but the pod's link.
    pub(super) fn new(own: Arc<Link>) -> Guest {
        Guest {
            own,
            homes: Vec::new(),
            features: 0,
            connected: false,
            station_seen: false,
            services: Services::new(),
        }
    }
}
