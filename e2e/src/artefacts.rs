//! Where things are: what `make setup` built, this project's programs, the scripts.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// One of the scripts of the test bed.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The directory of an artefact (`root`, `uml`, `umlwake`, `tiny`, `debian`), built if it is not there.
///
/// # Errors
/// It could not be built; the builder's output has been shown.
pub fn artefact(name: &str) -> Result<PathBuf> {
    let out = Command::new(script("artefact")).arg(name).stderr(Stdio::inherit()).output()?;
    ensure!(out.status.success(), "artefact {name} cannot be built");
    Ok(PathBuf::from(String::from_utf8(out.stdout)?.trim_end()))
}

/// The directory of an image of the cluster's that the bed does not put into it by itself (`mesh`), made if it has changed.
/// What it is made of may have to be fetched: to be called while the process is on the machine's own network.
///
/// # Errors
/// It cannot be made; the maker's output has been shown.
pub fn image(name: &str) -> Result<PathBuf> {
    let out = Command::new(script("cluster/images")).arg(name).stderr(Stdio::inherit()).output()?;
    ensure!(out.status.success(), "image {name} cannot be made");
    Ok(PathBuf::from(String::from_utf8(out.stdout)?.trim_end()))
}

/// The directory with this project's programs: `$PODVIRT_BIN`, or where cargo puts a release build.
///
/// # Errors
/// `name` is not in it.
pub fn program_dir(name: &str) -> Result<PathBuf> {
    let dir = match std::env::var_os("PODVIRT_BIN") {
        Some(dir) => PathBuf::from(dir),
        None => {
            // This very program is <target>/<profile>/deps/<test> or <target>/<profile>/<binary>.
            let me = std::env::current_exe()?;
            let target = me.ancestors().find(|d| d.join("CACHEDIR.TAG").exists());
            target.context("not run by cargo: set PODVIRT_BIN")?.join("release")
        }
    };
    ensure!(dir.join(name).exists(), "{} is not built: run make build", dir.join(name).display());
    Ok(dir)
}
