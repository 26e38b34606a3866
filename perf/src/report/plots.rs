//! Plots as SVG, drawn by hand: bars in groups with their ranges, and lines over a logarithmic axis.
//!
//! Colours are those of a palette that colour-blind people can tell apart (Okabe and Ito); text takes the colour of the
//! page's own, light or dark.

use std::fmt::Write as _;

use super::rows::{FLOWS, MTUS};
use crate::results::{NETD, PASST, Results};
use crate::stats::Summary;

/// Peers in the order of legends, with their colours.
const PEERS: [(&str, &str); 4] =
    [(NETD, "#009e73"), (PASST, "#e69f00"), ("tap", "#56b4e9"), ("slirp", "#cc79a7")];
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 40.0;

/// A plot's name, which is also that of its file, and its text.
pub(crate) type Plot = (&'static str, String);

/// All plots that the result has figures for.
pub(crate) fn plots(results: &Results) -> Vec<Plot> {
    let by_mtu = |prefix: &str| -> Vec<(String, String)> {
        MTUS.iter().map(|mtu| (format!("MTU {mtu}"), format!("{prefix}_{mtu}"))).collect()
    };
    let named = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(label, figure)| ((*label).to_owned(), (*figure).to_owned())).collect()
    };
    let latency = named(&[
        ("TCP, host asks", "tcp_rr_h2g_p50"),
        ("TCP, guest asks", "tcp_rr_g2h_p50"),
        ("UDP, host asks", "udp_rr_h2g_p50"),
        ("UDP, guest asks", "udp_rr_g2h_p50"),
        ("testpmd", "udp_echo_rtt_p50"),
    ]);
    let datagrams = named(&[
        ("echo 64", "udp_echo_pps"),
        ("echo 1400", "udp_echo_1400_pps"),
        ("echo 8972", "udp_echo_8972_pps"),
        ("sent 64", "udp_tx_64_pps"),
        ("sent 1400", "udp_tx_1400_pps"),
        ("sent 8972", "udp_tx_8972_pps"),
    ]);
    let cost = named(&[
        ("g→h, 1500", "cpu_per_gb_g2h_1500"),
        ("h→g, 1500", "cpu_per_gb_h2g_1500"),
        ("g→h, 65520", "cpu_per_gb_g2h_65520"),
        ("h→g, 65520", "cpu_per_gb_h2g_65520"),
    ]);
    let drawn = [
        ("tcp-g2h", bars(results, "One TCP stream, guest → host, Gbit/s", &by_mtu("tcp_g2h"))),
        ("tcp-h2g", bars(results, "One TCP stream, host → guest, Gbit/s", &by_mtu("tcp_h2g"))),
        ("cpu", bars(results, "Backend CPU seconds for 10⁹ bytes", &cost)),
        ("latency", bars(results, "Median round trip, µs", &latency)),
        ("datagrams", bars(results, "Datagrams a second", &datagrams)),
        ("flows", lines(results, "Guest → host beside so many connections, Gbit/s", "flows_tcp_g2h")),
    ];
    drawn.into_iter().filter_map(|(name, svg)| Some((name, svg?))).collect()
}

/// A scale from 0 to a round number above the greatest value: its top, and the steps of its grid.
fn scale(greatest: f64) -> (f64, f64) {
    let magnitude = 10f64.powf(greatest.log10().floor());
    let step = [0.2, 0.5, 1.0, 2.0].into_iter().map(|s| s * magnitude).find(|s| greatest / s <= 6.0);
    let step = step.unwrap_or(magnitude * 2.0);
    ((greatest / step).ceil() * step, step)
}

/// Frame, title, legend and grid; what is drawn comes between this and the end.
fn begin(title: &str, peers: &[&(&str, &str)], (top, step): (f64, f64)) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <style>text {{ fill: #222 }} .grid {{ stroke: #8884 }} .range {{ stroke: #222; fill: none }}\n\
         @media (prefers-color-scheme: dark) {{ text {{ fill: #ddd }} .range {{ stroke: #ddd }} }}</style>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{title}</text>\n"
    );
    for (at, (name, colour)) in peers.iter().enumerate() {
        let x = LEFT + 90.0 * f64::from(u8::try_from(at).unwrap_or(u8::MAX));
        _ = writeln!(svg, "<rect x=\"{x}\" y=\"28\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        _ = writeln!(svg, "<text x=\"{}\" y=\"37\">{name}</text>", x + 14.0);
    }
    let mut value = 0.0;
    while value <= top + step / 2.0 {
        let y = height(value, top);
        _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
            WIDTH - 8.0
        );
        let label = if step < 1.0 { format!("{value:.1}") } else { format!("{value:.0}") };
        _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            y + 4.0
        );
        value += step;
    }
    svg
}

/// Where a value is.
fn height(value: f64, top: f64) -> f64 {
    HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP)
}

fn x_label(svg: &mut String, x: f64, label: &str) {
    _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
        HEIGHT - BOTTOM + 18.0
    );
}

