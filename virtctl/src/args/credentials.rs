//! `credentials`: flags of what changes the Secrets of a machine's users.
//!
//! `--user` is the guest's user here; the kubeconfig's cannot be chosen.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};

/// What is changed.
#[derive(Debug, Args)]
pub(crate) struct Credentials {
    #[command(subcommand)]
    pub(crate) what: CredentialsWhat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CredentialsWhat {
    /// Add an SSH key to a Secret of a virtual machine, or to a new one.
    AddSshKey(AddSshKey),
    /// Remove an SSH key from the Secrets of a virtual machine.
    RemoveSshKey(RemoveSshKey),
    /// Set the password of a user in a Secret of a virtual machine.
    SetPassword(SetPassword),
}

/// Whose credentials.
#[derive(Debug, Args)]
pub(crate) struct OfUser {
    /// Name of the virtual machine
    #[arg(value_name = "VM")]
    pub(crate) vm: String,
    /// Name of the guest's user
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: String,
    /// Name of the Secret, where the machine has several for the user
    #[arg(long, value_name = "NAME")]
    pub(crate) secret: Option<String>,
    /// Change the Secret even if the machine does not own it
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) force: bool,
}

/// An SSH key.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Key {
    /// File with the public key
    #[arg(short, long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// The public key itself
    #[arg(long, value_name = "KEY")]
    pub(crate) value: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AddSshKey {
    #[command(flatten)]
    pub(crate) of: OfUser,
    #[command(flatten)]
    pub(crate) key: Key,
    /// Make a new Secret and give it to the machine; with --force to a running one too, which takes it at its next start
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new(), conflicts_with = "update_secret")]
    pub(crate) create_secret: bool,
    /// Add the key to a Secret that the machine has
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) update_secret: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveSshKey {
    #[command(flatten)]
    pub(crate) of: OfUser,
    #[command(flatten)]
    pub(crate) key: Key,
}

#[derive(Debug, Args)]
pub(crate) struct SetPassword {
    #[command(flatten)]
    pub(crate) of: OfUser,
    #[command(flatten)]
    pub(crate) password: Password,
}

/// A password.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Password {
    /// File with the password; - is the standard input
    #[arg(long, value_name = "PATH")]
    pub(crate) password_file: Option<PathBuf>,
    /// The password itself, which others see in the list of processes
    #[arg(short, long, value_name = "PASSWORD")]
    pub(crate) password: Option<String>,
}
