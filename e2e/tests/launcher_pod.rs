//! virt-launcher in a pod, as virt-handler sees it: containers as in a launcher pod, a handler that is this test.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podvirt_e2e::artefacts::{artefact, program_dir};
use podvirt_e2e::{Console, Family, NetOptions, Pod, Process, until};
use podvirt_proto::cmd::info::CmdInfoRequest;
use podvirt_proto::cmd::info::cmd_info_client::CmdInfoClient;
use podvirt_proto::cmd::v1::cmd_client::CmdClient;
use podvirt_proto::cmd::v1::{
    EmptyRequest, ExecRequest, FreezeRequest, GuestPingRequest, MigrationRequest, Response, Vmi, VmiRequest,
};
use podvirt_proto::domain::{Domain, Status, reason};
use podvirt_proto::notify::v1::notify_server::{Notify, NotifyServer};
use podvirt_proto::notify::v1::{DomainEventRequest, K8sEventRequest, Response as Taken};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint};

/// Boot to GUEST-READY under TCG, libvirt's start included.
const BOOT: Duration = Duration::from_secs(120);
/// The same of a Debian.
const BOOT_DEBIAN: Duration = Duration::from_secs(400);
/// Anything else.
const LIMIT: Duration = Duration::from_secs(60);
/// The port on which the guest greets.
const GREETER: u16 = 7777;
const VMI_UID: &str = "7c2f7b1e-53a5-4d0f-9f0e-0d6b5a1c9e42";
/// What is on the container disk.
const MARK: &str = "container-disk-mark";

fn vmi() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "tiny", "namespace": "demo", "uid": VMI_UID, "resourceVersion": "7"},
        "spec": {
            "domain": {
                "cpu": {"cores": 1},
                "memory": {"guest": "256Mi"},
                "firmware": {"kernelBoot": {
                    "kernelArgs": format!(
                        "console=ttyS0 quiet panic=-1 mitigations=off init_on_alloc=0 pv.serve={GREETER}"
                    ),
                    "container": {
                        "image": "registry.example/tiny", "kernelPath": "/vmlinuz", "initrdPath": "/initrd.img",
                    },
                }},
                "devices": {
                    "rng": {},
                    "disks": [{"name": "data", "disk": {"bus": "virtio"}}],
                    "interfaces": [{"name": "default", "passtBinding": {}, "ports": [{"port": GREETER}]}],
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [
                {"name": "scratch", "emptyDisk": {"capacity": "8Mi"}},
                {"name": "data", "containerDisk": {"image": "registry.example/data"}},
            ],
        },
        "status": {"phase": "Scheduled"},
    })
}

/// The latest report that the handler was told.
#[derive(Clone, Default)]
struct Heard(Arc<(Mutex<Vec<Domain>>, Condvar)>);

impl Heard {
    /// Waits for a report that `wanted` likes.
    fn wait(&self, what: &str, wanted: impl Fn(&Domain) -> bool) -> Domain {
        self.wait_within(LIMIT, what, wanted)
    }

    /// The same, for what takes longer.
    fn wait_within(&self, limit: Duration, what: &str, wanted: impl Fn(&Domain) -> bool) -> Domain {
        let end = Instant::now() + limit;
        let mut reports = self.0.0.lock().unwrap();
        loop {
            if let Some(report) = reports.iter().find(|r| wanted(r)) {
                return report.clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} was not reported; last: {:?}", reports.last());
            reports = self.0.1.wait_timeout(reports, left).unwrap().0;
        }
    }
}

#[tonic::async_trait]
impl Notify for Heard {
    async fn handle_domain_event(
        &self,
        request: tonic::Request<DomainEventRequest>,
    ) -> Result<tonic::Response<Taken>, tonic::Status> {
        let domain = serde_json::from_slice(&request.into_inner().domain_json).unwrap();
        self.0.0.lock().unwrap().push(domain);
        self.0.1.notify_all();
        Ok(tonic::Response::new(Taken { success: true, message: String::new() }))
    }

