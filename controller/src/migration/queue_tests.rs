use kube::runtime::reflector::store::Writer;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const LIMITS: Limits = Limits { cluster: 5, node: 2 };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// A migration of the machine of this name; its UID is `m-` and the name.
fn migration(machine: &str, phase: &str, more: Value) -> Migration {
    let mut object = json!({
        "metadata": {"name": format!("move-{machine}"), "namespace": "shop", "uid": format!("m-{machine}"),
            "creationTimestamp": at(0).to_string()},
        "spec": {"vmiName": machine},
        "status": {"phase": phase},
    });
    json_patch::merge(&mut object, &more);
    serde_json::from_value(object).unwrap()
}

/// A queue, and the machines that it sees.
struct Bed {
    queue: Queue,
    machines: Writer<VirtualMachineInstance>,
}

impl Bed {
    fn new(machines: impl IntoIterator<Item = (String, String)>) -> Self {
        let (view, mut writer) = View::new();
        writer.apply_watcher_event(&Event::Init);
        for (name, node) in machines {
            writer.apply_watcher_event(&Event::InitApply(machine(&name, &node, json!({}))));
        }
        writer.apply_watcher_event(&Event::InitDone);
        Self { queue: Queue::new(view), machines: writer }
    }

    fn put(&self, migration: Migration) {
        assert!(self.queue.apply(&Event::Apply(migration), at(0)).is_empty());
    }

    /// Machines whose migrations may start.
    fn turns(&self, machines: &[&str], limits: Limits) -> Vec<String> {
        let is_turn = |name: &&&str| self.queue.is_turn(&format!("m-{name}"), limits, at(0));
        machines.iter().filter(is_turn).map(ToString::to_string).collect()
    }

    fn looks(&self) -> usize {
        self.queue.lock().looks.take()
    }
}

fn machine(name: &str, node: &str, more: Value) -> VirtualMachineInstance {
    let mut vmi = json!({
        "metadata": {"name": name, "namespace": "shop", "uid": name},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "nodeName": node},
    });
    json_patch::merge(&mut vmi, &more);
    serde_json::from_value(vmi).unwrap()
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, node)| ((*name).to_owned(), (*node).to_owned())).collect()
}

#[test]
fn what_is_looked_at_does_not_grow_with_the_queue() {
    let each = |n: usize, of_nodes: usize| {
        let names: Vec<String> = (0..n).map(|i| format!("web-{i}")).collect();
        let bed = Bed::new(names.iter().map(|name| (name.clone(), format!("n{}", name.len() % of_nodes))));
        for name in &names {
            bed.put(migration(name, "Pending", json!({})));
        }
        let made = bed.looks();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(bed.turns(&names, LIMITS).len(), LIMITS.cluster.min(LIMITS.node * of_nodes));
        let asked = bed.looks();
        for name in &names {
            assert_eq!(bed.queue.changed(Some(("shop", name)), at(0)).len(), 1);
            assert_eq!(bed.queue.siblings(&migration(name, "Pending", json!({}))).len(), 1);
        }
        (made.div_ceil(n), asked.div_ceil(n), bed.looks().div_ceil(n))
    };
    for of_nodes in [1, 3] {
        let (made, asked, changed) = each(500, of_nodes);
        assert!(made <= 2 && changed <= 4, "{made} for each that came, {changed} for each that changed");
        assert!(asked <= 2 + 2 * LIMITS.cluster + LIMITS.node, "{asked} for each question");
    }
}

#[test]
fn the_most_urgent_then_the_oldest_go_first() {
    let all = ["late", "early", "upkeep", "drain"];
    let bed = Bed::new(pairs(&[("late", "a"), ("early", "b"), ("upkeep", "c"), ("drain", "d"), ("x", "x")]));
    let made = |second| json!({"metadata": {"creationTimestamp": at(second).to_string()}});
    bed.put(migration("late", "Pending", made(2)));
    bed.put(migration("early", "Pending", made(1)));
    let upkeep = json!({"spec": {"priority": "system-maintenance"}});
    bed.put(migration("upkeep", "Pending", upkeep));
    let mut drain = made(9);
    drain["metadata"]["annotations"] = json!({"kubevirt.io/evacuationMigration": "d"});
    bed.put(migration("drain", "Pending", drain));
    let limits = |cluster| Limits { cluster, node: 2 };
    assert_eq!(bed.turns(&all, limits(1)), ["drain"]);
    assert_eq!(bed.turns(&all, limits(2)), ["early", "drain"]);
    bed.put(migration("x", "Running", json!({})));
    assert_eq!(bed.turns(&all, limits(3)), ["early", "drain"]);
    assert_eq!(bed.turns(&all, limits(1)), [""; 0]);
}

