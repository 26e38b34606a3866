//! A launcher pod without a cluster: containers as in a launcher pod, a handler that is the test.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use podvirt_e2e::artefacts::{artefact, program_dir};
use podvirt_e2e::{Console, Net, NetOptions, Pod, Process, Sandbox, until};
use podvirt_proto::cmd::v1::cmd_client::CmdClient;
use podvirt_proto::cmd::v1::{EmptyRequest, Response, Vmi, VmiRequest};
use podvirt_proto::domain::Domain;
use podvirt_proto::notify::v1::notify_server::{Notify, NotifyServer};
use podvirt_proto::notify::v1::{DomainEventRequest, K8sEventRequest, Response as Taken};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint};

/// Boot to GUEST-READY under TCG, libvirt's start included.
pub(crate) const BOOT: Duration = Duration::from_secs(120);
/// Anything else.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// The port on which the guest greets.
pub(crate) const GREETER: u16 = 7777;
pub(crate) const VMI_UID: &str = "7c2f7b1e-53a5-4d0f-9f0e-0d6b5a1c9e42";
/// The pod's UID, and its volumes below its shared directory.
pub(crate) const POD_UID: &str = "22222222-2222-4222-8222-222222222222";
pub(crate) const VOLUMES: &str = "pods/22222222-2222-4222-8222-222222222222/volumes/kubernetes.io~empty-dir";
/// What is on the container disk.
pub(crate) const MARK: &str = "container-disk-mark";

/// Bytes that the guest sees of the volume `grown`, whose file is smaller.
pub(crate) const GROWN: u64 = 48 << 20;

/// An image in the format qcow2, version 2, of `size` bytes up to 512 MiB in which nothing was written. Its clusters: header,
/// refcount table, refcounts, first-level table.
fn qcow2(size: u64) -> Vec<u8> {
    const CLUSTER: usize = 1 << 16;
    let mut image = vec![0; 4 * CLUSTER];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"QFI\xfb");
    put(4, &2_u32.to_be_bytes());
    put(20, &16_u32.to_be_bytes());
    put(24, &size.to_be_bytes());
    put(36, &1_u32.to_be_bytes());
    put(40, &(3 * CLUSTER as u64).to_be_bytes());
    put(48, &(CLUSTER as u64).to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(CLUSTER, &(2 * CLUSTER as u64).to_be_bytes());
    put(2 * CLUSTER, &[0, 1, 0, 1, 0, 1, 0, 1]);
    image
}

