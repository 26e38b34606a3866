//! What the command line asks for, and the objects that are made of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use podvirt_api::Quantity;
use podvirt_api::state::APPLY_STORAGE_PROFILE;
use serde_json::{Value, json};

use super::{BIND_NOW, CONTENT_TYPE, UPLOAD};
use crate::args::ImageUpload;
use crate::target::checked;

/// Labels of what machines of an image have by default.
const DEFAULTS: [&str; 4] = [
    "instancetype.kubevirt.io/default-instancetype",
    "instancetype.kubevirt.io/default-instancetype-kind",
    "instancetype.kubevirt.io/default-preference",
    "instancetype.kubevirt.io/default-preference-kind",
];

/// Modes of a claim that can be written to.
const ACCESS_MODES: [&str; 3] = ["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"];

/// What the command line asks for.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Wishes {
    /// Whether a claim without a DataVolume is meant.
    pub(super) claim: bool,
    pub(super) name: String,
    /// The image or the archive.
    pub(super) path: PathBuf,
    pub(super) archive: bool,
    pub(super) size: Option<String>,
    pub(super) storage_class: Option<String>,
    pub(super) access_mode: Option<String>,
    /// `Block` or `Filesystem`.
    pub(super) volume_mode: Option<&'static str>,
    pub(super) creates: bool,
    pub(super) binds: bool,
    /// What machines of the image have by default.
    pub(super) labels: BTreeMap<&'static str, String>,
}

impl Wishes {
    /// Reads the flags.
    ///
    /// # Errors
    /// When flags contradict each other, or one has a value that is not possible.
    pub(super) fn of(args: &ImageUpload) -> anyhow::Result<Self> {
        let (claim, name) = target(args)?;
        let volume_mode = volume_mode(args)?;
        let (path, archive) = source(args)?;
        if archive && volume_mode == Some("Block") {
            bail!(
                "In archive upload the volume mode should always be filesystem; --volume-mode=block is not possible with --archive-path"
            );
        }
        let size = match (&args.size, &args.pvc_size) {
            (Some(size), Some(other)) if size != other => {
                bail!("--pvc-size and --size can not be specified at the same time")
            }
            (size, other) => size.clone().or_else(|| other.clone()),
        };
        if let Some(size) = &size {
            size.parse::<Quantity>()
                .map_err(anyhow::Error::new)
                .with_context(|| format!("validation failed for size={size}"))?;
        }
        match args.access_mode.as_deref() {
            None => {}
            Some("ReadOnlyMany") => bail!(
                "cannot upload to a readonly volume, use either ReadWriteOnce or ReadWriteMany if supported"
            ),
            Some(mode) if ACCESS_MODES.contains(&mode) => {}
            Some(mode) => {
                bail!("--access-mode={mode} is not possible: {} are", ACCESS_MODES.join(", "))
            }
        }
        Ok(Wishes {
            claim,
            name,
            path,
            archive,
            size,
            storage_class: args.storage_class.clone().filter(|class| !class.is_empty()),
            access_mode: args.access_mode.clone(),
            volume_mode,
            creates: !args.no_create,
            binds: args.force_bind,
            labels: labels(args)?,
        })
    }

