//! The commands, one file each.

mod console;
mod create;
mod credentials;
mod evacuate_cancel;
mod expand;
mod expose;
mod guest;
mod guestfs;
mod image_upload;
mod log_verbosity;
mod memory_dump;
mod migrate;
mod migrate_cancel;
mod object_graph;
mod pause;
mod permitted_devices;
mod port_forward;
mod reset;
mod restart;
mod scp;
mod ssh;
mod start;
mod stop;
mod version;
mod vmexport;
mod vnc;
mod volume;

use crate::api::Cluster;
use crate::args::{AdmWhat, Cli, Command, DryRun, Ending, Global};
use crate::target::Object;
use crate::{config, help, output};

/// Carries out what the command line says.
///
/// # Errors
/// With the text for the user.
pub(crate) async fn run(cli: Cli) -> anyhow::Result<()> {
    let Cli { global, command } = cli;
    let Some(command) = command else {
        let argv0 = std::env::args().next().unwrap_or_default();
        return output::say(help::overview(&help::program_name(&argv0)).trim_end());
    };
    match command {
        Command::Start(args) => start::run(&cluster(&global).await?, &args).await,
        Command::Stop(args) => stop::run(&cluster(&global).await?, &args).await,
        Command::Restart(args) => restart::run(&cluster(&global).await?, &args).await,
        Command::Pause(args) => pause::run(&cluster(&global).await?, &args, pause::Change::Pause).await,
        Command::Unpause(args) => pause::run(&cluster(&global).await?, &args, pause::Change::Unpause).await,
        Command::Console(args) => Box::pin(console::run(&cluster(&global).await?, &args)).await,
        Command::Vnc(args) => Box::pin(vnc::run(&cluster(&global).await?, &args)).await,
        Command::PortForward(args) => Box::pin(port_forward::run(&cluster(&global).await?, &args)).await,
        Command::Ssh(args) => ssh::run(&cluster(&global).await?, &global, &args).await,
        Command::Scp(args) => scp::run(&cluster(&global).await?, &global, &args).await,
        Command::Vmexport(args) => Box::pin(vmexport::run(&global, &args)).await,
        Command::Version(args) => version::run(&global, &args).await,
        Command::Addvolume(args) => volume::add(&cluster(&global).await?, &args).await,
        Command::Removevolume(args) => volume::remove(&cluster(&global).await?, &args).await,
        Command::Migrate(args) => migrate::run(&cluster(&global).await?, &args).await,
        Command::MigrateCancel(args) => migrate_cancel::run(&cluster(&global).await?, &args).await,
        Command::EvacuateCancel(args) => evacuate_cancel::run(&cluster(&global).await?, &args).await,
        Command::Expand(args) => expand::run(&cluster(&global).await?, &args).await,
        Command::Guestfs(args) => Box::pin(guestfs::run(&cluster(&global).await?, &args)).await,
        Command::ImageUpload(args) => Box::pin(image_upload::run(&cluster(&global).await?, &args)).await,
        Command::MemoryDump(args) => Box::pin(memory_dump::run(&global, &args)).await,
        Command::Objectgraph(args) => object_graph::run(&cluster(&global).await?, &args).await,
        Command::Reset(args) => reset::run(&cluster(&global).await?, &args, reset::Way::Reset).await,
        Command::SoftReboot(args) => {
            reset::run(&cluster(&global).await?, &args, reset::Way::SoftReboot).await
        }
        Command::Guestosinfo(args) => {
            guest::run(&cluster(&global).await?, &args, guest::Question::OsInfo).await
        }
        Command::Userlist(args) => guest::run(&cluster(&global).await?, &args, guest::Question::Users).await,
        Command::Fslist(args) => {
            guest::run(&cluster(&global).await?, &args, guest::Question::Filesystems).await
        }
        Command::Expose(args) => expose::run(&cluster(&global).await?, &args).await,
        Command::Create(args) => create::run(&global, &args),
        Command::Credentials(args) => {
            // The command's own flag of that name says the guest's user.
            let global = Global { user: None, ..global };
            credentials::run(&cluster(&global).await?, &args).await
        }
        Command::PermittedDevices => permitted_devices::run(&cluster(&global).await?).await,
        Command::Adm(args) => match args.what {
            AdmWhat::LogVerbosity(args) => log_verbosity::run(&cluster(&global).await?, &args).await,
        },
        Command::Options => output::say(help::options().trim_end()),
    }
}

/// The cluster the flags lead to.
async fn cluster(global: &Global) -> anyhow::Result<Cluster> {
    Cluster::new(config::load(global).await?)
}

impl DryRun {
    /// The field `dryRun` of the options of all states; says so to the user.
    fn option(&self) -> anyhow::Result<Option<[&'static str; 1]>> {
        if self.dry_run {
            output::say("Dry Run execution")?;
        }
        Ok(self.dry_run.then_some(["All"]))
    }
}

impl Ending {
    /// The grace period to ask for, if the end is forced. Upstream takes the two flags only together.
    fn grace_period(&self) -> anyhow::Result<Option<i64>> {
        match (self.force, self.grace_period) {
            (false, None) => Ok(None),
            (true, Some(seconds @ 0..)) => Ok(Some(seconds)),
            (true, Some(seconds)) => {
                anyhow::bail!("--grace-period={seconds} is not possible: it must be 0 or more seconds")
            }
            (true, None) => {
                anyhow::bail!("--force needs --grace-period, for example --force --grace-period=0")
            }
            (false, Some(seconds)) => anyhow::bail!(
                "--grace-period={seconds} needs --force; without the two the guest gets the grace period of its virtual machine"
            ),
        }
    }
}

/// Tells the user when a machine is paused: a stream into it is then silent. Best effort: a user who may not
/// read the machine is not bothered.
async fn warn_if_paused(cluster: &Cluster, vmi: &Object) {
    let Ok(object) = cluster.get(vmi).await else { return };
    let paused = object["status"]["conditions"]
        .as_array()
        .is_some_and(|all| all.iter().any(|one| one["type"] == "Paused" && one["status"] == "True"));
    if paused {
        output::complain(&format!("Warning: {} is paused. Console will be active after unpause.", vmi.name));
    }
}
