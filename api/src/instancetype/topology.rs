//! How a number of processors becomes sockets, cores and threads.

use crate::v1::{Cpu, PreferredCpuTopology as Topology, SpreadAcross, VirtualMachinePreferenceSpec};
use crate::v1::{SpreadOptions, VirtualMachineInstancetypeSpec};

use super::conflict::{Conflict, Conflicts};

/// Path by which a processor count that cannot be spread is told (upstream's).
const GUEST_CPUS: &str = "instancetype.spec.cpu.guest";
/// Processors of a core that is spread across threads as well.
const THREADS: u32 = 2;
/// Parts of the second level for one of the first, where a preference does not say.
const RATIO: u32 = 2;

/// How processors are spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Across which levels.
    pub across: SpreadAcross,
    /// Cores of a socket, or threads of a core where only cores and threads are spread.
    pub ratio: u32,
}

/// The topology that is preferred; sockets where nothing is.
pub(super) fn topology_of(preference: Option<&VirtualMachinePreferenceSpec>) -> Topology {
    let preferred = preference.and_then(|preference| preference.cpu.as_ref()?.preferred_cpu_topology.clone());
    preferred.unwrap_or(Topology::Sockets)
}

/// Whether processors are to be spread.
pub(super) fn spreads(topology: &Topology) -> bool {
    matches!(topology, Topology::Spread | Topology::PreferSpread)
}

/// How a preference spreads processors.
pub fn spread_of(preference: &VirtualMachinePreferenceSpec) -> Spread {
    let old = preference.prefer_spread_socket_to_core_ratio.filter(|ratio| *ratio != 0);
    let options = preference.cpu.as_ref().and_then(|cpu| cpu.spread_options.as_ref());
    let across = options.and_then(|SpreadOptions { across, .. }| across.clone());
    Spread {
        across: across.unwrap_or(SpreadAcross::SocketsCores),
        ratio: options.and_then(|options| options.ratio).or(old).unwrap_or(RATIO),
    }
}

/// Gives `cpu` the `count` processors of an instance type, as `preference` wants them.
pub(super) fn arrange(cpu: &mut Cpu, count: u32, preference: Option<&VirtualMachinePreferenceSpec>) {
    let [sockets, cores, threads] = match topology_of(preference) {
        _ if count == 1 => [1, 1, 1],
        Topology::PreferCores | Topology::Cores => [1, count, 1],
        Topology::PreferThreads | Topology::Threads => [1, 1, count],
        Topology::PreferSpread | Topology::Spread => {
            let spread =
                preference.map_or(Spread { across: SpreadAcross::SocketsCores, ratio: RATIO }, spread_of);
            let ratio = spread.ratio.max(1);
            match spread.across {
                SpreadAcross::SocketsCores => [count / ratio, ratio, 1],
                SpreadAcross::CoresThreads => [1, count / ratio, ratio],
                SpreadAcross::SocketsCoresThreads => [count / THREADS / ratio, ratio, THREADS],
                SpreadAcross::Other(_) => [1, 1, 1],
            }
        }
        Topology::PreferSockets | Topology::Sockets | Topology::PreferAny | Topology::Any => [count, 1, 1],
        Topology::Other(_) => [1, 1, 1],
    };
    cpu.sockets = Some(sockets);
    cpu.cores = Some(cores);
    cpu.threads = Some(threads);
}

/// Tells whether the instance type's processors cannot be spread as the preference wants.
///
/// # Errors
///
/// The conflict, by upstream's words.
pub fn check_spread(
    instancetype: Option<&VirtualMachineInstancetypeSpec>,
    preference: Option<&VirtualMachinePreferenceSpec>,
) -> Result<(), Conflicts> {
    let (Some(instancetype), Some(preference)) = (instancetype, preference) else { return Ok(()) };
    if !spreads(&topology_of(Some(preference))) {
        return Ok(());
    }
    let Spread { across, ratio } = spread_of(preference);
    let (count, parts) = (instancetype.cpu.guest, ratio.max(1));
    let not_divisible = format!("{count} vCPUs provided by the instance type are not divisible by the");
    let by_ratio =
        format!("Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of {ratio}");
    let message = match across {
        SpreadAcross::SocketsCores if !count.is_multiple_of(parts) => {
            format!("{not_divisible} {by_ratio} provided by the preference")
        }
        SpreadAcross::CoresThreads if !count.is_multiple_of(parts) => {
            format!("{not_divisible} number of threads per core {ratio}")
        }
        SpreadAcross::SocketsCoresThreads
            if !count.is_multiple_of(THREADS) || !(count / THREADS).is_multiple_of(parts) =>
        {
            format!("{not_divisible} number of threads per core {THREADS} and {by_ratio}")
        }
        _ => return Ok(()),
    };
    Err(Conflicts(vec![Conflict { field: GUEST_CPUS.into(), message: Some(message) }]))
}
