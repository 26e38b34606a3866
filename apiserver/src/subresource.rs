//! The subresources of VMs and instances: from an authorised request to its answer.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{Request, StatusCode};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use json_patch::Patch as JsonPatch;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use podvirt_api::admission::{Cluster, migration};
use podvirt_api::migration::pod_by_migration;
use podvirt_api::names::label;
use podvirt_api::v1::{
    AddVolumeOptions, MigrateOptions, PauseOptions, RemoveVolumeOptions, RestartOptions, StartOptions,
    StopOptions, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration,
    VirtualMachineMemoryDumpRequest,
};
use tracing::{Instrument, debug, info, warn};

use crate::front_proxy::User;
use crate::handler::{Handlers, MAX_ANSWER_BYTES, MAX_PICTURE_BYTES};
use crate::lifecycle::{self, Change};
use crate::limits::streams::{StreamPlace, Streams};
use crate::metrics::{Metrics, Open};
use crate::options;
use crate::retry::{self, MAX_ATTEMPTS};
use crate::status::Status;
use crate::stream::{join, tunnel, upgrade};
use crate::target::{Action, Kind, Subresource, Target};
use crate::volumes::Wish;
use crate::{evacuation, expand, instance, memory_dump, objectgraph, target, volumes};

/// Largest body of a request for a subresource.
pub const MAX_OPTIONS_BYTES: usize = 64 << 10;
/// Largest body of a request that is a VM.
pub const MAX_DOCUMENT_BYTES: usize = 256 << 10;
/// Start of the names of migrations that a VM's subresource makes (upstream's).
const MIGRATION_PREFIX: &str = "kubevirt-migrate-vm-";
/// Grace period, in seconds, of a launcher pod that is forced to end; 0 would leave its processes running unseen.
const FORCED_GRACE_SECONDS: u32 = 1;

/// Carries out requests.
#[derive(Clone)]
pub struct Subresources {
    client: Client,
    handlers: Handlers,
    metrics: Metrics,
    config: Arc<ArcSwap<Cluster>>,
    streams: Streams,
}

/// What a VM's subresource changes.
struct Plan {
    instance: Option<JsonPatch>,
    vm: Change,
    force: bool,
}

impl Subresources {
    /// Requests are carried out by way of `client` and `handlers`, in a cluster that is configured by `config`.
    pub fn new(client: Client, handlers: Handlers, metrics: Metrics, config: Arc<ArcSwap<Cluster>>) -> Self {
        Subresources { client, handlers, metrics, config, streams: Streams::default() }
    }

    /// Answers an authorised request. `options` is its body, but for a stream's.
    ///
    /// # Errors
    ///
    /// The object is missing, its state does not allow it, or a part that is needed fails.
    pub async fn serve(
        &self,
        row: &Subresource,
        target: &Target,
        user: &User,
        request: Request<Body>,
        options: Bytes,
    ) -> Result<Response, Status> {
        match row.action {
            Action::Refused => {
                Err(Status::not_supported(&format!("subresource {} of {}", row.name, row.kind.plural())))
            }
            Action::Start => self.start(target, &options).await,
            Action::Stop => self.stop(target, &options).await,
            Action::Restart => self.restart(target, &options).await,
            Action::Migrate => self.migrate(target, &options).await,
            Action::AddVolume => {
                let options: AddVolumeOptions = options::read(&options)?;
                let dry_run = options::is_dry_run(&options.dry_run)?;
                self.change_volumes(row, target, dry_run, &Wish::add(options)?).await
            }
            Action::RemoveVolume => {
                let options: RemoveVolumeOptions = options::read(&options)?;
                let dry_run = options::is_dry_run(&options.dry_run)?;
                self.change_volumes(row, target, dry_run, &Wish::remove(options)?).await
            }
            Action::MemoryDump => self.memory_dump(target, &options).await,
            Action::RemoveMemoryDump => {
                Box::pin(self.change_vm(target, false, |vm, _| {
                    Ok(Plan { instance: None, vm: memory_dump::remove(vm)?, force: false })
                }))
                .await
            }
            Action::EvacuateCancel => self.evacuate_cancel(target, &options).await,
            Action::Handler => self.handler(row, target, options).await,
            Action::Stream => self.stream(row, target, user, request).await,
            Action::PortForward => self.port_forward(row, target, user, request).await,
            Action::ExpandStored => expand::stored(&self.client, &self.config.load(), target).await,
            Action::ObjectGraph => {
                Box::pin(objectgraph::answer(&self.client, row.kind, target, &options)).await
            }
            Action::Expand => expand::given(&self.client, &self.config.load(), target, &options).await,
        }
    }

