//! The end of QEMU's log: why it does not start, or why it ended by itself.
//!
//! libvirt writes QEMU's command line into the log, a line an argument, each but the last with a backslash at its end; then comes
//! what QEMU writes to its standard error. Its messages have a time and the program's name. A failed assertion, of QEMU or of a
//! library, has neither. Lines with a time in another form are libvirt's own.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// How much of a log's end is read, bytes.
const TAIL_BYTES: u64 = 8 * 1024;
/// Longest output that is reported, bytes: an event's message has at most 1,024.
const MAX_OUTPUT_BYTES: usize = 512;
/// Most lines that are reported.
const MAX_OUTPUT_LINES: usize = 3;

/// The end of a file; nothing where it cannot be read.
pub(super) fn tail(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// The last message of QEMU, without its time.
pub(super) fn last_message(log: &str) -> Option<String> {
    log.lines().rev().find_map(message)
}

/// The text of a line that is a message of QEMU.
fn message(line: &str) -> Option<String> {
    Some(line.split_once("Z qemu")?.1.split_once(": ")?.1.trim().to_owned())
}

/// The last lines that QEMU has written since it was started, messages or not; none where it has written nothing.
pub(super) fn output(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().collect();
    // The last argument is the line after the last one with a backslash.
    let start = lines.iter().rposition(|line| line.ends_with('\\')).map_or(0, |last| last + 2);
    let written = lines.get(start..)?.iter().filter(|line| !line.trim().is_empty() && !is_libvirts(line));
    let written: Vec<String> =
        written.map(|line| message(line).unwrap_or_else(|| line.trim().to_owned())).collect();
    let last = written[written.len().saturating_sub(MAX_OUTPUT_LINES)..].join(" / ");
    let printable: String = last.chars().filter(|c| !c.is_control()).collect();
    let start = printable.ceil_char_boundary(printable.len().saturating_sub(MAX_OUTPUT_BYTES));
    Some(printable[start..].to_owned()).filter(|output| !output.is_empty())
}

/// Whether libvirt wrote the line: `2026-01-31 12:00:00.000+0000: shutting down, reason=crashed`.
fn is_libvirts(line: &str) -> bool {
    line.split_once("+0000: ").is_some_and(|(time, _)| {
        time.len() == "2026-01-31 12:00:00.000".len()
            && time.bytes().all(|b| b.is_ascii_digit() || b"-: .".contains(&b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log as libvirt 11.3 and QEMU 10.0 have written it, with fewer arguments.
    const STARTED: &str = "2026-11-30 12:00:00.100+0000: starting up libvirt version: 11.3.0, qemu version: 10.0.7\n\
        LC_ALL=C \\\n/usr/bin/qemu-system-x86_64 \\\n-name guest=default_vm,debug-threads=on \\\n-msg timestamp=on\n";
    const ENDED: &str = "2026-11-30 12:01:00.500+0000: shutting down, reason=crashed\n";

    #[test]
    fn an_assertion_is_reported_with_the_message_before_it() {
        let text = "2026-11-30T12:00:59.000000Z qemu-system-x86_64: vhost_set_vring_call failed 22\n\
            qemu-system-x86_64: ../hw/net/virtio-net.c:1: virtio_net_start: Assertion `n' failed.\n";
        assert_eq!(
            output(&format!("{STARTED}{text}{ENDED}")).as_deref(),
            Some(
                "vhost_set_vring_call failed 22 / qemu-system-x86_64: ../hw/net/virtio-net.c:1: \
                 virtio_net_start: Assertion `n' failed."
            )
        );
    }

    #[test]
    fn arguments_and_lines_of_libvirt_are_not_output() {
        assert_eq!(output(&format!("{STARTED}{ENDED}")), None);
        assert_eq!(output(STARTED), None);
        assert_eq!(output(""), None);
        assert_eq!(
            output(&format!("{STARTED}killed by a test\n{ENDED}{STARTED}{ENDED}")),
            None,
            "of an earlier start"
        );
    }

    #[test]
    fn output_is_bounded_in_lines_and_bytes_and_is_printable() {
        let lines: String = (0..9).map(|i| format!("line\u{1b} {i}\n")).collect();
        assert_eq!(output(&format!("{STARTED}{lines}")).as_deref(), Some("line 6 / line 7 / line 8"));
        let long = output(&format!("{STARTED}{}\n", "\u{fc}".repeat(9000))).unwrap();
        assert_eq!(long.len(), MAX_OUTPUT_BYTES);
    }
}
