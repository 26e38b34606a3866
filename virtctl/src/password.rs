//! A password out of a file: what is on the command line is in the list of processes and in the shell's history.

use std::io::{self, Read};
use std::path::Path;

/// Longest password with its end of line, in bytes.
const MAX_PASSWORD_BYTES: u64 = 4096;

/// The password in the file `path`, without its end of line; `-` is the standard input.
///
/// # Errors
///
/// The file cannot be read, is longer than a password, or is no text.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        return text(io::stdin().lock(), "the standard input");
    }
    let name = path.display().to_string();
    let file = std::fs::File::open(path).map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    text(file, &name)
}

fn text(from: impl Read, name: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = from.take(MAX_PASSWORD_BYTES + 1).read_to_string(&mut text);
    let read = read.map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    anyhow::ensure!(
        read as u64 <= MAX_PASSWORD_BYTES,
        "{name}: a password of up to {MAX_PASSWORD_BYTES} bytes is allowed"
    );
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_line_is_no_part_of_a_password() {
        let read = |content: &[u8]| text(content, "file").map_err(|error| error.to_string());
        for content in ["a b", "a b\n", "a b\r\n"] {
            assert_eq!(read(content.as_bytes()).as_deref(), Ok("a b"));
        }
        assert_eq!(read(b" a \n\n").as_deref(), Ok(" a \n"));
        let longest = vec![b'x'; 4096];
        assert_eq!(read(&longest).map(|password| password.len()), Ok(4096));
        let long = read(&[&longest[..], b"x"].concat()).unwrap_err();
        assert_eq!(long, "file: a password of up to 4096 bytes is allowed");
        assert!(read(&[0xff]).unwrap_err().starts_with("file: "));
    }
}
