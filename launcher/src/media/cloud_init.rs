//! The disk from which cloud-init's NoCloud source reads: an ISO 9660 image with the label `cidata` that holds
//! `meta-data`, `user-data` and, if there is one, `network-config`.
//!
//! The instance id is the VM's name and namespace, as upstream has it: cloud-init runs its once-per-instance
//! parts again when it changes, so it must stay the same across restarts.

use std::io::Cursor;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hadris_iso::read::PathSeparator;
use hadris_iso::write::options::{CreationFeatures, IsoFormatOptions};
use hadris_iso::write::{InputEntry, InputTree, IsoImageWriter};
use podvirt_api::VirtualMachineInstance;
use podvirt_api::vmi::CloudInitNoCloudSource;

use super::MediaError;

/// By this label cloud-init finds the disk.
const LABEL: &str = "cidata";

/// Writes the disk of `volume` to `path`.
///
/// # Errors
///
/// base64 that cannot be read, or a file that cannot be written.
pub fn write(
    vmi: &VirtualMachineInstance,
    volume: &str,
    source: &CloudInitNoCloudSource,
    path: &Path,
) -> Result<(), MediaError> {
    let files = files(vmi, volume, source)?;
    std::fs::write(path, iso(files)?).map_err(|e| MediaError::file("write", path, e))
}

/// The files of the disk, by name.
fn files(
    vmi: &VirtualMachineInstance,
    volume: &str,
    source: &CloudInitNoCloudSource,
) -> Result<Vec<(&'static str, Vec<u8>)>, MediaError> {
    let decode = |plain: &str, encoded: &str| {
        if encoded.is_empty() {
            return Ok(plain.as_bytes().to_vec());
        }
        BASE64_STANDARD.decode(encoded).map_err(|e| MediaError::Base64(volume.to_owned(), e))
    };
    // Both texts are DNS names: they need no quotes in YAML beyond these.
    let meta_data = format!(
        "instance-id: \"{}.{}\"\nlocal-hostname: \"{}\"\n",
        vmi.metadata.name,
        vmi.namespace(),
        vmi.spec.hostname,
    );
    let mut files = vec![
        ("meta-data", meta_data.into_bytes()),
        ("user-data", decode(&source.user_data, &source.user_data_base64)?),
    ];
    let network = decode(&source.network_data, &source.network_data_base64)?;
    if !network.is_empty() {
        files.push(("network-config", network));
    }
    Ok(files)
}

fn iso(files: Vec<(&'static str, Vec<u8>)>) -> Result<Vec<u8>, MediaError> {
    let entries = files.into_iter().map(|(name, contents)| InputEntry::file(name, contents)).collect();
    let options = IsoFormatOptions {
        volume_name: LABEL.into(),
        system_id: None,
        volume_set_id: None,
        publisher_id: None,
        preparer_id: None,
        application_id: None,
        sector_size: 2048,
        features: CreationFeatures::extensions(),
        path_separator: PathSeparator::ForwardSlash,
        strict_charset: false,
    };
    let image = IsoImageWriter::create(
        Cursor::new(Vec::new()),
        InputTree::new(PathSeparator::ForwardSlash, entries),
        options,
    )
    .map_err(|e| MediaError::Iso(e.to_string()))?;
    let mut bytes = image.into_inner();
    // Whole sectors of the CD-ROM that the guest sees, and of the disk that it may see instead.
    bytes.resize(bytes.len().next_multiple_of(2048), 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use hadris_iso::read::IsoImage;

    use super::*;

    fn vmi() -> VirtualMachineInstance {
        VirtualMachineInstance::load(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n\
             metadata: {name: web, namespace: shop}\nspec: {hostname: front, domain: {memory: {guest: 64Mi}}}",
        )
        .unwrap()
    }

    #[test]
    fn plain_and_encoded_data_become_the_three_files() {
        let source = CloudInitNoCloudSource {
            user_data: "#cloud-config\n".into(),
            network_data_base64: BASE64_STANDARD.encode("version: 2\n"),
            ..Default::default()
        };
        let files = files(&vmi(), "v", &source).unwrap();
        let text: Vec<(&str, &str)> =
            files.iter().map(|(n, c)| (*n, std::str::from_utf8(c).unwrap())).collect();
        assert_eq!(
            text,
            [
                ("meta-data", "instance-id: \"web.shop\"\nlocal-hostname: \"front\"\n"),
                ("user-data", "#cloud-config\n"),
                ("network-config", "version: 2\n"),
            ]
        );
    }

    #[test]
    fn without_network_data_there_is_no_network_config() {
        let source = CloudInitNoCloudSource { user_data: "x".into(), ..Default::default() };
        assert_eq!(files(&vmi(), "v", &source).unwrap().len(), 2);
    }

    #[test]
    fn the_image_has_the_label_and_the_files_under_their_full_names() {
        let image = iso(vec![("meta-data", b"m".to_vec()), ("user-data", vec![b'u'; 5000])]).unwrap();
        assert_eq!(image.len() % 2048, 0);
        // The primary volume descriptor is sector 16; its volume identifier is at 40 (ECMA-119, 8.4).
        assert_eq!(&image[16 * 2048 + 1..16 * 2048 + 6], b"CD001");
        assert_eq!(&image[16 * 2048 + 40..16 * 2048 + 47], b"cidata ");
        let text = String::from_utf8_lossy(&image);
        assert!(text.contains("user-data"), "Rock Ridge name");
        let joliet: Vec<u8> = "meta-data".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert!(image.windows(joliet.len()).any(|w| w == joliet), "Joliet name");
        let image = IsoImage::open(Cursor::new(image)).unwrap();
        assert_eq!(
            image.root_dir().iter(&image).entries().filter(Result::is_ok).count(),
            4,
            ". .. and two files"
        );
    }
}
