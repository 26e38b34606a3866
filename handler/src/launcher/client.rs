//! Calls to a launcher.
//!
//! Every call has a deadline, and its failure says which of three things happened: the launcher did what it was
//! told and the machine refused, the launcher did not answer in time, or the connection is of no use any more.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use podvirt_api::backup;
use podvirt_api::names::{path, pod};
use podvirt_api::v1::{BackupCheckpoint, VirtualMachineInstance};
use podvirt_proto::cmd::MAX_PICTURE;
use podvirt_proto::cmd::v1 as cmd;
use podvirt_proto::cmd::v1::cmd_client::CmdClient;
use podvirt_proto::domain::Domain;
use podvirt_proto::migration::Options;
use podvirt_proto::stats::DomainStats;
use tokio::io::AsyncReadExt;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};

use super::report::{MAX_SENTENCE_BYTES, cut};
use crate::process::Process;
use crate::sockets::PodVolumes;

/// Deadline of questions: the answers are in the launcher's memory, or its guest agent's.
const ASK: Duration = Duration::from_secs(5);
/// Deadline of a start, which waits for the pod's disks, libvirt and QEMU on a node that is out of breath.
const START: Duration = Duration::from_secs(300);
/// Deadline of an order to the machine, libvirt's monitor among it.
const ORDER: Duration = Duration::from_secs(20);
/// Deadline of freezing and thawing: the launcher gives the guest's agent a minute.
const FREEZE: Duration = Duration::from_secs(65);

/// Largest answer in bytes: a report with every list and every text as long as it may be, or all that a guest's agent tells.
const MAX_ANSWER_BYTES: usize = 512 << 10;
/// Largest answer about what a machine has used, in bytes: 512 virtual CPUs on as many processors are 1.5 MiB.
const MAX_STATISTICS_BYTES: usize = 2 << 20;
/// Largest answer with a picture, in bytes.
const MAX_PICTURE_ANSWER_BYTES: usize = MAX_PICTURE + (64 << 10);

/// Bytes of a launcher that are read at most on the connection by which its end is seen.
const GREETING: u64 = 64 << 10;

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The launcher answered that it did not work, and why.
    #[error("{0}")]
    Refused(String),
    /// The launcher does not carry this out.
    #[error("{0}")]
    Unsupported(String),
    /// The launcher did not answer in time.
    #[error("the launcher did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The connection broke.
    #[error("the connection to the launcher broke: {0}")]
    Broken(String),
    /// The socket could not be reached.
    #[error("the launcher's socket cannot be reached")]
    Socket(#[from] io::Error),
    /// The answer cannot be read.
    #[error("the launcher's answer cannot be read: {0}")]
    Answer(String),
    /// What the machine needs in its pod's network namespace cannot be made there.
    #[error("the pod's network cannot be made ready")]
    Network(#[from] crate::podnet::Error),
    /// A disk that is to be plugged cannot be brought to the launcher.
    #[error("volume {volume}")]
    Disk {
        /// The volume's name.
        volume: String,
        /// Why.
        source: anyhow::Error,
    },
    /// The launcher's machine is another one's.
    #[error("the launcher runs the machine of VMI {0}")]
    OtherMachine(String),
}

/// A connection to a launcher.
#[derive(Clone, Debug)]
pub struct Client {
    inner: CmdClient<Channel>,
    /// The launcher's process.
    pub process: Process,
}

/// What can be ordered from a machine that runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// Ask the guest to power off.
    Shutdown,
    /// End the machine.
    Kill,
    /// Stop the virtual CPUs.
    Pause,
    /// Let them run.
    Unpause,
    /// Press the reset button.
    Reset,
    /// Ask the guest to restart.
    SoftReboot,
    /// Freeze the file systems, thawed by themselves after this many seconds (0: never).
    Freeze(i32),
    /// Thaw them.
    Unfreeze,
    /// Abort the migration from here.
    CancelMigration,
    /// Finish the migration to here.
    FinalizeMigration,
    /// No machine will come: end.
    Leave,
}

/// What became of a checkpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Checkpoint {
    /// The hypervisor knows it.
    Known,
    /// The disks have no bitmaps of it that can be used, as the launcher says.
    Invalid(String),
}

/// A question to the guest's agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Question {
    /// `VirtualMachineInstanceGuestAgentInfo`.
    GuestInfo,
    /// A list of `VirtualMachineInstanceGuestOSUser`.
    Users,
    /// A list of `VirtualMachineInstanceFileSystem`.
    Filesystems,
}

