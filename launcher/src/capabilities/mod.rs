//! `virt-launcher capabilities`: what QEMU can do on this node, for virt-handler, which labels the node by it.
//!
//! libvirt and QEMU are in the launcher's image, not in virt-handler's, and what they can do depends on both their
//! versions and the node. So a container of this image runs ahead of virt-handler, as the user that machines run as. It
//! starts libvirtd, which starts QEMU to ask it. No guest is run.
//!
//! ```text
//!   libvirtd ── capabilities          machine types, time stamp counter
//!            ── domain capabilities   models, and the host's own model
//!            ── baseline              all features of that model
//! ```

mod xml;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use podvirt_proto::capabilities::{Capabilities, write};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::accelerator;
use crate::cli;
use crate::domain::Accelerator;
use crate::hypervisor::HypervisorError;
use crate::process::daemon::{Daemons, wait_for_socket};
use crate::rundir::RunDir;

/// The machine type that models are asked for, by architecture in the kernel's words.
const MACHINES: [(&str, &str); 2] = [("x86_64", "q35"), ("aarch64", "virt")];
/// How long libvirtd may take to listen.
const SOCKET_WAIT: Duration = Duration::from_secs(30);
/// How long libvirtd may refuse connections after that.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(200);

/// What is asked, for a test without libvirt. Calls block.
pub trait Source: Send + Sync {
    /// libvirt's capabilities, as XML.
    ///
    /// # Errors
    ///
    /// libvirt's.
    fn host(&self) -> Result<String, HypervisorError>;

    /// The capabilities of a domain of this architecture, machine type and kind of hypervisor, as XML.
    ///
    /// # Errors
    ///
    /// libvirt's.
    fn domain(&self, arch: &str, machine: &str, kind: &str) -> Result<String, HypervisorError>;

    /// The processor `cpu`, XML, with all features that it has on such a domain, as XML.
    ///
    /// # Errors
    ///
    /// libvirt's.
    fn expanded(&self, arch: &str, machine: &str, kind: &str, cpu: &str) -> Result<String, HypervisorError>;
}

/// Asks libvirt, and writes the answers to a file.
///
/// # Errors
///
/// libvirtd does not start, refuses, or answers something that is not understood; or the file cannot be written.
pub async fn run(args: &cli::Capabilities) -> Result<()> {
    let rundir = RunDir::open(&args.run_dir)?;
    let (accelerator, why) = accelerator::choose();
    info!(?accelerator, why, "asking for what QEMU can do");
    let mut daemons = Daemons::default();
    let asked = asked(&rundir, accelerator, &mut daemons).await;
    daemons.stop().await;
    let capabilities = asked?;
    info!(
        machine_types = capabilities.machine_types.len(),
        models = capabilities.models.values().filter(|usable| **usable).count(),
        features = capabilities.features.len(),
        host_model = capabilities.host_model.as_ref().map(|host| host.name.as_str()),
        "QEMU has answered"
    );
    write(&args.out, &capabilities).with_context(|| format!("cannot write {}", args.out.display()))
}

async fn asked(rundir: &RunDir, accelerator: Accelerator, daemons: &mut Daemons) -> Result<Capabilities> {
    daemons.libvirt(rundir)?;
    let socket = rundir.join(crate::rundir::SOCKET);
    let waited = timeout(SOCKET_WAIT, wait_for_socket(&socket)).await;
    waited.with_context(|| format!("libvirtd does not listen after {} s", SOCKET_WAIT.as_secs()))?;
    let source = connected(&rundir.libvirt_uri()).await?;
    let kind = match accelerator {
        Accelerator::Kvm => "kvm",
        Accelerator::Tcg => "qemu",
    };
    spawn_blocking(move || ask(&*source, std::env::consts::ARCH, kind)).await.context("the asking thread")?
}

/// The socket is there a moment before libvirtd takes connections.
async fn connected(uri: &str) -> Result<Arc<dyn Source>> {
    let since = Instant::now();
    loop {
        let uri = uri.to_owned();
        let opened = spawn_blocking(move || crate::hypervisor::source(&uri)).await;
        match opened.context("the connecting thread")? {
            Ok(source) => return Ok(source),
            Err(error) if since.elapsed() > TIMEOUT => return Err(error.into()),
            Err(error) => warn!(%error, "libvirtd does not take connections yet"),
        }
        sleep(PAUSE).await;
    }
}

