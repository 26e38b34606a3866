//! Upstream's annotations, and what podvirt makes of each.
//!
//! An annotation of a user is a wish as much as a field is: one that asks for something that podvirt does not carry
//! out is refused with its path. [`ANNOTATIONS`] lists every annotation by which KubeVirt's users or its parts tell
//! each other something on the objects that users write, and [`check_annotations()`] judges by it. A key that is not
//! in the table is the user's own, or another program's: it is kept.

use serde_json::Value;

use crate::names::annotation as name;
use crate::problem::{Problems, Reason};
use crate::{hooks, kernel, netd};

use Effect::{Carried, Refused, Unneeded, Written};
use On::{KubeVirt, Migration, Vm, Vmi};
use Wish::{Any, But, Hooks, Is, OneOf, Port, Seconds, UpTo};

/// Kind of object that an annotation stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// A VirtualMachineInstance, and the template of one.
    Vmi,
    /// A VirtualMachine itself.
    Vm,
    /// The KubeVirt object.
    KubeVirt,
    /// A VirtualMachineInstanceMigration.
    Migration,
}

impl On {
    /// Name of the kind.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Vmi => "VirtualMachineInstance",
            Vm => "VirtualMachine",
            KubeVirt => "KubeVirt",
            Migration => "VirtualMachineInstanceMigration",
        }
    }
}

/// Which values of an annotation are a wish. Upstream reads some annotations by their mere presence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Each value.
    Any,
    /// This value; each other asks for nothing.
    Is(&'static str),
    /// Each value but these, which ask for nothing.
    But(&'static [&'static str]),
    /// A TCP port; nothing else is allowed.
    Port,
    /// A number of seconds; nothing else is allowed.
    Seconds,
    /// A whole number from 1 to the maximum that the row names; other values are refused.
    UpTo(u32),
    /// One of these; nothing else is allowed.
    OneOf(&'static [&'static str]),
    /// A list of hook sidecars; nothing else is allowed.
    Hooks,
}

/// What podvirt does with an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is carried out.
    Carried(Wish),
    /// An object that asks for it is refused.
    Refused(Wish),
    /// What it asks for holds anyhow, or what it is about is refused.
    Unneeded,
    /// A controller of upstream's or of podvirt's writes it; a user's is kept and has no effect.
    Written,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Where it stands.
    pub on: On,
    /// Its key.
    pub key: &'static str,
    /// What podvirt does with it.
    pub effect: Effect,
    /// What a user has to know beside.
    pub note: &'static str,
}

const fn row(on: On, key: &'static str, effect: Effect, note: &'static str) -> Annotation {
    Annotation { on, key, effect, note }
}

