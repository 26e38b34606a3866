//! See `netd::fuzzing::fragments`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netd::fuzzing::fragments(data));
