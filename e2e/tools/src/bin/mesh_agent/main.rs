//! `mesh-agent`: what is beside Envoy in a service mesh, for the tests.
//!
//! `mesh-agent sidecar CMD...` has the place of Istio's pilot-agent in a sidecar: it runs the proxy, and listens on 15020 for
//! `POST /quitquitquit`, by which a container of the pod ends the sidecar. It ends as the proxy does; at SIGTERM, and when it is
//! asked to quit, with success.
//!
//! `mesh-agent ambient [MARK]` has the place of Istio's ztunnel in a pod's network namespace, without encryption: see
//! [`ambient`]. MARK, 0x539 as ztunnel has it, is on the packets of what it opens.

mod ambient;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::unistd::Pid;

/// Where the sidecar is asked to quit.
const AGENT: u16 = 15020;
/// A request and its answer.
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["sidecar", program, arguments @ ..] => sidecar(program, arguments),
        ["ambient"] => ambient::run(ambient::MARK),
        ["ambient", mark] => ambient::run(u32::from_str_radix(mark.trim_start_matches("0x"), 16)?),
        _ => bail!("usage: mesh-agent sidecar CMD... | mesh-agent ambient [MARK]"),
    }
}

fn sidecar(program: &str, arguments: &[&str]) -> Result<ExitCode> {
    // Threads that start from here on have them blocked, too: the one that waits gets them.
    let ends = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    let listener = TcpListener::bind(("::", AGENT)).context("listening for requests to quit")?;
    let mut proxy = Command::new(program).args(arguments).spawn().with_context(|| program.to_owned())?;
    let pid = Pid::from_raw(i32::try_from(proxy.id())?);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&ends), None)?;
    let asked = Arc::new(AtomicBool::new(false));
    let quit = {
        let asked = Arc::clone(&asked);
        move || {
            asked.store(true, Ordering::SeqCst);
            // It may have ended.
            let _ = kill(pid, Signal::SIGTERM);
        }
    };
    let on_signal = quit.clone();
    std::thread::spawn(move || {
        while let Ok(signal) = ends.wait() {
            println!("mesh-agent: {signal}");
            on_signal();
        }
    });
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            match answer(client) {
                Ok(true) => quit(),
                Ok(false) => {}
                Err(error) => println!("mesh-agent: a request: {error:#}"),
            }
        }
    });
    let status = proxy.wait()?;
    println!("mesh-agent: the proxy ended: {status}");
    Ok(if asked.load(Ordering::SeqCst) || status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Answers one request; whether it asks to quit, which the pod alone may.
fn answer(mut client: TcpStream) -> Result<bool> {
    client.set_read_timeout(Some(TIMEOUT))?;
    let mut head = BufReader::new(client.try_clone()?.take(4096));
    let mut request = String::new();
    head.read_line(&mut request)?;
    let mut line = String::new();
    while head.read_line(&mut line)? > 2 {
        line.clear();
    }
    let inside = client.peer_addr()?.ip().to_canonical().is_loopback();
    let quits = request.starts_with("POST /quitquitquit ");
    let status = match (quits, inside) {
        (true, true) => "200 OK",
        (true, false) => "403 Forbidden",
        (false, _) => "404 Not Found",
    };
    println!("mesh-agent: {} from {}: {status}", request.trim_end(), client.peer_addr()?);
    write!(client, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    Ok(quits && inside)
}
