//! Exports as the cache has them, and the CA of their certificates, for the controllers of exports and of backups.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::runtime::reflector::store::Writer;
use podvirt_api::v1::VirtualMachineExport;
use podvirt_daemon::pki::{self, KeyPairPem, Purpose};

use super::authority::{Authority, Filler};
use super::controller::names;
use crate::failure::Error;
use crate::kept::Kept;

/// Why nothing is signed.
pub(super) const NO_CA: &str = "the CA of exports is not there yet; virt-api makes it";

/// The cache and the CA. Clones see the same.
#[derive(Clone)]
pub struct Exports {
    /// Exports.
    pub exports: Kept<VirtualMachineExport>,
    pub(super) authority: Authority,
}

/// What fills them.
pub struct Writers {
    pub(super) exports: Writer<VirtualMachineExport>,
    pub(super) filler: Filler,
}

/// What a client of an exporter needs to be known by it, and to know it.
pub(crate) struct Identity {
    /// Its certificate and its key.
    pub(crate) pair: KeyPairPem,
    /// The CAs that the exporter's certificate may be of, as PEM.
    pub(crate) ca: Arc<str>,
}

impl Exports {
    /// Nothing is known yet; `namespace` is podvirt's own.
    pub fn new(client: Client, namespace: &str) -> (Exports, Writers) {
        let (exports, writer) = Kept::indexed(names);
        let (authority, filler) = Authority::new(client, namespace);
        (Exports { exports, authority }, Writers { exports: writer, filler })
    }

    /// An identity of a client of exporters, with a common name, for some time from now on.
    ///
    /// # Errors
    ///
    /// The CA is not there yet, or signs nothing.
    pub(crate) fn identify(&self, name: &str, now: Timestamp, life: Duration) -> Result<Identity, Error> {
        let ca = self.authority.ca();
        let (Some(signs), Some(bundle)) = (ca.pair, ca.bundle) else {
            return Err(Error::Refused(NO_CA.to_owned()));
        };
        let pair = pki::make_leaf(&signs, name, &[], Purpose::Client, now, life);
        let pair = pair.map_err(|error| Error::Refused(format!("certificate not made: {error}")))?;
        Ok(Identity { pair, ca: bundle })
    }

    /// What a test gives; `ca` signs, and is trusted.
    #[cfg(test)]
    pub(crate) fn with(
        client: Client,
        exports: Vec<VirtualMachineExport>,
        ca: Option<KeyPairPem>,
    ) -> Exports {
        let authority = Authority::with(client, ca);
        Exports { exports: Kept::with(exports).0, authority }
    }
}
