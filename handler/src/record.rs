//! What has to survive this process: which launchers were met, and how their machines ended.
//!
//! Everything else is seen again after a restart. Two things could not be: a VMI that was removed while no virt-handler
//! watched leaves a launcher without an owner, of which only a record tells (upstream calls it a ghost); and the
//! report of an end, which the launcher gives once and then leaves. Records lie on the node, a file a VMI,
//! under its UID; they are made before the launcher is given a VMI and removed when VMI and launcher are gone.
//!
//! The directory is on a tmpfs of the node on purpose: a reboot ends the machines with the records.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use podvirt_proto::domain::Domain;
use serde::{Deserialize, Serialize};

/// Directory of the records on the node.
pub const DIRECTORY: &str = "/var/run/kubevirt-private/ghost-records";

/// All records of the node.
#[derive(Clone, Debug)]
pub struct Records {
    directory: PathBuf,
}

/// The record of one VMI. Clones share it.
#[derive(Clone, Debug)]
pub struct Record {
    path: PathBuf,
    content: Arc<Mutex<Content>>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Content {
    namespace: String,
    name: String,
    uid: String,
    pod_uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<Domain>,
}

impl Records {
    /// Uses `directory`, which is made when it is not there.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// A record that is not on the disk yet.
    pub fn make(&self, namespace: &str, name: &str, uid: &str, pod_uid: &str) -> Record {
        let content = Content {
            namespace: namespace.into(),
            name: name.into(),
            uid: uid.into(),
            pod_uid: pod_uid.into(),
            end: None,
        };
        // UIDs are the API server's, which makes them; nothing in one leads out of the directory.
        let path = self.directory.join(uid.replace('/', "_"));
        Record { path, content: Arc::new(Mutex::new(content)) }
    }

    /// The records on the disk. A file that cannot be read as one is reported and left alone.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub fn all(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some() {
                continue; // one that was being written
            }
            let read = fs::read(&path).and_then(|text| Ok(serde_json::from_slice::<Content>(&text)?));
            match read {
                Ok(content) => records.push(Record { path, content: Arc::new(Mutex::new(content)) }),
                Err(error) => tracing::error!(path = %path.display(), %error, "a record cannot be read"),
            }
        }
        Ok(records)
    }
}

impl Record {
    /// UID of the VMI.
    pub fn uid(&self) -> String {
        self.read(|content| content.uid.clone())
    }

    /// Namespace and name of the VMI.
    pub fn name(&self) -> (String, String) {
        self.read(|content| (content.namespace.clone(), content.name.clone()))
    }

    /// UID of the launcher's pod.
    pub fn pod_uid(&self) -> String {
        self.read(|content| content.pod_uid.clone())
    }

    /// How the machine ended, if the launcher has told.
    pub fn end(&self) -> Option<Domain> {
        self.read(|content| content.end.clone())
    }

    /// Puts the record on the disk.
    ///
    /// # Errors
    ///
    /// It cannot be written; what was there before is there still.
    pub fn save(&self) -> io::Result<()> {
        self.write(&self.read(Clone::clone))
    }

    /// Keeps the report of the machine's end.
    ///
    /// # Errors
    ///
    /// As [`Record::save`].
    pub fn save_end(&self, end: Option<Domain>) -> io::Result<()> {
        let mut content = self.read(Clone::clone);
        content.end = end;
        self.write(&content)?;
        *self.content.lock().unwrap_or_else(PoisonError::into_inner) = content;
        Ok(())
    }

    /// Removes the record from the disk.
    ///
    /// # Errors
    ///
    /// It is there and cannot be removed.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn read<T>(&self, what: impl FnOnce(&Content) -> T) -> T {
        what(&self.content.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, content: &Content) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(content)?)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use podvirt_proto::domain::Status;

    use super::*;

    #[test]
    fn a_record_outlives_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&dir.path().join("made")).unwrap();
        let record = records.make("n", "a", "uid-1", "pod-1");
        assert!(records.all().unwrap().is_empty());
        record.save().unwrap();
        record.save_end(Some(Domain { status: Status::Crashed, ..Domain::default() })).unwrap();
        fs::write(dir.path().join("made/uid-2.new"), "half").unwrap();
        fs::write(dir.path().join("made/uid-3"), "nonsense").unwrap();

        let again = Records::open(&dir.path().join("made")).unwrap().all().unwrap();
        let [known] = again.as_slice() else { panic!("one record: {again:?}") };
        assert_eq!((known.uid().as_str(), known.pod_uid().as_str()), ("uid-1", "pod-1"));
        assert_eq!(known.name(), ("n".into(), "a".into()));
        assert_eq!(known.end().unwrap().status, Status::Crashed);
        known.remove().unwrap();
        known.remove().unwrap();
        assert!(records.all().unwrap().is_empty());
    }
}