/// What `source` says of domains of this architecture.
///
/// # Errors
///
/// It refuses, or says something that is not understood.
pub fn ask(source: &dyn Source, arch: &str, kind: &str) -> Result<Capabilities> {
    let mut capabilities = Capabilities::default();
    xml::host(&source.host().context("libvirt's capabilities")?, arch, &mut capabilities)
        .context("libvirt's capabilities")?;
    let Some((_, machine)) = MACHINES.iter().find(|(known, _)| *known == arch) else {
        return Ok(capabilities);
    };
    let domain = source.domain(arch, machine, kind).context("a domain's capabilities")?;
    let host = xml::domain(&domain, &mut capabilities).context("a domain's capabilities")?;
    // libvirt can take models of this architecture apart, and of no other.
    if let Some(cpu) = host.filter(|_| arch == "x86_64") {
        match source.expanded(arch, machine, kind, &cpu) {
            Ok(expanded) => {
                capabilities.features = xml::features(&expanded).context("the host model's features")?;
            }
            // Machines that ask for no feature run all the same.
            Err(error) => warn!(%error, "libvirt does not tell the features of processors"),
        }
    }
    Ok(capabilities)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// libvirt 11's answers, cut short.
    struct Fake {
        features: Option<&'static str>,
    }

    const HOST: &str = "<capabilities>
      <host><cpu><arch>x86_64</arch><counter name='tsc' frequency='2400000000' scaling='no'/></cpu></host>
      <guest><os_type>hvm</os_type><arch name='i686'><machine maxCpus='1'>isapc</machine></arch></guest>
      <guest><os_type>hvm</os_type><arch name='x86_64'>
        <machine canonical='pc-q35-10.0' maxCpus='4096'>q35</machine>
        <machine maxCpus='4096'>pc-q35-10.0</machine>
        <machine maxCpus='255' deprecated='yes'>pc-q35-2.4</machine>
        <domain type='qemu'/><domain type='kvm'><machine maxCpus='288'>microvm</machine></domain>
      </arch></guest></capabilities>";
    const DOMAIN: &str = "<domainCapabilities><arch>x86_64</arch><cpu>
      <mode name='host-passthrough' supported='no'/>
      <mode name='maximum' supported='yes'><enum name='maximumMigratable'><value>on</value></enum></mode>
      <mode name='host-model' supported='yes'>
        <model fallback='forbid'>EPYC</model><vendor>AMD</vendor>
        <feature policy='require' name='x2apic'/><feature policy='disable' name='vme'/>
      </mode>
      <mode name='custom' supported='yes'>
        <model usable='yes' vendor='Intel' canonical='Nehalem-v1'>Nehalem</model>
        <model usable='no' vendor='Intel'>Broadwell</model>
        <blockers model='Broadwell'><feature name='hle'/></blockers>
        <model usable='unknown' vendor='unknown'>486</model>
      </mode></cpu></domainCapabilities>";

    impl Source for Fake {
        fn host(&self) -> Result<String, HypervisorError> {
            Ok(HOST.into())
        }

        fn domain(&self, arch: &str, machine: &str, kind: &str) -> Result<String, HypervisorError> {
            assert_eq!((arch, machine, kind), ("x86_64", "q35", "qemu"));
            Ok(DOMAIN.into())
        }

        fn expanded(&self, _: &str, _: &str, _: &str, cpu: &str) -> Result<String, HypervisorError> {
            assert_eq!(
                cpu,
                "<cpu><model fallback=\"forbid\">EPYC</model><vendor>AMD</vendor>\
                 <feature policy=\"require\" name=\"x2apic\"/><feature policy=\"disable\" name=\"vme\"/></cpu>"
            );
            let message = "this function is not supported".to_owned();
            self.features.map(str::to_owned).ok_or(HypervisorError::Refused { action: "expand", message })
        }
    }

    #[test]
    fn libvirts_answers_become_what_a_node_can_do() {
        let features = "<cpu mode='custom'><model>EPYC</model><feature policy='require' name='sse4.1'/>
            <feature policy='disable' name='vme'/></cpu>";
        let told = ask(&Fake { features: Some(features) }, "x86_64", "qemu").unwrap();
        let machines: Vec<_> = told.machine_types.iter().map(|(name, old)| (name.as_str(), *old)).collect();
        assert_eq!(machines, [("pc-q35-10.0", false), ("pc-q35-2.4", true), ("q35", false)]);
        let models: Vec<_> = told.models.iter().map(|(name, usable)| (name.as_str(), *usable)).collect();
        assert_eq!(models, [("486", true), ("Broadwell", false), ("Nehalem", true)]);
        assert_eq!(told.features.iter().collect::<Vec<_>>(), ["sse4.1"]);
        let host = told.host_model.unwrap();
        assert_eq!((host.name.as_str(), host.vendor.as_str()), ("EPYC", "AMD"));
        assert_eq!(host.required_features.iter().collect::<Vec<_>>(), ["x2apic"]);
        let tsc = told.tsc.unwrap();
        assert_eq!((tsc.frequency, tsc.scalable), (2_400_000_000, false));
    }

    #[test]
    fn what_libvirt_cannot_tell_is_left_out() {
        let told = ask(&Fake { features: None }, "x86_64", "qemu").unwrap();
        assert!(told.features.is_empty() && !told.models.is_empty());
        let told = ask(&Fake { features: None }, "s390x", "qemu").unwrap();
        assert!(told.models.is_empty() && told.host_model.is_none());
    }
}
