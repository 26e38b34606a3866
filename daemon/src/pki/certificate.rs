//! Making and reading certificates. Nothing here knows the cluster or the clock.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, DnValue,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, PublicKey, PublicKeyData, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::tls::provider;

/// How far before `now` a certificate begins to be valid, for peers whose clock is behind.
pub(super) const BACKDATE: Duration = Duration::from_secs(300);

/// Bytes of a point on P-256, uncompressed.
const P256_POINT: usize = 65;

/// Why a certificate could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The text holds no certificate.
    #[error("no certificate in the PEM text")]
    NoCertificate,
    /// The text is no PEM, or holds something else than what is wanted.
    #[error("the PEM text cannot be read: {0}")]
    Pem(String),
    /// The certificate is no X.509.
    #[error("the certificate cannot be read: {0}")]
    X509(String),
    /// Certificate and key do not belong together, or the key is of an unknown kind.
    #[error("certificate and key do not fit")]
    Key(#[source] rustls::Error),
    /// The library refused to make it.
    #[error("the certificate cannot be made")]
    Make(#[from] rcgen::Error),
    /// The text is no request for a certificate, or its signature is wrong.
    #[error("the request for a certificate cannot be read")]
    Request(#[source] rcgen::Error),
    /// A request asks for what no certificate of ours has.
    #[error("the request asks for {0}")]
    Names(String),
}

/// A certificate chain and its private key as PEM. `Debug` does not show the key.
#[derive(Clone)]
pub struct KeyPairPem {
    /// Certificate, the signed one first.
    pub certificate: String,
    /// Private key (PKCS #8). Never log it.
    pub key: String,
}

impl fmt::Debug for KeyPairPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPairPem").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl KeyPairPem {
    /// The pair as rustls wants it, after checking that key and certificate belong together.
    ///
    /// # Errors
    ///
    /// A part cannot be read, or they do not fit.
    pub fn certified_key(&self) -> Result<CertifiedKey, CertificateError> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())
            .map_err(|e| CertificateError::Pem(format!("private key: {}", pem_error(&e))))?;
        CertifiedKey::from_der(chain, key, &provider()).map_err(CertificateError::Key)
    }
}

/// Says what is wrong with a PEM text without repeating any of it.
fn pem_error(error: &rustls::pki_types::pem::Error) -> &'static str {
    use rustls::pki_types::pem::Error;
    match error {
        Error::MissingSectionEnd { .. } => "a section has no end",
        Error::IllegalSectionStart { .. } => "a section begins wrongly",
        Error::Base64Decode(_) => "a section is not base64",
        Error::NoItemsFound => "nothing found",
        _ => "not PEM",
    }
}

/// All certificates of a PEM text; at least one.
pub(super) fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| CertificateError::Pem(pem_error(&e).to_owned()))?;
    if found.is_empty() { Err(CertificateError::NoCertificate) } else { Ok(found) }
}

/// What a leaf certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A server shows it.
    Server,
    /// A client shows it.
    Client,
    /// A node's virt-handler shows it, as server and as client.
    Node,
}

impl Purpose {
    fn usages(self) -> Vec<ExtendedKeyUsagePurpose> {
        match self {
            Purpose::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Purpose::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Purpose::Node => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
        }
    }
}

/// What a certificate says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate itself.
    pub der: CertificateDer<'static>,
    /// First moment of its validity.
    pub not_before: Timestamp,
    /// Last moment of its validity.
    pub not_after: Timestamp,
    /// Identifier of its key (subject key identifier).
    pub subject_key: Vec<u8>,
    /// Identifier of the key that signed it (authority key identifier).
    pub authority_key: Vec<u8>,
    /// Common name of the subject.
    pub common_name: String,
    /// DNS names it is valid for.
    pub dns_names: Vec<String>,
    /// What it is for; `None` for a CA and for anything else.
    pub purpose: Option<Purpose>,
    /// Whether it may sign others.
    pub is_ca: bool,
}

