//! `perf-agent`: the traffic of the measurements that iperf3 does not make.
//!
//! It runs at both ends: in the client's network beside the runner, and in the guest, to which the runner sends it over
//! the network. So both directions are measured by the same code. A measurement prints one JSON object on one line.
//!
//! ```text
//! perf-agent serve PORT [BYTES]               echoes TCP and UDP, for ever; its UDP socket has room for so many bytes
//! perf-agent rr ADDR SECONDS SIZE [RATE]      round trips over one TCP connection, as fast as they go or so many a second
//! perf-agent crr ADDR SECONDS [RATE]          connection, one byte there and back, end
//! perf-agent refusals ADDR SECONDS            connects to a port that no program serves, until that is known
//! perf-agent flows ADDR COUNT                 opens so many connections, tells how fast, and holds them until SIGTERM
//! perf-agent sink PORT                        reads all that comes and answers a connection's end with how much, for ever
//! perf-agent pace ADDR COUNT SECONDS BYTES MILLISECONDS   opens so many connections to a sink, tells how fast, waits for
//!                                             SIGUSR1, and sends by each so many bytes so often
//! perf-agent deaf PORT                        accepts TCP connections and reads nothing, for ever
//! perf-agent pour ADDR COUNT [urgent]         fills so many connections with as much as they take, for ever
//! perf-agent stream ADDR COUNT                writes to so many connections, each from its own thread, for ever
//! perf-agent spray ADDR COUNT                 sends datagrams from so many ports as fast as it goes, for ever
//! perf-agent udp-rr ADDR SECONDS SIZE         datagrams there and back, one at a time
//! perf-agent udp-echo ADDR SECONDS SIZE WINDOW [gso]   as many as come back, so many under way
//! perf-agent udp-sink PORT SECONDS            counts datagrams, from the first one on
//! perf-agent names ADDR SECONDS RATE          asks so many questions a second, each from a fresh port
//! perf-agent ramps PORT [ADDR=COUNT]...       compares streams until it is asked for a report, a line each
//! ```

mod names;
mod paced;
mod pour;
mod ramps;
mod serve;
mod tcp;
mod udp;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", port] => serve::serve(port.parse()?, None),
        ["serve", port, room] => serve::serve(port.parse()?, Some(room.parse()?)),
        ["rr", address, time, size, rate @ ..] => {
            tell(&tcp::round_trips(at(address)?, seconds(time)?, size.parse()?, per_second(rate)?)?)
        }
        ["crr", address, time, rate @ ..] => {
            tell(&tcp::connections(at(address)?, seconds(time)?, per_second(rate)?)?)
        }
        ["refusals", address, time] => tell(&tcp::refusals(at(address)?, seconds(time)?)?),
        ["sink", port] => paced::sink(port.parse()?),
        ["pace", address, count, time, bytes, millis] => {
            let every = Duration::from_millis(millis.parse()?);
            let pace = paced::Pace { time: seconds(time)?, bytes: bytes.parse()?, every };
            let streams = open(address, count, Signal::SIGUSR1)?;
            tell(&paced::send(streams, &pace)?)
        }
        ["deaf", port] => pour::deaf(port.parse()?),
        ["pour", address, count] => pour::pour(at(address)?, count.parse()?, false),
        ["pour", address, count, "urgent"] => pour::pour(at(address)?, count.parse()?, true),
        ["stream", address, count] => pour::stream(at(address)?, count.parse()?),
        ["spray", address, count] => pour::spray(at(address)?, count.parse()?),
        ["flows", address, count] => {
            tcp::close(open(address, count, Signal::SIGTERM)?);
            Ok(())
        }
        ["udp-rr", address, time, size] => {
            tell(&udp::round_trips(at(address)?, seconds(time)?, size.parse()?)?)
        }
        ["udp-echo", address, time, size, window, rest @ ..] => {
            let segments = rest == ["gso"];
            tell(&udp::echo(at(address)?, seconds(time)?, size.parse()?, window.parse()?, segments)?)
        }
        ["names", address, time, rate] => tell(&names::names(at(address)?, seconds(time)?, rate.parse()?)?),
        ["ramps", port, others @ ..] => {
            let others = others.iter().map(|o| {
                let (address, count) = o.split_once('=').with_context(|| format!("ADDR=COUNT: {o}"))?;
                Ok((at(address)?, count.parse()?))
            });
            ramps::ramps(port.parse()?, &others.collect::<Result<Vec<_>>>()?)
        }
        ["udp-sink", port, time] => tell(&udp::sink(port.parse()?, seconds(time)?)?),
        _ => bail!("perf-agent does not know: {}", words.join(" ")),
    }
}

