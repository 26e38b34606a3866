//! The command interface: cmd.v1 on the pod's command socket.
//!
//! A client that reaches the socket is the pod itself or the node's root; there is no more to check. A request that
//! carries another VMI than this launcher's is refused all the same: a handler that mixed up two pods must not
//! pause the wrong machine.

use std::sync::Arc;
use std::time::Duration;

use podvirt_api::v1;
use podvirt_proto::cmd::info::cmd_info_server::{CmdInfo, CmdInfoServer};
use podvirt_proto::cmd::info::{CmdInfoRequest, CmdInfoResponse};
use podvirt_proto::cmd::v1 as cmd;
use podvirt_proto::cmd::v1::cmd_server::{Cmd, CmdServer};
use podvirt_proto::{cmd as versions, domain, stats};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};
use tracing::error;

use super::answers;
use super::freeze::Guest as _;
use super::orders::{Answer, Server, done, outcome};
use super::probe::Duty;
use super::refused::{OrderError, read};
use super::shared::Shared;
use super::{backup, dump, migration, statistics};
use crate::life::runner::Wish;

/// A VMI's JSON is at most what etcd stores; some room above that.
const MAX_MESSAGE: usize = 8 * 1024 * 1024;

/// Serves until it is aborted.
pub(super) async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    let server = Server(shared);
    let result = tonic::transport::Server::builder()
        .add_service(CmdServer::new(server.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(CmdInfoServer::new(server))
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await;
    if let Err(error) = result {
        error!(%error, "the command interface failed");
    }
}

/// The present method is one of upstream's that podvirt does not carry out.
fn not_yet<T>(method: &str) -> Answer<T> {
    Err(Status::unimplemented(format!("{method} is not supported by podvirt")))
}

#[tonic::async_trait]
impl CmdInfo for Server {
    async fn info(&self, _: Request<CmdInfoRequest>) -> Answer<CmdInfoResponse> {
        Ok(Response::new(CmdInfoResponse {
            supported_cmd_versions: vec![versions::VERSION.into()],
            supported_kube_virt_api_versions: vec!["v1".into()],
            supported_domain_versions: vec![domain::VERSION.into()],
            supported_domain_stats_versions: vec![stats::VERSION.into()],
        }))
    }
}

/// The methods that podvirt does not carry out.
macro_rules! not_supported {
    ($($method:ident($request:ty) -> $response:ty = $name:literal,)*) => {$(
        fn $method<'a, 'b>(
            &'a self,
            _: Request<$request>,
        ) -> std::pin::Pin<Box<dyn Future<Output = Answer<$response>> + Send + 'b>>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async { not_yet($name) })
        }
    )*};
}

#[tonic::async_trait]
impl Cmd for Server {
    async fn sync_virtual_machine(&self, request: Request<cmd::VmiRequest>) -> Answer<cmd::Response> {
        let result = self.sync(&request.into_inner()).await;
        Ok(Response::new(told("SyncVirtualMachine", result)))
    }

    async fn shutdown_virtual_machine(&self, request: Request<cmd::VmiRequest>) -> Answer<cmd::Response> {
        self.wish(request.into_inner().vmi.as_ref(), Wish::ShutDown)
    }

    async fn kill_virtual_machine(&self, request: Request<cmd::VmiRequest>) -> Answer<cmd::Response> {
        self.wish(request.into_inner().vmi.as_ref(), Wish::Kill)
    }

    async fn pause_virtual_machine(&self, request: Request<cmd::VmiRequest>) -> Answer<cmd::Response> {
        self.order(request.into_inner().vmi.as_ref(), |h| h.suspend()).await
    }

    async fn unpause_virtual_machine(&self, request: Request<cmd::VmiRequest>) -> Answer<cmd::Response> {
        self.order(request.into_inner().vmi.as_ref(), |h| h.resume()).await
    }

    async fn reset_virtual_machine(&self, request: Request<cmd::VmiRequest>) -> Answer<cmd::Response> {
        let answer = self.order(request.into_inner().vmi.as_ref(), |h| h.reset()).await?;
        if answer.get_ref().success {
            // No file system stays frozen in a kernel that starts anew.
            self.0.set_frozen(false);
        }
        Ok(answer)
    }

