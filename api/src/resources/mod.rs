//! What a launcher pod asks Kubernetes for.
//!
//! A machine's pod needs the guest's memory and what the programs around the guest need: the *overhead*. The
//! scheduler places pods by requests, so a request that is too small puts too many machines on a node, and with
//! a limit the kernel ends QEMU; one that is too large wastes the node. Every number of the model stands in
//! [`overhead`], with what it is for.
//!
//! ```text
//! compute   memory  resources.requests.memory, else resources.limits.memory,
//!                   else guest * 100 / memoryOvercommit; and the overhead
//!           cpu     resources.requests.cpu, else resources.limits.cpu, else the
//!                   cluster's cpuRequest, else processors / cpuAllocationRatio
//!           limits  resources.limits; memory and the overhead; else what the
//!                   namespace wants ([`AutoLimits`])
//!           kvm     1 unless developerConfiguration.useEmulation
//!           tun     1 where the machine has tap devices
//!           storage resources.requests.ephemeral-storage and the scratch space;
//!                   a limit likewise (upstream's sums)
//! netd      one sidecar for each interface
//! sidecars  each containerDisk, kernelBoot.container, each file system, each hook
//!           sidecar; the cluster's supportContainerResources
//! ```
//!
//! A sidecar has limits only where the machine has them, so that a namespace with a ResourceQuota takes the pod; but that of a file
//! system has a limit of memory always, since the guest has a say in how much it takes. Where the
//! machine's requests of processors and memory equal its limits, the requests of every sidecar equal its limits as well:
//! Kubernetes gives the class `Guaranteed` only to a pod of which that is true for every container.
//!
//! What a guest writes beside its claims lies on the node, in a volume of the pod. [`storage`] says how large that
//! volume may become.

mod limits;
mod overhead;
pub mod storage;
mod support;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;

use crate::names::pod;
use crate::plugin::Plugins;
use crate::quantity::Quantity;
use crate::v1::{self, SupportContainerType as Kind};

pub use limits::AutoLimits;
pub use overhead::MemoryOverhead;
pub use support::{attachment, exporter, open_files};

/// Processors of guests that share one of the node's, when the KubeVirt object says nothing.
pub const DEFAULT_CPU_ALLOCATION_RATIO: i64 = 10;
/// Guest memory in percent of what the pod asks for, when the KubeVirt object says nothing.
pub const DEFAULT_MEMORY_OVERCOMMIT: i64 = 100;

/// Scratch space of a launcher pod, bytes: logs, sockets, cloud-init media.
const EPHEMERAL_STORAGE: u64 = 50_000_000;

/// The same of a sidecar with a limit, asked for and at most: its log, of which the kubelet keeps five files of 10 Mi.
const SIDECAR_STORAGE: (u64, u64) = (MI, 64 * MI);
/// Kubernetes' name of storage on the node.
const STORAGE: &str = "ephemeral-storage";

const MI: u64 = 1 << 20;

/// Requests and limits of a launcher pod's containers.
#[derive(Clone, Debug, PartialEq)]
pub struct PodResources {
    /// Of the container `compute`.
    pub compute: ResourceRequirements,
    /// Of each sidecar `netd`.
    pub netd: ResourceRequirements,
    /// Of each sidecar that holds a container disk, and of the init container before them.
    pub container_disk: ResourceRequirements,
    /// Of the container that has the log of the serial console.
    pub console_log: ResourceRequirements,
    /// Of each container that serves a file system.
    pub virtiofs: ResourceRequirements,
    /// Of each hook sidecar.
    pub hook_sidecar: ResourceRequirements,
    /// What `compute` asks for beside the guest's memory, part by part.
    pub overhead: MemoryOverhead,
}

impl PodResources {
    /// The resources for a machine in a cluster that is configured so, in a namespace that wants no limits.
    pub fn for_vmi(
        spec: &v1::VirtualMachineInstanceSpec,
        config: &v1::KubeVirtConfiguration,
    ) -> PodResources {
        Self::for_vmi_within(spec, config, AutoLimits::default())
    }

