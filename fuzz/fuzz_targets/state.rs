//! See `netd::fuzzing::state`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netd::fuzzing::state(data));