/// Every annotation of upstream's on objects that users write, and podvirt's own.
#[rustfmt::skip] // One row a line.
pub const ANNOTATIONS: &[Annotation] = &[
    row(Vmi, name::NETD_METRICS_PORT, Carried(Port), "port of the machine's first netd for metrics"),
    row(Vmi, name::NETD_FLOWS, Carried(UpTo(netd::MAX_FLOWS)), "how many connections and other flows each netd of the machine carries at the same time, up to 131,072; 16,384 where neither it nor the KubeVirt object says it"),
    row(Vmi, name::CLOSED_PORTS, Carried(OneOf(&["refuse", "accept"])), "connections to a listed TCP port on which the guest does not listen are refused (`refuse`, the default, for up to 256 ports), or accepted and reset"),
    row(Vmi, name::MASQUERADE, Carried(OneOf(&[kernel::BY_NETD, kernel::BY_NFTABLES])), "what carries the binding `masquerade`: netd (the default), or the kernel's NAT; it stays as it is while the instance is there"),
    row(Vmi, name::NETWORKS, Carried(Any), "handed on to the pod, for Multus; only where `spec.networks` names no network of Multus, which writes it"),
    row(Vmi, name::DEFAULT_NETWORK, Carried(Any), "handed on to the pod, for Multus; only where `spec.networks` names no default network of Multus, which writes it"),
    row(Vmi, name::ISTIO_INJECT, Carried(Any), "handed on to the pod, for Istio, as label too where it is `true` or `false`; netd leaves the proxy's ports alone"),
    row(Vmi, name::BINDING_PLUGINS, Written, "what the machine's [network binding plugins](binding-plugins.md) were registered with when it was made"),
    row(Vmi, name::HOOK_SIDECARS, Carried(Hooks), "[hook sidecars](hooks.md); the KubeVirt object's feature gate `Sidecar` allows them; they stay as they are while the instance is there"),
    row(Vmi, "kubevirt.io/ignitiondata", Refused(But(&[""])), "use cloud-init"),
    row(Vmi, "kubevirt.io/placePCIDevicesOnRootComplex", Refused(Is("true")), ""),
    row(Vmi, name::DISABLE_PCI_HOLE64, Carried(Any), "`true`: the firmware keeps no addresses above 4 GiB for devices, for guests that cannot use them"),
    row(Vmi, "kubevirt.io/memfd", Refused(Is("false")), "netd needs the guest's memory as a memfd"),
    row(Vmi, "kubevirt.io/libvirt-log-filters", Refused(But(&[""])), ""),
    row(Vmi, name::KEEP_LAUNCHER, Carried(Any), "`true`: the container of a machine that has failed is kept, to be looked into, until its pod is deleted"),
    row(Vmi, "kubevirt.io/create-migration-target", Refused(Is("true")), "machines are not migrated between clusters"),
    row(Vmi, "kubevirt.io/testWorkloadUpdateMigrationAbortion", Refused(Any), "of upstream's tests"),
    row(Vmi, name::FAIL_FAST, Carried(Any), "the launcher ends at once, as if it had crashed; of upstream's tests"),
    row(Vmi, name::FORCE_MIGRATION_FAILURE, Carried(Any), "the machine's migrations fail; of upstream's tests"),
    row(Vmi, name::BLOCK_MIGRATION_TARGET, Carried(Any), "a migration's target is never prepared; of upstream's tests"),
    row(Vmi, "kubevirt.io/func-test-memory-hotplug-fail", Refused(Any), "of upstream's tests"),
    row(Vmi, "kubevirt.io/free-page-reporting-disabled", Unneeded, "podvirt's machines report no free pages"),
    row(Vmi, name::MOVE_BRIDGE, Carried(Any), "a machine that is bound to the pod's network by `bridge` may move; its new pod's address is another one, unless the network sees to that"),
    row(Vmi, name::PAUSE_AGENT_PROBES, Carried(Any), "`true`: `guestAgentPing` probes succeed without the guest's agent, also while the machine runs, until the annotation is taken away"),
    row(Vmi, "kubevirt.io/image-volume-skip-digest-resolution", Unneeded, "the images are pulled by the kubelet, which resolves their digests; a migration's target has them"),
    row(Vmi, name::SKIP_BACKUP_HOOKS, Carried(Any), "`true`: the pod has no [hooks for backup tools](snapshots.md#backup-tools); `false`: it has them, whatever the KubeVirt object says"),
    row(Vmi, "kubevirt.io/nonroot", Unneeded, "no launcher runs as root"),
    row(Vmi, "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity", Unneeded, "`isolateEmulatorThread`, which it is about, is refused"),
    row(Vmi, name::EXCLUDE_PRESETS, Carried(Any), "`true`: the machine gets nothing of [presets](instances.md#presets)"),
    row(Vmi, "smbios.vm.kubevirt.io/baseBoardManufacturer", Unneeded, "read by upstream's example of a hook alone"),
    row(Vmi, "diskimage.vm.kubevirt.io/bootImageName", Unneeded, "read by upstream's example of a hook alone"),
    row(Vmi, name::VM_GENERATION, Written, ""),
    row(Vmi, name::LATEST_OBSERVED_API_VERSION, Written, ""),
    row(Vmi, name::STORAGE_OBSERVED_API_VERSION, Written, ""),
    row(Vmi, "kubevirt.io/pci-topology-version", Written, "upstream's layout of devices; podvirt has one of its own"),
    row(Vmi, "kubevirt.io/pci-interface-slot-count", Written, "upstream's layout of devices; podvirt has one of its own"),
    row(Vmi, "kubevirt.io/migrationTransportUnix", Written, ""),
    row(Vmi, "kubevirt.io/migration-target-ready-timestamp", Written, "virt-controller writes it on the target's pod"),
    row(Vmi, "kubevirt.io/eviction-source", Written, ""),
    row(Vmi, "kubevirt.io/qgs-socket-path", Written, ""),
    row(Vmi, "kubevirt.io/instancetype-name", Written, ""),
    row(Vmi, "kubevirt.io/cluster-instancetype-name", Written, ""),
    row(Vmi, "kubevirt.io/preference-name", Written, ""),
    row(Vmi, "kubevirt.io/cluster-preference-name", Written, ""),
    row(Vmi, "kubevirt.io/vm-pool-revision-name", Written, ""),
    row(Vm, name::IMMEDIATE_DATA_VOLUMES, Carried(OneOf(&["true", "false"])), "`false`: the DataVolumes of `dataVolumeTemplates` are made with the machine's first start"),
    row(Vm, name::LATEST_OBSERVED_API_VERSION, Written, ""),
    row(Vm, name::STORAGE_OBSERVED_API_VERSION, Written, ""),
    row(Vm, "kubevirt.io/restore-run-strategy", Written, ""),
    row(Vm, "restore.kubevirt.io/lastRestoreUID", Written, ""),
    row(KubeVirt, name::NETD_FLOWS, Carried(UpTo(netd::MAX_FLOWS)), "the same for machines that do not say it, from their next start or move on"),
    row(KubeVirt, name::MASQUERADE, Carried(OneOf(&[kernel::BY_NETD, kernel::BY_NFTABLES])), "the same for machines that do not say it"),
    row(KubeVirt, "kubevirt.io/vga-display-efi-x86", Unneeded, "guests that EFI boots have a VGA card, or what `video` says"),
    row(KubeVirt, "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity", Unneeded, "`isolateEmulatorThread`, which it is about, is refused"),
    row(KubeVirt, name::SKIP_BACKUP_HOOKS, Carried(Any), "the same for machines that do not say it; pods of machines that run follow it"),
    row(KubeVirt, name::LATEST_OBSERVED_API_VERSION, Written, ""),
    row(KubeVirt, name::STORAGE_OBSERVED_API_VERSION, Written, ""),
    row(Migration, name::UNSCHEDULABLE_SECONDS, Carried(Seconds), "how long a target pod may wait for a node; 300 s where it is not said"),
    row(Migration, name::PENDING_SECONDS, Carried(Seconds), "how long a target pod may take to start; 900 s where it is not said"),
    row(Migration, "kubevirt.io/func-test-migration-target-image-override", Refused(Any), "of upstream's tests"),
    row(Migration, "kubevirt.io/migrationUtilityVolumesTimeoutSeconds", Unneeded, "a migration waits for as long as a backup of its machine lasts, and has no time limit for it"),
    row(Migration, "kubevirt.io/func-test-ignore-migration-backoff", Unneeded, "a user's own migration never waits for an earlier failure"),
    row(Migration, name::EVACUATION_MIGRATION, Written, "on migrations that empty a node; a user's own with it waits after failures as they do"),
    row(Migration, name::WORKLOAD_UPDATE_MIGRATION, Written, "on migrations that the cluster makes for what a machine's pod lacks; they wait after failures"),
    row(Migration, "kubevirt.io/volume-update-migration", Written, ""),
    row(Migration, name::LATEST_OBSERVED_API_VERSION, Written, ""),
    row(Migration, name::STORAGE_OBSERVED_API_VERSION, Written, ""),
];

