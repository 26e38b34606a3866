//! Which figures the tables have, in their order, and what they are called.

/// A figure's name, what it is called, and digits after the point.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// As in results.
    pub(crate) figure: String,
    /// For people.
    pub(crate) label: String,
    /// Digits after the point.
    pub(crate) digits: usize,
}

/// A table of its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Section {
    /// Its heading.
    pub(crate) title: &'static str,
    /// What stands before the table.
    pub(crate) intro: &'static str,
    /// The plots that stand after it, by name.
    pub(crate) plots: &'static [&'static str],
    /// The table.
    pub(crate) rows: Vec<Row>,
}

/// The MTUs that the report tells of, in bytes.
pub(crate) const MTUS: [u16; 4] = [1280, 1500, 9000, 65520];
/// The numbers of connections that the report tells of.
pub(crate) const FLOWS: [u32; 5] = [1, 100, 1000, 10_000, 18_000];
/// Directions as in names and for people.
pub(crate) const WAYS: [(&str, &str); 2] = [("g2h", "guest → host"), ("h2g", "host → guest")];

fn row(figure: impl Into<String>, label: impl Into<String>, digits: usize) -> Row {
    Row { figure: figure.into(), label: label.into(), digits }
}

/// All tables.
pub(crate) fn sections() -> Vec<Section> {
    vec![
        Section {
            title: "Bulk TCP",
            intro: "Gbit/s at the receiver; a ratio above 1 is good.",
            plots: &["tcp-g2h", "tcp-h2g"],
            rows: tcp(),
        },
        Section {
            title: "Cost of bulk TCP",
            intro: "CPU seconds for 10⁹ bytes of one stream; a ratio below 1 is good. *Machine* is all that both \
                    processors did: backend, guest, iperf3, and the kernel where no process is charged for it.",
            plots: &["cpu"],
            rows: cost(),
        },
        Section {
            title: "TCP without a guest",
            intro: "The host's streams, requests and connections to this project's own frontend, which answers by itself and reads \
                    nothing: what the backend does where no guest's own receiving is the limit.",
            plots: &[],
            rows: receiver(),
        },
        Section {
            title: "Transactions",
            intro: "One byte there and back. Times in µs as the asking program sees them; *connections* are opened, \
                    used once and closed, one after the other. For times a ratio below 1 is good, for rates one above.",
            plots: &["latency"],
            rows: transactions(),
        },
        Section {
            title: "Datagrams",
            intro: "testpmd has no guest: it returns (*echo*) or makes (*sent*) datagrams of these payloads as fast as its \
                    rings take them. The client of the echo has 128 under way and hands the kernel 32 in one call; a *plain* \
                    one makes a call for each. iperf3's guest sends what it can; its host offers 40,000 a second (10,000 of 8972 bytes).",
            plots: &["datagrams"],
            rows: datagrams(),
        },
        Section {
            title: "Many connections",
            intro: "The guest opens so many, 64 at a time, and each has had a byte echoed. Memory is the backend's heap and \
                    stacks, and the growth of the kernel's slab, which has the client's sockets, too. The slope is 18,000 \
                    connections divided by 1,000. A peer that cannot carry a number of them has no figures there, nor beyond.",
            plots: &["flows"],
            rows: flows(),
        },
        Section {
            title: "Connections to a far peer",
            intro: "A thousand connections of the guest to a peer whose round trip is 20 ms: each sends 12,500 bytes every 100 ms,                     1 Mbit/s, in turn. *Reached* is what of it arrived; a ratio of CPU below 1 is good.",
            plots: &[],
            rows: far(),
        },
        Section {
            title: "Idle",
            intro: "With a guest that is up, before any payload. The resident set includes program text and the pages of the \
                    guest's memory that the backend has touched.",
            plots: &[],
            rows: vec![
                row("idle_rss_mib", "resident memory, MiB", 1),
                row("idle_private_mib", "… of it heap and stacks, MiB", 2),
                row("idle_wakeups_per_10s", "wake-ups in 10 s", 0),
                row("idle_cpus", "processors busy", 4),
                row("boot_seconds", "boot of the guest until it has an address, s", 2),
            ],
        },
        Section {
            title: "Rings",
            intro: "This project's own frontend in a loop, frames a second: those that lead nowhere, datagrams of 64 bytes \
                    that the ring took, and those that arrived.",
            plots: &[],
            rows: vec![
                row("ring_discard_pps", "frames that lead nowhere", 0),
                row("ring_udp_taken_pps", "datagrams taken", 0),
                row("ring_udp_pps", "datagrams received", 0),
            ],
        },
        Section {
            title: "Queue pairs",
            intro: "Frames a second that the rings of one and of two queue pairs are rid of, each filled by a thread of its own \
                    with eight flows of its own: those that lead nowhere, and datagrams of 1000 bytes to a socket that \
                    no program reads. Two pairs have two workers; on two processors, they share these with the threads \
                    that fill the rings.",
            plots: &[],
            rows: pairs(),
        },
        Section {
            title: "Under QEMU's TCG",
            intro: "The translated guest is the bottleneck: this shows that everything works, and ranks nothing but the cost \
                    of the backend.",
            plots: &[],
            rows: tcg(),
        },
    ]
}

