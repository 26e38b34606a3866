//! Certificates of a mesh, and of a [webhook](super::super::Webhook), which this process makes.

use anyhow::Result;
use podvirt_daemon::pki::KeyPairPem;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

/// What issues them.
pub(in crate::cluster) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(in crate::cluster) fn new() -> Result<Authority> {
        let mut params = CertificateParams::default();
        // Another than those that it issues have: they would look like their own issuers.
        params.distinguished_name.push(DnType::CommonName, "mesh.test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(Authority(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Its own, as PEM.
    pub(in crate::cluster) fn certificate(&self) -> String {
        self.0.pem()
    }

    /// One for these names: an address is one, too.
    pub(in crate::cluster) fn issue(&self, names: &[String]) -> Result<KeyPairPem> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, names.join(" "));
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.0)?.pem();
        Ok(KeyPairPem { certificate, key: key.serialize_pem() })
    }
}
