//! Every manifest in `tests/golden` and the domain XML that it becomes. `UPDATE_GOLDEN=1` writes the XML anew.

#[cfg(test)]
mod golden {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    use podvirt_api::VirtualMachineInstance;
    use podvirt_api::bridge::bridged;
    use virt_launcher::domain::schema::Domain;
    use virt_launcher::domain::{
        Accelerator, Base, Environment, Image, ImageFormat, Kernel, Ovmf, Place, Tap, convert,
    };

    fn environment(vmi: &VirtualMachineInstance, accelerator: Accelerator) -> Environment {
        let image = |name: &str| {
            let device = || Base {
                path: format!("/dev/{name}").into(),
                place: Place::Block,
                format: ImageFormat::Raw,
            };
            if name.starts_with("block") {
                return Image { allocated: true, ..Image::of(device()) };
            }
            if name.starts_with("over") {
                let path = format!("/run/vm/disks/{name}.qcow2");
                return Image::new(path, ImageFormat::Qcow2).over(device());
            }
            let format = if name.contains("container") { ImageFormat::Qcow2 } else { ImageFormat::Raw };
            let base = (format == ImageFormat::Qcow2).then(|| Base {
                path: format!("/images/{name}").into(),
                place: Place::File,
                format: ImageFormat::Raw,
            });
            let image = Image::new(format!("/run/vm/disks/{name}.{}", format.as_str()), format);
            Image { base, ..image }
        };
        let socket = |name: &str| PathBuf::from(format!("/run/vm/net/{name}.sock"));
        Environment {
            accelerator,
            kernel: Some(Kernel {
                kernel: "/guest/vmlinuz".into(),
                initrd: Some("/guest/initrd.img".into()),
            }),
            ovmf: Some(Ovmf {
                code: "/usr/share/OVMF/OVMF_CODE_4M.fd".into(),
                vars: "/usr/share/OVMF/OVMF_VARS_4M.fd".into(),
                nvram: format!("/run/vm/nvram/{}_VARS.fd", vmi.metadata.name).into(),
            }),
            images: vmi.spec.volumes.iter().map(|v| (v.name.clone(), image(&v.name))).collect(),
            sockets: vmi
                .spec
                .domain
                .devices
                .interfaces
                .iter()
                .filter(|i| vmi.by_netd(i))
                .map(|i| (i.name.clone(), socket(&i.name)))
                .collect(),
            filesystems: vmi
                .spec
                .domain
                .devices
                .filesystems
                .iter()
                .map(|f| (f.name.clone(), podvirt_api::names::path::virtiofs_socket(&f.name)))
                .collect(),
            taps: bridged(vmi)
                .into_iter()
                .map(|b| (b.name, Tap { name: b.tap, mtu: 1450, queues: b.queues }))
                .collect(),
            devices: [("fast".to_owned(), "0000:65:00.2".to_owned())].into(),
            serial_socket: "/run/vm/serial.sock".into(),
            serial_log: "/run/vm/serial.log".into(),
            vnc_socket: "/run/vm/vnc.sock".into(),
            balloon_period: 10,
            smbios: podvirt_proto::cmd::default_smbios(),
        }
    }

    fn directory() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
    }

    fn load(name: &str) -> VirtualMachineInstance {
        let text = std::fs::read_to_string(directory().join(name)).unwrap();
        let of_clusters = [
            "bridge.yaml",
            "disks.yaml",
            "downward.yaml",
            "filesystems.yaml",
            "firmware.yaml",
            "models.yaml",
            "plugins.yaml",
            "sriov.yaml",
        ];
        if !of_clusters.contains(&name) {
            return VirtualMachineInstance::load(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        // As in a cluster, where alone there are networks of Multus.
        let value = serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut vmi = VirtualMachineInstance::from_value(value).unwrap_or_else(|e| panic!("{name}: {e}"));
        podvirt_api::defaults::set_defaults(&mut vmi);
        podvirt_api::validate::validate(&vmi).into_result().unwrap_or_else(|e| panic!("{name}: {e}"));
        vmi
    }

    #[test]
    fn manifests_become_the_domains_beside_them() {
        let mut seen = 0;
        for entry in std::fs::read_dir(directory()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|e| e != "yaml") {
                continue;
            }
            seen += 1;
            let vmi = load(path.file_name().unwrap().to_str().unwrap());
            // A manifest whose name says so is converted for KVM.
            let kvm = path.file_stem().unwrap().to_str().unwrap().ends_with("-kvm");
            let accelerator = if kvm { Accelerator::Kvm } else { Accelerator::Tcg };
            let domain = convert(&vmi, &environment(&vmi, accelerator)).unwrap();
            let xml = domain.to_xml().unwrap();
            assert_eq!(Domain::from_xml(&xml).unwrap(), domain, "{}: read back", path.display());
            let golden = path.with_extension("xml");
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                std::fs::write(&golden, &xml).unwrap();
            }
            let written = std::fs::read_to_string(&golden).unwrap_or_default();
            assert_eq!(written, xml, "{}", golden.display());
        }
        assert!(seen >= 4, "the golden files are gone");
    }

    #[test]
    fn what_the_environment_lacks_is_told() {
        let vmi = load("full.yaml");
        let complete = environment(&vmi, Accelerator::Tcg);
        let message = |change: fn(&mut Environment)| {
            let mut environment = complete.clone();
            change(&mut environment);
            convert(&vmi, &environment).unwrap_err().to_string()
        };
        assert!(message(|e| e.images = BTreeMap::new()).starts_with("there is no disk image for the volume"));
        assert!(message(|e| e.sockets = BTreeMap::new()).contains("socket for the interface default"));
        let bridge = load("bridge.yaml");
        let mut no_tap = environment(&bridge, Accelerator::Tcg);
        no_tap.taps.clear();
        let told = convert(&bridge, &no_tap).unwrap_err().to_string();
        assert_eq!(told, "there is no tap device for the interface blue");
        let sriov = load("sriov.yaml");
        let mut no_device = environment(&sriov, Accelerator::Tcg);
        no_device.devices.clear();
        let told = convert(&sriov, &no_device).unwrap_err().to_string();
        assert_eq!(told, "there is no device of the node for the interface fast");
        let shared = load("filesystems.yaml");
        let mut no_server = environment(&shared, Accelerator::Tcg);
        no_server.filesystems.clear();
        let told = convert(&shared, &no_server).unwrap_err().to_string();
        assert_eq!(told, "there is no vhost-user socket for the file system data");
        let vmi = load("netd.yaml");
        let mut environment = environment(&vmi, Accelerator::Tcg);
        environment.kernel = None;
        assert_eq!(
            convert(&vmi, &environment).unwrap_err().to_string(),
            "there is no kernel for direct boot"
        );
    }
}
