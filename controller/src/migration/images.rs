//! The images of a machine's container disks and of its kernel, at both ends of a migration.
//!
//! What a guest wrote is copied over a container disk, and the rest of the disk is read from the target's image: that has to be the
//! source's. A tag does not say so, for it may be pushed anew while the machine runs.
//!
//! | the source's pod tells | the target's pod has | before the hand-over |
//! |---|---|---|
//! | a digest of the repository that the machine names | the repository with this digest | |
//! | another name of the image (it was loaded into the node, not pulled) | the machine's reference | the images of both pods are compared |
//! | nothing, or its container was started again since the machine has the disk | | the migration is refused |

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use podvirt_api::names::pod as pod_names;

/// Condition: the target's pod cannot be given the images that the machine runs from, or has others. podvirt's own.
pub(super) const IMAGE_MISMATCH: &str = "targetImageMismatch";

/// What is certain of a container's image at the source.
enum SourceImage<'a> {
    /// The pod's specification has a digest.
    Pinned(&'a str),
    /// The runtime's name of the image, of a container that has run from the pod's start.
    Id(&'a str),
}

/// Gives the image containers of the target's pod the images that the source's have, where these have a digest.
///
/// # Errors
///
/// Why the machine's images are not known.
pub(super) fn pin(target: &mut Pod, source: Option<&Pod>) -> Result<(), String> {
    let containers = target.spec.iter_mut().flat_map(|spec| spec.init_containers.iter_mut().flatten());
    for container in containers.filter(|container| has_image_of_machine(container)) {
        let reference = container.image.as_deref().unwrap_or_default();
        match source_image(source, &container.name)? {
            SourceImage::Pinned(image) => container.image = Some(image.to_owned()),
            SourceImage::Id(id) => {
                if let Some(pinned) = with_digest(reference, id) {
                    container.image = Some(pinned);
                }
            }
        }
    }
    Ok(())
}

/// Why the target's pod cannot take the machine: a container has another image than at the source, or that is not known.
pub(super) fn mismatch(target: &Pod, source: Option<&Pod>) -> Option<String> {
    let containers = target.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let by_tag = containers.filter(|container| {
        has_image_of_machine(container) && digest(container.image.as_deref().unwrap_or_default()).is_none()
    });
    by_tag.map(|container| compare(target, source, container)).find_map(Result::err)
}

fn compare(target: &Pod, source: Option<&Pod>, container: &Container) -> Result<(), String> {
    let (there, name) = (status(target, &container.name), &container.name);
    let there = there.map(|status| status.image_id.as_str()).unwrap_or_default();
    let here = match source_image(source, name)? {
        SourceImage::Pinned(image) | SourceImage::Id(image) => image,
    };
    // The same image may have been pulled from several repositories.
    if here == there || digest(here).is_some_and(|here| digest(there) == Some(here)) {
        return Ok(());
    }
    let reference = container.image.as_deref().unwrap_or_default();
    Err(format!(
        "container {name}: the image {reference} is {there} at the target, and the machine runs from {here}; an image that is pulled \
         from a registry, or named by its digest, moves along"
    ))
}

/// Whether the container's image holds a disk of the machine, or its kernel.
fn has_image_of_machine(container: &Container) -> bool {
    let name = container.name.as_str();
    name == pod_names::KERNEL_BOOT || name.starts_with(&pod_names::container_disk(""))
}

fn source_image<'a>(source: Option<&'a Pod>, name: &str) -> Result<SourceImage<'a>, String> {
    let unknown =
        |why: &str| format!("container {name}: the image that the machine runs from is not known: {why}");
    let source = source.ok_or_else(|| unknown("the machine's pod is not there"))?;
    let mut containers = source.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let reference = containers.find(|c| c.name == name).and_then(|c| c.image.as_deref());
    if let Some(pinned) = reference.filter(|reference| digest(reference).is_some()) {
        return Ok(SourceImage::Pinned(pinned));
    }
    let status = status(source, name).filter(|status| !status.image_id.is_empty());
    let status = status.ok_or_else(|| unknown("the machine's pod does not tell its imageID"))?;
    if status.restart_count > 0 {
        return Err(unknown("the container was started again, and its tag may have been pushed anew before"));
    }
    Ok(SourceImage::Id(&status.image_id))
}

fn status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let all = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    all.iter().find(|status| status.name == name)
}

/// The digest in an image reference, as `sha256:0123…`.
fn digest(reference: &str) -> Option<&str> {
    reference.rsplit_once('@').map(|(_, digest)| digest).filter(|digest| digest.contains(':'))
}

/// An image reference without tag and digest.
fn repository(reference: &str) -> &str {
    let name = reference.split('@').next().unwrap_or_default();
    match name.rsplit_once(':') {
        // A colon before the last slash is the registry's port.
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

/// `reference` with the digest that `id` has, if that is one of the same repository. A runtime writes the repository in full:
/// `disk` is `docker.io/library/disk`.
fn with_digest(reference: &str, id: &str) -> Option<String> {
    let (digest, wanted, known) = (digest(id)?, repository(reference), repository(id));
    let same = known.strip_suffix(wanted).is_some_and(|before| before.is_empty() || before.ends_with('/'));
    same.then(|| format!("{wanted}@{digest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_takes_the_digest_of_its_own_repository() {
        for (reference, id, pinned) in [
            ("quay.io/os/fedora:42", "quay.io/os/fedora@sha256:a1", Some("quay.io/os/fedora@sha256:a1")),
            ("disk", "docker.io/library/disk@sha256:a1", Some("disk@sha256:a1")),
            (
                "local:5000/disk:1",
                "docker-pullable://local:5000/disk@sha256:a1",
                Some("local:5000/disk@sha256:a1"),
            ),
            ("local:5000/disk", "local:5000/disk@sha256:a1", Some("local:5000/disk@sha256:a1")),
            ("quay.io/os/fedora:42", "mirror.example/os/fedora@sha256:a1", None),
            ("disk:1", "docker.io/library/mydisk@sha256:a1", None),
            ("disk:1", "sha256:a1", None),
            ("disk:1", "", None),
        ] {
            assert_eq!(with_digest(reference, id).as_deref(), pinned, "{reference} {id}");
        }
    }
}