    async fn soft_reboot_virtual_machine(&self, request: Request<cmd::VmiRequest>) -> Answer<cmd::Response> {
        self.order(request.into_inner().vmi.as_ref(), |h| h.reboot()).await
    }

    async fn freeze_virtual_machine(&self, request: Request<cmd::FreezeRequest>) -> Answer<cmd::Response> {
        Ok(Response::new(outcome(self.freeze(&request.into_inner()).await)))
    }

    async fn unfreeze_virtual_machine(&self, request: Request<cmd::VmiRequest>) -> Answer<cmd::Response> {
        let thawed = async {
            self.mine(request.into_inner().vmi.as_ref())?;
            Ok::<_, OrderError>(self.0.freezes.thaw(Arc::clone(&self.0)).await?)
        };
        Ok(Response::new(outcome(thawed.await)))
    }

    async fn migrate_virtual_machine(
        &self,
        request: Request<cmd::MigrationRequest>,
    ) -> Answer<cmd::Response> {
        let request = request.into_inner();
        let begun = async {
            self.mine(request.vmi.as_ref())?;
            Ok::<_, OrderError>(migration::begin(&self.0, request).await?)
        };
        let begun = begun.await;
        migration::reported(&self.0).await;
        Ok(Response::new(told("MigrateVirtualMachine", begun)))
    }

    async fn sync_migration_target(&self, request: Request<cmd::VmiRequest>) -> Answer<cmd::Response> {
        let result = self.receive(&request.into_inner()).await;
        Ok(Response::new(told("SyncMigrationTarget", result)))
    }

    async fn cancel_virtual_machine_migration(
        &self,
        request: Request<cmd::VmiRequest>,
    ) -> Answer<cmd::Response> {
        let mine = self.mine(request.into_inner().vmi.as_ref());
        let aborted = mine.and_then(|()| Ok(migration::cancel(&self.0)?));
        migration::reported(&self.0).await;
        Ok(Response::new(outcome(aborted)))
    }

    async fn signal_target_pod_cleanup(&self, request: Request<cmd::VmiRequest>) -> Answer<cmd::Response> {
        self.wish(request.into_inner().vmi.as_ref(), Wish::Leave)
    }

    async fn finalize_virtual_machine_migration(
        &self,
        request: Request<cmd::VmiRequest>,
    ) -> Answer<cmd::Response> {
        let vmi = request.into_inner().vmi;
        let finalized = async {
            self.mine(vmi.as_ref())?;
            Ok::<_, OrderError>(migration::finalize(&self.0, vmi.as_ref()).await?)
        };
        Ok(Response::new(outcome(finalized.await)))
    }

    async fn ping(&self, _: Request<cmd::EmptyRequest>) -> Answer<cmd::Response> {
        Ok(Response::new(done()))
    }

    async fn get_domain(&self, _: Request<cmd::EmptyRequest>) -> Answer<cmd::DomainResponse> {
        let domain = serde_json::to_string(&*self.0.report.borrow());
        let domain = domain.map_err(|e| Status::internal(e.to_string()))?;
        Ok(Response::new(cmd::DomainResponse { response: Some(done()), domain }))
    }

    async fn get_domain_stats(&self, _: Request<cmd::EmptyRequest>) -> Answer<cmd::DomainStatsResponse> {
        let counted = async {
            let stats = statistics::statistics(&self.0).await?;
            serde_json::to_string(&stats).map_err(OrderError::Answer)
        };
        let (response, domain_stats) = match counted.await {
            Ok(json) => (done(), json),
            Err(error) => (outcome(Err(error)), String::new()),
        };
        Ok(Response::new(cmd::DomainStatsResponse { response: Some(response), domain_stats }))
    }

    async fn get_guest_info(&self, _: Request<cmd::EmptyRequest>) -> Answer<cmd::GuestInfoResponse> {
        let info = answers::guest_info(&self.0).await;
        let json = info.as_ref().ok().and_then(|info| serde_json::to_string(info).ok());
        Ok(Response::new(cmd::GuestInfoResponse {
            response: Some(outcome(info.map(drop))),
            guest_info_response: json.unwrap_or_default(),
        }))
    }

    async fn get_users(&self, _: Request<cmd::EmptyRequest>) -> Answer<cmd::GuestUserListResponse> {
        let (response, json) = self.question("guest-get-users", answers::users).await;
        Ok(Response::new(cmd::GuestUserListResponse {
            response: Some(response),
            guest_user_list_response: json,
        }))
    }

