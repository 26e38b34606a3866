//! What trees take of memory, counted by the allocator.

use peak_alloc::PeakAlloc;
use podvirt_api::budget::{self, BudgetError};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Bytes that are allocated at most while `work` runs, and what it makes.
fn counted<T>(work: impl FnOnce() -> T) -> (usize, T) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let made = work();
    (ALLOCATOR.peak_usage().saturating_sub(before), made)
}

#[test]
fn a_tree_takes_no_more_than_its_charge_and_a_refused_one_no_more_than_its_budget() {
    const MAX: usize = 4 << 20;
    let chain = format!("{}0{}", r#"{"":"#.repeat(120), "}".repeat(120));
    let member = |n: usize| format!(r#""{n:06}":{n}"#);
    for (name, part, many) in [
        ("levels", chain, 1_000),
        ("objects", r#"{"a":0}"#.to_owned(), 100_000),
        ("numbers", "0".to_owned(), 1_000_000),
        ("lists", "[[[[0]]]]".to_owned(), 100_000),
        ("texts", r#""""#.to_owned(), 500_000),
        ("members", format!("{{{}}}", (0..12).map(member).collect::<Vec<_>>().join(",")), 10_000),
        ("many members", format!("{{{}}}", (0..5_000).map(member).collect::<Vec<_>>().join(",")), 100),
    ] {
        for count in [1, many] {
            let text = format!("[{}]", vec![part.as_str(); count].join(","));
            let (bytes, read) = counted(|| budget::parse(text.as_bytes(), MAX));
            match read {
                // A list that grows has its old place for as long as it is copied.
                Ok(tree) => {
                    assert!(bytes <= budget::weigh(&tree) * 3 / 2 + 1024, "{count} {name}: {bytes} bytes");
                }
                Err(BudgetError::TooLarge { .. }) => {
                    assert!(count == many && bytes <= MAX * 3 / 2, "{count} {name}: {bytes} bytes");
                }
                Err(error) => unreachable!("{name}: {error}"),
            }
        }
    }
}
