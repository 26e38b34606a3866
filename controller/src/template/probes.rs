//! Probes of the guest, carried out by kubelet at the pod's address.
//!
//! netd makes the guest's ports ports of the pod. So an HTTP probe of the manifest is a probe of the `compute`
//! container, and kubelet reaches the guest as any client does. A TCP probe would end at netd, which accepts before the
//! guest is asked: kubelet runs `virt-launcher probe` in the container instead, which knows the guest's answer. Where the kernel
//! leads to the guest, the guest accepts itself, and a TCP probe is kubelet's own.
//!
//! A probe that runs a command in the guest, or asks whether its agent answers, is a command of the container, too: `virt-probe`,
//! which has virt-launcher ask the agent, with upstream's flags.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podvirt_api::names::{domain_name, path};
use podvirt_api::plugin::Joint;
use podvirt_api::v1::{Interface, Port, Probe, VirtualMachineInstance};

use super::TemplateError;
use super::containers::LAUNCHER;

/// Seconds that a probe starts later than the manifest says: what libvirt and QEMU take before the guest's
/// own time begins (upstream's figure).
const START_DELAY_SECONDS: i32 = 10;

/// Seconds that a probe has when the manifest says nothing (kubelet's figure).
const TIMEOUT_SECONDS: i32 = 1;
/// The program that has virt-launcher ask the guest's agent, in the container's PATH.
const VIRT_PROBE: &str = "virt-probe";
/// Seconds that kubelet gives a command beyond the probe's own, to be started.
const COMMAND_SECONDS: i32 = 1;

/// Probes of the `compute` container.
#[derive(Debug, Default)]
pub(super) struct Probes {
    pub(super) liveness: Option<core::Probe>,
    pub(super) readiness: Option<core::Probe>,
}

pub(super) fn probes(vmi: &VirtualMachineInstance) -> Result<Probes, TemplateError> {
    let spec = &vmi.spec;
    let render =
        |probe: &Option<Probe>, field: &str| probe.as_ref().map(|p| probe_of(vmi, p, field)).transpose();
    Ok(Probes {
        liveness: render(&spec.liveness_probe, "spec.livenessProbe")?,
        readiness: render(&spec.readiness_probe, "spec.readinessProbe")?,
    })
}

fn probe_of(vmi: &VirtualMachineInstance, probe: &Probe, field: &str) -> Result<core::Probe, TemplateError> {
    const ALLOWED: &str = "tcpSocket, httpGet, exec and guestAgentPing";
    // A probe of another host would let a namespace's user send requests from the node; Pod Security refuses it.
    let elsewhere = |host: &Option<String>| host.as_ref().is_some_and(|h| !h.is_empty());
    if probe.http_get.as_ref().is_some_and(|p| elsewhere(&p.host)) {
        return Err(TemplateError::unsupported(
            format!("{field}.httpGet.host"),
            "no host: the pod's address",
        ));
    }
    if probe.tcp_socket.as_ref().is_some_and(|p| elsewhere(&p.host)) {
        return Err(TemplateError::unsupported(
            format!("{field}.tcpSocket.host"),
            "no host: the pod's address",
        ));
    }
    let handlers = [
        probe.http_get.is_some(),
        probe.tcp_socket.is_some(),
        probe.exec.is_some(),
        probe.guest_agent_ping.is_some(),
    ];
    if !handlers.contains(&true) {
        return Err(TemplateError::unsupported(format!("{field} without a handler"), ALLOWED));
    }
    let timeout = probe.timeout_seconds.unwrap_or(TIMEOUT_SECONDS);
    let (command, tcp_socket) = match &probe.tcp_socket {
        None => (of_agent(vmi, probe, timeout, field)?, None),
        Some(socket) => match tcp(vmi, &socket.port, field)? {
            Asked::Netd(index, port) => (Some(command(index, port, timeout)), None),
            Asked::Guest(port) => {
                let port = IntOrString::Int(port.into());
                (None, Some(core::TCPSocketAction { host: None, port }))
            }
        },
    };
    // One that names virt-probe itself is handed on as it is, as by upstream.
    let own =
        probe.exec.as_ref().and_then(|exec| exec.command.as_ref()?.first()).is_some_and(|c| c == VIRT_PROBE);
    Ok(core::Probe {
        http_get: probe.http_get.clone(),
        tcp_socket,
        timeout_seconds: match &command {
            Some(_) if !own => Some(timeout.saturating_add(COMMAND_SECONDS)),
            _ => probe.timeout_seconds,
        },
        exec: command.map(|command| core::ExecAction { command: Some(command) }),
        initial_delay_seconds: Some(
            probe.initial_delay_seconds.unwrap_or(0).saturating_add(START_DELAY_SECONDS),
        ),
        period_seconds: probe.period_seconds,
        success_threshold: probe.success_threshold,
        failure_threshold: probe.failure_threshold,
        ..core::Probe::default()
    })
}