/// Opens so many connections, tells how fast, and holds them until this signal comes.
fn open(address: &str, count: &str, until: Signal) -> Result<Vec<TcpStream>> {
    let until = SigSet::from(until);
    until.thread_block()?;
    let (held, found) = tcp::flows(at(address)?, count.parse()?)?;
    tell(&found)?;
    until.wait()?;
    Ok(held)
}

fn at(address: &str) -> Result<SocketAddr> {
    address.parse().with_context(|| format!("an address and port: {address}"))
}

fn seconds(text: &str) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

/// A rate that may be left out.
fn per_second(words: &[&str]) -> Result<Option<f64>> {
    match words {
        [] => Ok(None),
        [rate] => {
            let rate: f64 = rate.parse()?;
            ensure!(rate.is_finite() && rate > 0.0, "a rate above 0: {rate}");
            Ok(Some(rate))
        }
        _ => bail!("too many words: {}", words.join(" ")),
    }
}

fn tell(found: &Value) -> Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{found}")?;
    Ok(out.flush()?)
}

/// Descriptors for so many sockets, as far as they may be had; never fewer than before.
fn allow_descriptors(wanted: u64) -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= wanted {
        return Ok(());
    }
    if hard >= wanted {
        return Ok(setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?);
    }
    // In a guest the agent is root; elsewhere this fails and what there is must do.
    if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_err() {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}

/// When events begin that come at a rate, or one after another. One that is due while the last one goes on has begun when it
/// was due: a pause is counted for all that it has held up.
struct Schedule {
    begin: Instant,
    every: Option<Duration>,
    count: u32,
}

impl Schedule {
    fn start(per_second: Option<f64>) -> Schedule {
        let every = per_second.map(|rate| Duration::from_secs_f64(1.0 / rate));
        Schedule { begin: Instant::now(), every, count: 0 }
    }

    /// Waits for the next one; when it began.
    fn next(&mut self) -> Instant {
        let Some(every) = self.every else { return Instant::now() };
        let due = self.begin + every * self.count;
        self.count += 1;
        let now = Instant::now();
        if due <= now {
            return due;
        }
        std::thread::sleep(due - now);
        Instant::now()
    }
}

/// Times of single events in microseconds, and when counting began.
struct Times {
    begin: Instant,
    micros: Vec<f64>,
}

impl Times {
    fn start() -> Times {
        Times { begin: Instant::now(), micros: Vec::new() }
    }

    /// What is reported of them; `failed` are those that came to nothing.
    fn report(mut self, failed: u64) -> Result<Value> {
        let seconds = self.begin.elapsed().as_secs_f64();
        self.micros.sort_by(f64::total_cmp);
        let count = self.micros.len();
        let (p50, p99) = (rank(&self.micros, 50), rank(&self.micros, 99));
        let p50 = p50.context("nothing came back")?;
        #[allow(clippy::cast_precision_loss, reason = "a count of events")]
        let per_second = count as f64 / seconds;
        Ok(json!({"count": count, "per_second": per_second, "p50": p50, "p99": p99, "failed": failed}))
    }
}

