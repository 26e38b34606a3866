//! Disks of configuration: ISO 9660 images with the files of a ConfigMap, a Secret, the downward API or a ServiceAccount.

use std::io::ErrorKind;
use std::path::Path;

use hadris_iso::write::InputEntry;
use podvirt_api::vmi::Volume;

use super::cloud_init::iso;
use super::{MediaError, mounted};

/// Names, in small letters, of which Windows' set-up looks for one.
const ANSWERS: [&str; 2] = ["autounattend.xml", "unattend.xml"];

/// Writes the disk of `volume` with the files of `directory` to `path`.
///
/// # Errors
///
/// A file cannot be read or written; there are no answers for Windows' set-up.
pub(super) fn write(label: &str, directory: &Path, volume: &Volume, path: &Path) -> Result<(), MediaError> {
    let files = mounted::files(directory).map_err(|error| MediaError::file("read", directory, error))?;
    let mut entries = Vec::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let content = std::fs::read(&file).map_err(|error| MediaError::file("read", &file, error))?;
        entries.push((name, content));
    }
    let is_answer = |name: &String| ANSWERS.contains(&name.to_lowercase().as_str());
    if volume.sysprep.is_some() && !entries.iter().any(|(name, _)| is_answer(name)) {
        return Err(MediaError::NoAnswers(volume.name.clone()));
    }
    let entries = entries.into_iter().map(|(name, content)| InputEntry::file(name, content)).collect();
    let image = iso(label, entries)?;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|error| MediaError::file("make", parent, error))?;
    }
    // An earlier attempt's.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(MediaError::file("clear", path, error)),
        _ => super::cloud_init::write_file(path, &image),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn made(source: serde_json::Value, files: &[(&str, &str)]) -> Result<Vec<u8>, MediaError> {
        let mut volume: Volume = serde_json::from_value(source).unwrap();
        volume.name = "c".into();
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("mounted");
        mounted::mount(&directory, files);
        let path = dir.path().join("c.iso");
        write(volume.config().unwrap().1, &directory, &volume, &path)?;
        Ok(std::fs::read(path).unwrap())
    }

    #[test]
    fn a_disk_has_the_files_and_the_label() {
        for (source, label) in [
            (json!({"configMap": {"name": "m"}}), &b"cfgdata "[..]),
            (json!({"secret": {"secretName": "m", "volumeLabel": "mine"}}), b"mine "),
            (json!({"serviceAccount": {"serviceAccountName": "m"}}), b"cfgdata "),
        ] {
            let image = made(source, &[("option1", "value1"), ("option2", "value2")]).unwrap();
            assert_eq!(&image[16 * 2048 + 40..16 * 2048 + 40 + label.len()], label);
            let text = String::from_utf8_lossy(&image);
            assert!(["option1", "value1", "option2", "value2"].iter().all(|word| text.contains(word)));
            assert!(!text.contains("..data"));
        }
        made(json!({"configMap": {"name": "m", "optional": true}}), &[]).unwrap();
    }

    #[test]
    fn a_set_up_of_windows_needs_its_answers() {
        let source = || json!({"sysprep": {"secret": {"name": "s"}}});
        assert!(matches!(made(source(), &[("other.xml", "x")]), Err(MediaError::NoAnswers(_))));
        let image = made(source(), &[("Autounattend.xml", "x")]).unwrap();
        assert_eq!(&image[16 * 2048 + 40..16 * 2048 + 50], b"unattendCD");
    }
}
