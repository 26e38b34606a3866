use super::*;

/// A pod of the namespace `shop` with these annotations.
fn pod(networks: Option<&str>, status: Option<&Value>) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.namespace = Some("shop".into());
    let all = pod.metadata.annotations.get_or_insert_default();
    all.extend(networks.map(|text| (NETWORKS.to_owned(), text.to_owned())));
    all.extend(status.map(|list| (NETWORK_STATUS.to_owned(), list.to_string())));
    pod
}

/// Names of interfaces to be detached and to be attached.
fn names(networks: &str, status: &Value) -> (Vec<String>, Vec<String>) {
    let difference = difference(&pod(Some(networks), Some(status))).unwrap();
    let detach = difference.detach.into_iter().map(|there| there.interface).collect();
    (detach, difference.attach.into_iter().filter_map(|element| element.interface).collect())
}

fn told() -> Value {
    json!([
        {"name": "pods", "interface": "eth0", "ips": ["10.1.0.7"], "default": true, "dns": {}},
        {"name": "shop/blue", "interface": "podblue", "mac": "02:00:00:00:00:01", "dns": {}},
    ])
}

#[test]
fn what_is_told_and_asked_for_alike_is_left_alone() {
    let same = r#"[{"name": "blue", "interface": "podblue"}]"#;
    assert_eq!(names(same, &told()), (vec![], vec![]));
    let full =
        r#"[{"name": "blue", "namespace": "shop", "interface": "podblue", "mac": "02:00:00:00:00:09"}]"#;
    assert_eq!(names(full, &told()), (vec![], vec![]));
}

#[test]
fn elements_come_and_go_by_network_and_interface() {
    let more = r#"[{"name": "blue", "interface": "podblue"}, {"name": "red", "namespace": "net", "interface": "podred"}]"#;
    assert_eq!(names(more, &told()), (vec![], vec!["podred".to_owned()]));
    assert_eq!(names("[]", &told()), (vec!["podblue".to_owned()], vec![]));
    // Another network by the same name of an interface: the one ends, and the other begins.
    let other = r#"[{"name": "blue", "namespace": "net", "interface": "podblue"}]"#;
    assert_eq!(names(other, &told()), (vec!["podblue".to_owned()], vec!["podblue".to_owned()]));
}

#[test]
fn elements_with_one_interface_are_told_apart_from_the_others() {
    let text = r#"[{"name": "red", "interface": "podred"}, {"name": "grey", "interface": "podred"}, {"name": "green"},
        {"name": "white"}, {"name": "blue", "interface": "podblue"}, {"name": "red", "interface": "podblue"}]"#;
    let difference = difference(&pod(Some(text), Some(&told()))).unwrap();
    let doubled =
        difference.doubled.iter().map(|element| (element.name.as_str(), element.interface.as_deref()));
    // The one that is told stays.
    let expected = [("red", Some("podred")), ("grey", Some("podred")), ("red", Some("podblue"))];
    assert_eq!(doubled.collect::<Vec<_>>(), expected);
    assert_eq!((difference.detach, difference.attach), (vec![], vec![]));
}

#[test]
fn all_that_an_element_asks_for_is_read() {
    let text = r#"[{"name": "red", "interface": "podred", "mac": "02:00:00:00:00:05", "ips": ["10.0.0.5/24"],
        "cni-args": {"logicNetworkName": "red"}, "ipam-claim-reference": "web.red"}]"#;
    let difference = difference(&pod(Some(text), Some(&told()))).unwrap();
    let [element] = difference.attach.as_slice() else { panic!("{difference:?}") };
    assert_eq!((element.namespace.as_str(), element.name.as_str()), ("shop", "red"));
    assert_eq!(element.mac.as_deref(), Some("02:00:00:00:00:05"));
    assert_eq!(element.ips, ["10.0.0.5/24"]);
    assert_eq!(element.arguments, Some(json!({"logicNetworkName": "red"})));
}

#[test]
fn what_multus_has_named_itself_stays_and_what_has_no_name_does_not_come() {
    let status =
        json!([{"name": "shop/blue", "interface": "net1"}, {"name": "shop/red", "interface": "netred"}]);
    assert_eq!(names("[]", &status), (vec!["netred".to_owned()], vec![]));
    assert_eq!(names(r#"[{"name": "green"}]"#, &json!([])), (vec![], vec![]));
}

#[test]
fn nothing_is_done_before_multus_has_told_or_where_no_interface_can_be_named() {
    let asks = r#"[{"name": "blue", "interface": "podblue"}]"#;
    assert_eq!(difference(&pod(Some(asks), None)).unwrap(), Difference::default());
    assert_eq!(difference(&pod(None, Some(&told()))).unwrap(), Difference::default());
    assert_eq!(difference(&pod(Some("blue@podred"), Some(&told()))).unwrap(), Difference::default());
}

#[test]
fn what_cannot_be_read_is_named() {
    let error = difference(&pod(Some("[{]"), Some(&told()))).unwrap_err();
    assert!(error.to_string().contains(NETWORKS), "{error}");
    let error = difference(&pod(Some("[]"), Some(&json!({})))).unwrap_err();
    assert!(error.to_string().contains(NETWORK_STATUS), "{error}");
}

#[test]
fn the_new_status_keeps_what_it_had() {
    let mut told = Told::of(&pod(None, Some(&told()))).unwrap().unwrap();
    told.remove("podblue");
    let made = Made {
        mac: Some("02:00:00:00:00:05".into()),
        ips: vec!["10.0.0.5".into()],
        dns: json!({"nameservers": ["10.0.0.1"]}),
    };
    told.add("net", "red", "podred", &made);
    told.add("net", "grey", "podgrey", &Made { dns: json!({}), ..Made::default() });
    assert_eq!(
        serde_json::from_str::<Value>(&told.text()).unwrap(),
        json!([
            {"name": "pods", "interface": "eth0", "ips": ["10.1.0.7"], "default": true, "dns": {}},
            {"name": "net/red", "interface": "podred", "mac": "02:00:00:00:00:05", "ips": ["10.0.0.5"],
                "dns": {"nameservers": ["10.0.0.1"]}},
            {"name": "net/grey", "interface": "podgrey", "dns": {}},
        ])
    );
}
