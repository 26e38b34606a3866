//! Modules use each other in one direction: the order that is drawn in `src/lib.rs`.

// The configuration's permission for tests does not reach helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The names in the drawing, in their order. A line's first column says what its modules have in common.
fn drawn(lib: &str) -> Vec<&str> {
    let (_, order) = lib.split_once("//! # Order").unwrap();
    let drawing = order.split("```").nth(1).unwrap();
    let lines = drawing.lines().filter_map(|line| line.strip_prefix("//! ")).filter(|line| *line != "text");
    lines.flat_map(|line| line.get(13..).unwrap_or_default().split_whitespace()).collect()
}

/// A file without its comments, and without what stands behind `#[cfg(test)] mod NAME {`.
fn production(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().map(|line| line.split("//").next().unwrap());
    let mut kept = String::new();
    let mut hidden = false;
    for line in lines {
        if hidden && line.starts_with("mod ") && line.ends_with('{') {
            break;
        }
        hidden = line.trim() == "#[cfg(test)]";
        kept += line;
        kept.push('\n');
    }
    kept
}

/// The files of a module that are built into netd, those of its submodules included.
fn files(file: PathBuf, directory: &Path, all: &mut Vec<PathBuf>) {
    let text = production(&file);
    all.push(file);
    let mut hidden = false;
    for line in text.lines() {
        let Some(name) =
            line.trim_start_matches("pub(crate) ").trim_start_matches("pub ").strip_prefix("mod ")
        else {
            hidden = hidden && line.starts_with("#[")
                || line.starts_with("#[cfg(test)]")
                || line.starts_with("#[cfg(any(test");
            continue;
        };
        let Some(name) = name.strip_suffix(';').filter(|_| !std::mem::take(&mut hidden)) else { continue };
        let (flat, own) = (directory.join(format!("{name}.rs")), directory.join(name));
        let file = if flat.exists() { flat } else { own.join("mod.rs") };
        files(file, &own, all);
    }
}

/// The modules that a text names by `crate::NAME` or `use crate::{NAME, …}`.
fn used(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (_, rest) in text.match_indices("crate::").map(|(at, found)| text.split_at(at + found.len())) {
        let list = rest.strip_prefix('{').map(|rest| rest.split_once('}').unwrap().0);
        for item in list.map_or(vec![rest], |list| list.split(',').collect()) {
            let item = item.trim_start();
            let end = item.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(item.len());
            names.push(&item[..end]);
        }
    }
    names
}

#[test]
fn modules_use_what_stands_before_them() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = fs::read_to_string(source.join("lib.rs")).unwrap();
    let order = drawn(&lib);
    let place: HashMap<&str, usize> = order.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    let declared = lib.lines().filter_map(|l| l.strip_prefix("pub mod ")?.strip_suffix(';'));
    let declared: Vec<&str> = declared.filter(|name| *name != "fuzzing").collect();
    let mut sorted = (order.clone(), declared);
    sorted.0.sort_unstable();
    sorted.1.sort_unstable();
    assert_eq!(sorted.0, sorted.1, "the drawing in src/lib.rs and the modules that are declared below it");

    let (mut wrong, mut seen) = (Vec::new(), 0);
    for module in &order {
        let (flat, own) = (source.join(format!("{module}.rs")), source.join(module));
        let mut of_module = Vec::new();
        files(if flat.exists() { flat } else { own.join("mod.rs") }, &own, &mut of_module);
        for file in of_module {
            let text = production(&file);
            for name in used(&text).into_iter().filter(|name| place.contains_key(name)) {
                seen += 1;
                if place[name] > place[module] {
                    let file = file.strip_prefix(&source).unwrap().display();
                    wrong.push(format!("{file}: {module} uses {name}, which stands behind it"));
                }
            }
        }
    }
    assert!(
        seen > 300,
        "only {seen} uses were found: the files are written in a way that this test does not read"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
