//! A machine without a cluster: manifest, files and sockets from the command line, until the guest is off.
//!
//! The order of things:
//!
//! 1. read the manifest and judge it; take the run directory
//! 2. make disks, find the kernel, choose KVM or TCG, write the domain's XML
//! 3. start virtlogd, libvirtd and netd, or use those that run; wait for netd's socket
//! 4. live ([`crate::life`]); SIGTERM, SIGINT and SIGHUP ask the guest to shut down
//! 5. stop netd and libvirtd, after QEMU is gone: it would only try to reach netd again

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use podvirt_api::netd::NetdSpec;
use podvirt_api::{ParseError, VirtualMachineInstance};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{Instrument, info, warn};

use crate::accelerator;
use crate::cli::{ContainerDisk, Standalone};
use crate::console::Console;
use crate::domain::{Environment, convert, domain_name};
use crate::hypervisor::connector;
use crate::life::Ending;
use crate::life::machine::Word;
use crate::life::runner::{Life, View, Wish, run as live};
use crate::media::claims::Notes;
use crate::media::images::{ImageSources, prepare, wrap};
use crate::media::{kernel, ovmf};
use crate::netd::{NetdSockets, netd_file};
use crate::process::daemon::{Daemons, Program, find, wait_for_socket};
use crate::process::signals::StopSignals;
use crate::rundir::RunDir;

/// How long a vhost-user backend may take to make its socket.
const SOCKET_WAIT: Duration = Duration::from_secs(20);
/// The pod's resolvers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Reads a manifest, with defaults, and judges it.
///
/// # Errors
///
/// The file cannot be read, or the manifest has problems; the message lists them, one a line.
pub fn load(path: &Path) -> Result<VirtualMachineInstance> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read the manifest")?;
        text
    } else {
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?
    };
    match VirtualMachineInstance::load(&text) {
        Ok(vmi) => Ok(vmi),
        Err(ParseError::Invalid(problems)) => bail!("the manifest is refused:\n{problems}"),
        Err(error) => Err(error.into()),
    }
}

/// Runs the machine of `vmi` until it ends.
///
/// # Errors
///
/// Something that the machine needs cannot be made ready.
pub async fn run(args: &Standalone, vmi: &VirtualMachineInstance) -> Result<Ending> {
    let wish = stop_signals()?;
    let rundir = RunDir::open(&args.run_dir)?;
    if args.console && vmi.spec.domain.devices.autoattach_serial_console == Some(false) {
        bail!("--console needs a serial console, and autoattachSerialConsole is off");
    }
    let environment = environment(args, vmi, &rundir)?;
    let xml = convert(vmi, &environment)?.to_xml()?;
    let xml_file = rundir.join("domain.xml");
    std::fs::write(&xml_file, &xml).with_context(|| format!("cannot write {}", xml_file.display()))?;

    let mut daemons = Daemons::default();
    let result = started(args, vmi, &rundir, &environment, xml, wish, &mut daemons).await;
    daemons.stop().await;
    result
}

/// The part of the run in which daemons may be there.
async fn started(
    args: &Standalone,
    vmi: &VirtualMachineInstance,
    rundir: &RunDir,
    environment: &Environment,
    xml: String,
    wish: watch::Receiver<Wish>,
    daemons: &mut Daemons,
) -> Result<Ending> {
    let uri = match &args.connect {
        Some(uri) => uri.clone(),
        None => {
            daemons.libvirt(rundir)?;
            rundir.libvirt_uri()
        }
    };
    let connector = connector(&uri)?;
    if args.netd_socket.is_none() {
        for index in 0..vmi.spec.domain.devices.interfaces.len() {
            start_netd(daemons, args, NetdSpec::of(vmi, index)?, rundir, environment)?;
        }
    }
    for socket in environment.sockets.values() {
        tokio::select! {
            waited = wait_for_netd(socket) => waited?,
            () = asked(wish.clone()) => return Ok(Ending::NeverStarted),
        }
    }
    let (shown, view) = watch::channel(View::default());
    let grace = u64::try_from(vmi.spec.termination_grace_period_seconds.unwrap_or(0)).unwrap_or(0);
    let life = Life {
        connector,
        name: domain_name(vmi),
        xml: Some(xml),
        paused: false,
        // A grace period beyond any clock is no grace period to the arithmetic of times.
        grace: Duration::from_secs(grace.min(u64::from(u32::MAX))),
        // It never comes from anywhere.
        word: watch::channel(Word::None).1,
    };
    info!(serial_log = %environment.serial_log.display(), "the machine starts");
    let living = live(life, wish, shown);
    if !args.console {
        return Ok(living.await);
    }
    let console = tokio::spawn(attach(view, environment.serial_socket.clone()).in_current_span());
    let ending = living.await;
    // The task has attached long ago, or waits for a machine that never ran.
    console.abort();
    drop(console.await);
    Ok(ending)
}

