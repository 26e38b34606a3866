//! Public keys of the guest's users, from mounted Secrets.

use std::io;
use std::path::Path;

use podvirt_api::VirtualMachineInstance;

use super::cloud_init::Kind;
use super::{MediaError, mounted};

/// The keys that the disk of this kind has, in the order of the manifest and of the Secrets' keys: each line that is no comment.
///
/// # Errors
///
/// A Secret cannot be read.
pub(super) fn of(
    vmi: &VirtualMachineInstance,
    kind: Kind,
    credentials: Option<&Path>,
) -> Result<Vec<String>, MediaError> {
    let mut keys = Vec::new();
    for (n, credential) in vmi.spec.access_credentials.iter().enumerate() {
        let Some(key) = &credential.ssh_public_key else { continue };
        let by = match kind {
            Kind::NoCloud => &key.propagation_method.no_cloud,
            Kind::ConfigDrive => &key.propagation_method.config_drive,
        };
        if by.is_some() {
            let directory = credentials.ok_or(MediaError::NoCredentials(n))?.join(n.to_string());
            keys.extend(read(&directory).map_err(|error| MediaError::file("read", &directory, error))?);
        }
    }
    Ok(keys)
}

/// The keys of a mounted Secret: each line of its values that is no comment.
///
/// # Errors
///
/// It cannot be read.
pub(crate) fn read(directory: &Path) -> io::Result<Vec<String>> {
    let mut keys = Vec::new();
    for file in mounted::files(directory)? {
        let text = std::fs::read_to_string(file)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        keys.extend(lines.map(str::to_owned));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_has_the_keys_that_are_meant_for_it() {
        let vmi = VirtualMachineInstance::from_value(serde_json::json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}}, "accessCredentials": [
                {"sshPublicKey": {"source": {"secret": {"secretName": "a"}}, "propagationMethod": {"noCloud": {}}}},
                {"sshPublicKey": {"source": {"secret": {"secretName": "b"}}, "propagationMethod": {"configDrive": {}}}},
                {"sshPublicKey": {"source": {"secret": {"secretName": "c"}}, "propagationMethod": {"noCloud": {}}}},
            ]},
        }))
        .unwrap();
        let dir = tempfile::tempdir().unwrap();
        for (place, file, text) in [
            ("0", "one", "ssh-ed25519 AAAA jane\n# old\n\nssh-ed25519 BBBB joe\n"),
            ("1", "key", "ssh-rsa CCCC"),
            ("2", "key", "ssh-rsa DDDD"),
        ] {
            mounted::mount(&dir.path().join(place), &[(file, text)]);
        }
        let keys = |kind| of(&vmi, kind, Some(dir.path())).unwrap();
        let plain = ["ssh-ed25519 AAAA jane", "ssh-ed25519 BBBB joe", "ssh-rsa DDDD"];
        assert_eq!(keys(Kind::NoCloud), plain);
        assert_eq!(keys(Kind::ConfigDrive), ["ssh-rsa CCCC"]);
        assert!(matches!(of(&vmi, Kind::NoCloud, None), Err(MediaError::NoCredentials(0))));
        std::fs::remove_dir_all(dir.path().join("2")).unwrap();
        assert!(of(&vmi, Kind::NoCloud, Some(dir.path())).is_err());
    }
}
