//! The process's one provider of cryptography: ring.

use std::sync::Once;

static INSTALL: Once = Once::new();

/// Makes ring the provider that rustls uses where none is named. May be called often.
pub fn install() {
    INSTALL.call_once(|| {
        // A refusal means that a provider is there already, which ring is for every program of this workspace.
        let _already_there = rustls::crypto::ring::default_provider().install_default();
    });
}
