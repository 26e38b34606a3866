//! A store in memory that behaves as the API server does. Every call waits once before it acts, so that a test decides
//! what happens in between.

use std::cell::RefCell;
use std::collections::HashSet;
use std::future::poll_fn;
use std::net::IpAddr;
use std::task::Poll;

use super::{Held, Key, Lease, Leases, Store, StoreError};

#[derive(Default)]
pub(crate) struct Fake {
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    clock: u64,
    leases: Vec<Lease>,
    held: Vec<Held>,
    /// Addresses that were answered.
    answered: usize,
}

impl State {
    fn tick(&mut self) -> String {
        self.clock += 1;
        self.clock.to_string()
    }
}

/// Answers `Pending` once.
async fn step() {
    let mut waited = false;
    poll_fn(|_| if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

impl Fake {
    pub(crate) fn all_leases(&self) -> Vec<Lease> {
        self.state.borrow().leases.clone()
    }

    pub(crate) fn all_held(&self) -> Vec<Held> {
        self.state.borrow().held.clone()
    }

    /// How many addresses the store has answered.
    pub(crate) fn answered(&self) -> usize {
        self.state.borrow().answered
    }

    /// What the garbage collector does when an owner is gone, and a user by hand.
    pub(crate) fn mark_ending(&self, key: &Key) {
        let state = &mut *self.state.borrow_mut();
        let version = state.tick();
        if let Some(lease) = state.leases.iter_mut().find(|l| l.key == *key && !l.ending) {
            (lease.ending, lease.version) = (true, version);
        }
    }

    /// An object that others made, as an IPAMClaim.
    pub(crate) fn put(&self, mut lease: Lease) {
        let state = &mut *self.state.borrow_mut();
        (lease.uid, lease.version) = (format!("u{}", state.tick()), state.tick());
        state.leases.push(lease);
    }
}

impl Store for Fake {
    async fn find(&self, key: &Key) -> Result<Option<Lease>, StoreError> {
        step().await;
        Ok(self.state.borrow().leases.iter().find(|l| l.key == *key).cloned())
    }

    async fn create(&self, lease: &Lease) -> Result<Option<Lease>, StoreError> {
        step().await;
        let state = &mut *self.state.borrow_mut();
        if state.leases.iter().any(|l| l.key == lease.key) {
            return Ok(None);
        }
        let lease = Lease { uid: format!("u{}", state.tick()), version: state.tick(), ..lease.clone() };
        state.leases.push(lease.clone());
        Ok(Some(lease))
    }

    async fn update(&self, lease: &Lease) -> Result<Option<Lease>, StoreError> {
        step().await;
        let state = &mut *self.state.borrow_mut();
        let same = |l: &Lease| l.key == lease.key && l.uid == lease.uid && l.version == lease.version;
        let Some(at) = state.leases.iter().position(same) else { return Ok(None) };
        // No writer can take a deletion back.
        let new = Lease { version: state.tick(), ending: state.leases[at].ending, ..lease.clone() };
        if new.ending && !new.guarded {
            state.leases.remove(at);
        } else {
            state.leases[at] = new.clone();
        }
        Ok(Some(new))
    }

    async fn delete(&self, lease: &Lease) -> Result<bool, StoreError> {
        step().await;
        let state = &mut *self.state.borrow_mut();
        let version = state.tick();
        let same = |l: &Lease| l.key == lease.key && l.uid == lease.uid && l.version == lease.version;
        let Some(at) = state.leases.iter().position(same) else { return Ok(false) };
        if state.leases[at].guarded {
            (state.leases[at].ending, state.leases[at].version) = (true, version);
        } else {
            state.leases.remove(at);
        }
        Ok(true)
    }

    async fn leases(&self) -> Result<Leases, StoreError> {
        step().await;
        Ok(Leases { found: self.all_leases(), ..Leases::default() })
    }

    /// No pod outlives its lease here.
    async fn in_use(&self, _namespace: &str, _addresses: &[Held]) -> Result<HashSet<String>, StoreError> {
        step().await;
        Ok(HashSet::new())
    }

    async fn addresses(&self, network: Option<&str>) -> Result<Vec<Held>, StoreError> {
        step().await;
        let state = &mut *self.state.borrow_mut();
        let found: Vec<Held> =
            state.held.iter().filter(|h| network.is_none_or(|n| n == h.network)).cloned().collect();
        state.answered += found.len();
        Ok(found)
    }

    async fn find_address(&self, network: &str, address: IpAddr) -> Result<Option<Held>, StoreError> {
        step().await;
        let state = &mut *self.state.borrow_mut();
        let found = state.held.iter().find(|h| h.network == network && h.address == address).cloned();
        state.answered += usize::from(found.is_some());
        Ok(found)
    }

    async fn hold(&self, address: &Held) -> Result<Option<Held>, StoreError> {
        step().await;
        let state = &mut *self.state.borrow_mut();
        if state.held.iter().any(|h| h.network == address.network && h.address == address.address) {
            return Ok(None);
        }
        let new = Held { uid: format!("a{}", state.tick()), ..address.clone() };
        state.held.push(new.clone());
        Ok(Some(new))
    }

    async fn free(&self, address: &Held) -> Result<(), StoreError> {
        step().await;
        self.state.borrow_mut().held.retain(|h| h.uid != address.uid);
        Ok(())
    }
}
