//! `console`: the machine's serial console in this terminal.

use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::{Instant, sleep};

use super::warn_if_paused;
use crate::api::{Cluster, Stream};
use crate::args::Console;
use crate::explain::says_not_running;
use crate::output::complain;
use crate::pump::{End, Options, pump};
use crate::target::{Kind, Object};
use crate::tty::{Raw, UntilEscape, end_signal};

/// How often a machine that is not ready is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// After the escape key nothing the machine says matters but what is on its way.
const LINGER: Duration = Duration::from_millis(300);

pub(super) async fn run(cluster: &Cluster, args: &Console) -> anyhow::Result<()> {
    let vmi = Object::new(Kind::Vmi, &args.name, cluster.namespace())?;
    let timeout = Duration::from_secs(60 * u64::from(args.timeout));
    let stream = tokio::select! {
        stream = connect(cluster, &vmi, timeout) => stream?,
        signal = end_signal() => {
            complain(&format!("\n{} ended the wait for {vmi}.", signal.context("cannot watch signals")?));
            return Ok(());
        }
    };
    warn_if_paused(cluster, &vmi).await;
    complain(&format!(
        "Successfully connected to {} console. Press Ctrl+] or Ctrl+5 to exit console.",
        vmi.name
    ));

    let raw = Raw::enter().context("cannot switch the terminal to raw mode")?;
    let input = UntilEscape::new(tokio::io::stdin());
    let end = tokio::select! {
        end = pump(stream, input, tokio::io::stdout(), Options { linger: LINGER }) => end,
        signal = end_signal() => signal.map(|_| End::Local).map_err(crate::pump::PumpError::Input),
    };
    drop(raw);
    let end = end?;
    let Some(trouble) = end.trouble() else { return Ok(()) };
    let guesses = if end.has_reason() {
        ""
    } else {
        "\n  The machine may have been switched off, another user may have connected to its console, or the network failed."
    };
    bail!(
        "\nYou were disconnected from the console of {vmi}: {trouble}{guesses}\n  \
         To see how the machine is: kubectl get vmi {} -n {}",
        vmi.name,
        vmi.namespace
    )
}

/// Connects, and asks again while the machine is on its way.
async fn connect(cluster: &Cluster, vmi: &Object, timeout: Duration) -> anyhow::Result<Stream> {
    let until = Instant::now() + timeout;
    let mut told = false;
    loop {
        let error = match cluster.open(vmi, "console").await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let on_its_way = matches!(error.code(), Some(400 | 409)) && says_not_running(&error.to_string());
        if !on_its_way || Instant::now() + AGAIN > until {
            return Err(error.explain("connect to the console of", vmi));
        }
        if !told {
            complain(&format!("Waiting for {vmi}: {error} (Ctrl+C ends)"));
            told = true;
        }
        sleep(AGAIN).await;
    }
}