/// Attaches the console once the machine runs, and holds it.
async fn attach(mut view: watch::Receiver<View>, socket: PathBuf) {
    if view.wait_for(|view| view.running).await.is_err() {
        return;
    }
    match Console::attach(&socket) {
        Ok(_console) => std::future::pending().await,
        Err(error) => warn!(%error, socket = %socket.display(), "cannot attach to the console"),
    }
}

/// Where everything is that the domain names, made if it has to be.
fn environment(args: &Standalone, vmi: &VirtualMachineInstance, rundir: &RunDir) -> Result<Environment> {
    let (accelerator, reason) = accelerator::choose();
    info!(?accelerator, %reason, "the accelerator is chosen");
    let boot = vmi.spec.domain.firmware.as_ref().and_then(|f| f.kernel_boot.as_ref());
    let kernel = boot
        .and_then(|b| b.container.as_ref())
        .map(|c| kernel::resolve(c, args.kernel_root.as_deref()))
        .transpose()?;
    let mut container_disks = BTreeMap::new();
    for ContainerDisk { volume, file } in &args.container_disks {
        let known = vmi.spec.volumes.iter().any(|v| v.container_disk.is_some() && v.name == *volume);
        if !known {
            bail!("--container-disk names {volume}, which is no containerDisk volume of the manifest");
        }
        container_disks.insert(volume.clone(), wrap(file)?);
    }
    let directory = rundir.join("disks");
    let sources = ImageSources {
        container_disks: &container_disks,
        overlays: &directory,
        cloud_init: &directory,
        claims: None,
        told: &BTreeMap::new(),
        incoming: false,
        moved: &std::collections::BTreeSet::new(),
        tracking: &crate::media::overlay::Tracking::default(),
        notes: &Notes::default(),
        secrets: None,
        credentials: None,
        configs: None,
        change: None,
    };
    let images = prepare(vmi, &sources)?;
    let interfaces = &vmi.spec.domain.devices.interfaces;
    let sockets = interfaces
        .iter()
        .map(|i| {
            let made = || rundir.join(&format!("net/{}.sock", i.name));
            (i.name.clone(), args.netd_socket.clone().unwrap_or_else(made))
        })
        .collect();
    Ok(Environment {
        accelerator,
        kernel,
        ovmf: ovmf::of(vmi, Path::new(ovmf::DIRECTORY), &rundir.join("c/libvirt/qemu/nvram"))?,
        images,
        sockets,
        // File systems and the binding are for pods.
        filesystems: BTreeMap::new(),
        taps: BTreeMap::new(),
        devices: BTreeMap::new(),
        serial_socket: rundir.join("serial.sock"),
        serial_log: rundir.join("serial.log"),
        vnc_socket: rundir.join("vnc.sock"),
        balloon_period: podvirt_proto::cmd::BALLOON_PERIOD,
        smbios: podvirt_proto::cmd::default_smbios(),
    })
}

/// Starts netd for an interface.
fn start_netd(
    daemons: &mut Daemons,
    args: &Standalone,
    spec: NetdSpec,
    rundir: &RunDir,
    environment: &Environment,
) -> Result<()> {
    let name = spec.interface.clone();
    let socket = environment.sockets.get(&name).context("an interface without a socket")?;
    let control = rundir.join(&format!("net/{name}.ctl"));
    let resolv_conf = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let sockets = NetdSockets { vhost_user: socket, control: &control, steering: None, hold: None };
    let config = netd_file(spec, &sockets, &resolv_conf, true).to_yaml()?;
    let file = rundir.join(&format!("net/{name}.yaml"));
    std::fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
    daemons.start(Program {
        name: format!("netd-{name}"),
        path: find(&args.netd)?,
        args: vec!["--config".into(), file.into()],
        env: Vec::new(),
        log: None,
    })
}

/// Waits for netd's socket.
async fn wait_for_netd(path: &Path) -> Result<()> {
    let seconds = SOCKET_WAIT.as_secs();
    timeout(SOCKET_WAIT, wait_for_socket(path))
        .await
        .with_context(|| format!("no vhost-user socket {} after {seconds} s", path.display()))
}

/// Becomes more than [`Wish::Run`] when the launcher is asked to end.
fn stop_signals() -> Result<watch::Receiver<Wish>> {
    let (sender, receiver) = watch::channel(Wish::Run);
    let mut signals = StopSignals::new()?;
    let wait = async move {
        // The watch stays until the end: a second signal must not kill the launcher under its guest.
        loop {
            let name = signals.next().await;
            info!(signal = name, "the guest is to shut down");
            sender.send_replace(Wish::ShutDown);
        }
    };
    tokio::spawn(wait.in_current_span());
    Ok(receiver)
}

async fn asked(mut wish: watch::Receiver<Wish>) {
    let _ = wish.wait_for(|wish| *wish > Wish::Run).await;
}
