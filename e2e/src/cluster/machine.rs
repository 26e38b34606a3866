//! Virtual machines of a test.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use podvirt_api::v1;
use podvirt_bed_tools::Console;

use super::{Cluster, Namespace};
use crate::artefacts::{artefact, program_dir};

/// From a manifest to a guest with its addresses, under TCG on a busy machine.
pub const BOOT: Duration = Duration::from_secs(180);
/// What the control plane and the node agent do with a running machine.
pub const SOON: Duration = Duration::from_secs(60);
/// The end of a pod that is deleted just as its container `compute` ends. containerd may lose that end then (its shim is gone before it
/// answers the stop), and the kubelet lets the sidecars run for the whole grace period, 60 s.
pub const GONE: Duration = Duration::from_secs(100);
/// The end of a pod's machine: before the grace period is over, at whose end the kubelet kills what is left.
const ENDED: Duration = Duration::from_secs(45);
/// Programs of the containers that the kubelet ends behind `compute`, and of the pod itself (the cluster's pause image).
const BEHIND: [&str; 4] = ["netd", "container-disk", "tini", "sleep"];
/// libvirt in a launcher's pod.
const LIBVIRT: &str = "qemu+unix:///session?socket=/var/run/libvirt/x/libvirt/libvirt-sock";

/// How long a line typed too early is waited for, before another one is typed.
const ATTEMPT: Duration = Duration::from_secs(5);

/// A VirtualMachine manifest for the tiny guest on a container disk. `run` is its run strategy; the others are added
/// as they are: `annotations` to the instance's, `domain` to `spec.domain`, `spec` to the instance's, `devices` to `devices`,
/// each a YAML flow mapping's inside; `volumes` and `disks` to the lists of these names.
#[derive(Clone, Debug, Default)]
pub struct Manifest<'a> {
    /// Name.
    pub name: &'a str,
    /// `spec.runStrategy`; `Always` when empty.
    pub run: &'a str,
    /// cloud-init's user data.
    pub user_data: &'a str,
    /// Inside of the instance's `metadata.annotations`.
    pub annotations: &'a str,
    /// Inside of `spec`.
    pub spec: &'a str,
    /// Inside of `spec.domain`.
    pub domain: &'a str,
    /// Inside of `spec.domain.devices`.
    pub devices: &'a str,
    /// Inside of `spec.volumes`, behind its own two.
    pub volumes: &'a str,
    /// Inside of `spec.domain.devices.disks`, behind its own two.
    pub disks: &'a str,
    /// Whether its firmware finds nothing to boot, and its end is not waited for: without a guest it costs no processor.
    pub idle: bool,
}

impl Manifest<'_> {
    fn instance_spec(&self) -> String {
        // An empty one is refused.
        let user_data = if self.user_data.is_empty() { "#cloud-config\n" } else { self.user_data };
        let comma = |text: &str| if text.is_empty() { String::new() } else { format!(", {text}") };
        let devices = if self.devices.contains("interfaces") {
            String::new()
        } else {
            "interfaces: [{name: default, passtBinding: {}}], ".to_owned()
        };
        let networks =
            if self.spec.contains("networks:") { "" } else { "networks: [{name: default, pod: {}}], " };
        // Where a disk has a place in the order, those without one are not booted; on the seed there is nothing to boot.
        let (grace_seconds, boot) = if self.idle { (0, ", bootOrder: 1") } else { (30, "") };
        format!(
            "{{terminationGracePeriodSeconds: {grace_seconds}, {networks}\
             volumes: [{{name: root, containerDisk: {{image: 'podvirt/disk-tiny:dev'}}}}, \
             {{name: seed, cloudInitNoCloud: {{userData: {:?}}}}}{}], \
             domain: {{memory: {{guest: 256Mi}}, devices: {{{devices}disks: [{{name: root, disk: {{bus: virtio}}}}, {{name: seed, disk: {{bus: virtio}}{boot}}}{}]{}}}{}}}{}}}",
            user_data,
            comma(self.volumes),
            comma(self.disks),
            comma(self.devices),
            comma(self.domain),
            comma(self.spec),
        )
    }

    /// The template of an instance, labelled `vm` with the name.
    pub fn template(&self) -> String {
        format!(
            "{{metadata: {{labels: {{vm: {:?}}}, annotations: {{{}}}}}, spec: {}}}",
            self.name,
            self.annotations,
            self.instance_spec(),
        )
    }

    /// The VirtualMachine.
    pub fn machine(&self) -> String {
        let run = if self.run.is_empty() { "Always" } else { self.run };
        format!(
            "{{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {{name: {:?}}}, spec: {{runStrategy: {run}, \
             template: {}}}}}",
            self.name,
            self.template(),
        )
    }

    /// The VirtualMachineInstance alone.
    pub fn instance(&self) -> String {
        format!(
            "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {{name: {0:?}, labels: {{vm: {0:?}}}, annotations: {{{2}}}}}, spec: {1}}}",
            self.name,
            self.instance_spec(),
            self.annotations,
        )
    }
}