    fn content_type(&self) -> &'static str {
        if self.archive { "archive" } else { "kubevirt" }
    }

    /// What a claim asks of its storage.
    fn storage(&self, size: &str) -> Value {
        let mut spec = json!({"resources": {"requests": {"storage": size}}});
        if let Some(class) = &self.storage_class {
            spec["storageClassName"] = json!(class);
        }
        if let Some(mode) = &self.access_mode {
            spec["accessModes"] = json!([mode]);
        }
        if let Some(mode) = self.volume_mode {
            spec["volumeMode"] = json!(mode);
        }
        spec
    }

    /// The claim that CDI makes an upload pod for.
    pub(super) fn claim(&self, size: &str) -> Value {
        let mut annotations = json!({UPLOAD: "", CONTENT_TYPE: self.content_type()});
        if self.binds {
            annotations[BIND_NOW] = json!("");
        }
        let mut labels = json!(self.labels);
        labels[APPLY_STORAGE_PROFILE] = json!("true");
        let mut spec = self.storage(size);
        if self.access_mode.is_none() {
            spec["accessModes"] = json!(["ReadWriteOnce"]);
        }
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": self.name, "annotations": annotations, "labels": labels}, "spec": spec})
    }

    /// The DataVolume that an image is uploaded to.
    pub(super) fn data_volume(&self, size: &str) -> Value {
        let annotations = if self.binds { json!({BIND_NOW: ""}) } else { json!({}) };
        json!({"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {"name": self.name, "annotations": annotations, "labels": self.labels},
            "spec": {"source": {"upload": {}}, "contentType": self.content_type(), "storage": self.storage(size)}})
    }

    /// The DataSource that names the claim.
    pub(super) fn data_source(&self, namespace: &str) -> Value {
        json!({"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource",
            "metadata": {"name": self.name, "labels": self.labels},
            "spec": {"source": {"pvc": {"name": self.name, "namespace": namespace}}}})
    }
}

/// Whether a claim is meant, and its name.
fn target(args: &ImageUpload) -> anyhow::Result<(bool, String)> {
    let (claim, name) = match (&args.pvc_name, &args.kind, &args.name) {
        (Some(_), Some(_), _) => bail!("cannot use --pvc-name and args"),
        (Some(name), None, _) => (true, name),
        (None, Some(kind), Some(name)) => match kind.to_lowercase().as_str() {
            "dv" => (false, name),
            "pvc" => (true, name),
            _ => bail!("invalid resource type {kind}: dv and pvc are allowed"),
        },
        _ => bail!("expecting two args: dv or pvc, and its name"),
    };
    Ok((claim, checked("name", name)?))
}

fn volume_mode(args: &ImageUpload) -> anyhow::Result<Option<&'static str>> {
    let given = args.volume_mode.as_deref().filter(|mode| !mode.is_empty());
    match (given, args.block_volume) {
        (Some("block") | None, true) | (Some("block"), false) => Ok(Some("Block")),
        (Some(mode), true) => bail!("incompatible --volume-mode '{mode}' and --block-volume"),
        (Some("filesystem"), false) => Ok(Some("Filesystem")),
        (Some(mode), false) => {
            bail!("Invalid volume mode '{mode}'. Valid values are 'block' and 'filesystem'.")
        }
        (None, false) => Ok(None),
    }
}

/// The file, and whether it is an archive.
fn source(args: &ImageUpload) -> anyhow::Result<(PathBuf, bool)> {
    let given = |path: &Option<PathBuf>| path.clone().filter(|path| path != Path::new(""));
    match (given(&args.image_path), given(&args.archive_path)) {
        (Some(path), None) => Ok((path, false)),
        (None, Some(path)) => Ok((path, true)),
        (None, None) => bail!("either image-path or archive-path must be provided"),
        (Some(_), Some(_)) => bail!("cannot handle both image-path and archive-path, provide only one"),
    }
}

