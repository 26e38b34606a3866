//! The hypervisor of the tests here.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use podvirt_proto::domain::{Status, reason};
use podvirt_proto::migration::Progress;
use podvirt_proto::stats::{Block, DomainStats};

use super::super::backup::fake::Jobs;
use crate::hypervisor::{Backups, DomainState, DomainStatus, Hypervisor, HypervisorError, Move, Picture};

pub(in crate::pod) type Outcome = Result<(), HypervisorError>;

/// A hypervisor whose moves end as they are told to.
pub(in crate::pod) struct Fake {
    pub(super) moves: Mutex<Vec<Move>>,
    pub(super) outcome: Mutex<Receiver<Outcome>>,
    /// Where an abort ends the move.
    pub(super) aborted: Sender<Outcome>,
    pub(super) kept: Mutex<u32>,
    pub(super) agent: Mutex<Vec<String>>,
    pub(in crate::pod) status: Mutex<DomainStatus>,
    /// Links that went up and down, by alias.
    pub(super) links: Mutex<Vec<(String, bool)>>,
    /// Aliases of its interfaces.
    pub(in crate::pod) interfaces: Mutex<Vec<String>>,
    /// What was plugged.
    pub(in crate::pod) plugged: Mutex<Vec<String>>,
    /// Whether its guest lets go of nothing.
    pub(in crate::pod) clings: Mutex<bool>,
    /// Its backups.
    pub(in crate::pod) jobs: Jobs,
}

pub(super) fn no() -> HypervisorError {
    HypervisorError::Refused { action: "move the domain", message: "no".into() }
}

impl Fake {
    /// One whose machine is like this, and where its moves are ended.
    pub(in crate::pod) fn new(status: Status) -> (Arc<Fake>, Sender<Outcome>) {
        let (tell, outcome) = channel();
        let fake = Fake {
            moves: Mutex::default(),
            outcome: Mutex::new(outcome),
            aborted: tell.clone(),
            kept: Mutex::default(),
            agent: Mutex::default(),
            status: Mutex::new(DomainStatus { status, reason: reason::BOOTED }),
            links: Mutex::default(),
            interfaces: Mutex::default(),
            plugged: Mutex::default(),
            clings: Mutex::default(),
            jobs: Jobs::default(),
        };
        (Arc::new(fake), tell)
    }
}

impl Hypervisor for Fake {
    fn state(&self) -> Result<DomainState, HypervisorError> {
        Ok(DomainState::Active)
    }
    fn status(&self) -> Result<DomainStatus, HypervisorError> {
        Ok(*self.status.lock().unwrap())
    }
    fn start(&self, _: &str, _: bool) -> Outcome {
        Err(no())
    }
    fn dump(&self, _: &std::path::Path) -> Outcome {
        Err(no())
    }
    fn suspend(&self) -> Outcome {
        Err(no())
    }
    fn resume(&self) -> Outcome {
        self.status.lock().unwrap().status = Status::Running;
        Ok(())
    }
    fn reset(&self) -> Outcome {
        Err(no())
    }
    fn reboot(&self) -> Outcome {
        Err(no())
    }
    fn picture(&self) -> Result<Picture, HypervisorError> {
        Err(no())
    }
    fn shutdown(&self) -> Outcome {
        Err(no())
    }
    fn destroy(&self) -> Outcome {
        Err(no())
    }
    fn undefine(&self) -> Outcome {
        Err(no())
    }
    fn xml(&self) -> Result<String, HypervisorError> {
        let interface =
            |alias: &String| format!("<interface type='ethernet'><alias name='{alias}'/></interface>");
        let interfaces: String = self.interfaces.lock().unwrap().iter().map(interface).collect();
        Ok(format!(
            "<domain type='kvm'><name>x</name><devices><disk type='file' device='disk'><source file='/a'/>\
            <target dev='vda' bus='virtio'/><alias name='ua-root'/></disk>{interfaces}</devices></domain>"
        ))
    }
    fn agent(&self, command: &str, _: Duration) -> Result<String, HypervisorError> {
        self.agent.lock().unwrap().push(command.into());
        Ok(r#"{"return": {}}"#.into())
    }
    fn migrate(&self, to: &Move) -> Outcome {
        self.moves.lock().unwrap().push(to.clone());
        self.outcome.lock().unwrap().recv().unwrap()
    }
    fn progress(&self) -> Result<Option<Progress>, HypervisorError> {
        Ok(Some(Progress { total: 100, remaining: 40, ..Progress::default() }))
    }
    fn statistics(&self) -> Result<DomainStats, HypervisorError> {
        let block = vec![Block { alias: "root".into(), name: Some("vda".into()), ..Block::default() }];
        Ok(DomainStats { name: "shop_web".into(), block, ..DomainStats::default() })
    }
    fn limit_downtime(&self, _: Duration) -> Outcome {
        Ok(())
    }
    fn abort_move(&self) -> Outcome {
        self.aborted.send(Err(no())).unwrap();
        Ok(())
    }
    fn backups(&self) -> Result<&dyn Backups, HypervisorError> {
        Ok(&self.jobs)
    }
    fn set_link(&self, alias: &str, up: bool) -> Outcome {
        self.links.lock().unwrap().push((alias.into(), up));
        Ok(())
    }
    fn plug(&self, interface: &str) -> Outcome {
        self.plugged.lock().unwrap().push(interface.into());
        let alias = interface.split_once("<alias name=\"").unwrap().1.split_once('"').unwrap().0;
        self.interfaces.lock().unwrap().push(alias.into());
        Ok(())
    }
    fn unplug(&self, alias: &str) -> Outcome {
        if !*self.clings.lock().unwrap() {
            self.interfaces.lock().unwrap().retain(|there| there != alias);
        }
        Ok(())
    }
    fn grow(&self, _: &str, _: u64) -> Result<bool, HypervisorError> {
        Ok(false)
    }
    fn capacity(&self, _: &str) -> Result<u64, HypervisorError> {
        Ok(1 << 20)
    }
    fn change_medium(&self, _: &str) -> Outcome {
        Ok(())
    }
    fn hand_over(&self, _: &std::fs::File, _: u64) -> Outcome {
        Ok(())
    }
    fn take_back(&self, _: u64) -> Outcome {
        Ok(())
    }
    fn keep(&self) -> Outcome {
        *self.kept.lock().unwrap() += 1;
        Ok(())
    }
}
