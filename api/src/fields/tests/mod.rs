mod model;

use serde_json::{Value, json};

use super::*;
use crate::problem::{Problems, Reason};
use crate::vmi::VirtualMachineInstance;

fn problems(document: &Value) -> Vec<(String, Reason)> {
    problems_at(Place::Cluster, document)
}

fn problems_at(place: Place, document: &Value) -> Vec<(String, Reason)> {
    let mut problems = Problems::default();
    check(Resource::Vmi, place, document, &mut problems);
    problems.0.into_iter().map(|p| (p.field, p.reason)).collect()
}

/// The smallest document in which `path` has `value`.
fn document(path: &str, value: &Value) -> Value {
    path.rsplit('.').fold(value.clone(), |inner, segment| match segment.strip_suffix("[]") {
        Some(name) => json!({ name: [inner] }),
        None => json!({ segment: inner }),
    })
}

fn samples(kind: Kind) -> Vec<Value> {
    match kind {
        Kind::Object => vec![json!({})],
        Kind::List => vec![json!([{}])],
        Kind::Text => vec![json!("text")],
        Kind::Lines => vec![json!("two\nlines\n")],
        Kind::Texts => vec![json!(["one", "two"])],
        Kind::SomeOf(names) => vec![json!(names)],
        Kind::TextMap => vec![json!({"a": "b"})],
        Kind::Int(min, max) => vec![json!(min.max(1)), json!(max)],
        Kind::Bool => vec![json!(true)],
        Kind::Quantity => vec![json!("1Gi")],
        Kind::QuantityMap => vec![json!({"memory": "1Gi"})],
        Kind::OneOf(names) => names.iter().map(|n| json!(n)).collect(),
        Kind::Any => vec![json!({"any": 1})],
    }
}

#[test]
fn paths_are_unique_and_have_parents() {
    let mut seen = std::collections::BTreeSet::new();
    for (n, field) in TABLES.iter().enumerate().flat_map(|(n, (_, table))| table.iter().map(move |f| (n, f)))
    {
        assert!(seen.insert((n, field.path)), "{} stands twice", field.path);
        if let Some((parent, _)) = field.path.rsplit_once('.') {
            let parent = parent.trim_end_matches("[]");
            let row = TABLES[n]
                .1
                .iter()
                .find(|f| f.path == parent)
                .unwrap_or_else(|| panic!("{parent} is missing"));
            assert!(
                matches!(row.support, Support::Carried | Support::Cluster | Support::Alone),
                "{parent} stands for what is below it"
            );
        }
    }
}

/// Fields that the launcher pod carries out: the machine does not see them.
const OF_THE_POD: &[&str] = &[
    "metadata.generateName",
    "spec.affinity",
    "spec.evictionStrategy",
    "spec.livenessProbe",
    "spec.nodeSelector",
    "spec.priorityClassName",
    "spec.readinessProbe",
    "spec.schedulerName",
    "spec.tolerations",
    "spec.topologySpreadConstraints",
    "spec.utilityVolumes",
    "spec.domain.firmware.kernelBoot.container.imagePull",
    "spec.volumes[].containerDisk.imagePull",
    "spec.volumes[].downwardAPI.fields",
];

#[test]
fn every_carried_field_has_its_place_in_the_types() {
    for field in VMI.iter() {
        let place = match field.support {
            Support::Carried | Support::Cluster => Place::Cluster,
            Support::Alone => Place::Alone,
            Support::Refused | Support::Kept => continue,
        };
        for sample in samples(field.kind) {
            let given = document(field.path, &sample);
            assert_eq!(problems_at(place, &given), [], "{}", field.path);
            let vmi: VirtualMachineInstance =
                serde_json::from_value(given.clone()).unwrap_or_else(|e| panic!("{}: {e}", field.path));
            let written = serde_json::to_value(&vmi).unwrap();
            if OF_THE_POD.iter().any(|p| field.path.starts_with(p)) {
                continue;
            }
            // An object that must be there and holds nothing is left out: that is no loss.
            if sample != json!({}) {
                assert_eq!(written, given, "{} is lost or changed", field.path);
            }
        }
    }
}

#[test]
fn a_field_of_another_place_is_refused_by_its_path() {
    for field in VMI {
        let (place, told) = match field.support {
            Support::Cluster => (Place::Alone, "outside a cluster"),
            Support::Alone => (Place::Cluster, "in a cluster"),
            _ => continue,
        };
        let sample = samples(field.kind).remove(0);
        let mut found = Problems::default();
        check(Resource::Vmi, place, &document(field.path, &sample), &mut found);
        assert_eq!(found.0.len(), 1, "{}", field.path);
        assert!(found.0[0].message.contains(told), "{}", found.0[0]);
        assert!(field.path.replace("[]", "[0]").starts_with(&found.0[0].field));
    }
}

#[test]
fn every_refused_field_is_refused_by_its_path() {
    for field in VMI.iter().filter(|f| f.support == Support::Refused) {
        let path = field.path.replace("[]", "[0]");
        for sample in [json!({}), json!(true), json!([{}]), json!("x")] {
            assert_eq!(
                problems(&document(field.path, &sample)),
                [(path.clone(), Reason::FieldValueNotSupported)]
            );
        }
        for nothing in [Value::Null, json!([])] {
            assert_eq!(problems(&document(field.path, &nothing)), [], "{nothing} is not set");
        }
    }
}

