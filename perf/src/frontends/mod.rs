//! What stands in the place of a virtual machine.

pub(crate) mod double;
pub(crate) mod linux;
pub(crate) mod masquerade;
pub(crate) mod receiver;
pub(crate) mod testpmd;

use anyhow::{Context, Result};
use frontend_double::Double;
use nix::unistd::Pid;

use crate::usage::{self, Cpu};

/// The backend's Ethernet address where the frontend does not ask for it. netd drops what is sent to another one; passt
/// takes anything.
pub(crate) const BACKEND_MAC: &str = "02:00:00:00:00:01";

/// A frontend at work.
pub(crate) enum Machine {
    /// A Linux guest.
    Linux(linux::Linux),
    /// DPDK's testpmd.
    Testpmd(testpmd::Testpmd),
    /// The double, in this very process.
    Double(Box<Double>),
    /// The double, while a case has it.
    Lent,
}

impl Machine {
    /// The guest.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn linux(&mut self) -> Result<&mut linux::Linux> {
        if let Machine::Linux(linux) = self { Ok(linux) } else { Err(anyhow::anyhow!("there is no guest")) }
    }

    /// testpmd.
    ///
    /// # Errors
    /// The frontend is another one.
    pub(crate) fn testpmd(&mut self) -> Result<&mut testpmd::Testpmd> {
        let Machine::Testpmd(testpmd) = self else { return None.context("the frontend is not testpmd") };
        Ok(testpmd)
    }

    /// The double.
    ///
    /// # Errors
    /// The frontend is another one.
    pub(crate) fn double(&mut self) -> Result<&mut Double> {
        let Machine::Double(double) = self else { return None.context("the frontend is not the double") };
        Ok(double)
    }

    /// CPU time it has used so far.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn cpu(&self) -> Result<Cpu> {
        match self {
            Machine::Linux(linux) => usage::cpu(linux.process().init_pid()?),
            Machine::Testpmd(testpmd) => usage::cpu(testpmd.process.init_pid()?),
            Machine::Double(_) | Machine::Lent => usage::cpu(Pid::this()),
        }
    }
}
