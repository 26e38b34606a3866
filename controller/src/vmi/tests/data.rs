//! Machines whose claims a DataVolume fills.

use super::*;
use crate::vmi::data::Filling;

fn look_at(
    vmi: &VirtualMachineInstance,
    consumers: &[Arc<Pod>],
    claims: &[(String, Problem)],
    data: &[Arc<DataVolume>],
) -> Decision {
    let (settings, told) = (Settings::default(), Told::new());
    let seen = Observed {
        consumers,
        data,
        claims,
        claims_told: Some(&told),
        end_seen: SEEN_FOR,
        ..Observed::alone(vmi, &settings, "launcher:1")
    };
    decide(&seen, now())
}

fn pending() -> VirtualMachineInstance {
    machine("Pending", json!({"spec": {"volumes": [{"name": "a", "dataVolume": {"name": "disk"}}]}}))
}

fn problem(filling: Filling) -> [(String, Problem); 1] {
    [("disk".to_owned(), Problem::Filling(filling))]
}

fn made(decision: &Decision) -> Vec<bool> {
    let pods = decision.actions.iter().filter_map(|action| match action {
        Action::Create(pod) => Some(crate::vmi::observe::is_consumer(pod)),
        _ => None,
    });
    pods.collect()
}

#[test]
fn a_machine_has_no_pod_while_its_claim_is_filled_and_says_what_holds_that_up() {
    let decision = look_at(&pending(), &[], &problem(Filling::Goes(None)), &[]);
    assert_eq!((decision.actions.len(), decision.look_again.is_some()), (0, true));
    assert_eq!(condition(&decision, "Synchronized"), None);
    let why = Filling::Goes(Some("DataVolume disk is held up".into()));
    let decision = look_at(&pending(), &[], &problem(why), &[]);
    let (_, reason, message) = condition(&decision, "Synchronized").unwrap();
    assert_eq!((reason.as_str(), message.as_str()), ("FailedDataVolumeImport", "DataVolume disk is held up"));
    let decision = look_at(&decision.vmi, &[], &[], &[]);
    assert_eq!(made(&decision), [false], "the launcher pod, once it is filled");
    assert_eq!(condition(&decision, "Synchronized"), None);
}

#[test]
fn a_machine_fails_with_its_data_volume() {
    let decision =
        look_at(&pending(), &[], &problem(Filling::Failed("DataVolume disk has failed".into())), &[]);
    assert_eq!(phase(&decision), Phase::Failed);
    assert_eq!(told(&decision), ["FailedDataVolumeImport"]);
}

#[test]
fn a_claim_that_waits_for_a_consumer_gets_one_that_is_gone_before_the_machine_starts() {
    let waits = problem(Filling::WaitsForConsumer);
    let decision = look_at(&pending(), &[], &waits, &[]);
    assert_eq!(made(&decision), [true]);
    assert_eq!(condition(&decision, "Provisioning").unwrap().0, "True");
    let consumer = |more: Value| {
        let mut given = json!({"metadata": {"annotations": {"kubevirt.io/ephemeral-provisioning": "true"}}});
        json_patch::merge(&mut given, &more);
        [pod("c1", given)]
    };
    let ended = consumer(json!({"status": {"phase": "Succeeded"}}));
    let again = look_at(&decision.vmi, &ended, &waits, &[]);
    assert_eq!((again.actions.len(), again.vmi == decision.vmi), (0, true), "CDI fills the claim");
    let failed = look_at(&decision.vmi, &consumer(json!({"status": {"phase": "Failed"}})), &waits, &[]);
    assert_eq!(phase(&failed), Phase::Failed);
    let filled = look_at(&decision.vmi, &ended, &[], &[]);
    assert!(matches!(&filled.actions[..], [Action::Delete { .. }]), "{:?}", filled.actions);
    let leaving = consumer(json!({"metadata": {"deletionTimestamp": NOW}}));
    assert_eq!(look_at(&filled.vmi, &leaving, &[], &[]).actions.len(), 0);
    let start = look_at(&filled.vmi, &[], &[], &[]);
    assert_eq!((made(&start), condition(&start, "Provisioning")), (vec![false], None));
    // One that is deleted takes it along.
    let mut going = pending();
    going.metadata.deletion_timestamp = serde_json::from_value(NOW.into()).unwrap();
    let end = look_at(&going, &ended, &waits, &[]);
    assert!(matches!(&end.actions[..], [Action::Delete { .. }]));
}

#[test]
fn whether_all_data_volumes_are_ready_is_told() {
    let volume = |ready: &str| -> Arc<DataVolume> {
        let conditions =
            if ready.is_empty() { json!([]) } else { json!([{"type": "Ready", "status": ready}]) };
        Arc::new(serde_json::from_value(json!({"status": {"conditions": conditions}})).unwrap())
    };
    let waits = problem(Filling::Goes(None));
    for (given, status, reason) in [
        (&["True", "True"][..], "True", "AllDVsReady"),
        (&["True", ""], "Unknown", "NotAllDVsReady"),
        (&["", "False"], "False", "NotAllDVsReady"),
    ] {
        let data: Vec<_> = given.iter().map(|ready| volume(ready)).collect();
        let (is, because, _) =
            condition(&look_at(&pending(), &[], &waits, &data), "DataVolumesReady").unwrap();
        assert_eq!((is.as_str(), because.as_str()), (status, reason), "{given:?}");
    }
    assert_eq!(condition(&look_at(&pending(), &[], &waits, &[]), "DataVolumesReady"), None);
}
