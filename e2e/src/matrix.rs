//! `docs/networking.md` says what was tested, and by which test: a cell that names none, or a test that is not there, fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What a cell may say instead of naming tests.
const WORDS: [&str; 2] = ["none", REFUSED];
/// That the API refuses it, which tests may follow.
const REFUSED: &str = "refused";

fn document() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/networking.md")).unwrap()
}

/// The cells of each line of the first table behind a heading, without its own two.
fn table(document: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, rest) = document.split_once(heading).unwrap();
    let lines =
        rest.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let inner = line.trim_start_matches('|').trim_end_matches('|');
        inner.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    lines.skip(2).map(cells).collect()
}

/// The names of the tests in these files and directories: functions under `#[test]`.
fn tests(paths: impl Iterator<Item = PathBuf>, found: &mut BTreeSet<String>) {
    for path in paths {
        if path.is_dir() {
            tests(within(&path), found);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let functions =
            text.split("#[test]").skip(1).filter_map(|after| after.trim_start().strip_prefix("fn "));
        found.extend(functions.filter_map(|function| Some(function.split_once('(')?.0.to_owned())));
    }
}

fn within(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path())
}

#[test]
fn every_cell_of_the_networks_matrix_names_a_test_that_there_is() {
    let document = document();
    let mut there = BTreeSet::new();
    let all = within(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    // The table is about a cluster.
    let on_cluster =
        |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("cluster_"));
    tests(all.filter(on_cluster), &mut there);
    let mut named = BTreeMap::new();
    for row in table(&document, "## Tests") {
        let [label, test] = row.as_slice() else { unreachable!("a label and a test: {row:?}") };
        let test = test.trim_matches('`').to_owned();
        assert!(there.contains(&test), "{label}: there is no test {test}");
        assert_eq!(named.insert(label.clone(), test), None, "{label} is there twice");
    }
    let mut used = BTreeSet::new();
    let rows = table(&document, "# What the network of a machine can do");
    assert!(rows.len() > 20, "{rows:?}");
    for row in rows {
        assert_eq!(row.len(), 7, "{row:?}");
        let (heading, cells) = (row[0].starts_with("**"), &row[1..]);
        for cell in cells {
            let word = WORDS.contains(&cell.as_str()) || (heading && cell.is_empty());
            let labels: Vec<String> =
                cell.split(", ").filter(|label| *label != REFUSED).map(str::to_owned).collect();
            assert!(word || labels.iter().all(|label| named.contains_key(label)), "{}: {cell:?}", row[0]);
            used.extend(labels);
        }
    }
    let idle: Vec<&String> = named.keys().filter(|label| !used.contains(*label)).collect();
    assert!(idle.is_empty(), "no cell has {idle:?}");
}
