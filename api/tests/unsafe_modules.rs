//! ADR 3 names every module of the workspace in which `unsafe` is allowed, and no other.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../../docs/adr/0003-two-modules-with-unsafe.md");

/// Every Rust file below `directory`, without build results.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// Whether the file allows `unsafe`: by an attribute, not by a word about it.
fn allows(text: &str) -> bool {
    text.lines().map(str::trim_start).any(|line| line.starts_with('#') && line.contains("allow(unsafe_code"))
}

/// The module of a file as the page has it: `room::module`, or a crate's name for its root.
fn module(root: &Path, file: &Path) -> String {
    let below = file.strip_prefix(root).unwrap();
    let parts: Vec<&str> = below.iter().map(|part| part.to_str().unwrap()).collect();
    let at = parts.iter().position(|part| *part == "src").unwrap();
    let manifest = fs::read_to_string(root.join(parts[..at].join("/")).join("Cargo.toml")).unwrap();
    let name =
        manifest.lines().find_map(|line| line.strip_prefix("name = \"")).unwrap().trim_end_matches('"');
    let modules: Vec<&str> = parts[at + 1..].iter().map(|part| part.trim_end_matches(".rs")).collect();
    let modules: Vec<&str> = modules.into_iter().filter(|part| *part != "mod" && *part != "lib").collect();
    if modules.is_empty() {
        return name.to_owned();
    }
    // Rooms of one folder go by its name, crates within one by their own.
    let room = if at == 1 { parts[0].to_owned() } else { name.replace('-', "_") };
    format!("{room}::{}", modules.join("::"))
}

/// The names that the page gives: those of the decision's first paragraph, and the first column of the table.
fn named() -> BTreeSet<String> {
    let decision = PAGE.split("## Decision").nth(1).unwrap().split("## Rejected").next().unwrap();
    let rows =
        decision.lines().filter(|line| line.starts_with("| `")).map(|line| line.split('|').nth(1).unwrap());
    let first = decision.split("Both are").next().unwrap();
    let marked =
        |text: &str| -> Vec<String> { text.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let names = rows.flat_map(marked).chain(marked(first));
    names.filter(|name| name != "unsafe").collect()
}

#[test]
fn every_module_that_allows_unsafe_is_in_the_decision_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    sources(root, &mut files);
    assert!(files.len() > 1000, "{}", files.len());
    let own = Path::new(file!()).file_name().unwrap();
    let files = files.iter().filter(|file| file.file_name() != Some(own));
    let found: BTreeSet<String> = files
        .filter(|file| allows(&fs::read_to_string(file).unwrap()))
        .map(|file| module(root, file))
        .collect();
    assert_eq!(found, named());
}
