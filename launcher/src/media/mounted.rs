//! Files of a ConfigMap, a Secret or another volume that the kubelet has mounted.
//!
//! The kubelet writes the files into a directory with a time in its name. `..data` is a link to that directory, and each file of
//! the volume is a link through `..data`: a change of the Secret turns one link.

use std::io;
use std::path::{Path, PathBuf};

/// The files of the volume at `directory`, in the order of their names.
///
/// # Errors
///
/// The directory cannot be read.
pub(crate) fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    // Directories, `..data` among them, are the kubelet's own.
    files.retain(|file| file.is_file());
    files.sort();
    Ok(files)
}

/// Mounts files at `directory` as the kubelet does.
#[cfg(test)]
pub(crate) fn mount(directory: &Path, files: &[(&str, &str)]) {
    use std::os::unix::fs::symlink;

    let data = directory.join("..2026_11_25_12_00_00.1");
    std::fs::create_dir_all(&data).unwrap();
    symlink("..2026_11_25_12_00_00.1", directory.join("..data")).unwrap();
    for (name, text) in files {
        std::fs::write(data.join(name), text).unwrap();
        symlink(Path::new("..data").join(name), directory.join(name)).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_found_and_the_kubelets_directories_left_out() {
        let dir = tempfile::tempdir().unwrap();
        mount(dir.path(), &[("b", "2"), ("a", "1")]);
        assert_eq!(files(dir.path()).unwrap(), [dir.path().join("a"), dir.path().join("b")]);
        assert!(files(&dir.path().join("missing")).is_err());
    }
}
