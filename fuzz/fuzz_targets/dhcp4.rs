//! See `netd::fuzzing::dhcp4`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netd::fuzzing::dhcp4(data));
