//! `image-upload`: images into claims and DataVolumes.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

#[derive(Debug, Default, Args)]
pub(crate) struct ImageUpload {
    /// What the image becomes: dv (a DataVolume) or pvc (a PersistentVolumeClaim)
    #[arg(value_name = "dv|pvc")]
    pub(crate) kind: Option<String>,
    /// Name of the DataVolume or PersistentVolumeClaim
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Path of the image: any format that CDI takes, compressed or not
    #[arg(long, value_name = "PATH")]
    pub(crate) image_path: Option<PathBuf>,
    /// Path of a tar archive, whose files the claim gets
    #[arg(long, value_name = "PATH")]
    pub(crate) archive_path: Option<PathBuf>,
    /// Size of what is made: 10Gi, 500Mi
    #[arg(long, value_name = "QUANTITY")]
    pub(crate) size: Option<String>,
    /// Storage class of what is made
    #[arg(long, value_name = "CLASS")]
    pub(crate) storage_class: Option<String>,
    /// Access mode of what is made: ReadWriteOnce, ReadWriteMany or ReadWriteOncePod
    #[arg(long, value_name = "MODE")]
    pub(crate) access_mode: Option<String>,
    /// Volume mode of what is made: block or filesystem; that of the storage profile when not given
    #[arg(long, value_name = "MODE")]
    pub(crate) volume_mode: Option<String>,
    /// The same as --volume-mode=block
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          value_parser = BoolishValueParser::new())]
    pub(crate) block_volume: bool,
    /// Make nothing: the DataVolume or claim is there
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) no_create: bool,
    /// Have the claim bound now, without a machine that wants it
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) force_bind: bool,
    /// Address of CDI's upload proxy; that of CDI's configuration when not given
    #[arg(long, value_name = "URL")]
    pub(crate) uploadproxy_url: Option<String>,
    /// Do not check the upload proxy's certificate. A machine on the way can then read and change everything
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) insecure: bool,
    /// Seconds to wait for the upload pod
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) wait_secs: u32,
    /// How many times to try while the upload fails
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub(crate) retry: u32,
    /// Make a DataSource that names the claim
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) datasource: bool,
    /// Instance type that machines of this image have by default
    #[arg(long, value_name = "NAME")]
    pub(crate) default_instancetype: Option<String>,
    /// Its kind
    #[arg(long, value_name = "KIND")]
    pub(crate) default_instancetype_kind: Option<String>,
    /// Preference that machines of this image have by default
    #[arg(long, value_name = "NAME")]
    pub(crate) default_preference: Option<String>,
    /// Its kind
    #[arg(long, value_name = "KIND")]
    pub(crate) default_preference_kind: Option<String>,
    /// Name of the claim, in place of the arguments
    #[arg(long, value_name = "NAME", hide = true)]
    pub(crate) pvc_name: Option<String>,
    /// The same as --size
    #[arg(long, value_name = "QUANTITY", hide = true)]
    pub(crate) pvc_size: Option<String>,
}