impl Client {
    /// Connects to the launcher of a pod and checks that it is one of the pod's processes. The future is done
    /// when the launcher is: it ends with the launcher's end of a connection of its own.
    ///
    /// # Errors
    ///
    /// `Socket` of kind `NotFound`: not there yet or not any more; `ConnectionRefused`: no process listens.
    pub async fn connect(
        volumes: &PodVolumes,
        pod_uid: &str,
    ) -> Result<(Self, impl Future<Output = ()> + Send + use<>), Error> {
        let dir = Arc::new(volumes.dir(pod_uid, pod::volume::SOCKETS, "")?);
        let lifeline = dir.connect(path::LAUNCHER_SOCKET).await?;
        let process = volumes.peer(&lifeline, pod_uid)?;
        // The authority is never looked at: there is one server behind the socket.
        let channel = Endpoint::from_static("http://launcher").connect_timeout(ASK);
        let channel = channel.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let dir = Arc::clone(&dir);
            async move { dir.connect(path::LAUNCHER_SOCKET).await.map(TokioIo::new) }
        }));
        let ended = async move {
            // A gRPC server says a few words first; afterwards there is silence until the end. One that goes on
            // talking is not listened to for ever.
            let mut greeting = lifeline.take(GREETING);
            let mut bytes = [0; 256];
            while matches!(greeting.read(&mut bytes).await, Ok(1..)) {}
        };
        Ok((Self::new(channel, process), ended))
    }

    fn new(channel: Channel, process: Process) -> Self {
        Self { inner: CmdClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES), process }
    }

    /// What the launcher reports of its machine; `None`: it has none.
    ///
    /// # Errors
    ///
    /// See [`Error`]; `OtherMachine` when the machine is not that of `vmi_uid`.
    pub async fn domain(&self, vmi_uid: &str) -> Result<Option<Domain>, Error> {
        let mut inner = self.inner.clone();
        let answer = within(ASK, inner.get_domain(cmd::EmptyRequest {})).await?;
        judge(answer.response)?;
        if answer.domain.is_empty() {
            return Ok(None);
        }
        let domain: Domain = serde_json::from_str(&answer.domain)?;
        if !domain.uid.is_empty() && domain.uid != vmi_uid {
            return Err(Error::OtherMachine(bounded(domain.uid)));
        }
        Ok(Some(domain))
    }

    /// Gives the launcher the VMI and what the cluster's configuration adds: it makes the machine what they say.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn sync(
        &self,
        vmi: &VirtualMachineInstance,
        options: cmd::VirtualMachineOptions,
    ) -> Result<(), Error> {
        let mut inner = self.inner.clone();
        let request = cmd::VmiRequest { options: Some(options), ..request(vmi)? };
        judge(within(START, inner.sync_virtual_machine(request)).await?.into())
    }

    /// Has the launcher begin to write the guest's memory to this file, which the status of the VMI names. Its report tells how
    /// that ends.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn memory_dump(&self, vmi: &VirtualMachineInstance, file: &str) -> Result<(), Error> {
        let mut inner = self.inner.clone();
        let vmi = request(vmi)?.vmi;
        let request = cmd::MemoryDumpRequest { vmi, dump_path: file.to_owned() };
        judge(Some(within(ORDER, inner.virtual_machine_memory_dump(request)).await?))
    }

    /// Has the launcher begin a backup, or give it up. Its report tells how that ends.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn backup(&self, vmi: &VirtualMachineInstance, options: &backup::Options) -> Result<(), Error> {
        let mut inner = self.inner.clone();
        let request = cmd::BackupRequest { vmi: request(vmi)?.vmi, options: serde_json::to_vec(options)? };
        judge(Some(within(FREEZE, inner.backup_virtual_machine(request)).await?))
    }

    /// Has the launcher make a checkpoint known to its hypervisor.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn redefine_checkpoint(
        &self,
        vmi: &VirtualMachineInstance,
        checkpoint: &BackupCheckpoint,
    ) -> Result<Checkpoint, Error> {
        let mut inner = self.inner.clone();
        let (vmi, checkpoint) = (request(vmi)?.vmi, serde_json::to_vec(checkpoint)?);
        let request = cmd::RedefineCheckpointRequest { vmi, checkpoint };
        let answer = within(ORDER, inner.redefine_checkpoint(request)).await?;
        match judge(answer.response) {
            Err(Error::Refused(message)) if answer.checkpoint_invalid => Ok(Checkpoint::Invalid(message)),
            judged => judged.map(|()| Checkpoint::Known),
        }
    }

    /// Has the launcher make everything ready for a machine that comes from another node.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn receive(
        &self,
        vmi: &VirtualMachineInstance,
        options: cmd::VirtualMachineOptions,
    ) -> Result<(), Error> {
        let mut inner = self.inner.clone();
        let request = cmd::VmiRequest { options: Some(options), ..request(vmi)? };
        judge(within(START, inner.sync_migration_target(request)).await?.into())
    }

    /// Has the launcher begin to move its machine away.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn migrate(&self, vmi: &VirtualMachineInstance, options: &Options) -> Result<(), Error> {
        let mut inner = self.inner.clone();
        let vmi = request(vmi)?.vmi;
        let request = cmd::MigrationRequest { vmi, options: serde_json::to_vec(options)? };
        judge(within(ORDER, inner.migrate_virtual_machine(request)).await?.into())
    }

    /// Orders something from the machine.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn order(&self, order: Order, vmi: &VirtualMachineInstance) -> Result<(), Error> {
        let mut inner = self.inner.clone();
        let request = request(vmi)?;
        let answer = match order {
            Order::Shutdown => within(ORDER, inner.shutdown_virtual_machine(request)).await,
            Order::Kill => within(ORDER, inner.kill_virtual_machine(request)).await,
            Order::Pause => within(ORDER, inner.pause_virtual_machine(request)).await,
            Order::Unpause => within(ORDER, inner.unpause_virtual_machine(request)).await,
            Order::Reset => within(ORDER, inner.reset_virtual_machine(request)).await,
            Order::SoftReboot => within(ORDER, inner.soft_reboot_virtual_machine(request)).await,
            Order::Freeze(unfreeze_timeout_seconds) => {
                let request = cmd::FreezeRequest { vmi: request.vmi, unfreeze_timeout_seconds };
                within(FREEZE, inner.freeze_virtual_machine(request)).await
            }
            Order::Unfreeze => within(FREEZE, inner.unfreeze_virtual_machine(request)).await,
            Order::CancelMigration => within(ORDER, inner.cancel_virtual_machine_migration(request)).await,
            Order::FinalizeMigration => {
                within(ORDER, inner.finalize_virtual_machine_migration(request)).await
            }
            Order::Leave => within(ORDER, inner.signal_target_pod_cleanup(request)).await,
        }?;
        judge(Some(answer))
    }

    /// Asks the guest's agent; the answer is JSON.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn ask(&self, question: Question) -> Result<String, Error> {
        let mut inner = self.inner.clone();
        let empty = cmd::EmptyRequest {};
        let (response, json) = match question {
            Question::GuestInfo => {
                let answer = within(ORDER, inner.get_guest_info(empty)).await?;
                (answer.response, answer.guest_info_response)
            }
            Question::Users => {
                let answer = within(ORDER, inner.get_users(empty)).await?;
                (answer.response, answer.guest_user_list_response)
            }
            Question::Filesystems => {
                let answer = within(ORDER, inner.get_filesystems(empty)).await?;
                (answer.response, answer.guest_filesystems_response)
            }
        };
        judge(response)?;
        Ok(json)
    }

    /// What the machine has used so far; with an empty name while there is no machine.
    ///
    /// # Errors
    ///
    /// See [`Error`]; `Unsupported` of a launcher of an earlier release.
    pub async fn statistics(&self) -> Result<DomainStats, Error> {
        let mut inner = self.inner.clone().max_decoding_message_size(MAX_STATISTICS_BYTES);
        let answer = within(ASK, inner.get_domain_stats(cmd::EmptyRequest {})).await?;
        judge(answer.response)?;
        Ok(serde_json::from_str(&answer.domain_stats)?)
    }

    /// A picture of the machine's screen, and its media type in the launcher's words.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn picture(&self, vmi: &VirtualMachineInstance) -> Result<(String, Vec<u8>), Error> {
        let mut inner = self.inner.clone().max_decoding_message_size(MAX_PICTURE_ANSWER_BYTES);
        let answer = within(ORDER, inner.get_screenshot(request(vmi)?)).await?;
        judge(answer.response)?;
        Ok((answer.mime, answer.data))
    }
}