    async fn handle_k8s_event(
        &self,
        _: tonic::Request<K8sEventRequest>,
    ) -> Result<tonic::Response<Taken>, tonic::Status> {
        Ok(tonic::Response::new(Taken { success: true, message: String::new() }))
    }
}

/// A launcher pod with a handler.
struct Launched {
    // Dropped first to last: the containers before what they use.
    compute: Process,
    _sidecars: Vec<Process>,
    runtime: Runtime,
    pod: Pod,
    image: Option<TempDir>,
}

impl Launched {
    /// The tiny guest's pod.
    fn new(options: &str) -> Launched {
        let image = tempfile::tempdir().unwrap();
        std::fs::set_permissions(image.path(), Permissions::from_mode(0o755)).unwrap();
        let mut disk = MARK.as_bytes().to_vec();
        disk.resize(1024 * 1024, 0);
        std::fs::write(image.path().join("disk.img"), &disk).unwrap();
        let tiny = artefact("tiny").unwrap();
        let sidecars = [
            ("volumedata", image.path(), "disk_1.sock --path /mnt/image"),
            (
                "kernel-boot-volume",
                tiny.as_path(),
                "kernel-boot.sock --path /mnt/image/vmlinuz --path /mnt/image/initrd.img",
            ),
        ];
        let mut launched = Launched::with(options, &vmi(), &sidecars);
        launched.image = Some(image);
        launched
    }

    /// A pod for `vmi` with these container disks: container, directory that is its image, arguments.
    fn with(options: &str, vmi: &Value, images: &[(&str, &Path, &str)]) -> Launched {
        let pod = Pod::new(NetOptions::default()).unwrap();
        for name in
            ["public", "public/sockets", "public/netd", "public/container-disks", "private", "ephemeral"]
        {
            let path = pod.path(name);
            std::fs::create_dir(&path).unwrap();
            chown(&path, Some(107), Some(107)).unwrap();
        }
        let programs = program_dir("virt-launcher").unwrap();
        // The pod's volumes where the containers of a real one have them.
        let mounts = "ln -s /w/public /run/kubevirt; ln -s /w/private /run/kubevirt-private; \
                      ln -s /w/ephemeral /run/kubevirt-ephemeral-disks; exec ";
        let shell = |command: &str| ["sh".to_owned(), "-c".to_owned(), format!("{mounts}{command}")];
        let container = |name: &str| pod.container(name).unwrap().no_init().ro(&programs, "/podvirt");
        let mut sidecars = Vec::new();
        let mut stripped = vmi.clone();
        stripped["spec"]["volumes"] = json!([]);
        let netd = container("netd").env("VMI_JSON", &stripped.to_string());
        sidecars.push(netd.spawn(&shell("virt-launcher run-netd --netd /podvirt/netd")).unwrap());
        for (name, image, arguments) in images {
            let command = format!("container-disk --listen /run/kubevirt/container-disks/{arguments}");
            sidecars.push(container(name).ro(image, "/mnt/image").spawn(&shell(&command)).unwrap());
        }
        let command = format!(
            "virt-launcher pod --name tiny --namespace demo --uid {VMI_UID} --grace-period-seconds 60 {options}"
        );
        let compute = container("compute").spawn(&shell(&command)).unwrap();
        Launched { compute, _sidecars: sidecars, runtime: Runtime::new().unwrap(), pod, image: None }
    }

    /// A handler that listens on the pod's socket.
    fn handler(&self) -> (Heard, tokio::task::JoinHandle<()>) {
        let socket = self.pod.path("public/domain-notify-pipe.sock");
        let heard = Heard::default();
        let service = NotifyServer::new(heard.clone());
        let _ = std::fs::remove_file(&socket);
        let _inside = self.runtime.enter();
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        chown(&socket, Some(107), Some(107)).unwrap();
        let task = self.runtime.spawn(async move {
            let server = tonic::transport::Server::builder().add_service(service);
            server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
        });
        (heard, task)
    }

