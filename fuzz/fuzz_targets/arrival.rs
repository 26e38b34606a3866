//! See `netd::fuzzing::arrival`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: netd::fuzzing::nowhere().expect("a network namespace"),
    |data: &[u8]| netd::fuzzing::arrival(data)
);
