//! `netctl drops`: once, or again and again with rates.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use netctl::client::Client;
use netctl::show::{self, DropRow};
use podvirt_proto::netd::v1 as proto;

#[derive(Debug, clap::Args)]
pub(crate) struct DropsArgs {
    /// Reasons for which nothing was dropped, too
    #[arg(short, long)]
    all: bool,
    /// Ask again after this many seconds, and tell rates
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    interval: Option<Duration>,
    /// How often with --interval; 0: until ctrl-c
    #[arg(short = 'n', long, default_value_t = 0, requires = "interval")]
    count: u32,
}

/// A time that a person can wait for.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let allowed = || "a number of seconds from 0.1 to 3600 is allowed".to_owned();
    let seconds: f64 = text.parse().map_err(|_| allowed())?;
    (0.1..=3600.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds)).ok_or_else(allowed)
}

fn tell(
    args: &DropsArgs,
    json: bool,
    now: &proto::CountersResponse,
    before: Option<(&proto::CountersResponse, Duration)>,
) -> Result<()> {
    let mut rows = show::drop_rows(now, before);
    if !args.all {
        rows.retain(DropRow::happened);
    }
    crate::print(json, &rows, |rows| show::drops(rows))
}

pub(crate) async fn run(client: &mut Client, args: &DropsArgs, json: bool) -> Result<()> {
    let mut before = (client.counters().await?, Instant::now());
    let Some(interval) = args.interval else { return tell(args, json, &before.0, None) };
    let mut done = 0;
    loop {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return Ok(()),
            () = tokio::time::sleep(interval) => {}
        }
        let now = (client.counters().await?, Instant::now());
        if done > 0 && !json {
            io::stdout().write_all(b"\n")?;
        }
        tell(args, json, &now.0, Some((&before.0, now.1 - before.1)))?;
        before = now;
        done += 1;
        if done == args.count {
            return Ok(());
        }
    }
}
