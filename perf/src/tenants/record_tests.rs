use super::*;
use crate::tenants::victim::Times;

fn reached(share: f64, longer: f64, failed: f64) -> Reached {
    Reached {
        out_gbits: 4.0 * share,
        in_gbits: 3.0,
        round_trip: Times { p50: 200.0, p99: 500.0 * longer, failed: 0.0 },
        connection: Times { p50: 800.0, p99: 1500.0, failed },
    }
}

fn row(kind: Kind, beside: Reached) -> Row {
    Row {
        kind: kind.name().into(),
        alone: vec![reached(1.0, 1.0, 0.0); 2],
        beside: vec![beside],
        flood: Flood {
            frames_per_second: 250_000.0,
            pod_cpus: 0.6,
            interrupt_cpus: 0.2,
            alive_after_ms: Some(1.0),
            serves_after_ms: Some(12.0),
            most: Most { sockets: 16_384.0, backend_mib: 18.2, ..Most::default() },
            ..Flood::default()
        },
        error: None,
    }
}

fn sample() -> Record {
    let rows = vec![
        row(Kind::Computes, reached(0.97, 1.0, 0.0)),
        row(Kind::Syn, reached(0.79, 1.0, 0.0)),
        row(Kind::Udp, reached(0.9, 3.1, 0.0)),
        row(Kind::Flows, reached(0.8, 3.0, 0.0)),
        row(Kind::Urgent, reached(1.0, 1.0, 1.0)),
    ];
    let dead = Row {
        error: Some("it ended: signal 6\nand its log".into()),
        beside: Vec::new(),
        flood: Flood { pod_cpus: 0.1, pod_mib: 23.2, ..Flood::default() },
        ..row(Kind::Garbage, reached(1.0, 1.0, 0.0))
    };
    Record {
        date: "2026-01-31T12:00Z".into(),
        commit: "0123456789ab".into(),
        machine: Machine::sample(),
        processors: 0.6,
        rounds: 1,
        seconds: 3,
        stretch_seconds: 2.0,
        backends: vec![
            Backend { name: "netd".into(), rows, error: None },
            Backend { name: "passt".into(), rows: vec![dead], error: Some("no guest\nat all".into()) },
        ],
        notes: vec!["A note.".into()],
    }
}

#[test]
fn the_section_is_as_it_was() {
    insta::assert_snapshot!(sample().section().trim());
}

#[test]
fn what_is_required_is_all_of_it() {
    use Verdict::{Met, Missed};
    let backend = &sample().backends[0];
    let verdicts = backend.rows.iter().map(|row| row.verdict(backend.sharing())).collect::<Vec<_>>();
    assert_eq!(verdicts, [Met, Missed, Missed, Met, Missed]);
    let mut dead = row(Kind::Syn, reached(1.0, 1.0, 0.0));
    assert_eq!(dead.verdict(None), Met);
    dead.flood.serves_after_ms = None;
    assert_eq!(dead.verdict(None), Met);
    dead.flood.alive_after_ms = None;
    assert_eq!(dead.verdict(None), Missed);
}

#[test]
fn a_turn_is_compared_with_its_own_neighbours() {
    let of = |shares: &[f64]| shares.iter().map(|share| reached(*share, 1.0, 0.0)).collect();
    let row = Row { alone: of(&[1.0, 0.5, 0.25]), beside: of(&[0.75, 0.3]), ..Row::default() };
    assert_eq!(row.turns(OUT), [1.0, 0.3 / 0.375]);
    assert_eq!(row.turns(IN), [1.0, 1.0]);
}

#[test]
fn turns_that_disagree_decide_nothing() {
    let verdict = |turns: &[f64]| Verdict::of(turns, |share| share >= SHARE);
    assert_eq!(verdict(&[0.9, 0.7, 0.8, 1.0, 1.1]), Verdict::Met);
    assert_eq!(verdict(&[0.9, 0.7, 0.7, 1.0, 1.1]), Verdict::Undecided);
    assert_eq!(verdict(&[0.9, 0.7, 0.7, 0.7, 1.1]), Verdict::Undecided);
    assert_eq!(verdict(&[0.9, 0.7, 0.7, 0.7, 0.7]), Verdict::Missed);
    assert_eq!(verdict(&[]), Verdict::Missed);
}

#[test]
fn percentiles_are_compared_with_those_beside_a_neighbour_that_computes() {
    let mut backend = sample().backends.remove(0);
    backend.rows[0].beside = vec![reached(1.0, 4.0, 0.0)];
    let kept = |row: usize| backend.rows[row].kept(backend.sharing()).unwrap().round_trip;
    assert_eq!((kept(0), kept(3)), (vec![4.0], vec![3.0 / 4.0]));
}

#[test]
fn what_was_not_measured_is_no_figure() {
    let text = floods(&sample().backends[1]);
    let line = text.lines().next_back().unwrap();
    let cells = line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>();
    let cpus = "0.10 / 0.00 / 0.00";
    let kept = ["garbage frames", "–", cpus, "–", "–", "23", "–", "–", "–", "–", "**never**", "–"];
    assert_eq!(cells, kept);
}

#[test]
fn a_record_survives_its_file() {
    let text = serde_json::to_string(&sample()).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), sample());
}
