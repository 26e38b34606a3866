//! `guestfs`: libguestfs' tools on a claim.

use clap::Args;
use clap::builder::BoolishValueParser;

#[derive(Debug, Default, Args)]
pub(crate) struct Guestfs {
    /// Name of the claim
    #[arg(value_name = "PVC")]
    pub(crate) claim: String,
    /// Image with libguestfs' tools, for instance quay.io/kubevirt/libguestfs-tools:v1.8.0; the server's when it has one
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    /// When the image is pulled: Always, IfNotPresent or Never
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    pub(crate) pull_policy: String,
    /// Whether the pod gets KVM; --kvm=false where nodes have none
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true",
          hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) kvm: bool,
    /// Run as root
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) root: bool,
    /// User to run as
    #[arg(long, value_name = "UID", conflicts_with = "root")]
    pub(crate) uid: Option<i64>,
    /// Group to run as; needs --uid
    #[arg(long, value_name = "GID", requires = "uid")]
    pub(crate) gid: Option<i64>,
    /// Group that gets the claim's files
    #[arg(long = "fsGroup", value_name = "GID", conflicts_with = "root")]
    pub(crate) fs_group: Option<i64>,
    /// Virtual machine whose tolerations, affinity, node selector and labels the pod gets, so that it runs where the machine may
    #[arg(long, value_name = "VM")]
    pub(crate) vm: Option<String>,
}
