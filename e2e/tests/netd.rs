//! netd, by the expectations that passt fulfils, and by its own.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

mod libvirt;
mod scenario;

use podvirt_e2e::{Backend, Boot};

#[test]
fn netd_serves_the_tiny_guest_under_qemu() {
    scenario::everything_a_guest_needs(Backend::Netd, Boot::Qemu);
}

#[test]
fn netd_serves_the_tiny_guest_as_user_mode_linux() {
    scenario::everything_a_guest_needs(Backend::Netd, Boot::Uml);
}

#[test]
fn long_netd_serves_debian() {
    scenario::a_distribution_finds_its_network(Backend::Netd);
}
