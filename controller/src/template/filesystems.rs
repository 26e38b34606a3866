//! Containers that serve the guest's file systems: virtiofsd of Debian, one for each, as upstream has them.
//!
//! They are ordinary containers, not native sidecars: tools look for them there. virtiofsd ends when QEMU, its only client, leaves.
//! It has the pod's user and no capability. So what a guest writes belongs to that user, whatever the guest's own user was; only
//! the guest's root can write. It stays in its directory by itself (`--sandbox=none`): what the container has beside is
//! its image. Two of its options let a machine move: its files are found again by their paths, and one that
//! is not found there gives the guest errors.

use k8s_openapi::api::core::v1::Container;
use podvirt_api::names::{path, pod};
use podvirt_api::resources::{PodResources, open_files};
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachineInstance};

use super::containers::own;
use super::volumes::{Storage, mount, pod_volume};
use super::{Images, TemplateError};

/// Runs virtiofsd, at Debian's and upstream's place, with as many open files as the first argument says, or as the node lets a
/// container have, where that is less: virtiofsd itself ends where it cannot have what it is told.
///
/// The shell stays the container's first process, for the kubelet's SIGTERM comes to all containers of a deleted pod at once, and
/// virtiofsd would end at it: the guest, which is asked to shut down in the same moment, would wait for its files, until its grace
/// period were over. So a virtiofsd that has a client (02 and 03 are the states of its connection, proc_net_unix(5)) ends by that
/// client alone; one that has none ends at the signal.
const START: &str = "\
trap 'exit 143' TERM
most=$(ulimit -Hn); [ \"$most\" != unlimited ] && [ \"$most\" -lt \"$1\" ] || most=$1
ulimit -n \"$most\"
socket=$2
shift 2
/usr/libexec/virtiofsd --rlimit-nofile=0 --socket-path=\"$socket\" \"$@\" &
server=$!
trap 'grep -q \" 0[23] *[0-9]* $socket\\$\" /proc/net/unix || kill $server' TERM
while wait $server; status=$?; kill -0 $server 2>/dev/null; do :; done
exit $status
";

/// The containers of `vmi`. Each has its volume at the place where `compute` has it, by `storage`.
///
/// # Errors
///
/// What is to be served has no files.
pub(super) fn containers(
    vmi: &VirtualMachineInstance,
    config: &KubeVirtConfiguration,
    images: &Images,
    resources: &PodResources,
    storage: &Storage,
) -> Result<Vec<Container>, TemplateError> {
    let devices = &vmi.spec.domain.devices;
    let container = |(n, name): (usize, &String)| {
        let volume = vmi.spec.volumes.iter().find(|volume| volume.name == *name);
        let field = || format!("spec.domain.devices.filesystems[{n}]");
        let volume = volume.ok_or_else(|| {
            TemplateError::unsupported(field(), "a file system that has the name of a volume in spec.volumes")
        })?;
        let mounted = storage.mounts.iter().find(|mount| mount.name == pod_volume(volume));
        let files = mounted.ok_or_else(|| TemplateError::NoFiles { field: field() })?.clone();
        let arguments = [
            open_files(&resources.virtiofs).to_string(),
            path::virtiofs_socket(name).display().to_string(),
            format!("--shared-dir={}", files.mount_path),
            "--sandbox=none".into(),
            "--cache=auto".into(),
            "--migration-on-error=guest-error".into(),
            "--migration-mode=find-paths".into(),
        ];
        Ok(Container {
            command: Some(["/bin/sh", "-ec", START, "virtiofsd"].map(str::to_owned).into()),
            args: Some(arguments.into()),
            volume_mounts: Some(vec![mount(pod::volume::VIRTIOFS, path::VIRTIOFS), files]),
            ..own(&pod::virtiofs(name), config, images, &resources.virtiofs)
        })
    };
    devices.filesystems.iter().map(|filesystem| &filesystem.name).enumerate().map(container).collect()
}
