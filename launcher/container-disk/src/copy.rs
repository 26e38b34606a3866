//! Puts this program where the sidecars find it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Copies this program to `target`. It appears whole, so that a container that is started again finds one anyway.
pub(crate) fn copy(target: &Path) -> io::Result<()> {
    copy_from(Path::new("/proc/self/exe"), target)
}

fn copy_from(program: &Path, target: &Path) -> io::Result<()> {
    if let Some(directory) = target.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut aside = target.as_os_str().to_owned();
    aside.push(".new");
    fs::copy(program, &aside)?;
    fs::set_permissions(&aside, Permissions::from_mode(0o755))?;
    fs::rename(&aside, target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_a_program_and_replaces_an_older_one() {
        let dir = tempfile::tempdir().unwrap();
        let (program, target) = (dir.path().join("p"), dir.path().join("usr/bin/container-disk"));
        for content in ["first", "second"] {
            fs::write(&program, content).unwrap();
            copy_from(&program, &target).unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), content);
        }
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o755);
    }
}