    async fn start(&self, target: &Target, body: &[u8]) -> Result<Response, Status> {
        let options: StartOptions = options::read(body)?;
        let dry_run = options::is_dry_run(&options.dry_run)?;
        Box::pin(self.change_vm(target, dry_run, |vm, vmi| {
            let vm = lifecycle::start(vm, vmi, &options)?;
            Ok(Plan { instance: None, vm, force: false })
        }))
        .await
    }

    async fn stop(&self, target: &Target, body: &[u8]) -> Result<Response, Status> {
        let options: StopOptions = options::read(body)?;
        let dry_run = options::is_dry_run(&options.dry_run)?;
        Box::pin(self.change_vm(target, dry_run, |vm, vmi| {
            let stop = lifecycle::stop(vm, vmi, &options)?;
            Ok(Plan { instance: stop.instance, vm: stop.vm, force: false })
        }))
        .await
    }

    async fn restart(&self, target: &Target, body: &[u8]) -> Result<Response, Status> {
        let options: RestartOptions = options::read(body)?;
        let dry_run = options::is_dry_run(&options.dry_run)?;
        Box::pin(self.change_vm(target, dry_run, |vm, vmi| {
            let restart = lifecycle::restart(vm, vmi, &options)?;
            Ok(Plan { instance: None, vm: restart.vm, force: restart.force })
        }))
        .await
    }