/// Tells every annotation of an object of this kind that asks for something that is not carried out. `annotations` is
/// the map, which stands at `path`; what is no map of texts is told by the field's own row.
pub fn check_annotations(on: On, annotations: &Value, path: &str, problems: &mut Problems) {
    let Some(map) = annotations.as_object() else { return };
    let given = ANNOTATIONS.iter().filter(|row| row.on == on).filter_map(|row| {
        let value = map.get(row.key)?.as_str()?;
        Some((row, value))
    });
    for (row, value) in given {
        let here = format!("{path}[{}]", row.key);
        match row.effect {
            Carried(Port) if !value.parse::<u16>().is_ok_and(|port| port != 0) => {
                problems.invalid(here, value.escape_debug(), "a port from 1 to 65535 is allowed");
            }
            Carried(Seconds) if value.parse::<u32>().is_err() => {
                problems.invalid(here, value.escape_debug(), "a whole number of seconds is allowed");
            }
            Carried(UpTo(most)) if !value.parse::<u32>().is_ok_and(|n| (1..=most).contains(&n)) => {
                let allowed = format!("a whole number from 1 to {most} is allowed");
                problems.invalid(here, value.escape_debug(), &allowed);
            }
            Carried(OneOf(values)) if !values.contains(&value) => {
                let allowed = format!("one of {} is allowed", quoted(values));
                problems.invalid(here, value.escape_debug(), &allowed);
            }
            Carried(Hooks) => problems.0.extend(hooks::parse(value, &here).err().unwrap_or_default().0),
            Refused(wish) if is_wish(wish, value) => {
                problems.add(Reason::FieldValueNotSupported, here, refusal(wish, row.note));
            }
            _ => {}
        }
    }
}