    fn channel(&self) -> Channel {
        let socket = self.pod.path("public/sockets/launcher-sock");
        until("the command socket", LIMIT, || Ok(socket.exists().then_some(()))).unwrap();
        let endpoint = Endpoint::from_static("http://launcher");
        let connect = endpoint.connect_with_connector(tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        }));
        self.runtime.block_on(connect).unwrap()
    }

    fn client(&self) -> CmdClient<Channel> {
        CmdClient::new(self.channel())
    }

    fn sync(&self, client: &mut CmdClient<Channel>, vmi: &Value) -> Response {
        let answer = client.sync_virtual_machine(request(vmi));
        self.runtime.block_on(answer).unwrap().into_inner()
    }

    fn domain(&self, client: &mut CmdClient<Channel>) -> Domain {
        let answer = self.runtime.block_on(client.get_domain(EmptyRequest {})).unwrap().into_inner();
        serde_json::from_str(&answer.domain).unwrap()
    }

    fn private(&self, name: &str) -> PathBuf {
        self.pod.path("private").join(VMI_UID).join(name)
    }

    fn console(&self) -> Console {
        let console = Console::connect(&self.private("virt-serial0"), LIMIT).unwrap();
        console.wait_for("GUEST-READY", BOOT).unwrap();
        console
    }

    fn only(&self, name: &str) -> Pid {
        let pids = self.pod.pids(name).unwrap();
        assert_eq!(pids.len(), 1, "{name}: {pids:?}");
        pids[0]
    }
}

fn request(vmi: &Value) -> VmiRequest {
    VmiRequest { vmi: Some(Vmi { vmi_json: vmi.to_string().into_bytes() }), options: None }
}