    /// The resources for a machine in a cluster that is configured so, in a namespace that wants these limits where the machine
    /// says none.
    ///
    /// A quantity that does not parse counts as not set: admission has refused it before.
    pub fn for_vmi_within(
        spec: &v1::VirtualMachineInstanceSpec,
        config: &v1::KubeVirtConfiguration,
        auto: AutoLimits,
    ) -> PodResources {
        let given = &spec.domain.resources;
        let given = given.as_ref();
        let requests = given.and_then(|r| r.requests.as_ref());
        let limits = given.and_then(|r| r.limits.as_ref());
        let amount = |map: Option<&BTreeMap<String, K8sQuantity>>, name: &str| {
            map.and_then(|m| m.get(name))
                .and_then(|q| q.0.parse::<Quantity>().ok())
                .filter(Quantity::is_positive)
        };
        let emulated = developer(config).and_then(|d| d.use_emulation).unwrap_or(false);

        let guest = guest_memory(spec);
        let memory = amount(requests, "memory")
            .or_else(|| amount(limits, "memory"))
            .map_or_else(|| overcommitted(guest, config), |q| q.value());
        let overhead = MemoryOverhead::for_vmi(spec, memory, emulated);
        let ratio = ratio(config.additional_guest_memory_overhead_ratio.as_deref());
        let extra = scaled(overhead.total(), ratio);

        let cpu = amount(requests, "cpu")
            .or_else(|| amount(limits, "cpu"))
            .or_else(|| config.cpu_request.as_ref().and_then(|q| q.0.parse().ok()))
            .map_or_else(|| cpu_share(spec, config), |q| q.milli_value());

        let mut compute = Amounts::default();
        compute.request("cpu", millis(cpu));
        let is_overcommitted = given.and_then(|r| r.overcommit_guest_overhead).unwrap_or(false);
        compute.request("memory", bytes(memory.saturating_add(if is_overcommitted { 0 } else { extra })));
        let scratch = |of: u64| bytes(of.saturating_add(EPHEMERAL_STORAGE));
        compute.request(STORAGE, scratch(amount(requests, STORAGE).map_or(0, |q| q.value())));
        let memory_limit = amount(limits, "memory").map(|limit| limit.value().saturating_add(extra));
        let memory_limit =
            memory_limit.or_else(|| auto.memory.map(|ratio| scaled(memory.saturating_add(extra), ratio)));
        if let Some(limit) = memory_limit {
            compute.limit("memory", bytes(limit));
        }
        let cpu_limit = amount(limits, "cpu").map(|limit| limit.milli_value());
        let cpu_limit = cpu_limit.or_else(|| auto.cpu.then(|| vcpus(spec).saturating_mul(1000).max(cpu)));
        if let Some(limit) = cpu_limit {
            compute.limit("cpu", millis(limit));
        }
        if let Some(limit) = amount(limits, STORAGE) {
            compute.limit(STORAGE, scratch(limit.value()));
        }
        if !emulated {
            compute.both(pod::KVM_DEVICE, "1");
        }

        let limited = Limited {
            guaranteed: ["cpu", "memory"].iter().all(|name| compute.is_guaranteed(name)),
            memory: memory_limit.is_some(),
            cpu: cpu_limit.is_some(),
            storage: amount(limits, STORAGE).is_some(),
        };
        let supported = |needs, limited: &Limited, kind| {
            support::told(sidecar(needs, limited), config, kind, limited.guaranteed)
        };
        PodResources {
            compute: compute.into(),
            netd: sidecar(&overhead::NETD, &limited),
            container_disk: supported(&overhead::CONTAINER_DISK, &limited, Kind::Containerdisk),
            console_log: supported(&overhead::CONSOLE_LOG, &limited, Kind::Guestconsolelog),
            virtiofs: supported(&overhead::VIRTIOFS, &Limited { memory: true, ..limited }, Kind::Virtiofs),
            hook_sidecar: supported(&overhead::HOOK, &limited, Kind::Sidecar),
            overhead,
        }
    }

