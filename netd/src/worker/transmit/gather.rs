//! Payloads of one batch of the transmit ring, gathered per flow until they are sent.

use crate::flow::FlowId;
use crate::ring::Iovs;
use crate::udp::{Item, MAX_SEGMENTS};

/// What one flow sends in this batch.
pub(in crate::worker) struct Gather {
    pub(in crate::worker) flow: FlowId,
    pub(in crate::worker) iovs: Iovs,
    /// Datagrams, as runs of slices; empty for TCP.
    pub(in crate::worker) items: Vec<Item>,
    /// Payload bytes.
    pub(in crate::worker) bytes: u32,
}

/// The gathers of a batch; finished ones are kept for their memory.
#[derive(Default)]
pub(in crate::worker) struct Gathers {
    open: Vec<Gather>,
    spare: Vec<Gather>,
}

/// Flows of one batch that are looked through; more than that are sent at once.
pub(in crate::worker) const MAX_OPEN: usize = 32;

impl Gathers {
    /// The gather of a flow, a new one if it has none.
    pub(in crate::worker) fn of(&mut self, flow: FlowId) -> &mut Gather {
        let at = match self.open.iter().rposition(|g| g.flow == flow) {
            Some(i) => i,
            None => {
                let mut g = self.spare.pop().unwrap_or_else(|| Gather {
                    flow,
                    iovs: Iovs::new(),
                    items: Vec::with_capacity(MAX_SEGMENTS),
                    bytes: 0,
                });
                g.flow = flow;
                self.open.push(g);
                self.open.len() - 1
            }
        };
        &mut self.open[at]
    }

    /// Slices that the flow has gathered; None if it has nothing.
    pub(in crate::worker) fn slices_of(&self, flow: FlowId) -> Option<usize> {
        self.open.iter().find(|g| g.flow == flow).map(|g| g.iovs.len())
    }

    /// Whether the batch must be sent before it takes another flow.
    pub(in crate::worker) fn is_full(&self) -> bool {
        self.open.len() >= MAX_OPEN
    }

    /// The next gather to send.
    pub(in crate::worker) fn take(&mut self) -> Option<Gather> {
        self.open.pop()
    }

    /// Keeps a gather's memory.
    pub(in crate::worker) fn recycle(&mut self, mut g: Gather) {
        g.iovs.clear();
        g.items.clear();
        g.bytes = 0;
        self.spare.push(g);
    }
}