#[test]
fn fields_below_a_kept_one_are_read_over() {
    let given =
        json!({"status": {"phase": "Running"}, "metadata": {"generation": 3, "managedFields": [{"a": 1}]}});
    assert_eq!(problems(&given), []);
    assert!(VirtualMachineInstance::from_value(given).is_ok());
}

#[test]
fn an_unknown_field_is_told_with_its_full_path() {
    let given = json!({
        "extra": 1,
        "spec": {"domain": {"devices": {"interfaces": [{"name": "a"}, {"foo": 1, "ports": [{"prot": "TCP"}]}]}}},
    });
    let mut found = Problems::default();
    check(Resource::Vmi, Place::Cluster, &given, &mut found);
    let lines: Vec<String> = found.0.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "extra: unknown field",
            "spec.domain.devices.interfaces[1].foo: unknown field",
            "spec.domain.devices.interfaces[1].ports[0].prot: unknown field",
        ]
    );
}

#[test]
fn a_refused_field_says_that_podvirt_does_not_support_it() {
    let given =
        json!({"spec": {"resourceClaims": [{}], "domain": {"devices": {"interfaces": [{"macvtap": {}}]}}}});
    let mut found = Problems::default();
    check(Resource::Vmi, Place::Cluster, &given, &mut found);
    let lines: Vec<String> = found.0.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "spec.domain.devices.interfaces[0].macvtap: not supported by podvirt; removed upstream; use passtBinding",
            "spec.resourceClaims: not supported by podvirt",
        ]
    );
}

#[test]
fn values_of_wrong_types_and_ranges_are_told_with_what_is_allowed() {
    let given = json!({
        "apiVersion": "v1",
        "spec": {
            "terminationGracePeriodSeconds": -1,
            "hostname": 3,
            "volumes": {},
            "networks": ["pod"],
            "dnsConfig": {"nameservers": [1]},
            "domain": {
                "cpu": {"cores": "2"},
                "memory": {"guest": "1 Gi"},
                "resources": {"requests": {"memory": []}},
                "devices": {"rng": true, "disks": [{"disk": {"bus": "ide"}}]},
            },
        },
    });
    let mut found = Problems::default();
    check(Resource::Vmi, Place::Cluster, &given, &mut found);
    let mut lines: Vec<String> = found.0.iter().map(ToString::to_string).collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "apiVersion: 'v1' is not supported by podvirt; allowed: kubevirt.io/v1",
            "spec.dnsConfig.nameservers[0]: 1 has the wrong type; a text is allowed",
            "spec.domain.cpu.cores: \"2\" has the wrong type; a whole number is allowed",
            "spec.domain.devices.disks[0].disk.bus: 'ide' is not supported by podvirt; allowed: virtio, sata, scsi, usb",
            "spec.domain.devices.rng: true has the wrong type; an object is allowed",
            "spec.domain.memory.guest: '1 Gi' is not allowed; a quantity is allowed: a number, with one of \
             n u m k M G T P E Ki Mi Gi Ti Pi Ei or an exponent behind it",
            "spec.domain.resources.requests.memory: [] has the wrong type; a quantity is allowed",
            "spec.hostname: 3 has the wrong type; a text is allowed",
            "spec.networks[0]: \"pod\" has the wrong type; an object is allowed",
            "spec.terminationGracePeriodSeconds: '-1' is not allowed; a whole number from 0 to \
             9223372036854775807 is allowed",
            "spec.volumes: {} has the wrong type; a list of objects is allowed",
        ]
    );
}

#[test]
fn a_text_of_one_line_has_no_control_characters() {
    let given = json!({"spec": {"hostname": "a\u{0}b", "dnsConfig": {"searches": ["a\n"]}}});
    let mut found = Problems::default();
    check(Resource::Vmi, Place::Cluster, &given, &mut found);
    let lines: Vec<String> = found.0.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "spec.dnsConfig.searches[0]: 'a\\n' is not allowed; a text without control characters is allowed",
            "spec.hostname: 'a\\0b' is not allowed; a text without control characters is allowed",
        ]
    );
}

#[test]
fn a_document_that_is_no_object_is_refused() {
    assert_eq!(problems(&json!([])), [(".".to_owned(), Reason::FieldValueTypeInvalid)]);
}

fn in_step(name: &str, wanted: &str) {
    let path = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, wanted).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == wanted, "docs/{name} is stale: UPDATE_DOCS=1 cargo test -p podvirt-api");
}

#[test]
fn the_documents_for_users_are_in_step_with_the_tables() {
    const BEGIN: &str = "<!-- Written from the tables in api/src/fields: begin -->\n";
    const END: &str = "<!-- Written from the tables in api/src/fields: end -->\n";
    in_step("vmi-fields.md", &markdown());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/compatibility.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the begin marker");
    let (_, after) = rest.split_once(END).expect("the end marker");
    in_step("compatibility.md", &format!("{before}{BEGIN}{}{END}{after}", refused_markdown()));
}