pub(crate) fn vmi() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "tiny", "namespace": "demo", "uid": VMI_UID, "resourceVersion": "7"},
        "spec": {
            "domain": {
                "cpu": {"cores": 1},
                "memory": {"guest": "256Mi"},
                "firmware": {"kernelBoot": {
                    "kernelArgs": format!(
                        "console=ttyS0 quiet panic=-1 mitigations=off init_on_alloc=0 cryptomgr.notests pv.serve={GREETER}"
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
pub(crate) struct Heard(Arc<(Mutex<Vec<Domain>>, Condvar)>);

impl Heard {
    /// Waits for a report that `wanted` likes.
    pub(crate) fn wait(&self, what: &str, wanted: impl Fn(&Domain) -> bool) -> Domain {
        self.wait_within(LIMIT, what, wanted)
    }

    /// The same, for what takes longer.
    pub(crate) fn wait_within(
        &self,
        limit: Duration,
        what: &str,
        wanted: impl Fn(&Domain) -> bool,
    ) -> Domain {
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
pub(crate) struct Launched {
    // Dropped first to last: the containers before what they use.
    pub(crate) compute: Process,
    netd: Option<Process>,
    _sidecars: Vec<Process>,
    pub(crate) runtime: Runtime,
    pub(crate) pod: Pod,
    pub(crate) image: Option<TempDir>,
    _grown: Option<TempDir>,
}

/// The environment that virt-controller gives the netd of `vmi`; empty where it has none. A value by the downward API is that of a pod
/// without annotations.
fn netd_environment(vmi: &Value) -> Vec<(String, String)> {
    let vmi = serde_json::from_value(vmi.clone()).unwrap();
    let pod =
        virt_controller::template::launcher_pod(&vmi, &Default::default(), &Default::default()).unwrap();
    let netd = pod.spec.unwrap().init_containers.into_iter().flatten().find(|c| c.name == "netd");
    netd.into_iter().flat_map(|c| c.env.unwrap()).map(|v| (v.name, v.value.unwrap_or_default())).collect()
}

/// A container of the pod with this project's programs.
fn container(pod: &Pod, name: &str) -> Sandbox {
    let programs = program_dir("virt-launcher").unwrap();
    pod.container(name).unwrap().no_init().ro(&programs, "/podvirt")
}

/// Runs `command` with the pod's volumes where the containers of a real one have them.
fn shell(command: &str) -> [String; 3] {
    let mounts = "ln -s /w/public /run/kubevirt; ln -s /w/private /run/kubevirt-private; \
                  ln -s /w/ephemeral /run/kubevirt-ephemeral-disks; exec ";
    ["sh".to_owned(), "-c".to_owned(), format!("{mounts}{command}")]
}

/// The netd of `vmi`, in a container of this name, if it has one.
fn netd(pod: &Pod, name: &str, vmi: &Value) -> Option<Process> {
    let environment = netd_environment(vmi);
    let set = |netd: Sandbox, (variable, value): &(String, String)| netd.env(variable, value);
    let netd = environment.iter().fold(container(pod, name), set);
    let started = || netd.spawn(&shell("virt-launcher run-netd --netd /podvirt/netd")).unwrap();
    (!environment.is_empty()).then(started)
}

impl Launched {
    /// The tiny guest's pod.
    pub(crate) fn new(options: &str) -> Launched {
        Launched::of(options, &vmi())
    }

    /// The same for another machine with the tiny guest's images.
    pub(crate) fn of(options: &str, vmi: &Value) -> Launched {
        Launched::at(Net::up(NetOptions::default()).unwrap(), options, vmi)
    }

    /// The same in a network that is there.
    pub(crate) fn at(net: Net, options: &str, vmi: &Value) -> Launched {
        let image = tempfile::tempdir().unwrap();
        std::fs::set_permissions(image.path(), Permissions::from_mode(0o755)).unwrap();
        let mut disk = MARK.as_bytes().to_vec();
        disk.resize(1024 * 1024, 0);
        std::fs::write(image.path().join("disk.img"), &disk).unwrap();
        let grown = tempfile::tempdir().unwrap();
        std::fs::set_permissions(grown.path(), Permissions::from_mode(0o755)).unwrap();
        std::fs::write(grown.path().join("disk.qcow2"), qcow2(GROWN)).unwrap();
        let tiny = artefact("tiny").unwrap();
        let mut sidecars = vec![
            ("volumedata", image.path(), "disk_1.sock --path /mnt/image"),
            (
                "kernel-boot-volume",
                tiny.as_path(),
                "kernel-boot.sock --path /mnt/image/vmlinuz --path /mnt/image/initrd.img",
            ),
        ];
        // Only machines that ask for it have it.
        let volumes = vmi["spec"]["volumes"].as_array().unwrap();
        let arguments = volumes.iter().position(|volume| volume["name"] == "grown");
        let arguments = arguments.map(|index| format!("disk_{index}.sock --path /mnt/image"));
        sidecars.extend(arguments.iter().map(|arguments| ("volumegrown", grown.path(), arguments.as_str())));
        let mut launched = Launched::with_at(net, options, vmi, &sidecars);
        (launched.image, launched._grown) = (Some(image), Some(grown));
        launched
    }

    /// A pod for `vmi` with these container disks: container, directory that is its image, arguments.
    pub(crate) fn with(options: &str, vmi: &Value, images: &[(&str, &Path, &str)]) -> Launched {
        Launched::with_at(Net::up(NetOptions::default()).unwrap(), options, vmi, images)
    }

    fn with_at(net: Net, options: &str, vmi: &Value, images: &[(&str, &Path, &str)]) -> Launched {
        let pod = Pod::at(net).unwrap();
        // Where the kubelet has them; the containers see the first by a link, the second mounted.
        let volumes = Path::new(VOLUMES);
        std::fs::create_dir_all(pod.path(VOLUMES)).unwrap();
        std::os::unix::fs::symlink(volumes.join("public"), pod.path("public")).unwrap();
        let libvirt = pod.path(VOLUMES).join("libvirt-runtime");
        let below = ["sockets", "container-disks"].map(|name| volumes.join("public").join(name));
        let made: [PathBuf; 5] = [
            volumes.join("public"),
            volumes.join("netd"),
            libvirt.clone(),
            "private".into(),
            "ephemeral".into(),
        ];
        for path in made.iter().chain(&below) {
            let path = pod.dir().join(path);
            std::fs::create_dir(&path).unwrap();
            chown(&path, Some(107), Some(107)).unwrap();
        }
        std::os::unix::fs::symlink("../netd", pod.path("public/netd")).unwrap();
        let netd = netd(&pod, "netd", vmi);
        let mut sidecars = Vec::new();
        for (name, image, arguments) in images {
            let command = format!("container-disk --listen /run/kubevirt/container-disks/{arguments}");
            sidecars.push(container(&pod, name).ro(image, "/mnt/image").spawn(&shell(&command)).unwrap());
        }
        let command = format!(
            "virt-launcher pod --name tiny --namespace demo --uid {VMI_UID} --grace-period-seconds 60 {options}"
        );
        let compute =
            container(&pod, "compute").rw(&libvirt, "/run/libvirt").spawn(&shell(&command)).unwrap();
        Launched {
            compute,
            netd,
            _sidecars: sidecars,
            runtime: Runtime::new().unwrap(),
            pod,
            image: None,
            _grown: None,
        }
    }

    /// Ends the netd of `vmi` by `signal` and starts another one in a container of this name, as the kubelet does.
    pub(crate) fn restart_netd(&mut self, name: &str, vmi: &Value, signal: Signal) {
        if let Some(mut netd) = self.netd.take() {
            netd.signal(signal).unwrap();
            netd.wait(LIMIT).unwrap();
        }
        self.netd = netd(&self.pod, name, vmi);
    }

    /// A handler that listens on the pod's socket.
    pub(crate) fn handler(&self) -> (Heard, tokio::task::JoinHandle<()>) {
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

    pub(crate) fn channel(&self) -> Channel {
        let socket = self.pod.path("public/sockets/launcher-sock");
        until("the command socket", LIMIT, || Ok(socket.exists().then_some(()))).unwrap();
        let endpoint = Endpoint::from_static("http://launcher");
        let connect = endpoint.connect_with_connector(tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        }));
        self.runtime.block_on(connect).unwrap()
    }

    pub(crate) fn client(&self) -> CmdClient<Channel> {
        CmdClient::new(self.channel())
    }

    pub(crate) fn sync(&self, client: &mut CmdClient<Channel>, vmi: &Value) -> Response {
        let answer = client.sync_virtual_machine(request(vmi));
        self.runtime.block_on(answer).unwrap().into_inner()
    }

    pub(crate) fn domain(&self, client: &mut CmdClient<Channel>) -> Domain {
        let answer = self.runtime.block_on(client.get_domain(EmptyRequest {})).unwrap().into_inner();
        serde_json::from_str(&answer.domain).unwrap()
    }

    pub(crate) fn private(&self, name: &str) -> PathBuf {
        self.pod.path("private").join(VMI_UID).join(name)
    }

    pub(crate) fn console(&self) -> Console {
        let console = Console::connect(&self.private("virt-serial0"), LIMIT).unwrap();
        console.wait_for("GUEST-READY", BOOT).unwrap();
        console
    }

    pub(crate) fn only(&self, name: &str) -> Pid {
        let pids = self.pod.pids(name).unwrap();
        assert_eq!(pids.len(), 1, "{name}: {pids:?}");
        pids[0]
    }
}

pub(crate) fn request(vmi: &Value) -> VmiRequest {
    VmiRequest { vmi: Some(Vmi { vmi_json: vmi.to_string().into_bytes() }), options: None }
}