    /// The same for a machine with tap devices: they are virt-handler's to make, and `compute` needs the node to open them.
    #[must_use]
    pub fn with_taps(mut self) -> PodResources {
        let ResourceRequirements { requests, limits, .. } = &mut self.compute;
        for amounts in [requests, limits] {
            amounts.get_or_insert_default().insert(pod::TUN_DEVICE.to_owned(), K8sQuantity("1".to_owned()));
        }
        self
    }

    /// The same for a machine with these network binding plugins, each of which may need memory in `compute`.
    #[must_use]
    pub fn with_plugins(mut self, plugins: &Plugins) -> PodResources {
        let needs = |plugin: &v1::InterfaceBindingPlugin| {
            let requests = plugin.compute_resource_overhead.as_ref()?.requests.as_ref()?;
            requests.get("memory")?.0.parse::<Quantity>().ok().filter(Quantity::is_positive)
        };
        let extra =
            plugins.values().filter_map(needs).fold(0_u64, |sum, amount| sum.saturating_add(amount.value()));
        let ResourceRequirements { requests, limits, .. } = &mut self.compute;
        for amount in [requests, limits].into_iter().flatten().filter_map(|amounts| amounts.get_mut("memory"))
        {
            if let Ok(there) = amount.0.parse::<Quantity>() {
                *amount = K8sQuantity(bytes(there.value().saturating_add(extra)));
            }
        }
        self
    }
}

/// What a sidecar asks for and may have at most.
struct Sidecar {
    cpu: u64,
    memory: u64,
    cpu_limit: u64,
    memory_limit: u64,
    /// Request and limit in a pod of the class `Guaranteed`, in thousandths of a processor. The scheduler takes the request from
    /// what the node has, whether the sidecar uses it or not.
    guaranteed_cpu: u64,
}

/// Of what the machine has a limit.
#[derive(Clone, Copy)]
struct Limited {
    /// Whether the machine's requests of processors and memory equal its limits.
    guaranteed: bool,
    memory: bool,
    cpu: bool,
    storage: bool,
}

fn sidecar(needs: &Sidecar, limited: &Limited) -> ResourceRequirements {
    let mut amounts = Amounts::default();
    if limited.guaranteed {
        amounts.both("cpu", &millis(needs.guaranteed_cpu));
        amounts.both("memory", &bytes(needs.memory_limit));
    } else {
        amounts.request("cpu", millis(needs.cpu));
        amounts.request("memory", bytes(needs.memory));
    }
    if limited.memory {
        amounts.limit("memory", bytes(needs.memory_limit));
    }
    if limited.cpu && !limited.guaranteed {
        amounts.limit("cpu", millis(needs.cpu_limit));
    }
    if limited.storage {
        // Without a request Kubernetes would take the limit for it.
        amounts.request(STORAGE, bytes(SIDECAR_STORAGE.0));
        amounts.limit(STORAGE, bytes(SIDECAR_STORAGE.1));
    }
    amounts.into()
}

/// The guest's memory in bytes; 0 when nothing says it.
pub fn guest_memory(spec: &v1::VirtualMachineInstanceSpec) -> u64 {
    let resources = spec.domain.resources.as_ref();
    let parsed = |q: &K8sQuantity| q.0.parse::<Quantity>().ok().filter(Quantity::is_positive);
    let in_map =
        |map: Option<&BTreeMap<String, K8sQuantity>>| map.and_then(|m| m.get("memory")).and_then(parsed);
    spec.domain
        .memory
        .as_ref()
        .and_then(|m| m.guest.as_ref())
        .and_then(parsed)
        .or_else(|| in_map(resources.and_then(|r| r.requests.as_ref())))
        .or_else(|| in_map(resources.and_then(|r| r.limits.as_ref())))
        .map_or(0, |q| q.value())
}

