//! Storage on the cluster: what a guest's disks do beside plain QEMU, how fast a machine boots from them, how fast they come and go,
//! how long a guest is held up by a snapshot, and how fast an exported disk is downloaded.
//!
//! # Theory of operation
//!
//! ```text
//!   node 1
//!   machine "usual"   4 disks ─┐
//!   machine "threads" 2 disks ─┼─ the same six claims, and one with fio
//!   pod with QEMU     6 disks ─┘
//! ```
//!
//! The guests run at the same time; the storage is shared between nodes, so nothing keeps two of them from one claim, and
//! QEMU's own lock on an image is off in the pod. None of them has a file system on a disk that is measured. The sides take turns
//! on each disk ([`crate::sides`]), in the other order in each second round. Each round starts guests of its own: of guests that are
//! started alike one reads up to a quarter faster than another for as long as both live, so guests of all rounds would give the same
//! ratio in each round, and a wrong one. Each part has a namespace of its own, which is deleted before the next part begins.

mod boots;
mod disks;
mod exports;
mod fio;
mod plugs;
mod record;
mod snapshots;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use podvirt_e2e::artefacts;
use podvirt_e2e::cluster::{Cluster, Namespace, Security, prepare_volumes};

use crate::machine::{self, Machine};
use crate::sides::{Run, turns};
use disks::{DISKS, Guest, Memory, PLAIN, PROGRAMS, claim, copy, end_all, machines, plain, pod};
pub(crate) use record::Storage;

/// The sides of a disk, in results.
const MACHINE: &str = "podvirt";
/// See [`MACHINE`].
const PLAIN_QEMU: &str = "plain";
/// See [`MACHINE`]: plain QEMU whose guest's memory is shared, as podvirt's is.
const SHARED: &str = "shared";
/// The parts.
const PARTS: [&str; 5] = ["disks", "boots", "plugs", "snapshots", "exports"];

/// How long and how often.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds on each disk, each with new guests, and of each download [default: 7, quick: 1]
    #[arg(short = 'n', value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Length of each of fio's jobs after its warm-up [default: 1, quick: 0.5]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Only these of disks, boots, plugs, snapshots, exports, with commas; no result is written
    #[arg(long = "only", value_name = "PARTS", value_delimiter = ',')]
    only: Vec<String>,
    /// One short round; no result is written
    #[arg(long)]
    quick: bool,
    /// Something a reader of the result must know
    #[arg(long, value_name = "TEXT")]
    note: Vec<String>,
}

impl Options {
    fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 0.5 } else { 1.0 })
    }

    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 7 })
    }

    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }

    fn check(&self) -> Result<()> {
        let seconds = self.seconds();
        ensure!(seconds.is_finite() && seconds > 0.0, "--seconds {seconds}: more than 0");
        for part in &self.only {
            ensure!(PARTS.contains(&part.as_str()), "--only {part}: there are {}", PARTS.join(", "));
        }
        Ok(())
    }
}

/// Measures, prints, and writes the file unless it was only a look.
///
/// # Errors
/// Without a cluster with podvirt in it, or when something could not be measured; what could be is written.
pub(crate) fn run(options: &Options, results: &Path, out: &mut impl Write) -> Result<()> {
    options.check()?;
    let (commit, computer, began) = (machine::commit(), Machine::this()?, Instant::now());
    // All that has to be made or fetched, before this process is in the cluster's network.
    prepare_volumes()?;
    let debian = options.wants("snapshots").then(|| artefacts::image("disk-debian")).transpose()?;
    let large = options.wants("boots").then(boots::prepare).transpose()?;
    let files = tempfile::tempdir()?;
    let programs = files.path().join("programs.tar");
    if options.wants("disks") {
        fio::archive(&programs)?;
    }
    let cluster = Cluster::get()?;
    for image in debian.iter().chain(large.as_ref().map(|large| &large.image)) {
        cluster.load(image)?;
    }
    let _volumes = cluster.volumes()?;
    let mut storage = Storage {
        date: machine::now()?,
        commit,
        machine: computer,
        seconds: options.seconds(),
        notes: options.note.clone(),
        guests_anew: true,
        disks: Vec::new(),
        boots: None,
        plugs: None,
        frozen: None,
        exports: Vec::new(),
    };
    let namespace = || cluster.namespace(Security::Restricted);
    if options.wants("disks") {
        storage.disks = fio_by_turns(&namespace()?, &programs, options, out).context("disks")?;
    }
    if let Some(large) = &large {
        let count = if options.quick { 1 } else { 10 };
        storage.boots = boots::measure(&namespace()?, large, count, out).context("boots")?;
    }
    if options.wants("plugs") {
        let count = if options.quick { 4 } else { 40 };
        storage.plugs = plugs::measure(&namespace()?, count, out).context("plugs")?;
    }
    if options.wants("snapshots") {
        let (gib, count) = if options.quick { (1, 1) } else { (10, 5) };
        storage.frozen = snapshots::measure(&namespace()?, gib, count, out).context("snapshots")?;
    }
    if options.wants("exports") {
        storage.exports = exports::measure(&namespace()?, options.rounds(), out).context("exports")?;
    }
    write!(out, "{}", storage.section())?;
    writeln!(out, "{:.0} s in all", began.elapsed().as_secs_f64())?;
    if options.only.is_empty() && !options.quick {
        storage.write(results)?;
    }
    storage.check()
}

