//! What is measured, one module for each kind; each gives figures by their full names.

mod crowds;
mod far;
mod flows;
mod idle;
mod packets;
mod pairs;
mod parts;
mod receiver;
mod transactions;
pub(crate) mod transfer;

pub(crate) use parts::{all_ports, micro, migrations};

use std::collections::BTreeMap;

use anyhow::Result;

use crate::bed::{Bed, Pace};
use crate::plan::Case;
use crate::results::Figures;

/// What a case found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    /// Figures by their names.
    pub(crate) figures: Figures,
    /// Bulk throughputs second by second, by the figure's name.
    pub(crate) course: BTreeMap<String, Vec<f64>>,
}

impl Found {
    /// Adds a figure.
    fn put(&mut self, name: String, value: f64) {
        self.figures.insert(name, value);
    }
}

/// Measures one case; what was found before something broke down is kept.
///
/// # Errors
/// It cannot be measured here, or something broke down.
pub(crate) fn run(bed: &mut Bed, case: Case, pace: &Pace, found: &mut Found) -> Result<()> {
    bed.check(case)?;
    match case {
        Case::Idle => idle::run(bed, pace, found),
        Case::Rr => transactions::round_trips(bed, pace, found),
        Case::Crr => transactions::connections(bed, pace, found),
        Case::Tcp => transfer::tcp(bed, pace, 1, found),
        Case::Tcp4 => transfer::tcp(bed, pace, 4, found),
        Case::Udp => transfer::udp(bed, pace, found),
        Case::Flows => flows::run(bed, pace, found),
        Case::Far => far::run(bed, pace, found),
        Case::Peers => crowds::peers(bed, pace, found),
        Case::Names => crowds::names(bed, pace, found),
        Case::Echo => packets::echo(bed, pace, found),
        Case::Txonly => packets::send_only(bed, pace, found),
        Case::Ceiling => packets::ceiling(bed, pace, found),
        Case::Pairs => pairs::run(bed, pace, found),
        Case::Receiver => receiver::run(bed, pace, found),
        Case::Micro | Case::Ports | Case::Migration => Ok(()),
    }
}
