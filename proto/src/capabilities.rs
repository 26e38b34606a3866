//! What QEMU can do on a node, as a launcher's image asks libvirt there: a file of JSON, written by `virt-launcher
//! capabilities` and read by virt-handler, which labels the node by it.
//!
//! The writer runs with less privilege than the reader: [`read`] follows no link, reads no more than [`MAX_BYTES`], and what
//! is in the file is judged by the reader.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use serde::{Deserialize, Serialize};

/// Largest file that is read.
pub const MAX_BYTES: u64 = 1 << 20;

/// What QEMU can do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Capabilities {
    /// Machine types, each with whether QEMU means to give it up.
    pub machine_types: BTreeMap<String, bool>,
    /// Models of processors that libvirt knows, each with whether a guest can have it here.
    pub models: BTreeMap<String, bool>,
    /// Features of processors that a guest can have here.
    pub features: BTreeSet<String>,
    /// The processor of a guest that asks for the host's own model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_model: Option<HostModel>,
    /// The time stamp counter; none where the hypervisor does not tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tsc: Option<Tsc>,
}

/// A model with what it has beyond it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostModel {
    /// Name of the model that comes nearest.
    pub name: String,
    /// Its vendor.
    pub vendor: String,
    /// Features beyond the model's.
    pub required_features: BTreeSet<String>,
}

/// A time stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tsc {
    /// Its frequency, in Hz.
    pub frequency: u64,
    /// Whether a guest's can have another frequency.
    pub scalable: bool,
}

/// Writes the file. A process that reads it meanwhile sees either the whole new content or the whole old one.
///
/// # Errors
///
/// The file system refuses.
pub fn write(path: &Path, capabilities: &Capabilities) -> io::Result<()> {
    let unfinished = path.with_extension("new");
    fs::write(&unfinished, serde_json::to_vec(capabilities)?)?;
    fs::rename(unfinished, path)
}

/// Reads the file.
///
/// # Errors
///
/// There is none, it is a link or no regular file, it is too long, or it is no JSON of this kind.
pub fn read(path: &Path) -> io::Result<Capabilities> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no regular file"));
    }
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "this file is longer than a MiB"));
    }
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place(std::path::PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("capabilities-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let place = Place::new("whole");
        let path = place.0.join("capabilities.json");
        let written = Capabilities {
            machine_types: [("q35".into(), false), ("pc-q35-2.4".into(), true)].into(),
            models: [("Nehalem".into(), true)].into(),
            features: ["sse4.1".into()].into(),
            host_model: Some(HostModel { name: "EPYC".into(), vendor: "AMD".into(), ..HostModel::default() }),
            tsc: Some(Tsc { frequency: 2_000_000_000, scalable: true }),
        };
        write(&path, &written).unwrap();
        assert_eq!(read(&path).unwrap(), written);
        fs::write(&path, "{\"new\": 1}").unwrap();
        assert_eq!(read(&path).unwrap(), Capabilities::default(), "of another release");
    }

    #[test]
    fn the_writer_cannot_lead_the_reader_elsewhere() {
        let place = Place::new("led");
        let path = place.0.join("capabilities.json");
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(read(&path).is_err(), "a link");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(read(&path).is_err(), "a directory");
        fs::remove_dir(&path).unwrap();
        File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
