//! Finds and opens what is handed over.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that is handed over.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// `qcow2` or `raw`, by the first bytes; for people, the launcher looks itself.
    pub(crate) format: &'static str,
    /// Bytes.
    pub(crate) size: u64,
}

/// Opens the file `path`, or the only file of the directory `path`.
pub(crate) fn open(path: &Path) -> Result<Found, String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let metadata = fs::metadata(path).map_err(|e| failed(path, e))?;
    let path = if metadata.is_dir() { only_file(path)? } else { path.to_owned() };
    // Not blocking: opening a FIFO would wait for a process that writes.
    let opened = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&path);
    let file = opened.map_err(|e| failed(&path, e))?;
    let metadata = file.metadata().map_err(|e| failed(&path, e))?;
    if !metadata.is_file() {
        return Err(format!("{} is not a regular file", path.display()));
    }
    let mut magic = [0; 4];
    // A file that is shorter is raw, however little use it is.
    let format = match file.read_exact_at(&mut magic, 0) {
        Ok(()) if magic == *b"QFI\xfb" => "qcow2",
        _ => "raw",
    };
    Ok(Found { file, path, format, size: metadata.len() })
}

fn only_file(directory: &Path) -> Result<PathBuf, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", directory.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if fs::metadata(&path).is_ok_and(|m| m.is_file()) {
            files.push(path);
        }
    }
    files.sort();
    match files.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(format!(
            "{} is a directory without a file: a path names a file, or a directory with one file alone",
            directory.display()
        )),
        several => {
            let names: Vec<_> = several.iter().map(|p| p.display().to_string()).collect();
            Err(format!("there are several files in {}: {}; name one", directory.display(), names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_file_of_a_directory_is_found_and_its_format_told() {
        let dir = tempfile::tempdir().unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(error.ends_with("a path names a file, or a directory with one file alone"), "{error}");
        fs::create_dir(dir.path().join("directory")).unwrap();
        fs::write(dir.path().join("disk.qcow2"), b"QFI\xfb and more").unwrap();
        let found = open(dir.path()).unwrap();
        assert_eq!((found.format, found.size), ("qcow2", 13));
        assert_eq!(found.path, dir.path().join("disk.qcow2"));
        fs::write(dir.path().join("readme"), "x").unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(error.contains("several files") && error.contains("readme; name one"), "{error}");
        assert_eq!(open(&dir.path().join("readme")).unwrap().format, "raw");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(open(&fifo).unwrap_err().ends_with("is not a regular file"));
        assert!(open(Path::new("/nonexistent")).is_err());
    }
}