/// Each disk in each round by all sides.
fn fio_by_turns(
    namespace: &Namespace<'_>,
    programs: &Path,
    options: &Options,
    out: &mut impl Write,
) -> Result<Vec<Run>> {
    let (devices, files): (Vec<_>, Vec<_>) = DISKS.iter().partition(|disk| disk.device);
    let keys = |disks: Vec<&disks::Disk>| disks.into_iter().map(|disk| disk.key).collect::<Vec<_>>();
    let (mut devices, files) = (keys(devices), keys(files));
    for (names, mode) in [(&devices, "Block"), (&files, "Filesystem")] {
        for name in names {
            claim(namespace, name, mode, "320Mi")?;
        }
    }
    claim(namespace, PROGRAMS, "Block", "256Mi")?;
    devices.push(PROGRAMS);
    let mut runs = Vec::new();
    for round in 0..options.rounds() {
        let start = Instant::now();
        pod(namespace, PLAIN, &devices, &files)?;
        if round == 0 {
            copy(namespace, programs, PLAIN, &format!("/dev/{PROGRAMS}"))?;
        }
        // The machines make the disk images that plain QEMU has, too.
        let mut machines = machines(namespace)?;
        let mut own = plain(namespace, Memory::Own)?;
        let mut shared = plain(namespace, Memory::Shared).context("with shared memory")?;
        if round == 0 {
            for disk in DISKS {
                fio::fill(having(&mut machines, disk)?, &disk).context(disk.name)?;
            }
        }
        let mut figures = [BTreeMap::new(), BTreeMap::new(), BTreeMap::new()];
        let mut errors = [None, None, None];
        for disk in DISKS {
            for side in turns(3, round) {
                let guest = match side {
                    0 => having(&mut machines, disk)?,
                    1 => &mut own,
                    _ => &mut shared,
                };
                let (Some(figures), Some(error)) = (figures.get_mut(side), errors.get_mut(side)) else {
                    continue;
                };
                if let Err(failed) = fio::measure(guest, &disk, options.seconds(), figures) {
                    writeln!(out, "{}: {failed:#}", disk.name)?;
                    *error = Some(format!("{}: {failed:#}", disk.name));
                }
            }
        }
        writeln!(out, "round {} of disks: {:.0} s", round + 1, start.elapsed().as_secs_f64())?;
        let sides = [MACHINE, PLAIN_QEMU, SHARED].into_iter().zip(figures).zip(errors);
        runs.extend(sides.map(|((subject, figures), error)| Run {
            subject: subject.into(),
            round,
            others_cpus: None,
            figures,
            error,
        }));
        drop((machines, own, shared));
        end_all(namespace)?;
    }
    Ok(runs)
}

/// The machine that has a disk.
fn having(machines: &mut [Guest], disk: disks::Disk) -> Result<&mut Guest> {
    machines.iter_mut().find(|guest| guest.has(&disk)).with_context(|| format!("no machine has {}", disk.key))
}
