//! Kernel and initrd for direct boot, as files below a directory that stands for the image.

use std::path::{Path, PathBuf};

use podvirt_api::vmi::KernelBootContainer;

use super::MediaError;
use crate::domain::Kernel;

/// The files that `container` names, below `root`.
///
/// # Errors
///
/// There is no directory, a file is missing, or a symbolic link leads out of the directory.
pub fn resolve(container: &KernelBootContainer, root: Option<&Path>) -> Result<Kernel, MediaError> {
    let root = root.ok_or_else(|| MediaError::NoKernelRoot(container.image.clone()))?;
    let initrd = Some(&container.initrd_path).filter(|p| !p.is_empty());
    Ok(Kernel {
        kernel: below(root, &container.kernel_path)?,
        initrd: initrd.map(|p| below(root, p)).transpose()?,
    })
}

/// The file `path` of the tree `root`; the image's author wrote the tree, so links are not trusted.
fn below(root: &Path, path: &str) -> Result<PathBuf, MediaError> {
    let root = root.canonicalize().map_err(|e| MediaError::file("use the directory", root, e))?;
    let wanted = root.join(path.trim_start_matches('/'));
    let found = wanted.canonicalize().map_err(|e| MediaError::file("find", &wanted, e))?;
    if !found.starts_with(&root) {
        return Err(MediaError::Escape { path: wanted, root });
    }
    std::fs::File::open(&found).map_err(|e| MediaError::file("read", &found, e))?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(kernel: &str, initrd: &str) -> KernelBootContainer {
        KernelBootContainer { image: "i".into(), kernel_path: kernel.into(), initrd_path: initrd.into() }
    }

    #[test]
    fn paths_of_the_image_become_files_below_the_root() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("boot")).unwrap();
        std::fs::write(dir.path().join("boot/vmlinuz"), "k").unwrap();
        std::fs::write(dir.path().join("initrd"), "i").unwrap();
        let kernel = resolve(&container("/boot/vmlinuz", "/initrd"), Some(dir.path())).unwrap();
        let root = dir.path().canonicalize().unwrap();
        assert_eq!(kernel.kernel, root.join("boot/vmlinuz"));
        assert_eq!(kernel.initrd, Some(root.join("initrd")));
    }

    #[test]
    fn a_missing_file_and_a_missing_root_are_told() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            resolve(&container("/vmlinuz", ""), Some(dir.path())),
            Err(MediaError::File { action: "find", .. })
        ));
        assert!(matches!(resolve(&container("/k", ""), None), Err(MediaError::NoKernelRoot(_))));
    }

    #[test]
    fn a_link_out_of_the_image_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("vmlinuz")).unwrap();
        assert!(matches!(
            resolve(&container("/vmlinuz", ""), Some(dir.path())),
            Err(MediaError::Escape { .. })
        ));
    }
}
