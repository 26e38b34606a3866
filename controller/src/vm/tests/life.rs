//! A machine's life in virtual time: what is decided is written and carried out, pass after pass.

use super::*;

/// Follows a machine through passes: each pass's status is written and its action carried out.
pub(super) struct Life {
    pub(super) vm: VirtualMachine,
    pub(super) vmi: Option<VirtualMachineInstance>,
    pub(super) now: Timestamp,
    pub(super) made: u32,
}

impl Life {
    pub(super) fn new(vm: VirtualMachine) -> Self {
        Self { vm, vmi: None, now: now(), made: 0 }
    }

    /// Something happens to the machine, if it can happen now.
    pub(super) fn happen(&mut self, what: u8) -> &mut Self {
        let uid = self.vmi.as_ref().and_then(ResourceExt::uid).unwrap_or_default();
        let alive = self.vmi.as_ref().is_some_and(|vmi| !is_final(vmi));
        let strategies =
            [Strategy::Always, Strategy::Halted, Strategy::Manual, Strategy::RerunOnFailure, Strategy::Once];
        match what {
            0 if alive => self.phase(Phase::Running),
            1 if alive => self.phase(Phase::Failed),
            2 if alive => self.phase(Phase::Succeeded),
            3 => self.request(&start_request()),
            4 => self.request(&stop_request(&uid)),
            5 => self.request(&restart_request(&uid)),
            6 => {
                self.now += Duration::from_secs(97);
                self.settle()
            }
            7 => {
                self.vmi = None;
                self.settle()
            }
            8..13 => {
                self.vm.spec.run_strategy = Some(strategies[usize::from(what - 8)].word());
                self.settle()
            }
            _ => self.settle(),
        }
    }

    /// Passes until nothing is left to do now.
    pub(super) fn settle(&mut self) -> &mut Self {
        for _ in 0..20 {
            let plan = decide(&self.vm, Instance::of(&self.vm, self.vmi.as_ref()), self.now);
            let changed = plan.status != self.vm.status;
            self.vm.status = plan.status;
            match plan.action {
                None if !changed => return self,
                None => {}
                Some(Action::Start(vmi)) => {
                    assert!(self.vmi.is_none());
                    self.made += 1;
                    let mut vmi = *vmi;
                    vmi.metadata.uid = Some(format!("u{}", self.made));
                    self.vmi = Some(vmi);
                }
                Some(Action::Stop { uid, .. }) => {
                    assert_eq!(self.vmi.as_ref().and_then(ResourceExt::uid), Some(uid));
                    self.vmi = None;
                }
                Some(Action::BecomeAlways) => {
                    self.vm.spec.run_strategy = Some(VirtualMachineRunStrategy::Always);
                }
                Some(other) => panic!("{other:?}"),
            }
        }
        panic!("does not settle: {:?}", self.vm.status);
    }

    pub(super) fn phase(&mut self, phase: Phase) -> &mut Self {
        let status = &mut self.vmi.as_mut().unwrap().status;
        status.phase_transition_timestamps.push(VirtualMachineInstancePhaseTransitionTimestamp {
            phase: Some(phase.clone()),
            ..VirtualMachineInstancePhaseTransitionTimestamp::default()
        });
        status.phase = Some(phase);
        self.settle()
    }

    pub(super) fn request(&mut self, requests: &Value) -> &mut Self {
        let status: Value = requests["status"]["stateChangeRequests"].clone();
        self.vm.status.state_change_requests = serde_json::from_value(status).unwrap();
        self.settle()
    }
}
