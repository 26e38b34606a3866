//! nftables by its own program, which virt-handler's image has.

use std::io::{self, Write as _};
use std::process::{Command, Stdio};

/// The program.
pub(super) const PROGRAM: &str = "/usr/sbin/nft";

/// Carries commands out in the calling thread's network namespace: all of them or none.
///
/// # Errors
/// There is no such program, or it refuses; in its words.
pub(super) fn run(commands: &str) -> io::Result<()> {
    let mut child = Command::new(PROGRAM)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("{PROGRAM}: {error}")))?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(commands.as_bytes()));
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("without a word");
        return Err(io::Error::other(format!("{PROGRAM}: {}: {first}", output.status)));
    }
    written
}