impl Certificate {
    /// Reads one certificate.
    ///
    /// # Errors
    ///
    /// It is no X.509 certificate.
    pub fn from_der(der: CertificateDer<'static>) -> Result<Self, CertificateError> {
        let (_, x509) = X509Certificate::from_der(&der).map_err(|e| CertificateError::X509(e.to_string()))?;
        let moment = |t: x509_parser::time::ASN1Time| {
            Timestamp::from_second(t.timestamp()).map_err(|e| CertificateError::X509(e.to_string()))
        };
        let mut certificate = Certificate {
            not_before: moment(x509.validity().not_before)?,
            not_after: moment(x509.validity().not_after)?,
            subject_key: Vec::new(),
            authority_key: Vec::new(),
            common_name: x509_common_name(&x509).unwrap_or_default(),
            dns_names: Vec::new(),
            purpose: None,
            is_ca: x509.is_ca(),
            der: CertificateDer::from(Vec::new()),
        };
        for extension in x509.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => certificate.subject_key = id.0.to_vec(),
                ParsedExtension::AuthorityKeyIdentifier(id) => {
                    certificate.authority_key =
                        id.key_identifier.as_ref().map_or_else(Vec::new, |id| id.0.to_vec());
                }
                ParsedExtension::SubjectAlternativeName(names) => {
                    certificate.dns_names = names
                        .general_names
                        .iter()
                        .filter_map(|name| match name {
                            GeneralName::DNSName(name) => Some((*name).to_owned()),
                            _ => None,
                        })
                        .collect();
                }
                ParsedExtension::ExtendedKeyUsage(usage) => {
                    certificate.purpose = match (usage.server_auth, usage.client_auth) {
                        (true, false) => Some(Purpose::Server),
                        (false, true) => Some(Purpose::Client),
                        (true, true) => Some(Purpose::Node),
                        (false, false) => None,
                    };
                }
                _ => {}
            }
        }
        certificate.der = der;
        Ok(certificate)
    }

    /// Reads every certificate of a PEM text.
    ///
    /// # Errors
    ///
    /// The text holds none, or something that is none.
    pub fn all_from_pem(pem: &str) -> Result<Vec<Self>, CertificateError> {
        certificates(pem)?.into_iter().map(Self::from_der).collect()
    }

    /// The certificate as PEM.
    pub fn to_pem(&self) -> String {
        to_pem(&self.der)
    }
}

/// PEM of a certificate (RFC 7468): base64 in lines of 64.
fn to_pem(der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for (n, letter) in text.chars().enumerate() {
        if n > 0 && n % 64 == 0 {
            pem.push('\n');
        }
        pem.push(letter);
    }
    pem.push_str("\n-----END CERTIFICATE-----\n");
    pem
}

/// Common name of a certificate's subject, when it has one.
pub fn common_name(der: &CertificateDer<'_>) -> Option<String> {
    let (_, x509) = X509Certificate::from_der(der).ok()?;
    x509_common_name(&x509)
}

fn x509_common_name(x509: &X509Certificate<'_>) -> Option<String> {
    let mut names = x509.subject().iter_common_name();
    names.next().and_then(|name| name.as_str().ok()).map(ToOwned::to_owned)
}

/// Validity from shortly before `now` to `now + life`, in rcgen's words.
fn validity(params: &mut CertificateParams, now: Timestamp, end: Timestamp) {
    let moment = |t: Timestamp| {
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(t.as_second()).unwrap_or(0))
    };
    params.not_before = moment(now) - BACKDATE;
    params.not_after = moment(end);
}

fn named(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.use_authority_key_identifier_extension = true;
    params
}

/// Makes a self-signed CA that is valid for `life` from `now` on.
///
/// # Errors
///
/// No key could be made.
pub fn make_ca(now: Timestamp, life: Duration) -> Result<KeyPairPem, CertificateError> {
    // The moment in the name keeps two CAs of a rotation apart for people who look at them.
    let mut params = named(&format!("kubevirt.io@{}", now.as_second()));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    validity(&mut params, now, now + life);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(KeyPairPem { certificate: to_pem(certificate.der()), key: key.serialize_pem() })
}