fn is_wish(wish: Wish, value: &str) -> bool {
    match wish {
        Any | Port | Seconds | UpTo(_) | OneOf(_) | Hooks => true,
        Is(asked) => value == asked,
        But(idle) => !idle.contains(&value.trim()),
    }
}

/// What a wish that is not carried out is answered with: what is allowed, and the row's remark.
fn refusal(wish: Wish, note: &str) -> String {
    let what = match wish {
        Any | Port | Seconds | UpTo(_) | OneOf(_) | Hooks => {
            "not supported by podvirt; the annotation is not allowed".to_owned()
        }
        Is(asked) => format!("'{asked}' is not supported by podvirt; any other value is allowed"),
        But(idle) => format!("not supported by podvirt; allowed: {}", quoted(idle)),
    };
    if note.is_empty() { what } else { format!("{what}: {note}") }
}

fn quoted(values: &[&str]) -> String {
    values.iter().map(|value| format!("'{value}'")).collect::<Vec<_>>().join(", ")
}

/// Which values are refused, for people.
pub(super) fn refused_values(wish: Wish) -> String {
    match wish {
        Any | Port | Seconds | UpTo(_) | OneOf(_) | Hooks => "all".to_owned(),
        Is(asked) => format!("`{asked}`"),
        But(idle) => {
            let idle = idle
                .iter()
                .map(|value| if value.is_empty() { "the empty one".into() } else { format!("`{value}`") });
            format!("all but {}", idle.collect::<Vec<_>>().join(" and "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn lines(on: On, annotations: Value) -> Vec<String> {
        let mut problems = Problems::default();
        check_annotations(on, &annotations, "metadata.annotations", &mut problems);
        problems.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_wish_that_is_not_carried_out_is_refused_with_its_path_and_what_is_allowed() {
        let hooks = r#"[{"args": ["--version", "v1alpha2"], "environment": 1}]"#;
        assert_eq!(
            lines(
                Vmi,
                json!({
                    "hooks.kubevirt.io/hookSidecars": hooks, "kubevirt.io/memfd": "false",
                    "kubevirt.io/testWorkloadUpdateMigrationAbortion": "", "podvirt.io/netd-metrics-port": "http",
                })
            ),
            [
                "metadata.annotations[podvirt.io/netd-metrics-port]: 'http' is not allowed; a port from 1 to 65535 is \
                 allowed",
                "metadata.annotations[hooks.kubevirt.io/hookSidecars][0]: '{\\\"args\\\":[\\\"--version\\\",\\\"v1alpha2\\\"],\\\"environment\\\":1}' \
                 is not allowed; unknown field `environment`, expected one of `image`, `imagePullPolicy`, `command`, \
                 `args`, `configMap`, `pvc`",
                "metadata.annotations[kubevirt.io/memfd]: 'false' is not supported by podvirt; any other value is \
                 allowed: netd needs the guest's memory as a memfd",
                "metadata.annotations[kubevirt.io/testWorkloadUpdateMigrationAbortion]: not supported by podvirt; the \
                 annotation is not allowed: of upstream's tests",
            ]
        );
    }

    #[test]
    fn values_that_ask_for_nothing_and_annotations_of_others_pass() {
        let none: [&str; 0] = [];
        assert_eq!(
            lines(
                Vmi,
                json!({
                    "hooks.kubevirt.io/hookSidecars": " [] ", "kubevirt.io/placePCIDevicesOnRootComplex": "false",
                    "kubevirt.io/memfd": "true", "podvirt.io/netd-metrics-port": "9100", "team": "a",
                    "kubectl.kubernetes.io/last-applied-configuration": "{\"hooks.kubevirt.io/hookSidecars\": 1}",
                    "sidecar.istio.io/inject": "true", "prometheus.io/scrape": "true", "kubevirt.io/test": "test",
                    "kubevirt.io/pci-topology-version": "v3", "number": 7,
                })
            ),
            none
        );
        assert_eq!(lines(Vmi, Value::Null), none);
        assert_eq!(lines(Vmi, json!([])), none);
        // A VirtualMachine's own annotations do not go to its instances.
        assert_eq!(lines(Vm, json!({"hooks.kubevirt.io/hookSidecars": "[{}]"})), none);
    }

    #[test]
    fn every_row_is_judged_as_it_says() {
        let mut seen = BTreeSet::new();
        for row in ANNOTATIONS {
            assert!(seen.insert((row.on.kind(), row.key)), "{} stands twice on {:?}", row.key, row.on);
            let asked = |value: &str| !lines(row.on, json!({ row.key: value })).is_empty();
            match row.effect {
                Refused(Any | Port | Seconds | UpTo(_) | OneOf(_) | Hooks) => {
                    assert!(asked("") && asked("x"), "{}", row.key);
                }
                Refused(Is(value)) => assert!(asked(value) && !asked(""), "{}", row.key),
                Refused(But(idle)) => assert!(asked("x") && !idle.iter().any(|v| asked(v)), "{}", row.key),
                Carried(OneOf(values)) => {
                    assert!(asked("") && asked("x") && !values.iter().any(|v| asked(v)), "{}", row.key);
                }
                Carried(Hooks) => {
                    assert!(asked("x") && asked("[{}]") && !asked("") && !asked("[]"), "{}", row.key);
                }
                Carried(Seconds) => {
                    assert!(asked("-1") && asked("1.5") && asked("") && !asked("130"), "{}", row.key);
                }
                Carried(UpTo(most)) => {
                    assert!(asked("0") && asked("") && asked("x"), "{}", row.key);
                    assert!(asked(&(most + 1).to_string()) && !asked(&most.to_string()), "{}", row.key);
                }
                Carried(Port) => assert!(asked("0") && asked("65536") && !asked("1"), "{}", row.key),
                Carried(_) | Unneeded | Written => assert!(!asked("x") && !asked("true"), "{}", row.key),
            }
        }
    }
}
