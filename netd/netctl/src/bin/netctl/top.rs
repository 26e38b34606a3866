//! `netctl top`: on a terminal drawn over itself until q or ctrl-c, elsewhere one picture below the other.

use std::io::{self, IsTerminal, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use netctl::client::Client;
use netctl::show::{self, Sample, Top};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use podvirt_proto::netd::v1 as proto;
use rustix::termios::tcgetwinsize;
use tokio::sync::Notify;

use crate::flows::Which;
use crate::watch::seconds;

/// Flows shown where there is no screen that ends.
const FLOWS: usize = 20;
/// Lines of the screen above the flows.
const HEADER_LINES: usize = 6;

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    which: Which,
    /// Seconds between two readings
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// How many pictures, one below the other; 0: on a terminal until q, elsewhere until ctrl-c
    #[arg(short = 'n', long, default_value_t = 0)]
    count: u32,
    /// How many flows at most; 0: as many as the screen has lines
    #[arg(short, long, default_value_t = 0)]
    limit: usize,
}

async fn sample(client: &mut Client, args: &TopArgs, start: Instant) -> Result<Sample> {
    // Sockets are not asked: what is shown every second shall cost little.
    let request = proto::ListFlowsRequest { limit: 0, filter: Some(args.which.filter()), sockets: false };
    let (status, counters) = (client.status().await?, client.counters().await?);
    let flows = client.flows(request).await?;
    Ok(Sample { at: start.elapsed(), status, counters, flows })
}

pub(crate) async fn run(client: &mut Client, args: &TopArgs, json: bool) -> Result<()> {
    let start = Instant::now();
    let screen = if args.count == 0 && !json { Screen::open()? } else { None };
    let mut before = sample(client, args, start).await?;
    let mut done = 0;
    loop {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return Ok(()),
            () = Screen::quit(screen.as_ref()) => return Ok(()),
            () = tokio::time::sleep(args.interval) => {}
        }
        let now = sample(client, args, start).await?;
        let mut top = Top::between(&before, now.clone());
        before = now;
        match (&screen, args.limit) {
            (Some(_), limit) => {
                let (lines, _) = screen_size();
                let room = usize::from(lines).saturating_sub(HEADER_LINES + 1);
                top.truncate(if limit == 0 { room } else { room.min(limit) });
            }
            (None, 0) => top.truncate(FLOWS),
            (None, limit) => top.truncate(limit),
        }
        match &screen {
            Some(screen) => screen.draw(&show::top(&top))?,
            None => {
                if done > 0 && !json {
                    io::stdout().write_all(b"\n")?;
                }
                crate::print(json, &top, show::top)?;
            }
        }
        done += 1;
        if args.count > 0 && done == args.count {
            return Ok(());
        }
    }
}

/// Lines and columns of the terminal; what terminals had for long where it does not tell.
fn screen_size() -> (u16, u16) {
    let told = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
    told.map_or((24, 80), |size| (size.ws_row, size.ws_col))
}

/// A terminal that is drawn on; it is as it was when this goes.
struct Screen {
    keys: Option<(Quit, Termios)>,
}

/// Told once when the key was typed.
type Quit = Arc<Notify>;

impl Screen {
    /// None when the output is no terminal.
    fn open() -> Result<Option<Screen>> {
        if !io::stdout().is_terminal() {
            return Ok(None);
        }
        let keys = match tcgetattr(io::stdin()) {
            Ok(usual) => {
                let mut raw = usual.clone();
                // Single keys, unseen; ctrl-c stays a signal.
                raw.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
                tcsetattr(io::stdin(), SetArg::TCSANOW, &raw)?;
                let quit = Arc::new(Notify::new());
                let told = quit.clone();
                // The main thread does not wait for the thread that reads keys: that thread ends with the process.
                std::thread::Builder::new().name("keys".into()).spawn(move || read_keys(&told))?;
                Some((quit, usual))
            }
            // Keys from elsewhere mean nothing.
            Err(_) => None,
        };
        // The alternate screen, and no cursor (ECMA-48 private modes that every terminal has).
        let mut out = io::stdout();
        out.write_all(b"\x1b[?1049h\x1b[?25l")?;
        out.flush()?;
        Ok(Some(Screen { keys }))
    }

    /// Draws `text` from the top, cut at the right edge, and clears what is left of the picture before.
    fn draw(&self, text: &str) -> io::Result<()> {
        let (_, columns) = screen_size();
        let mut picture = String::from("\x1b[H");
        for line in text.lines() {
            picture.extend(line.chars().take(columns.into()));
            picture += "\x1b[K\r\n";
        }
        picture += "\x1b[J";
        let mut out = io::stdout();
        out.write_all(picture.as_bytes())?;
        out.flush()
    }

    /// Waits for the key q; for ever where there are no keys.
    async fn quit(screen: Option<&Screen>) {
        match screen.and_then(|s| s.keys.as_ref()) {
            Some((quit, _)) => quit.notified().await,
            None => std::future::pending().await,
        }
    }
}

/// Reads keys until q, or until there are no more.
fn read_keys(quit: &Notify) {
    let key = |key: &u8| matches!(key, b'q' | b'Q');
    let mut typed = [0; 64];
    while let Ok(n) = io::stdin().read(&mut typed) {
        if n == 0 || typed[..n].iter().any(key) {
            break;
        }
    }
    quit.notify_one();
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some((_, usual)) = &self.keys {
            // At the end nothing could be done about it.
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, usual);
        }
        let mut out = io::stdout();
        let _ = out.write_all(b"\x1b[?25h\x1b[?1049l");
        let _ = out.flush();
    }
}