#[test]
fn a_handler_starts_pauses_and_ends_a_machine() {
    let mut launched = Launched::new("--allow-emulation");
    let (heard, handler) = launched.handler();
    let mut client = launched.client();
    let runtime = &launched.runtime;
    let info = CmdInfoClient::new(launched.channel());
    let versions = runtime.block_on({ info }.info(CmdInfoRequest {})).unwrap().into_inner();
    assert_eq!(versions.supported_cmd_versions, ["v1"]);
    assert_eq!(launched.domain(&mut client).status, Status::NoState);

    // What is wrong is told with its field, and changes nothing.
    let mut other = vmi();
    other["metadata"]["uid"] = json!("another");
    let answer = launched.sync(&mut client, &other);
    assert!(!answer.success && answer.message.starts_with("metadata.uid: 'another'"), "{answer:?}");
    let mut wrong = vmi();
    wrong["spec"]["domain"]["devices"]["interfaces"][0]["sriov"] = json!({});
    let answer = launched.sync(&mut client, &wrong);
    assert!(answer.message.starts_with("spec.domain.devices.interfaces[0].sriov: "), "{answer:?}");
    let migration = client.migrate_virtual_machine(MigrationRequest::default());
    assert_eq!(runtime.block_on(migration).unwrap_err().code(), tonic::Code::Unimplemented);

    let answer = launched.sync(&mut client, &vmi());
    assert!(answer.success, "{answer:?}\n{}", launched.compute.log());
    let qemu = launched.only("qemu-system-x86");
    assert!(launched.sync(&mut client, &vmi()).success, "again changes nothing");
    assert_eq!(launched.only("qemu-system-x86"), qemu);
    heard.wait("running", |d| d.status == Status::Running && d.reason == reason::BOOTED);

    let mut console = launched.console();
    assert_eq!(console.sh(&format!("head -c {} /dev/vda", MARK.len()), LIMIT).unwrap(), MARK);
    console.sh("echo overwritten >/dev/vda && sync", LIMIT).unwrap();
    let image = std::fs::read(launched.image.as_ref().unwrap().path().join("disk.img")).unwrap();
    assert!(image.starts_with(MARK.as_bytes()), "the image is never written");
    let stream = until("a greeting", LIMIT, || {
        Ok(launched.pod.net.connect(Family::V4.pod(GREETER)).ok().and_then(|stream| {
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).ok()?;
            (!line.is_empty()).then_some(line)
        }))
    });
    assert_eq!(stream.unwrap(), "GUEST-HELLO to 10.9.0.1\n");
    let report = heard.wait("addresses", |d| d.interfaces.first().is_some_and(|i| i.ips.len() == 2));
    let interface = &report.interfaces[0];
    assert_eq!((interface.name.as_str(), interface.ip.as_str()), ("default", "10.9.0.2"));
    assert_eq!((interface.ips[1].as_str(), interface.info_source.as_str()), ("fd00:9::2", "domain"));
    let mac = console.sh("cat /sys/class/net/eth0/address", LIMIT).unwrap();
    assert_eq!(interface.mac, mac, "netd, the domain and the report agree");
    assert!(report.machine.as_deref().is_some_and(|m| m.starts_with("pc-q35-")), "{report:?}");
    let mut greeting = [0; 4];
    UnixStream::connect(launched.private("virt-vnc")).unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"RFB ");
    for process in launched.pod.processes().unwrap() {
        let found = (process.uids[0], process.capabilities, process.no_new_privs, process.seccomp);
        assert_eq!(found, (107, 0, true, 2), "{}", process.name);
    }

    let order = client.pause_virtual_machine(request(&vmi()));
    assert!(runtime.block_on(order).unwrap().into_inner().success);
    heard.wait("paused", |d| d.status == Status::Paused && d.reason == reason::USER);

    // Another handler learns where things stand without asking.
    handler.abort();
    let (heard, _handler) = launched.handler();
    heard.wait("paused, again", |d| d.status == Status::Paused);
    // Another libvirtd finds the machine, and carries out what comes then.
    let libvirtd = launched.only("libvirtd");
    kill(libvirtd, Signal::SIGKILL).unwrap();
    until("another libvirtd", LIMIT, || {
        Ok(launched.pod.pids("libvirtd")?.into_iter().find(|p| *p != libvirtd))
    })
    .unwrap();
    until("an order that is carried out", LIMIT, || {
        let order = client.unpause_virtual_machine(request(&vmi()));
        Ok(runtime.block_on(order)?.into_inner().success.then_some(()))
    })
    .unwrap();
    heard.wait("running again", |d| d.status == Status::Running);
    assert_eq!(console.sh("echo alive", LIMIT).unwrap(), "alive");
    assert_eq!(launched.only("qemu-system-x86"), qemu);

    let order = client.soft_reboot_virtual_machine(request(&vmi()));
    assert!(runtime.block_on(order).unwrap().into_inner().success);
    console.wait_for("GUEST-POWER-BUTTON", LIMIT).unwrap();
    console.wait_for_nth("GUEST-READY", 2, BOOT).unwrap();
    assert_eq!(launched.only("qemu-system-x86"), qemu, "a reboot is not a new machine");

    launched.compute.signal(Signal::SIGTERM).unwrap();
    heard.wait("the wish to end", |d| d.graceful_shutdown_requested && d.kill_at_ms.is_some());
    let order = client.shutdown_virtual_machine(request(&vmi()));
    assert!(runtime.block_on(order).unwrap().into_inner().success);
    console.wait_for_nth("GUEST-POWER-BUTTON", 2, LIMIT).unwrap();
    let last = heard.wait("the end", |d| d.status.is_final());
    assert_eq!((last.status, last.reason.as_str()), (Status::Shutoff, reason::SHUTDOWN));
    assert_eq!(launched.compute.wait(LIMIT).unwrap().code(), Some(0), "{}", launched.compute.log());
}

