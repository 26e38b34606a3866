//! See `netd::fuzzing::dhcp6`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netd::fuzzing::dhcp6(data));