/// The command of a probe that asks the guest's agent.
fn of_agent(
    vmi: &VirtualMachineInstance,
    probe: &Probe,
    timeout: i32,
    field: &str,
) -> Result<Option<Vec<String>>, TemplateError> {
    let metadata = &vmi.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut command = vec![
        VIRT_PROBE.to_owned(),
        "--domainName".into(),
        domain_name(&text(&metadata.namespace), &text(&metadata.name)),
        "--timeoutSeconds".into(),
        timeout.to_string(),
    ];
    if probe.guest_agent_ping.is_some() {
        command.push("--guestAgentPing".into());
        return Ok(Some(command));
    }
    let Some(exec) = &probe.exec else { return Ok(None) };
    match exec.command.as_deref().and_then(<[String]>::split_first) {
        None => {
            Err(TemplateError::unsupported(format!("{field}.exec.command without a program"), "a command"))
        }
        Some((program, _)) if program == VIRT_PROBE => Ok(exec.command.clone()),
        Some((program, arguments)) => {
            command.extend(["--command".into(), program.clone(), "--".into()]);
            command.extend_from_slice(arguments);
            Ok(Some(command))
        }
    }
}

/// What accepts the connections of a TCP probe.
enum Asked {
    /// The netd of the interface at this place, at a port.
    Netd(usize, u16),
    /// The guest itself, at a port: the kernel only leads there.
    Guest(u16),
}

/// What a TCP probe is to ask.
fn tcp(vmi: &VirtualMachineInstance, port: &IntOrString, field: &str) -> Result<Asked, TemplateError> {
    let spec = &vmi.spec;
    let interfaces = &spec.domain.devices.interfaces;
    let wrong = || {
        TemplateError::unsupported(
            match port {
                IntOrString::Int(number) => format!("{field}.tcpSocket.port {number}"),
                IntOrString::String(name) => format!("{field}.tcpSocket.port '{name}'"),
            },
            "a port's number, 1 to 65535, or the name of one that the interface lists",
        )
    };
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let tcp = |p: &&Port| p.protocol.as_deref().is_none_or(|p| p.is_empty() || p == "TCP");
            let mut ports = interfaces.iter().flat_map(|i| &i.ports).filter(tcp);
            ports.find(|p| p.name.as_ref() == Some(name)).ok_or_else(wrong)?.port
        }
    };
    let number = u16::try_from(number).ok().filter(|n| *n > 0).ok_or_else(wrong)?;
    let is_first = |network: &str| spec.networks.iter().any(|n| n.name == network && n.is_primary());
    let index = interfaces.iter().position(|i| is_first(&i.name)).unwrap_or(0);
    let interface = interfaces.get(index);
    if interface.is_some_and(|i| vmi.joint(i) != Joint::Netd && !is_first(&i.name)) {
        let field = format!("{field}.tcpSocket with no interface on the pod's first network");
        return Err(TemplateError::unsupported(field, "tcpSocket with passtBinding or masquerade"));
    }
    let by_kernel = interface.is_some_and(|i: &Interface| !vmi.by_netd(i));
    Ok(if by_kernel { Asked::Guest(number) } else { Asked::Netd(index, number) })
}

/// The command that asks whether the guest accepts connections at a port.
fn command(index: usize, port: u16, timeout: i32) -> Vec<String> {
    vec![
        LAUNCHER.to_owned(),
        "probe".into(),
        "--netd".into(),
        path::netd_control(index).display().to_string(),
        "--port".into(),
        port.to_string(),
        "--timeout".into(),
        format!("{timeout}s"),
    ]
}
