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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a script prints that knows the functions of `lib.sh` and has a directory of its own, `$D`.
    fn bash(commands: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let sourced = format!("set -eu; . \"$0\"; D=$1; {commands}");
        let out = Command::new("bash")
            .args(["-c", &sourced])
            .arg(script("lib.sh"))
            .arg(dir.path())
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    #[test]
    fn what_a_recipe_reads_is_built_before_it() {
        let built = bash(
            "CACHE=$D; artefact() { echo $D/$1-key; }; recipe() { echo $D/mk-$1; }
             for name in low middle high; do printf '#!/bin/sh -e\\nmkdir $1; echo %s >>%s\\n' $name $D/order >$D/mk-$name; done
             echo '# $(artefact low)' >>$D/mk-middle
             echo '# $(artefact middle), and $(artefact low) again' >>$D/mk-high
             chmod +x $D/mk-*; build high low; cat $D/order",
        );
        assert_eq!(built, "low\nmiddle\nhigh\n");
    }

    #[test]
    fn a_changed_recipe_renews_what_is_made_of_it() {
        let kept = bash(
            "names=$(sed -n 's/^    \\([a-z-]*\\)) echo.*/\\1/p' $E2E/lib.sh)
             [ $(echo $names | wc -w) -gt 20 ]; cp -r $E2E/. $D; E2E=$D
             for name in $names; do for part in $name $(needs $name); do
                 before=$(artefact $name); echo >>$(recipe $part)
                 [ $before != $(artefact $name) ] || echo $name stays when mk-$part changes
             done; done",
        );
        assert_eq!(kept, "");
    }
}
