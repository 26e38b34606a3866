use super::*;

#[test]
fn what_says_nothing_is_no_change() {
    let mut old = instance(small());
    vmi::mutate_create(&mut old, &config());
    for (path, value) in [
        ("nodeSelector", json!({})),
        ("schedulerName", json!("")),
        ("tolerations", json!([])),
        ("hostname", Value::Null),
    ] {
        let mut new = old.clone();
        new["spec"][path] = value;
        assert_eq!(vmi::validate_update(&old, &new, By::User), Problems::default(), "{path}");
    }
    let mut new = old.clone();
    new["spec"]["domain"]["devices"]["disableHotplug"] = json!(false);
    new["spec"]["domain"]["resources"]["limits"] = json!({});
    assert_eq!(vmi::validate_update(&old, &new, By::User), Problems::default());
    let mut new = old.clone();
    new["spec"]["domain"]["devices"]["rng"] = json!({});
    assert_eq!(
        fields(&vmi::validate_update(&old, &new, By::User)),
        [("spec", Reason::FieldValueNotSupported)]
    );
}

#[test]
fn a_users_status_is_undone_and_a_daemons_stays() {
    let mut old = instance(small());
    old["status"] = json!({"phase": "Running"});
    let mut new = old.clone();
    new["status"]["phase"] = json!("Failed");
    let mut by_user = new.clone();
    vmi::mutate_update(&old, &mut by_user, By::User);
    assert_eq!(by_user, old);
    let mut by_daemon = new.clone();
    vmi::mutate_update(&old, &mut by_daemon, By::Daemon);
    assert_eq!(by_daemon, new);
}

#[test]
fn users_change_neither_specification_nor_reserved_labels() {
    let old = instance(small());
    let mut new = old.clone();
    new["metadata"]["labels"]["app"] = json!("b");
    new["spec"]["volumes"] = json!([]);
    assert_eq!(vmi::validate_update(&old, &new, By::User), Problems::default());
    new["metadata"]["labels"]["kubevirt.io/nodeName"] = json!("n");
    new["spec"]["domain"]["memory"]["guest"] = json!("128Mi");
    let refused = vmi::validate_update(&old, &new, By::User);
    assert_eq!(
        fields(&refused),
        [("spec", Reason::FieldValueNotSupported), ("metadata.labels", Reason::FieldValueNotSupported)]
    );
    assert_eq!(vmi::validate_update(&old, &new, By::Daemon), Problems::default());
}

#[test]
fn a_deep_specification_is_compared_once() {
    let mut object = instance(small());
    object["spec"]["x"] = (0..100).fold(json!(0), |inner, _| json!({ "a": inner }));
    assert_eq!(vmi::validate_update(&object, &object, By::User), Problems::default());
    let mut other = object.clone();
    *other["spec"]["x"].pointer_mut(&"/a".repeat(100)).unwrap() = json!(1);
    assert_eq!(vmi::validate_update(&object, &other, By::User).0.len(), 1);
}
