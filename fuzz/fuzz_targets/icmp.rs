//! See `netd::fuzzing::icmp`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netd::fuzzing::icmp(data));
