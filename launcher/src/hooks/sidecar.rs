//! One sidecar: its socket, its version, what it is asked.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use podvirt_proto::hooks::info::InfoParams;
use podvirt_proto::hooks::info::info_client::InfoClient;
use podvirt_proto::hooks::{v1alpha1, v1alpha2, v1alpha3};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};

use super::cloud_init::{Answer, Given};
use super::{CallError, HookError, Points, Waits};

/// How long a sidecar may take to say what it is, and to hear of the machine's end.
const SHORT: Duration = Duration::from_secs(10);
/// How long it may take to change the machine: upstream's limit.
const LONG: Duration = Duration::from_secs(60);
/// The largest answer; a domain's XML and a cloud-init's data are far smaller.
const MAX_MESSAGE: usize = 8 << 20;

/// Versions of the interface, the later the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    V1Alpha1,
    V1Alpha2,
    V1Alpha3,
}

impl Version {
    /// The highest of those that a sidecar names.
    pub(super) fn highest(named: &[String]) -> Option<Version> {
        let known = [
            ("v1alpha3", Version::V1Alpha3),
            ("v1alpha2", Version::V1Alpha2),
            ("v1alpha1", Version::V1Alpha1),
        ];
        known.into_iter().find_map(|(name, version)| named.iter().any(|n| n == name).then_some(version))
    }
}

/// A sidecar that has said what it is.
#[derive(Debug)]
pub(super) struct Sidecar {
    pub(super) container: String,
    pub(super) name: String,
    pub(super) version: Version,
    pub(super) points: Points,
    pub(super) channel: Channel,
}

impl fmt::Display for Sidecar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the hook sidecar {} ({})", self.container, self.name)
    }
}

/// A channel to the socket in `directory`; none while there is none that accepts.
pub(super) async fn reach(directory: &Path) -> Option<Channel> {
    let entries = std::fs::read_dir(directory).ok()?;
    let mut sockets: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    sockets.sort();
    for socket in sockets {
        // The address is for form's sake: the connector knows the way.
        let connected = Endpoint::from_static("http://hook-sidecar")
            .connect_with_connector(tower::service_fn(move |_: Uri| {
                let socket = socket.clone();
                async move { UnixStream::connect(socket).await.map(TokioIo::new) }
            }))
            .await;
        if let Ok(channel) = connected {
            return Some(channel);
        }
    }
    None
}

impl Sidecar {
    /// Asks the sidecar behind `channel` what it is.
    pub(super) async fn ask(
        container: String,
        channel: Channel,
        waits: Waits<'_>,
    ) -> Result<Self, HookError> {
        waits(format!("Info of the hook sidecar {container}"));
        let mut client = InfoClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let told = in_time(SHORT, client.info(InfoParams {})).await;
        let info = told.map_err(|source| HookError::Call {
            container: format!("the hook sidecar {container}"),
            call: "Info",
            source,
        })?;
        let version = Version::highest(&info.versions).ok_or_else(|| HookError::Version {
            container: format!("the hook sidecar {container} ({})", info.name),
            given: if info.versions.is_empty() { "no version".into() } else { info.versions.join(", ") },
        })?;
        let points = info.hook_points.into_iter().map(|point| (point.name, point.priority)).collect();
        Ok(Sidecar { container, name: info.name, version, points, channel })
    }

    /// The error of a call.
    pub(super) fn failed(&self, call: &'static str, source: CallError) -> HookError {
        HookError::Call { container: self.to_string(), call, source }
    }

    pub(super) async fn on_define_domain(&self, xml: &str, vmi: &[u8]) -> Result<Vec<u8>, HookError> {
        macro_rules! ask {
            ($version:ident) => {{
                let client = $version::callbacks_client::CallbacksClient::new(self.channel.clone());
                let mut client = client.max_decoding_message_size(MAX_MESSAGE);
                let asked = $version::OnDefineDomainParams { domain_xml: xml.into(), vmi: vmi.into() };
                in_time(LONG, client.on_define_domain(asked)).await.map(|answer| answer.domain_xml)
            }};
        }
        let answer = match self.version {
            Version::V1Alpha1 => ask!(v1alpha1),
            Version::V1Alpha2 => ask!(v1alpha2),
            Version::V1Alpha3 => ask!(v1alpha3),
        };
        answer.map_err(|error| self.failed(super::ON_DEFINE_DOMAIN, error))
    }

    pub(super) async fn pre_cloud_init_iso(&self, given: Given, vmi: &[u8]) -> Result<Answer, HookError> {
        macro_rules! ask {
            ($version:ident) => {{
                let client = $version::callbacks_client::CallbacksClient::new(self.channel.clone());
                let mut client = client.max_decoding_message_size(MAX_MESSAGE);
                let asked = $version::PreCloudInitIsoParams {
                    cloud_init_data: given.data,
                    cloud_init_no_cloud_source: given.source,
                    vmi: vmi.into(),
                };
                let answer = in_time(LONG, client.pre_cloud_init_iso(asked)).await;
                answer.map(|a| Answer { data: a.cloud_init_data, source: a.cloud_init_no_cloud_source })
            }};
        }
        let answer = match self.version {
            Version::V1Alpha1 => Err(CallError::Unknown),
            Version::V1Alpha2 => ask!(v1alpha2),
            Version::V1Alpha3 => ask!(v1alpha3),
        };
        answer.map_err(|error| self.failed(super::PRE_CLOUD_INIT_ISO, error))
    }

    pub(super) async fn shutdown(&self) -> Result<(), HookError> {
        let mut client = v1alpha3::callbacks_client::CallbacksClient::new(self.channel.clone());
        let told = in_time(SHORT, client.shutdown(v1alpha3::ShutdownParams {})).await;
        told.map(drop).map_err(|error| self.failed(super::SHUTDOWN, error))
    }
}

/// The answer of a call that may take so long.
async fn in_time<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, CallError> {
    let answer = timeout(limit, call).await.map_err(|_| CallError::Late(limit))?;
    Ok(answer.map_err(CallError::Refused)?.into_inner())
}
