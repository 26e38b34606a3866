//! What the environment of an exporter pod says. The variables are upstream's.

use std::net::SocketAddr;
use std::path::PathBuf;

use jiff::Timestamp;
use podvirt_api::export::{MANIFEST_DIRECTORY, PORT, backup};
use podvirt_api::v1::BackupType;

/// A claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Where it is: a directory, or a device.
    pub path: PathBuf,
    /// Path of its image, where it is served.
    pub raw: Option<String>,
    /// Path of the compressed image.
    pub gzip: Option<String>,
    /// Path of its files.
    pub directory: Option<String>,
    /// Path of its files, packed.
    pub archive: Option<String>,
}

/// A disk in a backup in pull mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Name of its volume, under which the machine offers it.
    pub volume: String,
    /// Path of its data, where it is served.
    pub data: Option<String>,
    /// Path of the map of what is in it.
    pub map: Option<String>,
}

/// A backup in pull mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Its UID.
    pub uid: String,
    /// Whether it has all of the disks, or what has changed.
    pub kind: Option<BackupType>,
    /// Certificates, as PEM, of which the machine's is.
    pub ca: String,
    /// Its disks.
    pub disks: Vec<Disk>,
}

/// What an exporter serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Address to serve on.
    pub listen: SocketAddr,
    /// File with the certificate.
    pub certificate: PathBuf,
    /// File with its key.
    pub key: PathBuf,
    /// File with the token.
    pub token: PathBuf,
    /// When to end.
    pub deadline: Option<Timestamp>,
    /// Claims.
    pub volumes: Vec<Volume>,
    /// The backup, where it is the source.
    pub backup: Option<Backup>,
    /// Path of all manifests but the token's.
    pub manifests: Option<String>,
    /// Path of the token's manifest.
    pub secret: Option<String>,
    /// Directory of what manifests are made of.
    pub data: PathBuf,
}

/// A variable is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It is not there.
    #[error("the variable {0} is not set")]
    Missing(&'static str),
    /// It says something else than it should.
    #[error("the variable {name} is {value:?}: {allowed} is allowed")]
    Wrong {
        /// Its name.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        allowed: &'static str,
    },
}

impl Config {
    /// Reads the environment.
    ///
    /// # Errors
    ///
    /// A variable is missing or cannot be read.
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let file = |name: &'static str| set(name).map(PathBuf::from).ok_or(ConfigError::Missing(name));
        let wrong = |name, value: String, allowed| ConfigError::Wrong { name, value, allowed };
        let listen = match set("LISTEN_ADDR") {
            // As Go writes it: a port of all addresses.
            Some(said) => {
                let whole = if said.starts_with(':') { format!("[::]{said}") } else { said.clone() };
                whole.parse().map_err(|_| wrong("LISTEN_ADDR", said, "an address with a port"))?
            }
            None => SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, PORT)),
        };
        let deadline = set("DEADLINE")
            .map(|said| said.parse().map_err(|_| wrong("DEADLINE", said, "a time by RFC 3339")))
            .transpose()?;
        let volumes = (0..)
            .map_while(|place| {
                let of = |what: &str| set(&format!("VOLUME{place}_EXPORT_{what}"));
                Some(Volume {
                    path: of("PATH")?.into(),
                    raw: of("RAW_URI"),
                    gzip: of("RAW_GZIP_URI"),
                    directory: of("DIR_URI"),
                    archive: of("ARCHIVE_URI"),
                })
            })
            .collect();
        Ok(Config {
            listen,
            certificate: file("CERT_FILE")?,
            key: file("KEY_FILE")?,
            token: file("TOKEN_FILE")?,
            deadline,
            volumes,
            backup: Backup::from_env(set)?,
            manifests: set("EXPORT_VM_DEF_URI"),
            secret: set("EXPORT_SECRET_DEF_URI"),
            data: PathBuf::from(MANIFEST_DIRECTORY),
        })
    }
}

