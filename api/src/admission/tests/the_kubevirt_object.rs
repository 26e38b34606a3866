use super::super::kubevirt::{validate, validate_plain, validate_update};
use super::*;

fn problems_of(configuration: Value) -> Vec<String> {
    lines(&validate(&json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": {"configuration": configuration},
    })))
}

#[test]
fn its_values_must_be_usable() {
    let none: [&str; 0] = [];
    assert_eq!(problems_of(json!(null)), none);
    assert_eq!(
        problems_of(json!({
            "machineType": "pc-q35-9.0", "emulatedMachines": ["pc-q35-9*"],
            "additionalGuestMemoryOverheadRatio": "1.25", "cpuRequest": "50m",
        })),
        none
    );
    assert_eq!(
        problems_of(json!({
            "machineType": "virt", "additionalGuestMemoryOverheadRatio": "0.5", "cpuRequest": "0",
        })),
        [
            "spec.configuration.additionalGuestMemoryOverheadRatio: '0.5' is not allowed; a decimal number of \
             at least 1 is allowed",
            "spec.configuration.cpuRequest: '0' is not allowed; an amount above zero is allowed",
            "spec.configuration.machineType: 'virt' is not allowed; 'q35' or a version of it such as \
             'pc-q35-10.0' is allowed",
        ]
    );
    assert_eq!(
        problems_of(json!({"emulatedMachines": ["pc-q35-9*"]})),
        ["spec.configuration.machineType: 'q35' is not allowed; emulatedMachines allows: pc-q35-9*"]
    );
}

#[test]
fn the_clusters_number_of_flows_has_the_limits_of_a_machines() {
    let of = |flows: &str| {
        lines(&validate(&json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": {},
            "metadata": {"annotations": {"podvirt.io/netd-flows": flows}},
        })))
    };
    let none: [&str; 0] = [];
    assert_eq!(of("1"), none);
    assert_eq!(of("131072"), none);
    for wrong in ["", "0", "131073", "many"] {
        assert_eq!(
            of(wrong),
            [format!(
                "metadata.annotations[podvirt.io/netd-flows]: '{wrong}' is not allowed; a whole number from 1 to \
                 131072 is allowed"
            )]
        );
    }
}

#[test]
fn what_an_older_release_took_may_stay_but_not_grow() {
    let object = |configuration: Value| json!({"spec": {"configuration": configuration}});
    let update = |old: Value, new: Value| lines(&validate_update(&object(old), &object(new)));
    let none: [&str; 0] = [];
    let old = json!({"machineType": "virt", "ksmConfiguration": {}});
    let mut new = old.clone();
    new["developerConfiguration"] = json!({"useEmulation": true});
    assert_eq!(update(old.clone(), new.clone()), none);
    new["ksmConfiguration"] = json!({"nodeLabelSelector": {}});
    assert_eq!(update(old, new).len(), 1);
    // The machine type stays, and what it may be does not.
    let narrower = json!({"emulatedMachines": ["pc-q35-9*"]});
    assert_eq!(update(json!({}), narrower.clone()).len(), 1);
    assert_eq!(update(narrower.clone(), narrower), none);
}

#[test]
fn another_binding_is_refused_with_what_is_allowed() {
    assert_eq!(
        problems_of(json!({"network": {"defaultNetworkInterface": "slirp"}})),
        [
            "spec.configuration.network.defaultNetworkInterface: 'slirp' is not supported by podvirt; allowed: \
          passtBinding, masquerade, bridge"
        ]
    );
}

#[test]
fn the_interval_of_batches_is_a_duration() {
    let of = |interval: &str| {
        let spec = json!({"workloadUpdateStrategy": {"batchEvictionInterval": interval}});
        lines(&validate(&json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": spec})))
    };
    let none: [&str; 0] = [];
    assert_eq!(of("1m30s"), none);
    assert!(of("soon")[0].starts_with("spec.workloadUpdateStrategy.batchEvictionInterval: 'soon'"));
}

#[test]
fn lives_of_certificates_are_judged_with_or_without_virt_operator() {
    let of = |lives: Value| {
        let spec = json!({"certificateRotateStrategy": {"selfSigned": lives}});
        json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": spec})
    };
    let none: [&str; 0] = [];
    let good = of(json!({"ca": {"duration": "48h", "renewBefore": "24h"}, "server": {"renewBefore": "12h"}}));
    assert_eq!(lines(&validate(&good)), none);
    assert_eq!(lines(&validate_plain(None, &good)), none);
    let bad = of(json!({"server": {"duration": "1h", "renewBefore": "1h"}}));
    let [refused] = &lines(&validate(&bad))[..] else { panic!("one problem") };
    assert!(
        refused.starts_with("spec.certificateRotateStrategy.selfSigned.server.renewBefore: 3600s"),
        "{refused}"
    );
    assert_eq!(lines(&validate_update(&bad, &bad)), none, "it was there before");
    assert_eq!(lines(&validate(&of(json!({"client": {}})))).len(), 1, "upstream has none");
}

#[test]
fn how_much_is_logged_is_a_number_up_to_nine() {
    let of = |verbosity: Value| problems_of(json!({"developerConfiguration": {"logVerbosity": verbosity}}));
    let none: [&str; 0] = [];
    assert_eq!(of(json!({"virtAPI": 9, "virtLauncher": 0, "nodeVerbosity": {"node1": 4}})), none);
    let path = "spec.configuration.developerConfiguration.logVerbosity";
    for (verbosity, field) in [
        (json!({"virtHandler": 10}), "virtHandler"),
        (json!({"virtOperator": -1}), "virtOperator"),
        (json!({"virtSynchronizationController": 3}), "virtSynchronizationController"),
        (json!({"nodeVerbosity": {"node1": 10}}), "nodeVerbosity[node1]"),
        (json!({"nodeVerbosity": {"node1": "high"}}), "nodeVerbosity[node1]"),
        (json!({"nodeVerbosity": 3}), "nodeVerbosity"),
    ] {
        let [refused] = &of(verbosity)[..] else { panic!("one problem of {field}") };
        assert!(refused.starts_with(&format!("{path}.{field}: ")), "{refused}");
    }
}

#[test]
fn what_only_virt_operator_carries_out_is_refused_without_it() {
    let object = |spec: Value| json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": spec});
    let all = object(json!({
        "imageTag": "v1", "infra": {"replicas": 1}, "workloads": {}, "uninstallStrategy": "",
        "customizeComponents": {"flags": {"api": {"log-level": "debug"}}},
    }));
    let none: [&str; 0] = [];
    assert_eq!(lines(&validate(&all)), none);
    let fields = |problems: Problems| problems.0.into_iter().map(|problem| problem.field).collect::<Vec<_>>();
    assert_eq!(
        fields(validate_plain(None, &all)),
        ["spec.customizeComponents.flags", "spec.imageTag", "spec.infra"]
    );
    assert_eq!(fields(validate_plain(Some(&all), &all)), none, "it was there before");
    let more = object(json!({"imageTag": "v2", "infra": {"replicas": 1}}));
    assert_eq!(fields(validate_plain(Some(&all), &more)), ["spec.imageTag"]);
    assert_eq!(lines(&validate_plain(None, &object(json!({})))), none);
}
