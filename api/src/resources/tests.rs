use serde_json::{Value, json};

use super::*;

fn resources(spec: Value, config: Value) -> PodResources {
    let spec: v1::VirtualMachineInstanceSpec = serde_json::from_value(spec).unwrap();
    PodResources::for_vmi(&spec, &serde_json::from_value(config).unwrap())
}

fn request(of: &ResourceRequirements, name: &str) -> Option<String> {
    of.requests.as_ref()?.get(name).map(|q| q.0.clone())
}

fn limit(of: &ResourceRequirements, name: &str) -> Option<String> {
    of.limits.as_ref()?.get(name).map(|q| q.0.clone())
}

fn mebibytes(text: Option<String>) -> u64 {
    text.unwrap().parse::<Quantity>().unwrap().value() / MI
}

#[test]
fn a_machine_of_one_processor_and_a_gibibyte_asks_for_the_sum_of_the_parts() {
    let got = resources(json!({"domain": {"memory": {"guest": "1Gi"}, "devices": {}}}), json!({}));
    assert_eq!(got.overhead.total() / MI, 24 + 40 + 50 + 8 + 8 + 32 + 2);
    assert_eq!(mebibytes(request(&got.compute, "memory")), 1024 + 164);
    assert_eq!(request(&got.compute, "cpu").unwrap(), "100m");
    assert_eq!(request(&got.compute, pod::KVM_DEVICE).unwrap(), "1");
    assert_eq!(limit(&got.compute, pod::KVM_DEVICE).unwrap(), "1");
    assert_eq!(limit(&got.compute, "memory"), None);
    assert_eq!(got.netd.limits, None);
}

#[test]
fn processors_graphics_and_emulation_change_the_overhead() {
    let base = json!({"domain": {"memory": {"guest": "1Gi"}, "devices": {}}});
    let bare = resources(
        json!({"domain": {
            "memory": {"guest": "1Gi"}, "cpu": {"cores": 2, "sockets": 2},
            "devices": {"autoattachGraphicsDevice": false},
        }}),
        json!({}),
    );
    assert_eq!(bare.overhead.vcpus / MI, 32);
    assert_eq!(bare.overhead.graphics, 0);
    assert_eq!(request(&bare.compute, "cpu").unwrap(), "400m");
    let emulated = resources(base, json!({"developerConfiguration": {"useEmulation": true}}));
    assert_eq!(emulated.overhead.emulation / MI, 112);
    assert_eq!(request(&emulated.compute, pod::KVM_DEVICE), None);
    assert_eq!(emulated.compute.limits, None);
}

#[test]
fn the_manifests_own_requests_and_limits_hold() {
    let got = resources(
        json!({"domain": {
            "memory": {"guest": "2Gi"},
            "resources": {"requests": {"memory": "1Gi", "cpu": "1500m"}, "limits": {"memory": "3Gi", "cpu": "2"}},
            "devices": {"autoattachGraphicsDevice": false},
        }}),
        json!({}),
    );
    let overhead = 24 + 40 + 50 + 16 + 8 + 2;
    assert_eq!(mebibytes(request(&got.compute, "memory")), 1024 + overhead);
    assert_eq!(mebibytes(limit(&got.compute, "memory")), 3072 + overhead);
    assert_eq!(request(&got.compute, "cpu").unwrap(), "1500m");
    assert_eq!(limit(&got.compute, "cpu").unwrap(), "2000m");
    assert!(limit(&got.netd, "memory").is_some() && limit(&got.container_disk, "cpu").is_some());
}

#[test]
fn where_requests_are_limits_every_container_asks_for_its_limits() {
    let got = |resources: Value| {
        resources_of(json!({"domain": {"memory": {"guest": "64Mi"}, "resources": resources, "devices": {}}}))
    };
    let same = json!({"cpu": "1", "memory": "64M"});
    for resources in
        [json!({"requests": same, "limits": {"cpu": "1000m", "memory": "64M"}}), json!({"limits": same})]
    {
        let got = got(resources);
        for container in [&got.compute, &got.netd, &got.container_disk, &got.hook_sidecar] {
            for name in ["cpu", "memory"] {
                assert!(limit(container, name).is_some());
                assert_eq!(request(container, name), limit(container, name), "{name} of {container:?}");
            }
        }
        assert_eq!(request(&got.netd, "cpu").unwrap(), "500m");
    }
    let other =
        got(json!({"requests": {"cpu": "1", "memory": "64M"}, "limits": {"cpu": "1", "memory": "65M"}}));
    assert_eq!(
        (request(&other.netd, "cpu").unwrap(), limit(&other.netd, "cpu").unwrap()),
        ("10m".into(), "1000m".into())
    );
}