    async fn get_filesystems(&self, _: Request<cmd::EmptyRequest>) -> Answer<cmd::GuestFilesystemsResponse> {
        let (response, json) = self.question("guest-get-fsinfo", answers::filesystems).await;
        Ok(Response::new(cmd::GuestFilesystemsResponse {
            response: Some(response),
            guest_filesystems_response: json,
        }))
    }

    async fn get_screenshot(&self, request: Request<cmd::VmiRequest>) -> Answer<cmd::ScreenshotResponse> {
        let taken = async {
            self.mine(request.into_inner().vmi.as_ref())?;
            Ok::<_, OrderError>(self.0.call(|hypervisor| hypervisor.picture()).await?)
        };
        let (response, picture) = match taken.await {
            Ok(picture) => (done(), Some(picture)),
            Err(error) => (outcome(Err(error)), None),
        };
        let (mime, data) = picture.map(|picture| (picture.mime, picture.data)).unwrap_or_default();
        Ok(Response::new(cmd::ScreenshotResponse { response: Some(response), mime, data }))
    }

    async fn guest_ping(&self, request: Request<cmd::GuestPingRequest>) -> Answer<cmd::GuestPingResponse> {
        let limit = seconds(request.into_inner().timeout_seconds);
        let answer = match self.0.probe_duty() {
            Duty::Paused | Duty::Absent => Ok(()),
            Duty::Answer | Duty::MayAnswer => self.agent("guest-ping", limit).await.map(drop),
        };
        let result = self.0.judge_ping(answer);
        Ok(Response::new(cmd::GuestPingResponse { response: Some(outcome(result)) }))
    }

    async fn exec(&self, request: Request<cmd::ExecRequest>) -> Answer<cmd::ExecResponse> {
        let request = request.into_inner();
        if self.0.probe_duty() == Duty::Absent {
            return Ok(Response::new(cmd::ExecResponse { response: Some(done()), ..Default::default() }));
        }
        let limit = seconds(request.timeout_seconds);
        let executed = answers::execute(&self.0, &request.command, &request.args, limit).await;
        let executed = executed.map_err(OrderError::from);
        let executed = executed.and_then(|executed| executed.ok_or(OrderError::Runs(limit)));
        let (response, executed) = match executed {
            Ok(executed) => (done(), executed),
            Err(error) => (outcome(Err(error)), answers::Executed::default()),
        };
        Ok(Response::new(cmd::ExecResponse {
            response: Some(response),
            exit_code: executed.code,
            std_out: executed.output,
        }))
    }

    async fn virtual_machine_memory_dump(
        &self,
        request: Request<cmd::MemoryDumpRequest>,
    ) -> Answer<cmd::Response> {
        let request = request.into_inner();
        let begun = self.mine(request.vmi.as_ref()).and_then(|()| {
            let json = request.vmi.map(|vmi| vmi.vmi_json).unwrap_or_default();
            let vmi: Box<v1::VirtualMachineInstance> = read("vmi", &json)?;
            Ok(dump::begin(&self.0, &vmi, &request.dump_path)?)
        });
        Ok(Response::new(outcome(begun)))
    }

    async fn backup_virtual_machine(&self, request: Request<cmd::BackupRequest>) -> Answer<cmd::Response> {
        let request = request.into_inner();
        let done = async {
            self.mine(request.vmi.as_ref())?;
            let options = read("options", &request.options)?;
            Ok::<_, OrderError>(backup::command(&self.0, &self.0.identity.name, options).await?)
        };
        Ok(Response::new(told("BackupVirtualMachine", done.await)))
    }

    async fn redefine_checkpoint(
        &self,
        request: Request<cmd::RedefineCheckpointRequest>,
    ) -> Answer<cmd::RedefineCheckpointResponse> {
        let request = request.into_inner();
        let done = async {
            self.mine(request.vmi.as_ref())?;
            let checkpoint = read("checkpoint", &request.checkpoint)?;
            Ok::<_, OrderError>(backup::redefine(&self.0, &checkpoint).await?)
        };
        let done = done.await;
        let checkpoint_invalid = matches!(done, Err(OrderError::Checkpoint(backup::Unknown::Invalid(_))));
        let response = Some(outcome(done));
        Ok(Response::new(cmd::RedefineCheckpointResponse { response, checkpoint_invalid }))
    }