fn tcp() -> Vec<Row> {
    let mut rows = Vec::new();
    for (key, way) in WAYS {
        for mtu in MTUS {
            rows.push(row(format!("tcp_{key}_{mtu}"), format!("{way}, MTU {mtu}"), 2));
        }
        for mtu in MTUS {
            rows.push(row(format!("tcp4_{key}_{mtu}"), format!("{way}, MTU {mtu}, 4 streams"), 2));
        }
        rows.push(row(format!("tcp_{key}_1500_v6"), format!("{way}, MTU 1500, IPv6"), 2));
    }
    rows
}

fn cost() -> Vec<Row> {
    let mut rows = Vec::new();
    for (key, way) in WAYS {
        for mtu in MTUS {
            rows.push(row(format!("cpu_per_gb_{key}_{mtu}"), format!("backend, {way}, MTU {mtu}"), 3));
        }
        rows.push(row(format!("user_share_{key}_1500"), "… share of it in user space, MTU 1500", 3));
        for mtu in [1500, 65520] {
            rows.push(row(format!("guest_per_gb_{key}_{mtu}"), format!("guest, {way}, MTU {mtu}"), 3));
            rows.push(row(format!("machine_per_gb_{key}_{mtu}"), format!("machine, {way}, MTU {mtu}"), 3));
        }
    }
    rows
}

fn receiver() -> Vec<Row> {
    let mut rows = Vec::new();
    for mtu in [1500, 65520] {
        for (many, streams) in [("", ""), ("4", ", 4 streams")] {
            rows.push(row(format!("receiver{many}_{mtu}"), format!("MTU {mtu}{streams}, Gbit/s"), 2));
            rows.push(row(format!("receiver{many}_cpu_per_gb_{mtu}"), "… backend CPU s/GB", 3));
            rows.push(row(format!("receiver{many}_user_share_{mtu}"), "… share of it in user space", 3));
        }
        rows.push(row(
            format!("receiver_rr_p50_{mtu}"),
            format!("MTU {mtu}, round trip of a byte, median, µs"),
            0,
        ));
        rows.push(row(format!("receiver_rr_p99_{mtu}"), "… 99th percentile", 0));
        rows.push(row(format!("receiver_crr_{mtu}"), format!("MTU {mtu}, connections a second"), 0));
    }
    rows
}

fn transactions() -> Vec<Row> {
    let mut rows = Vec::new();
    for (key, way) in [("h2g", "the host asks"), ("g2h", "the guest asks")] {
        rows.push(row(format!("tcp_rr_{key}_p50"), format!("TCP, {way}, median"), 0));
        rows.push(row(format!("tcp_rr_{key}_p99"), "… 99th percentile", 0));
        rows.push(row(format!("udp_rr_{key}_p50"), format!("datagram, {way}, median"), 0));
        rows.push(row(format!("udp_rr_{key}_p99"), "… 99th percentile", 0));
        rows.push(row(format!("tcp_crr_{key}"), format!("connections a second, {way}"), 0));
        rows.push(row(format!("tcp_crr_{key}_p50"), "… median time of one", 0));
        rows.push(row(format!("tcp_crr_{key}_p99"), "… 99th percentile", 0));
    }
    rows
}

fn datagrams() -> Vec<Row> {
    let mut rows = Vec::new();
    for size in [64, 1400, 8972] {
        let name = if size == 64 { "udp_echo".to_owned() } else { format!("udp_echo_{size}") };
        rows.push(row(format!("{name}_pps"), format!("echo, {size} bytes, a second"), 0));
        rows.push(row(format!("{name}_lost"), "… share lost", 3));
        rows.push(row(format!("{name}_cpu_us"), "… backend CPU each, µs", 2));
        rows.push(row(format!("{name}_plain_pps"), "… plain client, a second", 0));
        rows.push(row(format!("{name}_rtt_p50"), "… round trip, median, µs", 0));
        rows.push(row(format!("{name}_rtt_p99"), "… round trip, 99th percentile, µs", 0));
        rows.push(row(format!("udp_tx_{size}_pps"), format!("sent, {size} bytes, a second"), 0));
        rows.push(row(format!("udp_tx_{size}_lost"), "… share lost behind the ring", 3));
    }
    for size in [64, 1400, 8972] {
        for (key, way) in WAYS {
            rows.push(row(
                format!("udp_{key}_{size}_pps"),
                format!("iperf3, {way}, {size} bytes, a second"),
                0,
            ));
            rows.push(row(format!("udp_{key}_{size}_lost"), "… share lost", 3));
        }
    }
    rows
}