#[test]
fn a_machine_may_leave_out_what_it_takes_beside_its_guest() {
    let got = |overcommit: bool| {
        let resources = json!({"overcommitGuestOverhead": overcommit, "requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}});
        resources_of(json!({"domain": {"resources": resources, "devices": {}}})).compute
    };
    let (plain, over) = (got(false), got(true));
    assert_eq!(request(&over, "memory").unwrap(), "1024Mi");
    assert_ne!(request(&plain, "memory"), request(&over, "memory"));
    assert_eq!(limit(&plain, "memory"), limit(&over, "memory"), "it is killed no sooner");
}

#[test]
fn storage_on_the_node_is_the_machines_and_the_pods_own() {
    let got = |resources: Value| {
        resources_of(json!({"domain": {"memory": {"guest": "1Gi"}, "resources": resources, "devices": {}}}))
    };
    let none = got(json!({}));
    assert_eq!(request(&none.compute, "ephemeral-storage").unwrap(), "50000000");
    assert_eq!(
        (limit(&none.compute, "ephemeral-storage"), limit(&none.netd, "ephemeral-storage")),
        (None, None)
    );
    let both = got(json!({
        "requests": {"ephemeral-storage": "1G"}, "limits": {"ephemeral-storage": "2G"},
    }));
    assert_eq!(request(&both.compute, "ephemeral-storage").unwrap(), "1050000000");
    assert_eq!(limit(&both.compute, "ephemeral-storage").unwrap(), "2050000000");
    for sidecar in [&both.netd, &both.container_disk] {
        assert_eq!(request(sidecar, "ephemeral-storage").unwrap(), "1Mi", "else it were the limit");
        assert_eq!(limit(sidecar, "ephemeral-storage").unwrap(), "64Mi");
    }
}

#[test]
fn a_manifest_may_say_how_much_storage_of_the_node_it_takes() {
    let manifest = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: vm}\nspec:\n  domain:\n    \
                    memory: {guest: 64Mi}\n    devices: {}\n    resources:\n      requests: {ephemeral-storage: 1Gi}\n      \
                    limits: {ephemeral-storage: 2Gi}\n";
    crate::VirtualMachineInstance::load(manifest).unwrap();
    let other = manifest.replace("limits: {ephemeral-storage", "limits: {storage");
    crate::VirtualMachineInstance::load(&other).unwrap_err();
}

fn resources_of(spec: Value) -> PodResources {
    resources(spec, json!({}))
}

#[test]
fn the_clusters_configuration_scales_memory_and_processors() {
    let got = resources(
        json!({"domain": {"memory": {"guest": "1Gi"}, "devices": {"autoattachGraphicsDevice": false}}}),
        json!({
            "developerConfiguration": {"memoryOvercommit": 200, "cpuAllocationRatio": 4},
            "additionalGuestMemoryOverheadRatio": "1.5",
        }),
    );
    let overhead = (24 + 40 + 50 + 8 + 8 + 1) * 3 / 2;
    assert_eq!(mebibytes(request(&got.compute, "memory")), 512 + overhead);
    assert_eq!(request(&got.compute, "cpu").unwrap(), "250m");
}

#[test]
fn memory_of_the_guest_comes_from_wherever_it_stands() {
    for domain in [
        json!({"memory": {"guest": "64Mi"}, "devices": {}}),
        json!({"resources": {"requests": {"memory": "64Mi"}}, "devices": {}}),
        json!({"resources": {"limits": {"memory": "64Mi"}}, "devices": {}}),
    ] {
        let spec = serde_json::from_value(json!({ "domain": domain })).unwrap();
        assert_eq!(guest_memory(&spec), 64 << 20);
    }
}

#[test]
fn nonsense_neither_panics_nor_asks_for_nothing() {
    let got = resources(
        json!({"domain": {
            "memory": {"guest": "8Ei"}, "cpu": {"cores": 4_294_967_295_u32, "sockets": 4_294_967_295_u32, "threads": 9},
            "resources": {"requests": {"memory": "many"}}, "devices": {},
        }}),
        json!({"developerConfiguration": {"memoryOvercommit": -5, "cpuAllocationRatio": 0}}),
    );
    assert!(request(&got.compute, "memory").is_some());
}

#[test]
fn the_document_has_the_models_numbers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/resources.md");
    let text = std::fs::read_to_string(path).unwrap();
    let got = resources(
        json!({"domain": {"memory": {"guest": "1Gi"}, "devices": {"tpm": {}}}, "architecture": "arm64"}),
        json!({"developerConfiguration": {"useEmulation": true}}),
    );
    let MemoryOverhead {
        launcher,
        libvirt,
        qemu,
        vcpus,
        io,
        graphics,
        tpm,
        page_tables,
        emulation,
        architecture,
    } = got.overhead;
    let memory = |of: &ResourceRequirements| mebibytes(request(of, "memory")) * MI;
    for row in [
        format!("| each overlay, without `limits.ephemeral-storage` | {} Gi |", storage::OVERLAY >> 30),
        format!("| each of the pod's own volumes | {} Mi |", storage::OWN / MI),
    ] {
        assert!(text.contains(&row), "docs/resources.md has no row {row}");
    }
    for (part, bytes) in [
        ("virt-launcher", launcher),
        ("libvirt", libvirt),
        ("QEMU", qemu),
        ("each processor", vcpus),
        ("disk threads", io),
        ("graphics device", graphics),
        ("TPM", tpm),
        ("page tables, each GiB of the guest", page_tables),
        ("emulation without KVM", emulation),
        ("arm64", architecture),
        ("sidecar netd", memory(&got.netd)),
        ("sidecar of a container disk", memory(&got.container_disk)),
    ] {
        let row = format!("| {part} | {} Mi |", bytes / MI);
        assert!(text.contains(&row), "docs/resources.md has no row {row}");
    }
}