fn labels(args: &ImageUpload) -> anyhow::Result<BTreeMap<&'static str, String>> {
    let given = [
        &args.default_instancetype,
        &args.default_instancetype_kind,
        &args.default_preference,
        &args.default_preference_kind,
    ]
    .map(|value| value.clone().filter(|value| !value.is_empty()));
    if given[0].is_none() && given[1].is_some() {
        bail!("--default-instancetype must be provided with --default-instancetype-kind");
    }
    if given[2].is_none() && given[3].is_some() {
        bail!("--default-preference must be provided with --default-preference-kind");
    }
    if args.no_create && given.iter().any(Option::is_some) {
        bail!("--default-instancetype and --default-preference cannot be used with --no-create");
    }
    Ok(DEFAULTS.into_iter().zip(given).filter_map(|(label, value)| Some((label, value?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(change: impl Fn(&mut ImageUpload)) -> ImageUpload {
        let mut args = ImageUpload {
            kind: Some("dv".into()),
            name: Some("web".into()),
            image_path: Some("web.qcow2".into()),
            size: Some("1Gi".into()),
            ..ImageUpload::default()
        };
        change(&mut args);
        args
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused_by_their_names() {
        type Change = fn(&mut ImageUpload);
        let cases: [(Change, &str); 15] = [
            (|a| a.kind = Some("vm".into()), "invalid resource type vm"),
            (|a| a.name = None, "expecting two args"),
            (|a| a.pvc_name = Some("web".into()), "cannot use --pvc-name and args"),
            (|a| a.name = Some("We b".into()), "name"),
            (|a| a.image_path = None, "either image-path or archive-path must be provided"),
            (|a| a.archive_path = Some("a.tar".into()), "cannot handle both image-path and archive-path"),
            (|a| a.pvc_size = Some("2Gi".into()), "--pvc-size and --size can not be specified"),
            (|a| a.size = Some("much".into()), "validation failed for size=much"),
            (|a| a.volume_mode = Some("tape".into()), "Invalid volume mode 'tape'"),
            (
                |a| (a.volume_mode, a.block_volume) = (Some("filesystem".into()), true),
                "incompatible --volume-mode 'filesystem' and --block-volume",
            ),
            (
                |a| {
                    (a.image_path, a.archive_path) = (None, Some("a.tar".into()));
                    a.block_volume = true;
                },
                "In archive upload the volume mode should always be filesystem",
            ),
            (|a| a.access_mode = Some("ReadOnlyMany".into()), "cannot upload to a readonly volume"),
            (|a| a.access_mode = Some("RWO".into()), "--access-mode=RWO is not possible"),
            (|a| a.default_preference_kind = Some("K".into()), "--default-preference must be provided"),
            (
                |a| (a.no_create, a.default_instancetype) = (true, Some("small".into())),
                "cannot be used with --no-create",
            ),
        ];
        for (change, says) in cases {
            let error = format!("{:#}", Wishes::of(&args(change)).unwrap_err());
            assert!(error.contains(says), "{error}, not {says}");
        }
    }

    #[test]
    fn a_claim_is_marked_for_upload_and_a_data_volume_has_the_source() {
        let wishes = Wishes::of(&args(|a| {
            a.kind = Some("PVC".into());
            a.block_volume = true;
            a.force_bind = true;
            a.storage_class = Some("fast".into());
            a.default_instancetype = Some("small".into());
        }))
        .unwrap();
        assert!(wishes.claim);
        let expected = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "web",
                "annotations": {
                    "cdi.kubevirt.io/storage.upload.target": "",
                    "cdi.kubevirt.io/storage.contentType": "kubevirt",
                    "cdi.kubevirt.io/storage.bind.immediate.requested": "",
                },
                "labels": {
                    "cdi.kubevirt.io/applyStorageProfile": "true",
                    "instancetype.kubevirt.io/default-instancetype": "small",
                },
            },
            "spec": {
                "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast",
                "accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
            },
        });
        assert_eq!(wishes.claim("1Gi"), expected);
        let wishes = Wishes::of(&args(|a| {
            (a.image_path, a.archive_path) = (None, Some("a.tar".into()));
            a.access_mode = Some("ReadWriteMany".into());
        }))
        .unwrap();
        let expected = json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {"name": "web", "annotations": {}, "labels": {}},
            "spec": {"source": {"upload": {}}, "contentType": "archive",
                "storage": {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteMany"]}},
        });
        assert_eq!(wishes.data_volume("1Gi"), expected);
    }

    #[test]
    fn the_old_flags_mean_a_claim() {
        let wishes = Wishes::of(&ImageUpload {
            pvc_name: Some("old".into()),
            pvc_size: Some("1Gi".into()),
            image_path: Some("image".into()),
            ..ImageUpload::default()
        })
        .unwrap();
        assert_eq!((wishes.claim, wishes.name.as_str(), wishes.size.as_deref()), (true, "old", Some("1Gi")));
    }
}
