//! `netctl pcap`: frames as a pcapng file, or as lines.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use netctl::client::{Capture, Captured, Client};
use netctl::show;
use netd_capture::pcapng::{Interface, Statistics, Writer};
use netd_capture::{Headers, Packet};
use podvirt_proto::netd::v1 as proto;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The filter is a subset of tcpdump's: host, net, port, portrange with src and dst, ip, ip6, arp, tcp, udp,
icmp, icmp6, proto, ether host, broadcast, multicast, inbound, outbound, less, greater, tcp[tcpflags],
joined by and, or, not and parentheses. Examples:

  netctl pcap -w - port 53 | tshark -r -
  netctl pcap -w guest.pcapng host 10.0.0.1 and not tcp port 22
  netctl pcap 'tcp[tcpflags] & (tcp-syn|tcp-rst) != 0'")]
pub(crate) struct PcapArgs {
    /// Write a pcapng file, '-' for standard output; without it a line is printed for each frame
    #[arg(short, long, value_name = "FILE")]
    write: Option<String>,
    /// Keep this many bytes of each frame; 0: all
    #[arg(short = 'n', long, value_name = "BYTES", default_value_t = 0)]
    snaplen: u32,
    /// End after this many frames
    #[arg(short, long)]
    count: Option<u64>,
    /// Show large frames as the segments that they stand for
    #[arg(long)]
    segment: bool,
    /// KiB that may wait in netd, 128 to 65536; 0: 4096
    #[arg(short = 'B', long, value_name = "KIB", default_value_t = 0)]
    buffer: u32,
    /// Which frames; without it all
    filter: Vec<String>,
}

/// Where frames go.
enum Output {
    Lines(io::Stdout),
    File(Writer<BufWriter<Box<dyn Write>>>),
}

pub(crate) async fn run(client: &mut Client, args: &PcapArgs) -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let filter = args.filter.join(" ");
    let request = proto::CaptureRequest {
        filter: filter.clone(),
        snaplen: args.snaplen,
        segment: args.segment,
        buffer_kib: args.buffer,
    };
    let mut capture = client.capture(request).await.map_err(|s| anyhow::anyhow!("{}", s.message()))?;
    let mut output = open(args, &capture, filter)?;
    let mut last = Captured::default();
    let mut written = 0;
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let next = tokio::select! {
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            next = capture.next() => next?,
        };
        let Some(captured) = next else { break };
        for packet in captured.packets.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            output.packet(packet)?;
            left -= 1;
            written += 1;
        }
        // A reader at the other end of a pipe wants to see what there is.
        output.flush()?;
        last = captured;
    }
    let (matched, dropped) = (last.matched, last.dropped);
    output.finish(Statistics { matched, dropped })?;
    eprintln!("{written} frames captured, {matched} matched the filter, {dropped} dropped");
    Ok(())
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn open(args: &PcapArgs, capture: &Capture, filter: String) -> Result<Output> {
    let out: Box<dyn Write> = match args.write.as_deref() {
        None => return Ok(Output::Lines(io::stdout())),
        Some("-") => Box::new(io::stdout()),
        Some(path) => Box::new(File::create(path).with_context(|| path.to_owned())?),
    };
    let from = capture.interface();
    let interface = Interface {
        name: from.name.clone(),
        description: "the guest's network card: inbound is what the guest receives".into(),
        mac: from.mac.parse().ok(),
        snaplen: from.snaplen,
        filter,
    };
    Ok(Output::File(Writer::new(BufWriter::new(out), &interface, now())?))
}

impl Output {
    fn packet(&mut self, packet: &Packet) -> io::Result<()> {
        match self {
            Output::Lines(out) => {
                let headers = Headers::parse(&packet.data, packet.len as usize);
                out.write_all(show::frame(packet, &headers).as_bytes())
            }
            Output::File(writer) => writer.packet(packet),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Lines(out) => out.flush(),
            Output::File(writer) => writer.flush(),
        }
    }

    fn finish(self, numbers: Statistics) -> io::Result<()> {
        match self {
            Output::Lines(mut out) => out.flush(),
            Output::File(writer) => writer.finish(numbers, now()).map(|_| ()),
        }
    }
}
