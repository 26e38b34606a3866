//! The dirty log against an oracle: what changed in memory, looked at before and after.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::test_driver::*;
use super::*;

const PAGE: u64 = 0x1000;
/// Pages that the log has bits for: beyond the last region.
const PAGES: u64 = 0x100;

fn log() -> (File, Arc<DirtyLog>) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGES / 8).unwrap();
    let log = DirtyLog::new(file.try_clone().unwrap(), 0, PAGES / 8).unwrap();
    (file, log)
}

/// The pages that are marked, and no longer are.
fn harvest(file: &File) -> BTreeSet<u64> {
    let mut bits = [0u8; (PAGES / 8) as usize];
    file.read_exact_at(&mut bits, 0).unwrap();
    file.write_all_at(&[0; (PAGES / 8) as usize], 0).unwrap();
    (0..PAGES).filter(|p| bits[(p / 8) as usize] & (1 << (p % 8)) != 0).collect()
}

fn contents(driver: &Driver) -> Vec<(u64, Vec<u8>)> {
    let page = |at| {
        let mut bytes = vec![0; PAGE as usize];
        driver.mem.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        (at / PAGE, bytes)
    };
    REGIONS.iter().flat_map(|&(at, len)| (at..at + len as u64).step_by(PAGE as usize)).map(page).collect()
}

fn changed(before: &[(u64, Vec<u8>)], after: &[(u64, Vec<u8>)]) -> BTreeSet<u64> {
    before.iter().zip(after).filter(|(b, a)| b.1 != a.1).map(|(b, _)| b.0).collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// A chain of two buffers at these places, and how much of it is written.
    Receive {
        first: (u64, u32),
        second: (u64, u32),
        part: u32,
    },
    /// A chain of the driver that is only read.
    Transmit,
    Log(bool),
    /// The frontend gives a new log, as it does when memory is added.
    Replace,
    Kicks,
}

fn buffer() -> impl Strategy<Value = (u64, u32)> {
    // Around the seam between two regions as well as inside one and in the last page of memory.
    let at = prop_oneof![DATA..0x2_f000, 0x2_f000u64..0x3_1000, Just(0x8_0000u64)];
    (at, 1u32..0xfff)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (buffer(), buffer(), 0u32..0x2000)
            .prop_map(|(first, second, part)| Step::Receive { first, second, part }),
        1 => Just(Step::Transmit),
        2 => any::<bool>().prop_map(Step::Log),
        1 => Just(Step::Replace),
        1 => Just(Step::Kicks),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_page_is_marked_when_it_was_written_and_only_then(
        event_idx: bool,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut driver = Driver::new(4, 0, event_idx);
        let map = driver.map();
        let mut ring = Ring::new(driver.layout, Arc::clone(&map), eventfd(), None, None).unwrap();
        let (mut file, mut dirty) = log();
        let mut on = false;
        for (number, step) in steps.into_iter().enumerate() {
            // Never what is there already.
            let byte = number as u8 + 1;
            let mut allowed = BTreeSet::new();
            match step {
                Step::Log(yes) => {
                    on = yes;
                    map.set_log(on.then(|| Arc::clone(&dirty)));
                    continue;
                }
                Step::Replace => {
                    prop_assert!(harvest(&file).is_empty());
                    (file, dirty) = log();
                    map.set_log(on.then(|| Arc::clone(&dirty)));
                    continue;
                }
                _ => {}
            }
            if let Step::Receive { first, second, .. } = &step {
                driver.desc(0, first.0, first.1, WRITE | NEXT, 1);
                driver.desc(1, second.0, second.1, WRITE, 0);
                driver.offer(0);
            } else if let Step::Transmit = &step {
                driver.desc(0, DATA, 100, 0, 0);
                driver.offer(0);
            }
            let before = contents(&driver);
            let (mut readable, mut writable) = (Iovs::new(), Iovs::new());
            match &step {
                Step::Kicks => {
                    ring.suppress_kicks();
                    ring.request_kicks();
                }
                Step::Receive { first, second, part } => {
                    let popped = ring.pop(&mut readable, &mut writable).unwrap().unwrap();
                    let n = writable.write(0, 0, &vec![byte; *part as usize]);
                    ring.mark_written(&writable, 0, n);
                    ring.push_used(popped.head, n as u32);
                    ring.publish();
                    let in_first = (n as u64).min(first.1.into());
                    for (at, len) in [(first.0, in_first), (second.0, n as u64 - in_first)] {
                        allowed.extend((at..at + len).map(|a| a / PAGE));
                    }
                }
                _ => {
                    let popped = ring.pop(&mut readable, &mut writable).unwrap().unwrap();
                    ring.push_used(popped.head, 0);
                    ring.publish();
                }
            }
            let (wrote, marked) = (changed(&before, &contents(&driver)), harvest(&file));
            if !on {
                prop_assert!(marked.is_empty(), "marked without a log in use: {marked:x?}");
                continue;
            }
            allowed.insert(USED / PAGE);
            prop_assert!(wrote.is_subset(&marked), "written {wrote:x?}, marked {marked:x?}");
            prop_assert!(marked.is_subset(&allowed), "marked {marked:x?}, allowed {allowed:x?}");
        }
    }
}

#[test]
fn pages_beyond_the_log_are_left_out_and_a_longer_log_has_them() {
    let map = Driver::new(4, 0, false).map();
    let short = tempfile::tempfile().unwrap();
    short.set_len(1).unwrap();
    map.set_log(Some(DirtyLog::new(short.try_clone().unwrap(), 0, 1).unwrap()));
    map.mark_dirty(0x7_fff, 2);
    map.mark_dirty(u64::MAX, 2);
    let mut bits = [0; 1];
    short.read_exact_at(&mut bits, 0).unwrap();
    assert_eq!(bits, [0x80]);
    let (long, dirty) = log();
    map.set_log(Some(dirty));
    map.mark_dirty(0x7_fff, 2);
    assert_eq!(harvest(&long), BTreeSet::from([7, 8]));
}