impl Backup {
    /// Reads the environment, of which `set` tells what is set.
    fn from_env(set: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ConfigError> {
        let Some(uid) = set(backup::UID) else { return Ok(None) };
        let kind = match set(backup::TYPE).as_deref().map(BackupType::from) {
            Some(BackupType::Other(value)) => {
                let allowed = "Full or Incremental";
                return Err(ConfigError::Wrong { name: backup::TYPE, value, allowed });
            }
            kind => kind,
        };
        let disks = (0..).map_while(|place| {
            let of = |what: &str| set(&format!("BACKUP{place}_{what}"));
            Some(Disk { volume: of("BACKUP_PATH")?, data: of("DATA_URI"), map: of("MAP_URI") })
        });
        let disks = disks.collect();
        let ca = set(backup::CA).ok_or(ConfigError::Missing(backup::CA))?;
        Ok(Some(Backup { uid, kind, ca, disks }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(more: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let mut all = vec![
            ("CERT_FILE", "/cert/tls.crt"),
            ("KEY_FILE", "/cert/tls.key"),
            ("TOKEN_FILE", "/token/token"),
        ];
        all.extend(more);
        Config::from_env(|name| {
            all.iter().rfind(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_variables_are_upstreams() {
        let config = read(&[
            ("LISTEN_ADDR", ":9443"),
            ("DEADLINE", "2026-01-01T00:00:00Z"),
            ("VOLUME0_EXPORT_PATH", "/export-volumes/a"),
            ("VOLUME0_EXPORT_RAW_URI", "/volumes/a/disk.img"),
            ("VOLUME1_EXPORT_PATH", "/export-volumes/b"),
            ("VOLUME1_EXPORT_DIR_URI", "/volumes/b/dir/"),
        ])
        .unwrap();
        assert_eq!((config.listen.port(), config.volumes.len()), (9443, 2));
        assert_eq!(config.volumes[0].raw.as_deref(), Some("/volumes/a/disk.img"));
        assert_eq!(config.volumes[1].directory.as_deref(), Some("/volumes/b/dir/"));
        assert_eq!(config.deadline.unwrap().as_second(), 1_767_225_600);
        assert_eq!(read(&[]).unwrap().listen.port(), 8443);
        let error = read(&[("DEADLINE", "soon")]).unwrap_err().to_string();
        assert!(error.contains("DEADLINE") && error.contains("RFC 3339"), "{error}");
        assert_eq!(read(&[("TOKEN_FILE", "")]), Err(ConfigError::Missing("TOKEN_FILE")));
    }
    #[test]
    fn a_backup_is_there_with_its_uid() {
        assert_eq!(read(&[("BACKUP_CACERT", "PEM"), ("BACKUP0_BACKUP_PATH", "root")]).unwrap().backup, None);
        let some = [
            ("BACKUP_UID", "u-1"),
            ("BACKUP_CACERT", "PEM"),
            ("BACKUP_TYPE", "Incremental"),
            ("BACKUP0_BACKUP_PATH", "root"),
            ("BACKUP0_DATA_URI", "/exports/root/data"),
            ("BACKUP0_MAP_URI", "/exports/root/map"),
            ("BACKUP1_BACKUP_PATH", "data"),
            ("BACKUP1_DATA_URI", "/exports/data/data"),
        ];
        let backup = read(&some).unwrap().backup.unwrap();
        assert_eq!((backup.uid.as_str(), backup.ca.as_str()), ("u-1", "PEM"));
        assert_eq!(backup.kind, Some(BackupType::Incremental));
        let disk = |volume: &str, map: Option<&str>| Disk {
            volume: volume.to_owned(),
            data: Some(backup::path(volume, "data")),
            map: map.map(ToOwned::to_owned),
        };
        assert_eq!(backup.disks, [disk("root", Some("/exports/root/map")), disk("data", None)]);
        assert_eq!(read(&some[..1]), Err(ConfigError::Missing("BACKUP_CACERT")));
        let odd = [&some[..2], &[("BACKUP_TYPE", "Half")]].concat();
        let error = read(&odd).unwrap_err().to_string();
        assert_eq!(error, "the variable BACKUP_TYPE is \"Half\": Full or Incremental is allowed");
    }
}
