//! The name of a node in its certificate, and which requests for one are granted.

use std::collections::BTreeMap;

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use rcgen::PublicKey;
use rustls::pki_types::CertificateDer;

use super::certificate::{Certificate, CertificateError, Request};
use super::{NODE_COMMON_NAME, NODE_SIGNER};

/// What follows the node's name: no node can have the name of a Service thus.
const SUFFIX: &str = ".nodes.virt-handler";
/// Longest DNS name, in bytes.
const NAME_MAX: usize = 253;
/// Key of the asking user's extra fields, in which the API server names the node of a pod's token.
const NODE_OF_TOKEN: &str = "authentication.kubernetes.io/node-name";
/// What a node's key is for, in the words of the API. All of them, in this order.
pub(super) const USAGES: [&str; 3] = ["digital signature", "client auth", "server auth"];

/// The DNS name in the certificate of the virt-handler on `node`.
pub fn node_name(node: &str) -> String {
    format!("{node}{SUFFIX}")
}

/// Whether a certificate, which is one of the trusted CAs', is that of the virt-handler on `node`.
pub fn is_node(certificate: &CertificateDer<'_>, node: &str) -> bool {
    let read = Certificate::from_der(certificate.clone().into_owned());
    !node.is_empty() && read.is_ok_and(|certificate| certificate.dns_names == [node_name(node)])
}

/// The node of the pod that a user's token is bound to, by the extra fields that the API server tells of the user; none
/// where the token is bound to no pod.
pub fn node_of_token(extra: &BTreeMap<String, Vec<String>>) -> Option<&str> {
    match extra.get(NODE_OF_TOKEN)?.as_slice() {
        [node] if !node.is_empty() => Some(node),
        _ => None,
    }
}

/// Why a request for a node's certificate is denied.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Another signer's.
    #[error("spec.signerName: {0} is not {NODE_SIGNER}")]
    Signer(String),
    /// Another user than virt-handler.
    #[error("spec.username: {asked:?} is not {allowed:?}")]
    User {
        /// The user.
        asked: String,
        /// The user that may ask.
        allowed: String,
    },
    /// The token is bound to no pod on a node.
    #[error("spec.extra: {NODE_OF_TOKEN} names no node; a token that is bound to virt-handler's pod does")]
    NoNode,
    /// The key is to be used for something else.
    #[error("spec.usages: {0:?}; {USAGES:?} are wanted")]
    Usages(Vec<String>),
    /// The names are not the node's.
    #[error(
        "spec.request: common name {common_name:?} with the DNS names {dns_names:?}; on node {node}, {NODE_COMMON_NAME:?} \
         with {allowed:?} is allowed"
    )]
    Names {
        /// Node of the token.
        node: String,
        /// Common name that was asked for.
        common_name: String,
        /// DNS names that were asked for.
        dns_names: Vec<String>,
        /// The one that is allowed.
        allowed: String,
    },
    /// The node's name leaves no room for the suffix.
    #[error("the name of node {node} has more than {max} characters", max = NAME_MAX - SUFFIX.len())]
    TooLong {
        /// The node.
        node: String,
    },
    /// The request itself cannot be read.
    #[error("spec.request")]
    Request(#[from] CertificateError),
}

/// What is granted.
#[derive(Debug)]
pub(super) struct Granted {
    /// The node.
    pub(super) node: String,
    /// Its key.
    pub(super) key: PublicKey,
}