/// A program that runs on for as long as the value lives.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Cluster {
    /// This project's virtctl.
    ///
    /// # Errors
    /// It is not built.
    pub fn virtctl(&self) -> Result<Command> {
        Ok(self.command(program_dir("virtctl")?.join("virtctl")))
    }

    /// The upstream project's virtctl.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn upstream_virtctl(&self) -> Result<Command> {
        Ok(self.command(artefact("upstream-virtctl")?.join("virtctl")))
    }
}

impl Namespace<'_> {
    /// Waits for the end of a launcher's pod whose machine ends. From 45 s on, up to [`GONE`], it may stay by the containers alone that
    /// the kubelet ends behind `compute`: then containerd has lost the end of `compute`.
    ///
    /// # Errors
    /// It stays, or a process of its machine is left after 45 s.
    pub fn wait_ended(&self, pod: &Pod) -> Result<()> {
        let name = pod.name_any();
        let Err(late) = self.wait_gone::<Pod>(&name, ENDED) else { return Ok(()) };
        let left = self.processes(pod)?;
        ensure!(left.iter().all(|program| BEHIND.contains(&program.as_str())), "{left:?} are left: {late:#}");
        eprintln!("{name} is left with {left:?}: containerd has lost the end of a container");
        self.wait_gone::<Pod>(&name, GONE.saturating_sub(ENDED))
    }

    /// The programs that run in a pod.
    fn processes(&self, pod: &Pod) -> Result<Vec<String>> {
        let uid = pod.metadata.uid.as_deref().context("a pod without a UID")?;
        // One that ends meanwhile has no name any more.
        let show = format!(
            "grep -ls {uid} /proc/[0-9]*/cgroup | while read -r file; do cat \"${{file%cgroup}}comm\" 2>/dev/null || true; done"
        );
        let mut all = Vec::new();
        for number in [1, 2] {
            all.extend(self.cluster().node(number).run(&["sh", "-c", &show])?.lines().map(str::to_owned));
        }
        Ok(all)
    }

    /// Runs virtctl in this namespace and returns what it printed.
    ///
    /// # Errors
    /// It failed; the message is its own.
    pub fn virtctl(&self, args: &[&str]) -> Result<String> {
        self.run(self.cluster().virtctl()?, args)
    }

    /// Runs one of the virtctls in this namespace and returns what it printed.
    ///
    /// # Errors
    /// It failed; the message is its own.
    pub fn run(&self, mut virtctl: Command, args: &[&str]) -> Result<String> {
        let out = virtctl.args(["--namespace", self.name()]).args(args).output()?;
        let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        ensure!(out.status.success(), "virtctl {}: {errors}{text}", args.join(" "));
        Ok(format!("{text}{errors}"))
    }

    /// Waits until the instance is in a phase, and returns it.
    ///
    /// # Errors
    /// It is not within `limit`.
    pub fn wait_phase(&self, name: &str, phase: &str, limit: Duration) -> Result<v1::VirtualMachineInstance> {
        self.wait(name, &format!("{name} {phase}"), limit, |i: &v1::VirtualMachineInstance| {
            i.status.phase.as_ref().is_some_and(|p| p.as_str() == phase)
        })
    }

    /// The guest's serial console, by virtctl. It ends when the returned program does.
    ///
    /// # Errors
    /// virtctl does not start.
    pub fn console(&self, name: &str) -> Result<(Console, Running)> {
        self.console_by(self.cluster().virtctl()?, name)
    }

    /// The guest's serial console, by one of the virtctls. It ends when the returned program does.
    ///
    /// # Errors
    /// The program does not start.
    pub fn console_by(&self, mut virtctl: Command, name: &str) -> Result<(Console, Running)> {
        let (ours, theirs) = UnixStream::pair()?;
        virtctl.args(["--namespace", self.name(), "console", name, "--timeout", "5"]);
        let output = theirs.try_clone()?;
        virtctl.stdin(std::os::fd::OwnedFd::from(theirs)).stdout(std::os::fd::OwnedFd::from(output));
        let child = virtctl.stderr(Stdio::piped()).spawn().context("cannot start virtctl")?;
        Ok((Console::new(ours.try_clone()?, ours), Running(child)))
    }

    /// A shell on the guest's console, once the guest has its addresses.
    ///
    /// # Errors
    /// The guest does not come up, or virtctl ends before; with the state of the namespace.
    pub fn shell(&self, name: &str) -> Result<(Console, Running)> {
        let (mut console, mut running) = self.console(name)?;
        self.wait_shell(&mut console, &mut running)?;
        Ok((console, running))
    }

    /// Waits until a shell answers on the console and the guest has its addresses.
    ///
    /// # Errors
    /// The guest does not come up, or virtctl ends before; with the state of the namespace.
    pub fn wait_shell(&self, console: &mut Console, running: &mut Running) -> Result<()> {
        // The line that tells may have gone by before this test looked.
        self.until("the guest's shell", BOOT, || {
            if let Some(status) = running.0.try_wait()? {
                let mut said = String::new();
                running.0.stderr.take().map(|mut e| e.read_to_string(&mut said)).transpose()?;
                bail!("virtctl console: {status}: {said}");
            }
            // The shell comes when the guest has asked for its addresses: those that it has by now are all of them.
            let up = "ip -o addr show scope global | grep -q inet";
            Ok(console.run(up, ATTEMPT).ok().filter(|o| o.status == 0))
        })?;
        Ok(())
    }

    /// What virsh says of an instance in one of its pods: a command, and its arguments behind the domain.
    ///
    /// # Errors
    /// virsh fails.
    pub fn virsh(&self, pod: &str, name: &str, command: &[&str], arguments: &[&str]) -> Result<String> {
        let domain = format!("{}_{name}", self.name());
        let args = ["exec", pod, "-c", "compute", "--", "virsh", "-q", "-c", LIBVIRT];
        self.kubectl(&[&args, command, &[domain.as_str()], arguments].concat())
    }

    /// The launcher's pod of an instance; there is exactly one that has not ended.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn launcher(&self, name: &str) -> Result<Pod> {
        let list =
            ListParams::default().labels(&format!("kubevirt.io=virt-launcher,vm.kubevirt.io/name={name}"));
        let pods = self.cluster().block_on(self.api::<Pod>().list(&list))?;
        let over = |p: &Pod| {
            let phase = p.status.as_ref().and_then(|s| s.phase.as_deref());
            matches!(phase, Some("Succeeded" | "Failed"))
        };
        let mut living: Vec<Pod> = pods.items.into_iter().filter(|p| !over(p)).collect();
        ensure!(living.len() == 1, "{} pods of {name}", living.len());
        living.pop().context("no pod")
    }
}