    not_supported! {
        delete_virtual_machine(cmd::VmiRequest) -> cmd::Response = "DeleteVirtualMachine",
        hotplug_host_devices(cmd::VmiRequest) -> cmd::Response = "HotplugHostDevices",
        sync_virtual_machine_cp_us(cmd::VmiRequest) -> cmd::Response = "SyncVirtualMachineCPUs",
        sync_virtual_machine_memory(cmd::VmiRequest) -> cmd::Response = "SyncVirtualMachineMemory",
        get_vm_stats(cmd::VmStatsRequest) -> cmd::VmStatsResponse = "GetVMStats",
        get_domain_dirty_rate_stats(cmd::EmptyRequest) -> cmd::DirtyRateStatsResponse = "GetDomainDirtyRateStats",
        get_qemu_version(cmd::EmptyRequest) -> cmd::QemuVersionResponse = "GetQemuVersion",
        get_sev_info(cmd::EmptyRequest) -> cmd::SevInfoResponse = "GetSEVInfo",
        get_launch_measurement(cmd::VmiRequest) -> cmd::LaunchMeasurementResponse = "GetLaunchMeasurement",
        inject_launch_secret(cmd::InjectLaunchSecretRequest) -> cmd::Response = "InjectLaunchSecret",
    }
}

/// How an order of this name went, which the log says as well where it failed.
fn told(order: &str, result: Result<(), OrderError>) -> cmd::Response {
    if let Err(error) = &result {
        error!(error = error as &dyn std::error::Error, "{order} fails");
    }
    outcome(result)
}

/// A limit from a request: at least a second.
fn seconds(given: i32) -> Duration {
    Duration::from_secs(u64::try_from(given).unwrap_or(0).max(1))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    use super::super::shared::Identity;
    use super::*;

    fn request(metadata: &Value) -> Request<cmd::VmiRequest> {
        let vmi_json = json!({"metadata": metadata}).to_string().into_bytes();
        Request::new(cmd::VmiRequest { vmi: Some(cmd::Vmi { vmi_json }), options: None })
    }

    #[tokio::test]
    async fn an_order_for_a_deleted_vmi_is_known_as_one() {
        let identity = Identity { uid: "u".into(), ..Identity::default() };
        let shared = Arc::new(Shared::new(identity, mpsc::channel(1).0));
        let server = Server(shared.clone());
        let known = || (*shared.wish.borrow(), shared.facts.borrow().deleted);

        let stranger = request(&json!({"uid": "v", "deletionTimestamp": "2026-11-23T00:00:00Z"}));
        let answer = server.shutdown_virtual_machine(stranger).await.unwrap().into_inner();
        assert!(!answer.success && answer.message.contains("'v' is another machine"), "{answer:?}");
        assert_eq!(known(), (Wish::Run, false));

        for (metadata, deleted) in [
            (json!({"uid": "u"}), false),
            (json!({"uid": "u", "deletionTimestamp": "2026-11-23T00:00:00Z"}), true),
            (json!({"uid": "u"}), true),
        ] {
            assert!(server.shutdown_virtual_machine(request(&metadata)).await.unwrap().into_inner().success);
            assert_eq!(known(), (Wish::ShutDown, deleted), "{metadata}");
        }
    }

    #[tokio::test]
    async fn virt_probe_tells_what_the_launcher_answers() {
        use crate::virt_probe::{self, VirtProbe};
        use clap::Parser;

        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("sock");
        let shared = Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0));
        let server = tokio::spawn(serve(UnixListener::bind(&socket).unwrap(), shared));
        let ask = async |more: &[&str]| {
            let line = ["virt-probe", "--socket", socket.to_str().unwrap()];
            let args = VirtProbe::try_parse_from(line.iter().chain(more)).unwrap();
            virt_probe::run(&args).await.unwrap_err().to_string()
        };
        assert_eq!(ask(&["--guestAgentPing"]).await, "the guest's agent is not connected");
        assert_eq!(ask(&["--command", "true", "--", "-e"]).await, "the guest's agent is not connected");
        assert_eq!(ask(&[]).await, "--command or --guestAgentPing is required");
        server.abort();
    }
}
