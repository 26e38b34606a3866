//! Lines for the user. A reader that went away (`virtctl ... | head -1`) ends a command with an error, never a panic.

use std::io::{self, Write as _};

use anyhow::Context as _;

/// Prints one line to stdout: what a command answers.
///
/// # Errors
/// When stdout cannot be written.
pub(crate) fn say(line: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write to the standard output")
}

/// Prints one line to stderr: what a user should know besides. Where nobody reads stderr, nothing is lost by dropping it.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
