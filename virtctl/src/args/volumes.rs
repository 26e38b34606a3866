//! Volumes that are plugged and unplugged.

use clap::Args;
use clap::builder::BoolishValueParser;

use super::DryRun;

/// The machine whose volumes change.
#[derive(Debug, Args)]
pub(crate) struct OfVolume {
    /// Name of the virtual machine, or of a virtual machine instance that belongs to none
    #[arg(value_name = "VM")]
    pub(crate) name: String,
    /// Has no effect any more: what is asked of a virtual machine stays in its specification
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) persist: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

/// What a plugged disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DiskType {
    Disk,
    Lun,
}

#[derive(Debug, Args)]
pub(crate) struct AddVolume {
    #[command(flatten)]
    pub(crate) common: OfVolume,
    /// Name of the DataVolume or claim, which the volume gets
    #[arg(long, value_name = "NAME")]
    pub(crate) volume_name: String,
    /// Serial number of the disk; the volume's name when not given
    #[arg(long)]
    pub(crate) serial: Option<String>,
    /// Cache mode of the disk: none, writethrough or writeback
    #[arg(long, value_name = "MODE")]
    pub(crate) cache: Option<String>,
    /// What the guest gets
    #[arg(long, value_name = "TYPE", default_value = "disk")]
    pub(crate) disk_type: DiskType,
    /// Bus of the disk: scsi or virtio
    #[arg(long, default_value = "scsi")]
    pub(crate) bus: String,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveVolume {
    #[command(flatten)]
    pub(crate) common: OfVolume,
    /// Name of the volume, or of its DataVolume or claim
    #[arg(long, value_name = "NAME")]
    pub(crate) volume_name: String,
}
