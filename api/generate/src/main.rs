//! Writes what follows from the model of upstream's API: the types of `podvirt_api::v1` and the
//! CustomResourceDefinitions of `deploy/crds`.
//!
//! ```text
//! cargo run -p podvirt-api-generate                          writes the files anew
//! cargo run -p podvirt-api-generate -- --check               says whether they are up to date
//! cargo run -p podvirt-api-generate -- --kubernetes <file>   takes the shapes of Kubernetes' own types from an
//!                                                            API server's /openapi/v3/api/v1
//! ```
//!
//! The Rust types and the schemas come from the same model, and the schemas are as narrow as the types: what the
//! API server stores, a daemon can read. An object that a typed client cannot read would stop its watch.

mod crd;
mod describe;
mod kubernetes;
mod model;
mod rust;
mod schema;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Resources whose types podvirt's programs have in Rust.
const ROOTS: &[&str] = &[
    "VirtualMachine",
    "VirtualMachineInstance",
    "VirtualMachineInstanceMigration",
    "VirtualMachineInstanceReplicaSet",
    "VirtualMachineInstancePreset",
    "KubeVirt",
    "pool.VirtualMachinePool",
    "snapshot.VirtualMachineSnapshot",
    "snapshot.VirtualMachineSnapshotContent",
    "snapshot.VirtualMachineRestore",
    "clone.VirtualMachineClone",
    "export.VirtualMachineExport",
    "backup.VirtualMachineBackup",
    "backup.VirtualMachineBackupTracker",
];

/// Types that travel in requests to subresources and in their answers, and those of instance types and preferences.
const MESSAGES: &[&str] = &[
    "StartOptions",
    "StopOptions",
    "RestartOptions",
    "PauseOptions",
    "UnpauseOptions",
    "MigrateOptions",
    "EvacuateCancelOptions",
    "FreezeUnfreezeTimeout",
    "VirtualMachineInstanceGuestAgentInfo",
    "VirtualMachineInstanceGuestOSUserList",
    "VirtualMachineInstanceFileSystemList",
    "instancetype.VirtualMachineInstancetypeSpec",
    "instancetype.VirtualMachinePreferenceSpec",
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            for file in generate()?.iter().filter(|f| f.is_stale()) {
                if let Some(directory) = file.path.parent() {
                    std::fs::create_dir_all(directory)?;
                }
                std::fs::write(&file.path, &file.text)?;
                println!("{}", file.path.display());
            }
            Ok(())
        }
        ["--check"] => check(),
        ["--kubernetes", openapi] => kubernetes::extract(&model(), Path::new(openapi), &shapes()),
        _ => bail!("'{}' is not known; --check and --kubernetes <file> are", arguments.join(" ")),
    }
}

/// A file that follows from the model.
struct File {
    path: PathBuf,
    text: String,
}

impl File {
    fn is_stale(&self) -> bool {
        std::fs::read_to_string(&self.path).ok().as_deref() != Some(self.text.as_str())
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn model() -> PathBuf {
    root().join("api/model/kubevirt-v1.8.json")
}

fn shapes() -> PathBuf {
    root().join("api/model/kubernetes-v1.34.json")
}

fn generate() -> Result<Vec<File>> {
    let types = model::read(&model())?;
    let rust = |path: &str, text: &str| -> Result<File> {
        Ok(File { path: root().join("api/src/v1").join(path), text: formatted(text)? })
    };
    let mut files = vec![rust("types.rs", &rust::types(&types)?)?, rust("words.rs", &rust::words(&types)?)?];
    let docs = describe::read(&root().join("api"), &types)?;
    let shapes = kubernetes::read(&shapes())?;
    for (name, text) in crd::all(&schema::Schemas { types: &types, shapes: &shapes, docs: &docs })? {
        files.push(File { path: root().join("deploy/crds").join(name), text });
    }
    Ok(files)
}

fn check() -> Result<()> {
    let files = generate()?;
    let stale: Vec<String> =
        files.iter().filter(|f| f.is_stale()).map(|f| f.path.display().to_string()).collect();
    if stale.is_empty() {
        return Ok(());
    }
    bail!("not as the model says: {}; run: cargo run -p podvirt-api-generate", stale.join(", "))
}

/// Rust as rustfmt writes it.
fn formatted(text: &str) -> Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run rustfmt")?;
    let mut input = child.stdin.take().context("rustfmt has no standard input")?;
    // rustfmt reads all of its input before it writes.
    input.write_all(text.as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("rustfmt does not take the generated code");
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_checked_in_is_what_the_model_says() {
        super::check().unwrap();
    }
}