#[test]
fn what_a_user_asked_for_does_not_hold_up_the_drain_of_its_machines_node() {
    let names: Vec<String> = (0..20).map(|n| format!("web-{n:02}")).collect();
    let mut bed = Bed::new(names.iter().map(|name| (name.clone(), "n1".to_owned())));
    for name in &names {
        bed.put(migration(name, "Pending", json!({})));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(bed.turns(&names, LIMITS), ["web-00", "web-01"]);
    let leaving = machine("web-19", "n1", json!({"status": {"evacuationNodeName": "n1"}}));
    bed.machines.apply_watcher_event(&Event::Apply(leaving));
    bed.queue.changed(Some(("shop", "web-19")), at(0));
    assert_eq!(bed.turns(&names, LIMITS), ["web-00", "web-19"]);
}

#[test]
fn a_machine_that_does_not_run_yet_keeps_no_place_from_others() {
    let mut bed = Bed::new(pairs(&[("a", "n"), ("b", "n")]));
    let starts = machine("a", "n", json!({"status": {"phase": "Scheduled"}}));
    bed.machines.apply_watcher_event(&Event::Apply(starts));
    for name in ["a", "b"] {
        bed.put(migration(name, "Pending", json!({})));
    }
    let limits = Limits { cluster: 1, node: 1 };
    assert_eq!(bed.turns(&["a", "b"], limits), ["b"]);
    bed.machines.apply_watcher_event(&Event::Apply(machine("a", "n", json!({}))));
    bed.queue.changed(Some(("shop", "a")), at(0));
    assert_eq!(bed.turns(&["a", "b"], limits), ["a"], "its turn has come");
}

#[test]
fn a_machine_that_a_backup_holds_keeps_no_place_from_others() {
    let mut bed = Bed::new(pairs(&[("a", "n"), ("b", "n")]));
    for name in ["a", "b"] {
        bed.put(migration(name, "Pending", json!({})));
    }
    let limits = Limits { cluster: 1, node: 1 };
    assert_eq!(bed.turns(&["a", "b"], limits), ["a"]);
    for held in [
        json!({"status": {"changedBlockTracking": {"backupStatus": {"backupName": "nightly"}}}}),
        json!({"spec": {"utilityVolumes": [{"name": "copies", "claimName": "c"}]}}),
    ] {
        bed.machines.apply_watcher_event(&Event::Apply(machine("a", "n", held)));
        bed.queue.changed(Some(("shop", "a")), at(0));
        assert_eq!(bed.turns(&["a", "b"], limits), ["b"]);
        bed.machines.apply_watcher_event(&Event::Apply(machine("a", "n", json!({}))));
        bed.queue.changed(Some(("shop", "a")), at(0));
        assert_eq!(bed.turns(&["a", "b"], limits), ["a"], "the backup has ended");
    }
}

#[test]
fn a_migration_whose_pod_is_refused_goes_behind_all_others_and_starts_where_there_is_room() {
    let bed = Bed::new(pairs(&[("full", "n"), ("late", "n")]));
    let condition = json!([{"type": "migrationRejectedByResourceQuota", "status": "True"}]);
    let urgent = json!({"spec": {"priority": "system-critical"}, "status": {"conditions": condition}});
    bed.put(migration("full", "Pending", urgent));
    bed.put(migration("late", "Pending", json!({"metadata": {"creationTimestamp": at(9).to_string()}})));
    let turns = |node: usize| bed.turns(&["full", "late"], Limits { cluster: 5, node });
    assert_eq!(turns(1), ["late"]);
    assert_eq!(turns(2), ["full", "late"]);
}

#[test]
fn an_evacuation_rests_after_a_failed_one_until_its_time_has_come() {
    let bed = Bed::new(pairs(&[("web", "n1")]));
    let evacuation = |uid: &str| json!({"metadata": {"uid": uid, "annotations": {"kubevirt.io/evacuationMigration": "n1"}}});
    let mut failed = evacuation("m-old");
    failed["status"] = json!({"phaseTransitionTimestamps": [
        {"phase": "Failed", "phaseTransitionTimestamp": at(0).to_string()}]});
    bed.put(migration("web", "Pending", evacuation("m-web")));
    assert!(bed.queue.is_turn("m-web", LIMITS, at(0)));
    bed.put(migration("web", "Failed", failed));
    assert!(!bed.queue.is_turn("m-web", LIMITS, at(1)));
    assert!(bed.queue.is_turn("m-web", LIMITS, at(21)));
}

#[test]
fn what_was_let_start_counts_and_what_a_new_list_lacks_does_not() {
    let all = ["a", "b", "c"];
    let bed = Bed::new(pairs(&[("a", "n"), ("b", "n"), ("c", "n")]));
    for name in all {
        bed.put(migration(name, "Pending", json!({})));
    }
    bed.queue.start("m-b", at(0));
    bed.queue.start("m-c", at(0));
    assert_eq!(bed.turns(&all, LIMITS), ["b", "c"]);
    bed.queue.stop("m-b", at(0));
    assert_eq!(bed.turns(&all, LIMITS), ["a", "c"]);
    let mut gone = Vec::new();
    let list = [migration("a", "Pending", json!({})), migration("b", "Pending", json!({}))];
    let list = list.into_iter().map(Event::InitApply);
    for event in [Event::Init].into_iter().chain(list).chain([Event::InitDone]) {
        gone.extend(bed.queue.apply(&event, at(0)));
    }
    assert_eq!(gone, ["m-c"]);
    assert_eq!(bed.turns(&all, LIMITS), ["a", "b"]);
    for name in ["a", "b"] {
        bed.queue.apply(&Event::Delete(migration(name, "Pending", json!({}))), at(0));
    }
    let state = bed.queue.lock();
    let left = (state.machines.len(), state.entries.len(), state.nodes.len(), state.heads.len());
    assert_eq!((left, state.started.len(), state.running), ((0, 0, 0, 0), 0, 0), "nothing is left of them");
}

/// UIDs of those that may start, found by looking through all: urgency, second, node and UID of each that waits.
fn admit(
    mut waiting: Vec<(Urgency, i64, String, String)>,
    running: &[String],
    limits: Limits,
) -> BTreeSet<String> {
    waiting.sort_by_key(|(urgency, since, _, uid)| (Reverse(*urgency), *since, uid.clone()));
    let mut of_node: BTreeMap<String, usize> = BTreeMap::new();
    for node in running {
        *of_node.entry(node.clone()).or_default() += 1;
    }
    let mut all = running.len();
    let mut admitted = BTreeSet::new();
    for (_, _, node, uid) in waiting {
        let of_node = of_node.entry(node).or_default();
        if all < limits.cluster && *of_node < limits.node {
            all += 1;
            *of_node += 1;
            admitted.insert(uid);
        }
    }
    admitted
}

proptest! {
    #[test]
    fn turns_are_those_that_a_look_at_all_finds(
        waiting in proptest::collection::vec((0_u8..4, 0_u8..3, 0_i64..3), 0..14),
        running in proptest::collection::vec(0_u8..4, 0..6),
        cluster in 0_usize..9,
        node in 0_usize..4,
    ) {
        let name = |n: &u8| format!("n{n}");
        let machines = waiting.iter().map(|(n, ..)| n).chain(&running).map(name).enumerate();
        let bed = Bed::new(machines.map(|(i, node)| (format!("{i:02}"), node)));
        let mut all = Vec::new();
        for (i, (node, urgency, second)) in waiting.iter().enumerate() {
            let (priority, urgency) = [
                ("system-maintenance", Urgency::Maintenance),
                ("user-triggered", Urgency::User),
                ("system-critical", Urgency::Critical),
            ][usize::from(*urgency)];
            bed.put(migration(&format!("{i:02}"), "Pending", json!({
                "metadata": {"creationTimestamp": at(*second).to_string()}, "spec": {"priority": priority}})));
            all.push((urgency, *second, name(node), format!("m-{i:02}")));
        }
        for i in waiting.len()..waiting.len() + running.len() {
            bed.put(migration(&format!("{i:02}"), "Running", json!({})));
        }
        let limits = Limits { cluster, node };
        let running: Vec<String> = running.iter().map(name).collect();
        let expected = admit(all.clone(), &running, limits);
        let turns: BTreeSet<String> = all
            .into_iter()
            .map(|(_, _, _, uid)| uid)
            .filter(|uid| bed.queue.is_turn(uid, limits, at(0)))
            .collect();
        prop_assert_eq!(turns, expected);
    }
}