/// Makes a leaf certificate signed by `ca`, valid for `life` from `now` on but not longer than the CA.
///
/// # Errors
///
/// The CA cannot be read, a name is no DNS name, or no key could be made.
pub fn make_leaf(
    ca: &KeyPairPem,
    common_name: &str,
    dns_names: &[String],
    purpose: Purpose,
    now: Timestamp,
    life: Duration,
) -> Result<KeyPairPem, CertificateError> {
    let key = KeyPair::generate()?;
    let certificate = sign(ca, &key, common_name, dns_names, purpose, now, life)?;
    Ok(KeyPairPem { certificate, key: key.serialize_pem() })
}

/// A certificate, as PEM, for the public `key`, signed by `ca`.
pub(super) fn sign(
    ca: &KeyPairPem,
    key: &impl PublicKeyData,
    common_name: &str,
    dns_names: &[String],
    purpose: Purpose,
    now: Timestamp,
    life: Duration,
) -> Result<String, CertificateError> {
    let ca_certificate = certificates(&ca.certificate)?.into_iter().next();
    let ca_certificate = Certificate::from_der(ca_certificate.ok_or(CertificateError::NoCertificate)?)?;
    let ca_key = KeyPair::from_pem(&ca.key)?;
    let issuer = rcgen::Issuer::from_ca_cert_der(&ca_certificate.der, ca_key)?;

    let mut params = named(common_name);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = purpose.usages();
    params.subject_alt_names = alternative(dns_names)?;
    validity(&mut params, now, (now + life).min(ca_certificate.not_after));
    Ok(to_pem(params.signed_by(key, &issuer)?.der()))
}

fn alternative(dns_names: &[String]) -> Result<Vec<SanType>, CertificateError> {
    dns_names.iter().map(|name| Ok(SanType::DnsName(name.as_str().try_into()?))).collect()
}

/// A request for a certificate with its private key, both as PEM. `Debug` is not there: the key is in it.
pub(super) struct NewRequest {
    /// The request (PKCS #10).
    pub(super) request: String,
    /// Private key (PKCS #8).
    pub(super) key: String,
}

/// Makes a key, and a request for a certificate of it.
///
/// # Errors
///
/// A name is no DNS name, or no key could be made.
pub(super) fn make_request(common_name: &str, dns_names: &[String]) -> Result<NewRequest, CertificateError> {
    let mut params = named(common_name);
    params.use_authority_key_identifier_extension = false;
    params.subject_alt_names = alternative(dns_names)?;
    let key = KeyPair::generate()?;
    Ok(NewRequest { request: params.serialize_request(&key)?.pem()?, key: key.serialize_pem() })
}

/// A request for a certificate, whose sender has shown that the key is its own.
#[derive(Debug)]
pub(super) struct Request {
    /// The key.
    pub(super) key: PublicKey,
    /// Common name that is asked for.
    pub(super) common_name: String,
    /// DNS names that are asked for.
    pub(super) dns_names: Vec<String>,
}

impl Request {
    /// Reads a request and checks its signature.
    ///
    /// # Errors
    ///
    /// It is none, its signature is wrong, its key is of another kind than ours, or it asks for a name that is no DNS
    /// name.
    pub(super) fn from_pem(pem: &[u8]) -> Result<Self, CertificateError> {
        let der = CertificateSigningRequestDer::from_pem_slice(pem)
            .map_err(|e| CertificateError::Pem(pem_error(&e).to_owned()))?;
        let asked = CertificateSigningRequestParams::from_der(&der).map_err(CertificateError::Request)?;
        // The form of the signature does not tell the curve; the length of the point does.
        let key = &asked.public_key;
        if key.algorithm() != &rcgen::PKCS_ECDSA_P256_SHA256 || key.der_bytes().len() != P256_POINT {
            return Err(CertificateError::Names("a key that is none of ECDSA P-256".into()));
        }
        let names = asked.params.subject_alt_names.iter().map(|name| match name {
            SanType::DnsName(name) => Ok(name.as_str().to_owned()),
            other => Err(CertificateError::Names(format!("the name {other:?}, which is no DNS name"))),
        });
        let common_name = match asked.params.distinguished_name.get(&DnType::CommonName) {
            Some(DnValue::Utf8String(name)) => name.clone(),
            Some(DnValue::PrintableString(name)) => name.as_str().to_owned(),
            _ => String::new(),
        };
        Ok(Request { dns_names: names.collect::<Result<_, _>>()?, common_name, key: asked.public_key })
    }
}
