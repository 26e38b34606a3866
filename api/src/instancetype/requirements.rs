//! What a preference requires of the machine that has it.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::problem::{Problems, Reason};
use crate::quantity;
use crate::v1::{
    Cpu, PreferenceRequirements, PreferredCpuTopology as Topology, SpreadAcross, VirtualMachineInstanceSpec,
    VirtualMachinePreferenceSpec,
};

use super::Specs;
use super::topology::{spread_of, topology_of};

const INSTANCETYPE: &str = "spec.instancetype";
const CPU: &str = "spec.template.spec.domain.cpu";
const MEMORY: &str = "spec.template.spec.domain.memory";
const ARCHITECTURE: &str = "spec.template.spec.architecture";

/// A requirement that the machine does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// Paths of the fields that fall short.
    pub fields: Vec<String>,
    /// By upstream's words.
    pub message: String,
}

impl Unmet {
    /// As a problem of the VirtualMachine.
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let message = format!("failure checking preference requirements: {}", self.message);
        problems.add(Reason::FieldValueNotFound, self.fields.join(", "), message);
        problems
    }
}

/// Checks a machine, with its instance type applied and its defaults set, against what its preference requires.
///
/// # Errors
///
/// The first requirement that it does not meet.
pub fn check_requirements(specs: &Specs, spec: &VirtualMachineInstanceSpec) -> Result<(), Unmet> {
    let Some(preference) = &specs.preference else { return Ok(()) };
    let Some(required) = &preference.requirements else { return Ok(()) };
    if let Some(cpu) = &required.cpu {
        match &specs.instancetype {
            Some(given) if given.cpu.guest < cpu.guest => {
                let message = format!(
                    "insufficient CPU resources of {} vCPU provided by instance type, preference requires {} vCPU",
                    given.cpu.guest, cpu.guest
                );
                return Err(unmet(&[INSTANCETYPE], message));
            }
            Some(_) => {}
            None => own_cpu(preference, spec.domain.cpu.as_ref(), cpu.guest)?,
        }
    }
    memory(specs, required, spec)?;
    if let Some(wanted) = &required.architecture {
        let given = spec.architecture.as_deref().unwrap_or_default();
        if given != wanted {
            let message = format!("preference requires architecture {wanted} but {given} is being requested");
            return Err(unmet(&[ARCHITECTURE], message));
        }
    }
    Ok(())
}

fn unmet(fields: &[&str], message: String) -> Unmet {
    Unmet { fields: fields.iter().map(ToString::to_string).collect(), message }
}

/// Processors that the machine itself asks for, counted as the preference would give them.
fn own_cpu(preference: &VirtualMachinePreferenceSpec, cpu: Option<&Cpu>, required: u32) -> Result<(), Unmet> {
    let Some(cpu) = cpu else {
        let message =
            format!("no CPU resources provided by VirtualMachine, preference requires {required} vCPU");
        return Err(unmet(&[CPU], message));
    };
    let (fields, provided_as): (&[&str], String) = match topology_of(Some(preference)) {
        Topology::PreferThreads | Topology::Threads => (&["threads"], "threads".into()),
        Topology::PreferCores | Topology::Cores => (&["cores"], "cores".into()),
        Topology::PreferSockets | Topology::Sockets => (&["sockets"], "sockets".into()),
        Topology::PreferAny | Topology::Any => {
            (&["cores", "sockets", "threads"], "cores, sockets and threads".into())
        }
        Topology::PreferSpread | Topology::Spread => {
            let across = spread_of(preference).across;
            let fields: &[&str] = match across {
                SpreadAcross::CoresThreads => &["cores", "threads"],
                SpreadAcross::SocketsCoresThreads => &["sockets", "cores", "threads"],
                SpreadAcross::SocketsCores | SpreadAcross::Other(_) => &["sockets", "cores"],
            };
            (fields, across.to_string())
        }
        Topology::Other(_) => return Ok(()),
    };
    let count = |field: &&str| match *field {
        "sockets" => cpu.sockets.unwrap_or(0),
        "cores" => cpu.cores.unwrap_or(0),
        _ => cpu.threads.unwrap_or(0),
    };
    let provided = fields.iter().map(count).fold(1, u32::saturating_mul);
    if provided >= required {
        return Ok(());
    }
    let message = format!(
        "insufficient CPU resources of {provided} vCPU provided by VirtualMachine, preference requires {required} \
         vCPU provided as {provided_as}"
    );
    Err(Unmet { fields: fields.iter().map(|field| format!("{CPU}.{field}")).collect(), message })
}

fn memory(
    specs: &Specs,
    required: &PreferenceRequirements,
    spec: &VirtualMachineInstanceSpec,
) -> Result<(), Unmet> {
    let Some(required) = required.memory.as_ref().map(|memory| &memory.guest) else { return Ok(()) };
    let of_type = specs.instancetype.as_ref().map(|given| &given.memory.guest);
    let own = spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let nothing = Quantity("0".into());
    let provided = own.or(of_type).unwrap_or(&nothing);
    let amount = |quantity: &Quantity| quantity.0.parse::<quantity::Quantity>().unwrap_or_default();
    if amount(provided) >= amount(required) {
        return Ok(());
    }
    let (field, by) =
        if of_type.is_some() { (INSTANCETYPE, "instance type") } else { (MEMORY, "VirtualMachine") };
    let message = format!(
        "insufficient Memory resources of {} provided by {by}, preference requires {}",
        provided.0, required.0
    );
    Err(unmet(&[field], message))
}