impl Error {
    /// Whether the launcher may simply be gone: the connection is to be made again, which tells.
    pub fn is_broken(&self) -> bool {
        matches!(self, Self::Broken(_))
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::Answer(bounded(error.to_string()))
    }
}

/// A text of the launcher's, as long as it may become in conditions, events and logs.
fn bounded(mut text: String) -> String {
    cut(&mut text, MAX_SENTENCE_BYTES);
    text
}

fn request(vmi: &VirtualMachineInstance) -> Result<cmd::VmiRequest, Error> {
    Ok(cmd::VmiRequest { vmi: Some(cmd::Vmi { vmi_json: serde_json::to_vec(vmi)? }), options: None })
}

async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Error> {
    match tokio::time::timeout(deadline, call).await {
        Err(_) => Err(Error::Silent(deadline)),
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(match status.code() {
            Code::Unimplemented => Error::Unsupported(bounded(status.message().to_owned())),
            Code::DeadlineExceeded => Error::Silent(deadline),
            Code::Unavailable | Code::Cancelled | Code::Unknown | Code::Internal => {
                Error::Broken(bounded(status.message().to_owned()))
            }
            _ => Error::Refused(bounded(status.message().to_owned())),
        }),
    }
}

fn judge(response: Option<cmd::Response>) -> Result<(), Error> {
    match response {
        Some(response) if !response.success => Err(Error::Refused(bounded(response.message))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};

    use super::*;

    #[tokio::test]
    async fn what_a_launcher_says_is_cut() {
        let long = "ä".repeat(4000);
        let refused = judge(Some(cmd::Response { success: false, message: long.clone() })).unwrap_err();
        assert_eq!(refused.to_string().len(), MAX_SENTENCE_BYTES);
        for code in [Code::Unimplemented, Code::Internal, Code::NotFound] {
            let call = std::future::ready(Err::<tonic::Response<()>, _>(Status::new(code, long.clone())));
            assert!(within(ASK, call).await.unwrap_err().to_string().len() < MAX_SENTENCE_BYTES + 100);
        }
        let json = format!("{{\"status\": {{\"{long}\": 1}}}}");
        let error: Error = serde_json::from_str::<Domain>(&json).unwrap_err().into();
        assert!(error.to_string().len() < MAX_SENTENCE_BYTES + 100);
    }

    /// A client of a launcher that answers every call with this message.
    fn client_answered<M: prost::Message + Clone + Default + 'static>(message: M) -> Client {
        let handle = move |request: axum::extract::Request| async move {
            let codec = tonic_prost::ProstCodec::<M, cmd::EmptyRequest>::default();
            let answer = tower::service_fn(move |_: tonic::Request<cmd::EmptyRequest>| {
                std::future::ready(Ok::<_, Status>(tonic::Response::new(message.clone())))
            });
            tonic::server::Grpc::new(codec).unary(answer, request).await
        };
        let routes = tonic::service::Routes::from(axum::Router::new().fallback(handle));
        let (near, far) = tokio::io::duplex(64 << 10);
        let connections = stream::iter([Ok::<_, io::Error>(far)]).chain(stream::pending());
        let server = tonic::transport::Server::builder().add_routes(routes);
        tokio::spawn(server.serve_with_incoming(connections));
        let mut near = Some(near);
        let channel = Endpoint::from_static("http://launcher").connect_with_connector_lazy(
            tower::service_fn(move |_: Uri| {
                let near = near.take().map(TokioIo::new);
                std::future::ready(near.ok_or_else(|| io::Error::other("the launcher takes one connection")))
            }),
        );
        let process = Process::of(std::process::id().cast_signed()).unwrap();
        Client::new(channel, process)
    }

    #[tokio::test]
    async fn an_answer_is_refused_before_it_has_more_bytes_than_its_limit() {
        for (length, is_taken) in [(MAX_ANSWER_BYTES - 100, true), (MAX_ANSWER_BYTES + 1, false)] {
            let guest_info_response = " ".repeat(length);
            let message = cmd::GuestInfoResponse { response: None, guest_info_response };
            let answer = client_answered(message).ask(Question::GuestInfo).await;
            assert_eq!(answer.is_ok(), is_taken, "{length}");

            let domain = format!("{}{}", " ".repeat(length - 2), "{}");
            let message = cmd::DomainResponse { response: None, domain };
            let answer = client_answered(message).domain("uid").await;
            assert_eq!(matches!(answer, Err(Error::Refused(_))), !is_taken, "{length}: {answer:?}");
        }
        for (length, is_taken) in [(MAX_STATISTICS_BYTES - 100, true), (MAX_STATISTICS_BYTES + 1, false)] {
            let domain_stats = format!("{}{}", " ".repeat(length - 2), "{}");
            let message = cmd::DomainStatsResponse { response: None, domain_stats };
            let answer = client_answered(message).statistics().await;
            assert_eq!(matches!(answer, Err(Error::Refused(_))), !is_taken, "{length}: {answer:?}");
        }
    }
}
