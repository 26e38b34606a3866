//! Every input of the corpus, and every input that ever failed, is run again.

use std::fs;
use std::path::Path;

/// Runs the corpus of a target.
fn replay(name: &str, target: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let mut inputs: Vec<_> = fs::read_dir(&corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{} is empty", corpus.display());
    for input in inputs {
        println!("{}", input.display());
        target(&fs::read(&input).unwrap());
    }
    // Nothing at all, and nothing but ones, is an input too.
    target(&[]);
    target(&[0xff; 512]);
}

macro_rules! corpus {
    ($($target:ident)*) => {$(
        mod $target {
            #[test]
            fn every_input_of_the_corpus_passes() {
                super::replay(stringify!($target), crate::fuzzing::$target);
            }
        }
    )*};
}

corpus!(ring vhost tcp dhcp4 dhcp6 neighbours fragments icmp control config state parcel);

/// Runs on a thread in a network namespace of its own. Without the privilege to make one it fails for root and is passed
/// over, loudly, for others.
fn isolated(test: impl FnOnce() + Send + 'static) {
    let run = move || match super::nowhere() {
        Ok(()) => test(),
        Err(error) => {
            let root = nix::unistd::geteuid().is_root();
            assert!(!root, "cannot make a network namespace: {error}; root needs it for this test");
            eprintln!("SKIPPED: cannot make a network namespace: {error}");
        }
    };
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_frame_of_the_corpus_passes() {
    isolated(|| replay("frames", super::frames));
}

#[test]
fn every_arrival_of_the_corpus_passes() {
    isolated(|| replay("arrival", super::arrival));
}

/// Runs an input that once failed.
fn again(name: &str, target: fn(&[u8])) {
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/regressions").join(name);
    target(&fs::read(input).unwrap());
}

/// netd waited for ever to write to an error descriptor that was full and that no process read.
#[test]
fn a_full_error_descriptor_stops_no_thread() {
    again("vhost-full-error-descriptor", super::vhost);
}

/// netd waited a second for each acknowledgement that the daemon had not been asked for.
#[test]
fn acknowledgements_that_are_not_owed_are_not_waited_for() {
    again("vhost-owed-acknowledgement", super::vhost);
}

/// An adopted connection counted its retransmissions beyond the largest number.
#[test]
fn a_count_that_is_at_its_end_is_counted_on() {
    again("state-count-at-its-end", super::state);
}
