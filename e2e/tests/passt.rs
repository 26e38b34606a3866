//! The oracle: what every test expects of netd, passt does too. When one of these fails, the test bed is wrong.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

mod scenario;

use podvirt_e2e::{Backend, Boot};

#[test]
fn passt_serves_the_tiny_guest_under_qemu() {
    scenario::everything_a_guest_needs(Backend::Passt, Boot::Qemu);
}

#[test]
fn passt_serves_the_tiny_guest_as_user_mode_linux() {
    scenario::everything_a_guest_needs(Backend::Passt, Boot::Uml);
}

#[test]
fn long_passt_serves_debian() {
    scenario::a_distribution_finds_its_network(Backend::Passt);
}
