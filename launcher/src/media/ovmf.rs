//! OVMF: EFI firmware for machines.
//!
//! | secureBoot | code | a new machine's variables |
//! |---|---|---|
//! | off | `OVMF_CODE_4M.fd`, `OVMF_CODE.fd` | `OVMF_VARS_4M.fd`, `OVMF_VARS.fd` |
//! | on | `OVMF_CODE_4M.secboot.fd`, `OVMF_CODE.secboot.fd` | `OVMF_VARS_4M.ms.fd`, `OVMF_VARS.secboot.fd`: with Microsoft's keys |
//!
//! The names are Debian's and Fedora's; of several that are there the first is taken. A machine's own variables are a file of its
//! name, as with upstream: libvirt makes it from the template where it is not there, and it stays.

use std::path::Path;

use anyhow::{Context, Result, bail};
use podvirt_api::VirtualMachineInstance;

use crate::domain::Ovmf;

/// Where distributions have the files.
pub(crate) const DIRECTORY: &str = "/usr/share/OVMF";
/// Pairs of code and variables without secure boot.
const PLAIN: [(&str, &str); 2] = [("OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"), ("OVMF_CODE.fd", "OVMF_VARS.fd")];
/// Pairs with secure boot.
const SECURE: [(&str, &str); 2] =
    [("OVMF_CODE_4M.secboot.fd", "OVMF_VARS_4M.ms.fd"), ("OVMF_CODE.secboot.fd", "OVMF_VARS.secboot.fd")];

/// The firmware that `vmi` asks for, from the files in `directory`; its variables are in `nvram`, which is made.
///
/// # Errors
///
/// The files are not there, or the directory cannot be made.
pub(crate) fn of(vmi: &VirtualMachineInstance, directory: &Path, nvram: &Path) -> Result<Option<Ovmf>> {
    let bootloader = vmi.spec.domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    let Some(efi) = bootloader.and_then(|bootloader| bootloader.efi.as_ref()) else { return Ok(None) };
    let secure = efi.is_secure();
    let pairs = if secure { SECURE } else { PLAIN };
    let mut pairs = pairs.iter().map(|(code, vars)| (directory.join(code), directory.join(vars)));
    let Some((code, vars)) = pairs.find(|(code, vars)| code.is_file() && vars.is_file()) else {
        // Upstream's words, which virt-handler and people look for.
        bail!(
            "EFI OVMF roms missing for booting in EFI mode with SecureBoot={secure}: {} has neither pair of files",
            directory.display()
        );
    };
    std::fs::create_dir_all(nvram).with_context(|| format!("cannot make {}", nvram.display()))?;
    let nvram = nvram.join(format!("{}_VARS.fd", vmi.metadata.name));
    Ok(Some(Ovmf { code, vars, nvram }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(efi: &str) -> VirtualMachineInstance {
        let yaml = format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: web}}\nspec:\n  \
             domain: {{memory: {{guest: 64Mi}}, devices: {{}}, features: {{smm: {{}}}}, firmware: {{bootloader: {efi}}}}}\n"
        );
        VirtualMachineInstance::from_yaml(&yaml).unwrap()
    }

    #[test]
    fn the_first_pair_that_is_whole_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let nvram = dir.path().join("a/nvram");
        let found = |efi: &str| of(&machine(efi), dir.path(), &nvram);
        assert_eq!(found("{bios: {}}").unwrap(), None);
        let error = found("{efi: {secureBoot: false}}").unwrap_err().to_string();
        assert!(
            error.contains("EFI OVMF roms missing for booting in EFI mode with SecureBoot=false"),
            "{error}"
        );
        for file in [
            "OVMF_CODE_4M.fd",
            "OVMF_CODE.fd",
            "OVMF_VARS.fd",
            "OVMF_CODE_4M.secboot.fd",
            "OVMF_VARS_4M.ms.fd",
        ] {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        let plain = found("{efi: {secureBoot: false}}").unwrap().unwrap();
        assert!(plain.code.ends_with("OVMF_CODE.fd") && plain.vars.ends_with("OVMF_VARS.fd"), "{plain:?}");
        let secure = found("{efi: {}}").unwrap().unwrap();
        assert!(
            secure.code.ends_with("OVMF_CODE_4M.secboot.fd") && secure.vars.ends_with("OVMF_VARS_4M.ms.fd")
        );
        assert_eq!(secure.nvram, nvram.join("web_VARS.fd"));
        assert!(nvram.is_dir());
    }
}