fn flows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut quantity = |name: &str, label: &str, digits, from| {
        for count in FLOWS.into_iter().filter(|c| *c >= from) {
            rows.push(row(format!("{name}_{count}"), format!("{label}, {count}"), digits));
        }
    };
    quantity("flows_setup", "opened a second", 0, 100);
    quantity("flows_tcp_g2h", "guest → host beside them, Gbit/s", 2, 1);
    quantity("flows_tcp_h2g", "host → guest beside them, Gbit/s", 2, 1);
    quantity("flows_cpu_per_gb_g2h", "guest → host beside them, backend CPU s/GB", 3, 1000);
    quantity("flows_cpu_per_gb_h2g", "host → guest beside them, backend CPU s/GB", 3, 1000);
    quantity("flows_bytes", "backend's memory each, bytes", 0, 1000);
    quantity("flows_kernel_bytes", "kernel's memory each, bytes", 0, 1000);
    rows.push(row("flows_reached", "the most that were open at once", 0));
    rows.push(row("flows_failed_18000", "failed to open, 18000", 0));
    rows.push(row("flows_setup_slope", "slope of opening", 2));
    rows.push(row("flows_tcp_g2h_slope", "slope of guest → host", 2));
    rows.push(row("flows_tcp_h2g_slope", "slope of host → guest", 2));
    rows.push(row("update_pause_ms_1000", "live update beside 1000, median pause, ms", 2));
    rows.push(row("update_pause_max_ms_1000", "… the longest of five", 2));
    rows
}

fn far() -> Vec<Row> {
    vec![
        row("far_cpu_per_gb", "backend CPU s/GB", 3),
        row("far_cpu_guest_per_gb", "guest CPU s/GB; plain: of its program", 3),
        row("far_share", "reached by a connection, share of what it sends", 3),
        row("far_share_p1", "… 1st percentile", 3),
        row("far_failed", "connections that failed", 0),
        row("far_crr_p50", "one connection, opened for a byte there and back, median, µs", 0),
    ]
}

fn pairs() -> Vec<Row> {
    let mut rows = Vec::new();
    for (what, label) in [("discard", "frames that lead nowhere"), ("udp", "datagrams")] {
        for (pairs, of) in [(1, "one pair"), (2, "two pairs")] {
            rows.push(row(format!("pairs_{pairs}_{what}_pps"), format!("{label}, {of}"), 0));
            rows.push(row(
                format!("pairs_{pairs}_{what}_cpus"),
                "… processors that the backend kept busy",
                2,
            ));
        }
        rows.push(row(format!("pairs_{what}_scale"), format!("{label}, two pairs ÷ one"), 2));
    }
    rows
}

/// What others have beside floods.
pub(crate) fn crowds() -> Vec<Row> {
    let mut rows = Vec::new();
    let kinds = [
        ("peers", "a forwarded port"),
        ("peers_steered", "a steered port"),
        ("peers_2", "a forwarded port, two queue pairs without a guest"),
        ("peers_2_steered", "a steered port, two queue pairs without a guest"),
    ];
    for (kind, port) in kinds {
        for (peers, of) in [("new", "new peers"), ("one", "one peer")] {
            let kind = format!("{kind}_{peers}");
            rows.push(row(format!("{kind}_pps"), format!("{of} of {port}, datagrams a second"), 0));
            rows.push(row(format!("{kind}_cpus"), "… processors that the backend kept busy", 2));
            rows.extend(beside(&kind));
        }
    }
    rows.push(row("names_alone_per_second", "names answered a second, nothing beside them", 0));
    rows.push(row("names_per_second", "names answered a second beside the others", 0));
    rows.push(row("names_answered", "… share of those asked", 3));
    rows.extend(beside("names"));
    rows
}

fn beside(kind: &str) -> [Row; 5] {
    [
        row(format!("{kind}_steady"), "… share of a TCP stream of 2 Gbit/s beside them", 2),
        row(format!("{kind}_tcp"), "… share of a TCP stream as fast as it goes", 2),
        row(format!("{kind}_echo"), "… share of the datagrams' echo", 2),
        row(format!("{kind}_connections"), "… share of the connections a second", 2),
        row(format!("{kind}_connections_failed"), "… connections that failed", 0),
    ]
}

fn tcg() -> Vec<Row> {
    let mut rows = Vec::new();
    for (key, way) in WAYS {
        rows.push(row(format!("tcg_tcp_{key}_1500"), format!("{way}, MTU 1500, Gbit/s"), 2));
        rows.push(row(format!("tcg_cpu_per_gb_{key}_1500"), "… backend CPU s/GB", 3));
        rows.push(row(format!("tcg_machine_per_gb_{key}_1500"), "… machine CPU s/GB", 2));
    }
    rows.push(row("tcg_tcp_rr_h2g_p50", "TCP, the host asks, median, µs", 0));
    rows.push(row("tcg_tcp_rr_g2h_p50", "TCP, the guest asks, median, µs", 0));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_figure_is_told_twice() {
        let sections = sections();
        let all: Vec<&String> = sections.iter().flat_map(|s| s.rows.iter().map(|r| &r.figure)).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }
}