#[test]
fn without_a_handler_the_guest_still_ends_cleanly() {
    let mut launched = Launched::new("--allow-emulation");
    let mut client = launched.client();
    let answer = launched.sync(&mut client, &vmi());
    assert!(answer.success, "{answer:?}\n{}", launched.compute.log());
    let console = launched.console();
    launched.compute.signal(Signal::SIGTERM).unwrap();
    console.wait_for("GUEST-POWER-BUTTON", LIMIT).unwrap();
    assert_eq!(launched.compute.wait(LIMIT).unwrap().code(), Some(0), "{}", launched.compute.log());
}

#[test]
fn a_machine_that_dies_or_never_comes_is_a_failure() {
    let mut never = Launched::new("--allow-emulation --qemu-timeout 1s");
    assert_eq!(never.compute.wait(LIMIT).unwrap().code(), Some(1), "{}", never.compute.log());

    let mut launched = Launched::new("--allow-emulation");
    let (heard, _handler) = launched.handler();
    let mut client = launched.client();
    // A start that the hypervisor refuses leaves the launcher ready for the next one.
    let mut refused = vmi();
    refused["spec"]["domain"]["cpu"]["model"] = json!("no-such-model");
    let answer = launched.sync(&mut client, &refused);
    assert!(!answer.success && answer.message.contains("no-such-model"), "{answer:?}");
    let mut paused = vmi();
    paused["spec"]["startStrategy"] = json!("Paused");
    assert!(launched.sync(&mut client, &paused).success, "{}", launched.compute.log());
    heard.wait("paused from the start", |d| d.status == Status::Paused && d.reason == reason::USER);
    kill(launched.only("qemu-system-x86"), Signal::SIGKILL).unwrap();
    let last = heard.wait("the end", |d| d.status.is_final());
    assert_eq!((last.status, last.reason.as_str()), (Status::Crashed, reason::CRASHED));
    assert_eq!(launched.compute.wait(LIMIT).unwrap().code(), Some(3), "{}", launched.compute.log());
}

#[test]
fn what_a_machine_waits_for_is_told_and_the_wait_can_be_ended() {
    let mut launched = Launched::with("--allow-emulation", &vmi(), &[]);
    let (heard, _handler) = launched.handler();
    let mut client = launched.client();
    let mut waiting = client.clone();
    let answer = launched.runtime.spawn(async move { waiting.sync_virtual_machine(request(&vmi())).await });
    let report = heard.wait("what is waited for", |d| !d.waiting_for.is_empty());
    assert_eq!(report.waiting_for, "the image registry.example/data of the volume data");
    assert_eq!(launched.domain(&mut client).status, Status::NoState);
    launched.compute.signal(Signal::SIGTERM).unwrap();
    let last = heard.wait("the end", |d| d.status.is_final());
    assert_eq!((last.status, last.reason.as_str()), (Status::Shutoff, reason::FAILED));
    assert_eq!(launched.compute.wait(LIMIT).unwrap().code(), Some(1), "{}", launched.compute.log());
    drop(answer);
}

#[test]
fn emulation_is_used_only_when_it_is_allowed() {
    let launched = Launched::new("");
    let mut client = launched.client();
    let answer = launched.sync(&mut client, &vmi());
    assert!(!answer.success && answer.message.contains("useEmulation"), "{answer:?}");
    assert_eq!(launched.domain(&mut client).message, answer.message);
}

/// A Debian that boots from its container disk by the firmware, with cloud-init and the guest agent.
fn debian() -> Value {
    let mut vmi = vmi();
    let spec = &mut vmi["spec"];
    spec["domain"]["memory"]["guest"] = json!("512Mi");
    spec["domain"].as_object_mut().unwrap().remove("firmware");
    spec["domain"]["devices"]["disks"] = json!([{"name": "root", "disk": {"bus": "virtio"}, "bootOrder": 1}, {"name": "init", "disk": {"bus": "virtio"}}]);
    let user_data = "#cloud-config\nwrite_files: [{path: /etc/mark, content: from-cloud-init}]\n";
    spec["volumes"] = json!([
        {"name": "root", "containerDisk": {"image": "registry.example/debian"}},
        {"name": "init", "cloudInitNoCloud": {"userData": user_data}},
    ]);
    vmi
}