/// The guest's processors: the topology, else the processors that the resources name, else one.
pub fn vcpus(spec: &v1::VirtualMachineInstanceSpec) -> u64 {
    if let Some(cpu) = spec.domain.cpu.as_ref() {
        let counts = [cpu.sockets, cpu.cores, cpu.threads].map(|n| u64::from(n.unwrap_or(0)));
        if counts.iter().any(|n| *n > 0) {
            return counts.iter().fold(1, |all, n| all.saturating_mul(*n.max(&1)));
        }
    }
    let resources = spec.domain.resources.as_ref();
    let in_map = |map: Option<&BTreeMap<String, K8sQuantity>>| {
        map.and_then(|m| m.get("cpu")).and_then(|q| q.0.parse::<Quantity>().ok())
    };
    in_map(resources.and_then(|r| r.limits.as_ref()))
        .or_else(|| in_map(resources.and_then(|r| r.requests.as_ref())))
        .map_or(1, |q| q.value().max(1))
}

fn developer(config: &v1::KubeVirtConfiguration) -> Option<&v1::DeveloperConfiguration> {
    config.developer_configuration.as_ref()
}

fn overcommitted(guest: u64, config: &v1::KubeVirtConfiguration) -> u64 {
    let percent = developer(config)
        .and_then(|d| d.memory_overcommit)
        .filter(|p| *p > 0)
        .unwrap_or(DEFAULT_MEMORY_OVERCOMMIT);
    let asked = u128::from(guest) * 100 / u128::from(percent.unsigned_abs());
    u64::try_from(asked).unwrap_or(u64::MAX)
}

/// Thousandths of a processor.
fn cpu_share(spec: &v1::VirtualMachineInstanceSpec, config: &v1::KubeVirtConfiguration) -> u64 {
    let ratio = developer(config)
        .and_then(|d| d.cpu_allocation_ratio)
        .filter(|r| *r > 0)
        .unwrap_or(DEFAULT_CPU_ALLOCATION_RATIO);
    (vcpus(spec).saturating_mul(1000) / ratio.unsigned_abs()).max(1)
}

/// `additionalGuestMemoryOverheadRatio` in thousandths: a decimal number of at least 1, else 1.
fn ratio(text: Option<&str>) -> u64 {
    text.and_then(|t| t.parse::<Quantity>().ok()).map_or(1000, |q| q.milli_value()).max(1000)
}

fn scaled(bytes: u64, thousandths: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(thousandths) / 1000).unwrap_or(u64::MAX)
}

fn bytes(amount: u64) -> String {
    if amount.is_multiple_of(MI) { format!("{}Mi", amount / MI) } else { amount.to_string() }
}

fn millis(amount: u64) -> String {
    format!("{amount}m")
}

#[derive(Default)]
struct Amounts {
    requests: BTreeMap<String, K8sQuantity>,
    limits: BTreeMap<String, K8sQuantity>,
}

impl Amounts {
    fn request(&mut self, name: &str, amount: String) {
        self.requests.insert(name.to_owned(), K8sQuantity(amount));
    }

    fn limit(&mut self, name: &str, amount: String) {
        self.limits.insert(name.to_owned(), K8sQuantity(amount));
    }

    fn both(&mut self, name: &str, amount: &str) {
        self.request(name, amount.to_owned());
        self.limit(name, amount.to_owned());
    }

    fn is_guaranteed(&self, name: &str) -> bool {
        self.limits.get(name).is_some_and(|limit| self.requests.get(name) == Some(limit))
    }
}

impl From<Amounts> for ResourceRequirements {
    fn from(amounts: Amounts) -> Self {
        ResourceRequirements {
            requests: Some(amounts.requests),
            limits: (!amounts.limits.is_empty()).then_some(amounts.limits),
            claims: None,
        }
    }
}

#[cfg(test)]
mod tests;