/// The peers that have any of the figures.
fn with_figures<'a>(results: &Results, figures: &[String]) -> Vec<&'a (&'static str, &'static str)> {
    let has = |peer: &&(&str, &str)| figures.iter().any(|f| results.median(peer.0, f).is_some());
    PEERS.iter().filter(has).collect()
}

fn count(n: usize) -> f64 {
    f64::from(u16::try_from(n).unwrap_or(u16::MAX))
}

/// Bars: a group for each figure, a bar for each peer.
fn bars(results: &Results, title: &str, groups: &[(String, String)]) -> Option<String> {
    let figures: Vec<String> = groups.iter().map(|(_, figure)| figure.clone()).collect();
    let peers = with_figures(results, &figures);
    let value = |peer: &str, figure: &str| results.summary(peer, figure);
    let groups: Vec<_> =
        groups.iter().filter(|(_, f)| peers.iter().any(|p| value(p.0, f).is_some())).collect();
    let all = groups.iter().flat_map(|(_, f)| peers.iter().filter_map(|p| value(p.0, f)));
    let greatest = Summary::of(all.map(|s| s.max))?.max;
    let scale = scale(greatest.max(f64::MIN_POSITIVE));
    let mut svg = begin(title, &peers, scale);
    let group = (WIDTH - LEFT - 8.0) / count(groups.len());
    let bar = group * 0.8 / count(peers.len());
    for (at, (label, figure)) in groups.iter().enumerate() {
        let left = LEFT + group * (count(at) + 0.1);
        for (nth, (peer, colour)) in peers.iter().enumerate() {
            let Some(s) = value(peer, figure) else { continue };
            let (x, y) = (left + bar * count(nth), height(s.median, scale.0));
            let (wide, high) = (bar * 0.9, HEIGHT - BOTTOM - y);
            _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{high:.1}\" fill=\"{colour}\"/>"
            );
            let (middle, low, high) = (x + wide / 2.0, height(s.min, scale.0), height(s.max, scale.0));
            _ = writeln!(svg, "<path class=\"range\" d=\"M{middle:.1} {low:.1}V{high:.1}\"/>");
        }
        x_label(&mut svg, left + group * 0.4, label);
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// Lines over the number of connections.
fn lines(results: &Results, title: &str, quantity: &str) -> Option<String> {
    let figures: Vec<String> = FLOWS.iter().map(|n| format!("{quantity}_{n}")).collect();
    let peers = with_figures(results, &figures);
    let all = figures.iter().flat_map(|f| peers.iter().filter_map(|p| results.summary(p.0, f)));
    let scale = scale(Summary::of(all.map(|s| s.max))?.max.max(f64::MIN_POSITIVE));
    let mut svg = begin(title, &peers, scale);
    let most = f64::from(FLOWS[FLOWS.len() - 1]).log10();
    let x = |n: u32| LEFT + 20.0 + f64::from(n).log10() / most * (WIDTH - LEFT - 60.0);
    for (peer, colour) in &peers {
        let mut path = String::new();
        for (n, figure) in FLOWS.into_iter().zip(&figures) {
            let Some(s) = results.summary(peer, figure) else { continue };
            let (x, y) = (x(n), height(s.median, scale.0));
            _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { 'M' } else { 'L' });
            _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            let (low, high) = (height(s.min, scale.0), height(s.max, scale.0));
            _ = writeln!(svg, "<path class=\"range\" d=\"M{x:.1} {low:.1}V{high:.1}\"/>");
        }
        _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
    }
    for n in FLOWS {
        x_label(&mut svg, x(n), &n.to_string());
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{of, sample};

    #[test]
    fn a_scale_ends_above_the_greatest_value_in_round_steps() {
        assert_eq!(scale(9.3), (10.0, 2.0));
        assert_eq!(scale(1.0), (1.0, 0.2));
        let (top, step) = scale(0.43);
        assert!((top - 0.5).abs() < 1e-9 && (step - 0.1).abs() < 1e-9, "{top} {step}");
    }

    #[test]
    fn every_plot_has_a_bar_for_each_peer_and_is_well_formed() {
        let plots = plots(&sample());
        let (_, g2h) = plots.iter().find(|(name, _)| *name == "tcp-g2h").unwrap();
        // Two in the legend, two bars.
        assert_eq!(g2h.matches("<rect").count(), 4);
        for (name, svg) in &plots {
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{name}");
            assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count(), "{name}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
        }
    }

    #[test]
    fn what_was_not_measured_has_no_plot() {
        assert!(plots(&of(vec![])).is_empty());
        assert!(!plots(&sample()).iter().any(|(name, _)| *name == "flows"));
    }
}