#[test]
fn a_namespace_with_a_quota_limits_machines_that_say_no_limits() {
    let within = |spec: Value, auto: AutoLimits| {
        PodResources::for_vmi_within(
            &serde_json::from_value(spec).unwrap(),
            &serde_json::from_value(json!({})).unwrap(),
            auto,
        )
    };
    let auto = AutoLimits { cpu: true, memory: Some(1500) };
    let silent = json!({"domain": {"memory": {"guest": "1Gi"}, "cpu": {"cores": 3}, "devices": {}}});
    let got = within(silent.clone(), auto);
    let asked = mebibytes(request(&got.compute, "memory"));
    assert_eq!(mebibytes(limit(&got.compute, "memory")), asked * 3 / 2);
    assert_eq!(limit(&got.compute, "cpu").as_deref(), Some("3000m"));
    assert!(
        limit(&got.netd, "memory").is_some() && limit(&got.netd, "cpu").is_some(),
        "a quota counts every container"
    );
    let memory = within(silent, AutoLimits { cpu: false, memory: Some(2000) });
    assert_eq!((limit(&memory.compute, "cpu"), limit(&memory.netd, "cpu")), (None, None));
    let own = json!({"domain": {"memory": {"guest": "1Gi"}, "resources": {"limits": {"memory": "2Gi", "cpu": "1"}}, "devices": {}}});
    assert_eq!(within(own.clone(), auto), within(own, AutoLimits::default()));
}

#[test]
fn the_cluster_says_what_containers_beside_machines_have() {
    let plain = json!({"domain": {"memory": {"guest": "1Gi"}, "devices": {}}});
    let limited = json!({"domain": {"memory": {"guest": "1Gi"}, "devices": {},
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}}});
    let told = |kind: &str, resources: Value| json!({"supportContainerResources": [{"type": kind, "resources": resources}]});
    let all = |of: &ResourceRequirements| {
        [request(of, "cpu"), limit(of, "cpu"), request(of, "memory"), limit(of, "memory")]
            .map(Option::unwrap_or_default)
    };
    // The guest has a say in the memory of what serves its files.
    let virtiofs = |spec: &Value, config: Value| all(&resources(spec.clone(), config).virtiofs);
    assert_eq!(virtiofs(&plain, json!({})), ["10m", "", "16Mi", "128Mi"]);
    assert_eq!(virtiofs(&limited, json!({})), ["100m", "100m", "128Mi", "128Mi"]);
    let given =
        json!({"requests": {"cpu": "2m", "memory": "14M"}, "limits": {"cpu": "101m", "memory": "81M"}});
    assert_eq!(virtiofs(&plain, told("virtiofs", given.clone())), ["2m", "101m", "14M", "81M"]);
    assert_eq!(virtiofs(&limited, told("virtiofs", given.clone())), ["101m", "101m", "81M", "81M"]);
    assert_eq!(virtiofs(&plain, told("sidecar", given.clone())), ["10m", "", "16Mi", "128Mi"]);
    // Where the cluster says one of the two, the other one fits.
    assert_eq!(
        virtiofs(&plain, told("virtiofs", json!({"limits": {"memory": "4Mi"}}))),
        ["10m", "", "4Mi", "4Mi"]
    );
    assert_eq!(
        virtiofs(&plain, told("virtiofs", json!({"requests": {"memory": "1Gi"}}))),
        ["10m", "", "1Gi", "1Gi"]
    );
    let got = resources(plain.clone(), told("container-disk", given.clone()));
    assert_eq!(all(&got.container_disk), ["2m", "101m", "14M", "81M"]);
    assert_eq!(
        all(&resources(plain, told("sidecar", given.clone())).hook_sidecar),
        ["2m", "101m", "14M", "81M"]
    );
    // Pods of their own.
    let config = |told: Value| serde_json::from_value::<v1::KubeVirtConfiguration>(told).unwrap();
    assert_eq!(all(&exporter(&config(json!({})))), ["100m", "1", "200Mi", "1024Mi"]);
    assert_eq!(all(&exporter(&config(told("vmexport", given.clone())))), ["2m", "101m", "14M", "81M"]);
    assert_eq!(all(&attachment(&config(told("vmexport", given.clone())))), ["10m", "100m", "2M", "80M"]);
    assert_eq!(all(&attachment(&config(told("hotplug-disk", given)))), ["2m", "101m", "14M", "81M"]);
}

#[test]
fn files_that_are_open_fit_into_the_memory() {
    let of = |limits: Value| open_files(&serde_json::from_value(json!({"limits": limits})).unwrap());
    assert_eq!(of(json!({"memory": "128Mi"})), 65536);
    assert_eq!(of(json!({"memory": "80M"})), 39062);
    assert_eq!([of(json!({"memory": "1"})), of(json!({}))], [1024, 1024]);
}