#[test]
fn long_the_guests_agent_is_heard_and_asked() {
    let vmi = debian();
    let image = artefact("debian").unwrap();
    let disks = [("volumeroot", image.as_path(), "disk_0.sock --path /mnt/image/disk.qcow2")];
    let mut launched = Launched::with("--allow-emulation", &vmi, &disks);
    let (heard, _handler) = launched.handler();
    let mut client = launched.client();
    let answer = launched.sync(&mut client, &vmi);
    assert!(answer.success, "{answer:?}\n{}", launched.compute.log());
    let runtime = &launched.runtime;
    let early = runtime.block_on(client.get_users(EmptyRequest {})).unwrap().into_inner();
    assert_eq!(early.response.unwrap().message, "the guest's agent is not connected");

    let told =
        |d: &Domain| d.guest_os_info.is_some() && d.interfaces.iter().any(|i| !i.interface_name.is_empty());
    let report = heard.wait_within(BOOT_DEBIAN, "the agent's word", told);
    assert!(report.agent_connected && report.agent_version.is_some(), "{report:?}");
    assert_eq!(report.guest_os_info.unwrap().id, "debian");
    let interface = &report.interfaces[0];
    assert_eq!((interface.ip.as_str(), interface.info_source.as_str()), ("10.9.0.2", "domain, guest-agent"));

    let exec = ExecRequest {
        domain_name: "demo_tiny".into(),
        command: "/bin/sh".into(),
        args: vec!["-c".into(), "cloud-init status --wait >/dev/null; cat /etc/mark; exit 7".into()],
        timeout_seconds: 240,
    };
    let executed = runtime.block_on(client.exec(exec)).unwrap().into_inner();
    assert!(executed.response.unwrap().success);
    assert_eq!((executed.std_out.as_str(), executed.exit_code), ("from-cloud-init", 7));
    let ping = GuestPingRequest { domain_name: "demo_tiny".into(), timeout_seconds: 5 };
    assert!(runtime.block_on(client.guest_ping(ping)).unwrap().into_inner().response.unwrap().success);
    let info = runtime.block_on(client.get_guest_info(EmptyRequest {})).unwrap().into_inner();
    let info: Value = serde_json::from_str(&info.guest_info_response).unwrap();
    assert_eq!((&info["hostname"], &info["os"]["id"]), (&json!("tiny"), &json!("debian")));
    let mounted = runtime.block_on(client.get_filesystems(EmptyRequest {})).unwrap().into_inner();
    let mounted: Vec<Value> = serde_json::from_str(&mounted.guest_filesystems_response).unwrap();
    assert!(mounted.iter().any(|f| f["mountPoint"] == "/"), "{mounted:?}");

    let freeze = FreezeRequest { vmi: request(&vmi).vmi, unfreeze_timeout_seconds: 0 };
    let frozen = runtime.block_on(client.freeze_virtual_machine(freeze)).unwrap().into_inner();
    assert!(frozen.success, "{frozen:?}");
    heard.wait("frozen", |d| d.filesystems_frozen);
    let thawed = runtime.block_on(client.unfreeze_virtual_machine(request(&vmi))).unwrap().into_inner();
    assert!(thawed.success, "{thawed:?}");

    let killed = runtime.block_on(client.kill_virtual_machine(request(&vmi))).unwrap().into_inner();
    assert!(killed.success);
    let last = heard.wait("the end", |d| d.status.is_final());
    assert_eq!((last.status, last.reason.as_str()), (Status::Shutoff, reason::DESTROYED));
    assert_eq!(launched.compute.wait(LIMIT).unwrap().code(), Some(4), "{}", launched.compute.log());
}
