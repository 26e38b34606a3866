//! What a machine has of its claims.

use super::*;

#[test]
fn the_pod_has_a_claim_by_the_mode_that_is_told_of_it() {
    let vmi = machine(
        "Pending",
        json!({"spec": {"volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "data"}}]}}),
    );
    let pod_with = |mode: &str| {
        let claim = json!({"spec": {"volumeMode": mode}});
        let claims = crate::vmi::claims::Claims::from([(
            "data".to_owned(),
            Some(serde_json::from_value(claim).unwrap()),
        )]);
        let told = crate::vmi::claims::told(&vmi, &claims, &crate::kept::Kept::new().0).unwrap();
        let settings = Settings::default();
        let seen = Observed {
            claims_told: Some(&told),
            end_seen: SEEN_FOR,
            ..Observed::alone(&vmi, &settings, "launcher:1")
        };
        let decision = decide(&seen, now());
        let [Action::Create(pod)] = &decision.actions[..] else { panic!("{:?}", decision.actions) };
        let compute = pod.spec.as_ref().unwrap().containers[0].clone();
        let devices = compute.volume_devices.unwrap_or_default();
        devices.into_iter().map(|device| device.device_path).collect::<Vec<_>>()
    };
    assert_eq!(pod_with("Block"), ["/dev/root"]);
    assert_eq!(pod_with("Filesystem"), [""; 0]);
}