/// The value at so many hundredths of a sorted list.
fn rank(sorted: &[f64], hundredth: usize) -> Option<f64> {
    sorted.get(sorted.len().checked_sub(1)? * hundredth / 100).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};
    use std::thread;

    #[test]
    fn ranks_are_values_of_the_list() {
        let sorted: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!((rank(&sorted, 50), rank(&sorted, 99)), (Some(50.0), Some(99.0)));
        assert_eq!(rank(&[7.0], 99), Some(7.0));
        assert_eq!(rank(&[], 50), None);
    }

    /// A server on a port that was free a moment ago.
    fn served(serve: fn(u16) -> Result<()>) -> SocketAddr {
        let port = {
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            tcp.local_addr().unwrap().port()
        };
        thread::spawn(move || serve(port));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        while std::net::TcpStream::connect(address).is_err() {
            thread::yield_now();
        }
        address
    }

    #[test]
    fn every_measurement_works_against_its_own_server() {
        let address = served(|port| serve::serve(port, None));
        let time = Duration::from_millis(50);
        for found in [
            tcp::round_trips(address, time, 1, None).unwrap(),
            tcp::connections(address, time, None).unwrap(),
            tcp::round_trips(address, time, 1, Some(200.0)).unwrap(),
            udp::round_trips(address, time, 64).unwrap(),
        ] {
            assert!(found["count"].as_u64().unwrap() > 0, "{found}");
            assert!(found["p50"].as_f64().unwrap() <= found["p99"].as_f64().unwrap(), "{found}");
            assert_eq!(found["failed"], 0);
        }
        // The server's ends are in this process, too.
        allow_descriptors(512).unwrap();
        let (held, found) = tcp::flows(address, 100).unwrap();
        assert_eq!((held.len(), found["held"].as_u64(), found["failed"].as_u64()), (100, Some(100), Some(0)));
        let found = names::names(address, Duration::from_millis(100), 1000).unwrap();
        assert!(found["answered_share"].as_f64().unwrap() > 0.0, "{found}");
        for segments in [false, true] {
            let found = udp::echo(address, Duration::from_millis(100), 64, 32, segments).unwrap();
            assert!(found["per_second"].as_f64().unwrap() > 0.0, "{found}");
            assert!(found["lost_share"].as_f64().unwrap() < 1.0, "{found}");
        }
    }

    #[test]
    fn what_is_sent_at_a_pace_is_counted_where_it_arrives() {
        let address = served(paced::sink);
        allow_descriptors(512).unwrap();
        let (streams, found) = tcp::flows(address, 20).unwrap();
        assert_eq!(found["held"], 20, "{found}");
        let every = Duration::from_millis(10);
        let pace = paced::Pace { time: Duration::from_millis(50), bytes: 100, every };
        let found = paced::send(streams, &pace).unwrap();
        assert_eq!((&found["arrived"], &found["failed"]), (&json!(20 * 5 * 100), &json!(0)), "{found}");
        let share = found["share"].as_f64().unwrap();
        assert!(share > 0.0 && share <= 1.0, "{found}");
        let ended = tcp::flows(address, 1).unwrap().0;
        ended[0].shutdown(std::net::Shutdown::Both).unwrap();
        let found = paced::send(ended, &pace).unwrap();
        assert_eq!((&found["arrived"], &found["failed"]), (&json!(0), &json!(1)), "{found}");
    }

    #[test]
    fn what_a_pause_holds_up_began_when_it_was_due() {
        let mut schedule = Schedule::start(Some(100.0));
        let begin = schedule.begin;
        std::thread::sleep(Duration::from_millis(35));
        let begun: Vec<Duration> = (0..4).map(|_| schedule.next() - begin).collect();
        assert_eq!(begun, [0, 10, 20, 30].map(Duration::from_millis));
        assert!(schedule.next() - begin >= Duration::from_millis(40));
        assert!(Schedule::start(None).next() >= begin + Duration::from_millis(35));
    }

    #[test]
    fn a_refused_connection_is_an_error_and_silence_too() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(tcp::round_trips(free, Duration::from_millis(10), 1, None).is_err());
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(udp::round_trips(silent.local_addr().unwrap(), Duration::from_millis(10), 1).is_err());
    }
}