    /// Has the guest's memory written to a claim.
    async fn memory_dump(&self, target: &Target, body: &[u8]) -> Result<Response, Status> {
        let asked: VirtualMachineMemoryDumpRequest = options::read(body)?;
        let kind = Kind::VirtualMachine.in_errors();
        let vms: Api<VirtualMachine> = Api::namespaced(self.client.clone(), &target.namespace);
        let vm = vms.get_opt(&target.name).await?.ok_or_else(|| Status::not_found(kind, &target.name))?;
        let name = memory_dump::claim_of(&vm, &asked.claim_name)?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &target.namespace);
        let claim = claims.get_opt(&name).await?;
        Box::pin(self.change_vm(target, false, |vm, vmi| {
            let name = memory_dump::claim_of(vm, &name)?;
            memory_dump::fits(&name, claim.as_ref(), vmi)?;
            memory_dump::is_free(vm, vmi, &name)?;
            Ok(Plan { instance: None, vm: memory_dump::dump(vm, &name)?, force: false })
        }))
        .await
    }

    /// Plugs or unplugs a volume of a VM, or of an instance alone.
    async fn change_volumes(
        &self,
        row: &Subresource,
        target: &Target,
        dry_run: bool,
        wish: &Wish,
    ) -> Result<Response, Status> {
        if row.kind == Kind::VirtualMachine {
            return Box::pin(self.change_vm(target, dry_run, |vm, _| {
                Ok(Plan { instance: None, vm: volumes::of_machine(vm, wish)?, force: false })
            }))
            .await;
        }
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(self.client.clone(), &target.namespace);
        let params = PatchParams { dry_run, ..PatchParams::default() };
        let kind = Kind::Instance.in_errors();
        for attempt in 0..MAX_ATTEMPTS {
            let vmi =
                vmis.get_opt(&target.name).await?.ok_or_else(|| Status::not_found(kind, &target.name))?;
            let patch = volumes::of_instance(&vmi, wish, &self.config.load().configuration)?;
            match vmis.patch(&target.name, &params, &Patch::Json::<()>(patch)).await {
                Ok(_) => return Ok(StatusCode::ACCEPTED.into_response()),
                Err(error) if Status::is_outdated(&error) => retry::pause(attempt).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Status::conflict(kind, &target.name, "the VMI keeps changing; please try again"))
    }

    /// Asks for a migration of a VM's instance. The webhook of migrations judges it.
    async fn migrate(&self, target: &Target, body: &[u8]) -> Result<Response, Status> {
        let options: MigrateOptions = options::read(body)?;
        let dry_run = options::is_dry_run(&options.dry_run)?;
        let kind = Kind::VirtualMachine.in_errors();
        let vms: Api<VirtualMachine> = Api::namespaced(self.client.clone(), &target.namespace);
        vms.get_opt(&target.name).await?.ok_or_else(|| Status::not_found(kind, &target.name))?;
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(self.client.clone(), &target.namespace);
        let runs = vmis.get_opt(&target.name).await?.is_some_and(|vmi| !lifecycle::is_final(&vmi));
        if !runs {
            return Err(Status::conflict(kind, &target.name, "VM is not running"));
        }
        let selector =
            options.added_node_selector.into_iter().map(|(key, value)| (key, value.into())).collect();
        let wanted = migration::of_machine(&target.name, MIGRATION_PREFIX, selector);
        let wanted: VirtualMachineInstanceMigration = serde_json::from_value(wanted)
            .map_err(|error| Status::internal(format!("the migration cannot be written: {error}")))?;
        let api: Api<VirtualMachineInstanceMigration> =
            Api::namespaced(self.client.clone(), &target.namespace);
        let made = api.create(&PostParams { dry_run, ..PostParams::default() }, &wanted).await?;
        info!(
            namespace = target.namespace,
            vm = target.name,
            migration = made.metadata.name,
            dry_run,
            "migration asked for"
        );
        Ok(StatusCode::ACCEPTED.into_response())
    }

    /// Takes back that an instance is to leave its node.
    async fn evacuate_cancel(&self, target: &Target, body: &[u8]) -> Result<Response, Status> {
        let api: Api<VirtualMachineInstance> = Api::namespaced(self.client.clone(), &target.namespace);
        evacuation::cancel(&api, &target.name, options::read(body)?).await?;
        Ok(StatusCode::ACCEPTED.into_response())
    }

    /// Decides and patches; decides anew when the VM changed in between.
    async fn change_vm(
        &self,
        target: &Target,
        dry_run: bool,
        decide: impl Fn(&VirtualMachine, Option<&VirtualMachineInstance>) -> Result<Plan, Status>,
    ) -> Result<Response, Status> {
        let vms: Api<VirtualMachine> = Api::namespaced(self.client.clone(), &target.namespace);
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(self.client.clone(), &target.namespace);
        let params = PatchParams { dry_run, ..PatchParams::default() };
        let kind = Kind::VirtualMachine.in_errors();
        for attempt in 0..MAX_ATTEMPTS {
            let vm = vms.get_opt(&target.name).await?.ok_or_else(|| Status::not_found(kind, &target.name))?;
            let vmi = vmis.get_opt(&target.name).await?;
            let plan = decide(&vm, vmi.as_ref())?;
            if let Some(patch) = plan.instance {
                match vmis.patch(&target.name, &params, &Patch::Json::<()>(patch)).await {
                    Ok(_) => {}
                    Err(error) if Status::is_outdated(&error) => {
                        retry::pause(attempt).await;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            let patched = match plan.vm {
                Change::Spec(patch) => vms.patch(&target.name, &params, &Patch::Json::<()>(patch)).await,
                Change::Status(patch) => {
                    vms.patch_status(&target.name, &params, &Patch::Json::<()>(patch)).await
                }
            };
            match patched {
                Ok(_) => {}
                Err(error) if Status::is_outdated(&error) => {
                    info!(
                        error = &error as &dyn std::error::Error,
                        "the VM changed meanwhile; deciding anew"
                    );
                    retry::pause(attempt).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            if plan.force
                && !dry_run
                && let Some(vmi) = &vmi
            {
                self.delete_launchers(vmi).await?;
            }
            return Ok(StatusCode::ACCEPTED.into_response());
        }
        Err(Status::conflict(kind, &target.name, "the VM keeps changing; please try again"))
    }

    fn pods(&self, vmi: &VirtualMachineInstance) -> Api<Pod> {
        Api::namespaced(self.client.clone(), vmi.metadata.namespace.as_deref().unwrap_or_default())
    }

    async fn delete_launchers(&self, vmi: &VirtualMachineInstance) -> Result<(), Status> {
        let params = DeleteParams::default().grace_period(FORCED_GRACE_SECONDS);
        for pod in instance::launchers(&self.client, vmi).await? {
            let name = pod.metadata.name.unwrap_or_default();
            match self.pods(vmi).delete(&name, &params).await {
                Ok(_) => info!(pod = name, "launcher pod deleted to force a restart"),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The instance of a target, of a VM's too: they have the same name.
    async fn instance(&self, target: &Target, subresource: &str) -> Result<VirtualMachineInstance, Status> {
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(self.client.clone(), &target.namespace);
        let found = vmis.get_opt(&target.name).await?;
        let vmi = found.ok_or_else(|| Status::not_found(Kind::Instance.in_errors(), &target.name))?;
        instance::check(&vmi, subresource)?;
        Ok(vmi)
    }

    /// That no snapshot of the machine's disks is being taken, which a guest that goes on would write to.
    async fn not_taken(&self, target: &Target) -> Result<(), Status> {
        let machines: Api<VirtualMachine> = Api::namespaced(self.client.clone(), &target.namespace);
        let vm = machines.get_opt(&target.name).await?;
        match vm.and_then(|vm| vm.status.snapshot_in_progress) {
            Some(_) => {
                let kind = Kind::VirtualMachine.in_errors();
                Err(Status::conflict(kind, &target.name, "VM snapshot is in progress"))
            }
            None => Ok(()),
        }
    }

    async fn handler(&self, row: &Subresource, target: &Target, body: Bytes) -> Result<Response, Status> {
        // Pausing and unpausing alone have options; both kinds read the same.
        let dry_run = match row.name {
            "pause" | "unpause" => options::is_dry_run(&options::read::<PauseOptions>(&body)?.dry_run)?,
            _ => false,
        };
        let vmi = self.instance(target, row.name).await?;
        if row.name == "unpause" {
            self.not_taken(target).await?;
        }
        if dry_run {
            return Ok(StatusCode::ACCEPTED.into_response());
        }
        let most = if row.name == "vnc/screenshot" { MAX_PICTURE_BYTES } else { MAX_ANSWER_BYTES };
        self.handlers.call(&vmi, row.method.clone(), row.name, body, most).await
    }

    /// A place for a stream of a user's.
    fn place(&self, user: &User, target: &Target) -> Result<StreamPlace, Status> {
        let place = self.streams.admit(&user.name, &target.namespace, &target.name);
        place.map_err(|error| Status::too_many(error.to_string()))
    }

    async fn stream(
        &self,
        row: &Subresource,
        target: &Target,
        user: &User,
        mut request: Request<Body>,
    ) -> Result<Response, Status> {
        upgrade::is_upgradable(&request)?;
        let place = self.place(user, target)?;
        let vmi = self.instance(target, row.name).await?;
        let query = request.uri().query().map(ToOwned::to_owned);
        let agreed = self.handlers.upgrade(&vmi, row.name, query.as_deref(), request.headers()).await?;
        let agreed = match agreed {
            Ok(agreed) => agreed,
            Err(refusal) => return Ok(refusal),
        };
        info!(
            user = user.name,
            namespace = target.namespace,
            vmi = target.name,
            stream = row.name,
            "stream opened"
        );
        let family = if row.name == "vnc" { &self.metrics.vncs } else { &self.metrics.consoles };
        let open = Open::new(family, &target.namespace, &target.name);
        Ok(join::respond(&mut request, agreed, (open, place)))
    }

    async fn port_forward(
        &self,
        row: &Subresource,
        target: &Target,
        user: &User,
        mut request: Request<Body>,
    ) -> Result<Response, Status> {
        let port = target.port()?;
        upgrade::is_upgradable(&request)?;
        let response = upgrade::agree(request.headers())?;
        let place = self.place(user, target)?;
        let vmi = self.instance(target, row.name).await?;
        let addresses = addresses(&vmi, &instance::launchers(&self.client, &vmi).await?);
        let accepted = |peer| self.handlers.accepted(&vmi, peer);
        let guest = tunnel::dial(&addresses, port, accepted).await.map_err(|error| {
            warn!(?addresses, port = port.number, %error, "the guest's port cannot be reached");
            Status::internal(format!("dialing VM: port {}: {error}", port.number))
        })?;
        info!(
            user = user.name,
            namespace = target.namespace,
            vmi = target.name,
            port = port.number,
            "port forwarded"
        );
        let open = Open::new(&self.metrics.tunnels, &target.namespace, &target.name);
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(
            async move {
                let _held = (open, place);
                match upgraded.await {
                    Ok(upgraded) => tunnel::run(TokioIo::new(upgraded), guest).await,
                    Err(error) => debug!(%error, "the client went away before the stream began"),
                }
            }
            .in_current_span(),
        );
        Ok(response)
    }
}

/// Addresses of the pod that runs, the primary one first. While the instance migrates it has two pods, and is in one.
fn addresses(vmi: &VirtualMachineInstance, pods: &[Pod]) -> Vec<IpAddr> {
    let own = |pod: &&Pod| match pod_by_migration(vmi) {
        Some(name) => pod.metadata.name.as_deref() == Some(name),
        None => !pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label::MIGRATION_JOB)),
    };
    let living = pods.iter().filter(own).filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let running = living.filter_map(|pod| {
        let status = pod.status.as_ref()?;
        (status.phase.as_deref() == Some("Running")).then_some(status)
    });
    running.flat_map(|status| status.pod_ips.iter().flatten()).filter_map(|ip| ip.ip.parse().ok()).collect()
}

/// Names of a row for metrics.
pub fn labels(row: &target::Subresource, code: StatusCode) -> crate::metrics::RequestLabels {
    crate::metrics::RequestLabels {
        resource: row.kind.plural(),
        subresource: row.name,
        code: u32::from(code.as_u16()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_port_leads_to_the_pod_that_the_instance_is_in() {
        let pod = |name: &str, ip: &str, job: bool| -> Pod {
            let labels = if job { json!({"kubevirt.io/migrationJobUID": "j"}) } else { json!({}) };
            serde_json::from_value(json!({"metadata": {"name": name, "labels": labels},
                "status": {"phase": "Running", "podIPs": [{"ip": ip}]}}))
            .unwrap()
        };
        let pods = [pod("b", "10.0.0.2", true), pod("a", "10.0.0.1", false)];
        let state = json!({"sourceNode": "n1", "sourcePod": "a", "targetNode": "n2", "targetPod": "b"});
        for (status, ip) in [
            (json!({"nodeName": "n1"}), "10.0.0.1"),
            (json!({"nodeName": "n1", "migrationState": state}), "10.0.0.1"),
            (json!({"nodeName": "n2", "migrationState": state}), "10.0.0.2"),
        ] {
            let vmi: VirtualMachineInstance = serde_json::from_value(
                json!({"metadata": {"name": "web"}, "spec": {"domain": {"devices": {}}}, "status": status}),
            )
            .unwrap();
            assert_eq!(addresses(&vmi, &pods), [ip.parse::<IpAddr>().unwrap()]);
        }
    }
}