/// Judges the request for a node's certificate. Everything but `spec.request` is the API server's word for its sender;
/// `user` is virt-handler's user name.
///
/// # Errors
///
/// It is denied.
pub(super) fn judge(spec: &CertificateSigningRequestSpec, user: &str) -> Result<Granted, Refused> {
    if spec.signer_name != NODE_SIGNER {
        return Err(Refused::Signer(spec.signer_name.clone()));
    }
    let asked = spec.username.clone().unwrap_or_default();
    if asked != user {
        return Err(Refused::User { asked, allowed: user.to_owned() });
    }
    let node = spec.extra.as_ref().and_then(node_of_token).ok_or(Refused::NoNode)?;
    let usages = spec.usages.clone().unwrap_or_default();
    if usages != USAGES {
        return Err(Refused::Usages(usages));
    }
    let allowed = node_name(node);
    if allowed.len() > NAME_MAX {
        return Err(Refused::TooLong { node: node.to_owned() });
    }
    let Request { key, common_name, dns_names } = Request::from_pem(&spec.request.0)?;
    if common_name != NODE_COMMON_NAME || dns_names != [allowed.clone()] {
        return Err(Refused::Names { node: node.to_owned(), common_name, dns_names, allowed });
    }
    Ok(Granted { node: node.to_owned(), key })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::super::certificate::make_request;
    use super::*;

    const USER: &str = "system:serviceaccount:kubevirt:kubevirt-handler";

    /// A request by virt-handler on `node` for the names of `asked`.
    fn spec(node: &str, asked: &str) -> CertificateSigningRequestSpec {
        let request = make_request(NODE_COMMON_NAME, &[node_name(asked)]).unwrap();
        CertificateSigningRequestSpec {
            extra: Some(BTreeMap::from([(NODE_OF_TOKEN.to_owned(), vec![node.to_owned()])])),
            request: ByteString(request.request.into_bytes()),
            signer_name: NODE_SIGNER.to_owned(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            username: Some(USER.to_owned()),
            ..CertificateSigningRequestSpec::default()
        }
    }

    #[test]
    fn a_node_gets_its_own_name_and_no_other() {
        assert_eq!(judge(&spec("node1", "node1"), USER).unwrap().node, "node1");
        let refused = judge(&spec("node2", "node1"), USER).unwrap_err();
        assert!(matches!(&refused, Refused::Names { node, .. } if node == "node2"), "{refused}");
        // A name beside the own one.
        let mut both = spec("node1", "node1");
        let names = [node_name("node1"), node_name("node2")];
        both.request = ByteString(make_request(NODE_COMMON_NAME, &names).unwrap().request.into_bytes());
        judge(&both, USER).unwrap_err();
        // virt-api's name for virt-handlers.
        let mut client = spec("node1", "node1");
        let request = make_request(super::super::HANDLER_CLIENT_NAME, &[node_name("node1")]).unwrap();
        client.request = ByteString(request.request.into_bytes());
        judge(&client, USER).unwrap_err();
    }

    #[test]
    fn a_stranger_and_a_token_without_a_node_get_nothing() {
        let whole = spec("node1", "node1");
        type Spoil = fn(&mut CertificateSigningRequestSpec);
        let spoilt: [(&str, Spoil); 7] = [
            ("spec.username", |s| s.username = Some("system:serviceaccount:kubevirt:default".into())),
            ("spec.username", |s| s.username = None),
            ("spec.extra", |s| s.extra = None),
            ("spec.extra", |s| *s.extra.as_mut().unwrap().get_mut(NODE_OF_TOKEN).unwrap() = vec!["".into()]),
            ("spec.extra", |s| {
                s.extra.as_mut().unwrap().get_mut(NODE_OF_TOKEN).unwrap().push("node2".into());
            }),
            ("spec.usages", |s| s.usages.as_mut().unwrap().push("cert sign".into())),
            ("spec.signerName", |s| s.signer_name = "kubernetes.io/kube-apiserver-client".into()),
        ];
        for (field, spoil) in spoilt {
            let mut spec = whole.clone();
            spoil(&mut spec);
            let refused = judge(&spec, USER).unwrap_err().to_string();
            assert!(refused.starts_with(field), "{field}: {refused}");
        }
    }

    #[test]
    fn a_request_whose_signature_is_wrong_is_refused() {
        let mut spoilt = spec("node1", "node1");
        let text = String::from_utf8(spoilt.request.0.clone()).unwrap();
        let (body, end) = text.split_at(text.find("-----END").unwrap() - 8);
        let changed = if end.starts_with('A') { "B" } else { "A" };
        spoilt.request = ByteString([body, changed, &end[1..]].concat().into_bytes());
        let refused = judge(&spoilt, USER).unwrap_err();
        assert!(matches!(refused, Refused::Request(_)), "{refused}");
        spoilt.request = ByteString(b"-----BEGIN".to_vec());
        judge(&spoilt, USER).unwrap_err();
        let long = "n".repeat(63) + "." + &"n".repeat(63) + "." + &"n".repeat(63) + "." + &"n".repeat(50);
        assert!(matches!(judge(&spec(&long, "n"), USER), Err(Refused::TooLong { .. })));
    }

    #[test]
    fn a_request_for_another_kind_of_name_or_key_is_refused() {
        let params = || {
            let mut params = rcgen::CertificateParams::new([node_name("node1")]).unwrap();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::CommonName, NODE_COMMON_NAME);
            params
        };
        let judged = |params: &rcgen::CertificateParams, key: &rcgen::KeyPair| {
            let pem = params.serialize_request(key).unwrap().pem().unwrap();
            judge(
                &CertificateSigningRequestSpec {
                    request: ByteString(pem.into_bytes()),
                    ..spec("node1", "node1")
                },
                USER,
            )
        };
        let key = rcgen::KeyPair::generate().unwrap();
        judged(&params(), &key).unwrap();
        let mut address = params();
        address.subject_alt_names.push(rcgen::SanType::IpAddress([10, 0, 0, 1].into()));
        let refused = judged(&address, &key).unwrap_err();
        assert!(matches!(refused, Refused::Request(CertificateError::Names(_))), "{refused}");
        for algorithm in [&rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
            let other = rcgen::KeyPair::generate_for(algorithm).unwrap();
            let refused = judged(&params(), &other).unwrap_err();
            assert!(matches!(refused, Refused::Request(CertificateError::Names(_))), "{refused}");
        }
    }
}
