//! The way to an exporter, and what it is asked.

use anyhow::Context as _;
use http::header::{self, HeaderMap};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use podvirt_api::export::{PORT, TOKEN_HEADER, pod_name};
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};

use crate::api::Cluster;
use crate::web::{Both, Trust, bare, secured, spoken};

/// Longest time until the server is reached, and until its answer begins.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Largest manifest.
const MAX_TEXT: usize = 16 << 20;

/// What leads to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The host in the link.
    Named,
    /// Another address of the same server.
    Address(String, u16),
    /// The pod of an export, by way of the API server.
    Pod { namespace: String, export: String },
}

impl Reach {
    /// `host` or `host:port`.
    pub(super) fn address(text: &str) -> anyhow::Result<Self> {
        let uri: Uri =
            format!("https://{text}").parse().with_context(|| format!("--service-url: {text:?}"))?;
        let host = uri
            .host()
            .filter(|host| !host.is_empty())
            .with_context(|| format!("--service-url: {text:?} has no host"))?;
        Ok(Reach::Address(bare(host), uri.port_u16().unwrap_or(443)))
    }
}

/// A server, and how it is spoken to.
pub(super) struct Server<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) reach: Reach,
    /// Certificates by which it is checked.
    pub(super) cert: &'a str,
    pub(super) token: &'a str,
    pub(super) insecure: bool,
}

impl Server<'_> {
    /// Asks for what is at a link. Only the head of the answer has to be there in time.
    pub(super) async fn get(&self, url: &str, fields: HeaderMap) -> anyhow::Result<Response<Incoming>> {
        let uri: Uri = url.parse().with_context(|| format!("the link {url:?} makes no sense"))?;
        let host = bare(uri.host().context("the link names no host")?);
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let asked = async {
            let stream = self.connect(&host, uri.port_u16().unwrap_or(443)).await?;
            let trust = match self.cert.trim() {
                _ if self.insecure => Trust::Any,
                // The link does not say: what the system trusts.
                "" => Trust::System,
                cert => Trust::Certificates(cert),
            };
            let mut sender = spoken(secured(stream, &host, trust).await?).await?;
            let mut request = Request::get(path).header(header::HOST, &host).header(TOKEN_HEADER, self.token);
            for (name, value) in &fields {
                request = request.header(name, value);
            }
            Ok(sender.send_request(request.body(Empty::<Bytes>::new())?).await?)
        };
        timeout(TIMEOUT, asked).await.with_context(|| format!("no answer within {} s", TIMEOUT.as_secs()))?
    }

    /// A text, or why there is none.
    pub(super) async fn text(
        &self,
        url: &str,
        accept: &'static str,
    ) -> anyhow::Result<Result<Bytes, String>> {
        let fields = HeaderMap::from_iter([(header::ACCEPT, header::HeaderValue::from_static(accept))]);
        let answer = match self.get(url, fields).await {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        if answer.status() != StatusCode::OK {
            return Ok(Err(format!("Bad status: {}", answer.status())));
        }
        match Limited::new(answer.into_body(), MAX_TEXT).collect().await {
            Ok(body) => Ok(Ok(body.to_bytes())),
            Err(error) => Ok(Err(format!("the answer broke off: {error}"))),
        }
    }

    async fn connect(&self, host: &str, port: u16) -> anyhow::Result<Box<dyn Both>> {
        let (host, port) = match &self.reach {
            Reach::Pod { namespace, export } => {
                let stream = self.cluster.pod_port(namespace, &pod_name(export), PORT).await;
                return Ok(Box::new(
                    stream.map_err(|error| error.explain_plain("forward a port of the exporter pod"))?,
                ));
            }
            Reach::Address(host, port) => (host.as_str(), *port),
            Reach::Named => (host, port),
        };
        let stream = TcpStream::connect((host, port)).await;
        Ok(Box::new(stream.with_context(|| format!("connect to {host}:{port}"))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_have_a_port() {
        let of = |text: &str| Reach::address(text).unwrap();
        assert_eq!(of("node:30443"), Reach::Address("node".into(), 30443));
        assert_eq!(of("node"), Reach::Address("node".into(), 443));
        assert_eq!(of("[fd00::1]:1"), Reach::Address("fd00::1".into(), 1));
        assert!(Reach::address("a b").is_err());
    }
}
