//! Multus' daemon: it carries out one attachment of a pod that runs ("delegate").
//!
//! The daemon is that of Multus' "thick" form; the plugin beside it and controllers of dynamic networks ask it by HTTP on
//! a socket of the node. It knows where the node's plugins are, gives them what a network's configuration says, and tells
//! what they answer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::difference::Element;
use super::sandbox::Sandbox;

/// Longest time for a plugin's work; the kubelet has two minutes for the whole of a pod's networks.
const WORK: Duration = Duration::from_secs(120);
/// Longest answer, bytes.
const ANSWER: usize = 1 << 20;

/// What did not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket.
    #[error("reach Multus' daemon at {path}; it is there where Multus is installed in its \"thick\" form")]
    Connect {
        /// Where it should be.
        path: PathBuf,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// The connection.
    #[error("speak with Multus' daemon")]
    Http(#[from] hyper::Error),
    /// The request.
    #[error("make a request for Multus' daemon")]
    Request(#[from] http::Error),
    /// No answer came in time.
    #[error("Multus' daemon has not answered within {} s", WORK.as_secs())]
    Silent,
    /// It answers that it, or the plugin, cannot.
    #[error("{0}")]
    Refused(String),
    /// The answer is not what was expected.
    #[error("read the answer of Multus' daemon: {0}")]
    Answer(String),
}

/// What a plugin has made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// The MAC address of the pod's interface.
    pub mac: Option<String>,
    /// Its addresses, without the lengths of their prefixes.
    pub ips: Vec<String>,
    /// Resolvers.
    pub dns: Value,
}

/// A pod for a plugin.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// UID.
    pub uid: &'a str,
    /// Sandbox.
    pub sandbox: &'a Sandbox,
}

/// The daemon of the node.
#[derive(Clone, Debug)]
pub struct Multus {
    socket: PathBuf,
}

impl Multus {
    /// The one that serves `socket`.
    pub fn at(socket: &Path) -> Multus {
        Multus { socket: socket.to_owned() }
    }

    /// Whether it serves.
    pub async fn serves(&self) -> bool {
        UnixStream::connect(&self.socket).await.is_ok()
    }

    /// Has the network with the configuration `config` attach the pod as `element` asks for it.
    ///
    /// # Errors
    /// Multus or the plugin does not answer, or refuses.
    pub async fn attach(
        &self,
        pod: Subject<'_>,
        interface: &str,
        element: &Element,
        config: &str,
    ) -> Result<Made, Error> {
        let mut request = request("ADD", pod, interface, config);
        if element.mac.is_some() || !element.ips.is_empty() || element.arguments.is_some() {
            let mut wishes = json!({"ips": element.ips, "cni-args": element.arguments});
            if let Some(mac) = &element.mac {
                wishes["mac"] = mac.as_str().into();
            }
            request["interfaceAttributes"] = wishes;
        }
        let answer = self.ask(&request).await?;
        made(&answer, interface)
    }

    /// Has the network with the configuration `config` detach the pod.
    ///
    /// # Errors
    /// Multus or the plugin does not answer, or refuses.
    pub async fn detach(&self, pod: Subject<'_>, interface: &str, config: &str) -> Result<(), Error> {
        self.ask(&request("DEL", pod, interface, config)).await.map(drop)
    }

    async fn ask(&self, request: &Value) -> Result<Bytes, Error> {
        let work = async {
            let stream = UnixStream::connect(&self.socket).await;
            let stream = stream.map_err(|source| Error::Connect { path: self.socket.clone(), source })?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            let request = Request::builder()
                .method(Method::POST)
                .uri("/delegate")
                .header(header::HOST, "multus")
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(request.to_string())))?;
            let answer = async {
                let (head, body) = sender.send_request(request).await?.into_parts();
                let body = Limited::new(body, ANSWER).collect().await;
                let body = body.map_err(|error| Error::Answer(error.to_string()))?.to_bytes();
                if head.status == StatusCode::OK { Ok(body) } else { Err(refused(&body)) }
            };
            let mut answer = std::pin::pin!(answer);
            tokio::select! {
                answer = &mut answer => answer,
                ended = connection => {
                    ended?;
                    answer.await
                }
            }
        };
        tokio::time::timeout(WORK, work).await.map_err(|_| Error::Silent)?
    }
}

/// A request as the daemon reads it: the plugin's environment and its standard input.
fn request(command: &str, pod: Subject<'_>, interface: &str, config: &str) -> Value {
    let arguments =
        format!("K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_UID={}", pod.namespace, pod.name, pod.uid);
    json!({
        "env": {
            "CNI_COMMAND": command, "CNI_CONTAINERID": pod.sandbox.id, "CNI_NETNS": pod.sandbox.namespace,
            "CNI_IFNAME": interface, "CNI_ARGS": arguments,
        },
        "config": STANDARD.encode(config),
    })
}

/// The error as the specification has it, or the text.
fn refused(body: &[u8]) -> Error {
    #[derive(Deserialize)]
    struct Told {
        msg: String,
        #[serde(default)]
        details: String,
    }
    let text = match serde_json::from_slice::<Told>(body) {
        Ok(told) if told.details.is_empty() => told.msg,
        Ok(told) => format!("{}: {}", told.msg, told.details),
        Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
    };
    Error::Refused(text)
}

/// What is to be known of a plugin's result (CNI specification 1.0, section 5).
fn made(answer: &[u8], interface: &str) -> Result<Made, Error> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(rename = "Result")]
        result: Told,
    }
    #[derive(Deserialize)]
    struct Told {
        #[serde(default)]
        interfaces: Vec<Interface>,
        #[serde(default)]
        ips: Vec<Ip>,
        #[serde(default)]
        dns: Value,
    }
    #[derive(Deserialize)]
    struct Interface {
        name: String,
        #[serde(default)]
        mac: String,
        #[serde(default)]
        sandbox: String,
    }
    #[derive(Deserialize)]
    struct Ip {
        address: String,
    }
    let Answer { result } = serde_json::from_slice(answer).map_err(|e| Error::Answer(e.to_string()))?;
    let own = result.interfaces.iter().find(|i| i.name == interface && !i.sandbox.is_empty());
    let ips = result.ips.iter().map(|ip| ip.address.split('/').next().unwrap_or_default().to_owned());
    Ok(Made {
        mac: own.map(|own| own.mac.clone()).filter(|mac| !mac.is_empty()),
        ips: ips.collect(),
        dns: if result.dns.is_object() { result.dns } else { json!({}) },
    })
}

#[cfg(test)]
#[path = "multus_tests.rs"]
mod tests;
