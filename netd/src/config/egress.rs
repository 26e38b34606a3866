//! Section `egress`: from text to the policy.

use ipnet::IpNet;

use super::file;
use super::value::Problems;
use crate::egress::{Action, Egress, Rule};
use crate::flow::Kind;
use crate::port::PortRange;

/// The most rules, and the most networks or port ranges of one: each new flow is compared with all of them.
const MAX: usize = 256;

/// Judges the section.
pub(super) fn egress(p: &mut Problems, file: &file::Egress) -> Egress {
    let default = Egress::default();
    if file.rules.len() > MAX {
        p.wrong("egress.rules", &format!("{} rules", file.rules.len()), format!("at most {MAX} are"));
    }
    Egress {
        default: action(p, "egress.default", file.default.as_deref()).unwrap_or(default.default),
        metadata: action(p, "egress.metadata", file.metadata.as_deref()).unwrap_or(default.metadata),
        rules: file.rules.iter().enumerate().filter_map(|(i, r)| rule(p, i, r)).collect(),
    }
}

fn action(p: &mut Problems, field: &str, text: Option<&str>) -> Option<Action> {
    p.read(field, text, "'allow' or 'deny' is", |t| match t {
        "allow" => Some(Action::Allow),
        "deny" => Some(Action::Deny),
        _ => None,
    })
}

fn rule(p: &mut Problems, i: usize, file: &file::EgressRule) -> Option<Rule> {
    let at = |name: &str| format!("egress.rules[{i}].{name}");
    if file.action.is_none() {
        p.missing(at("action"), "'allow' or 'deny' is needed");
    }
    let action = action(p, &at("action"), file.action.as_deref());
    let kind = p.read(
        &at("protocol"),
        file.protocol.as_deref(),
        "'tcp', 'udp', 'icmp' (echo requests) or 'any' is",
        |t| match t {
            "any" => Some(None),
            "tcp" => Some(Some(Kind::Tcp)),
            "udp" => Some(Some(Kind::Udp)),
            "icmp" => Some(Some(Kind::Echo)),
            _ => None,
        },
    );
    let kind = kind.flatten();
    let mut list = |name: &str, words: &Option<file::Words>| {
        let words = words.clone().unwrap_or_default().0;
        if words.len() > MAX {
            p.wrong(at(name), &format!("{} elements", words.len()), format!("at most {MAX} are"));
        }
        words
    };
    let (to, ports) = (list("to", &file.to), list("ports", &file.ports));
    if kind == Some(Kind::Echo) && !ports.is_empty() {
        p.wrong(at("ports"), &ports.join(","), "a rule about icmp has no ports");
    }
    let to = to.iter().enumerate().filter_map(|(j, w)| {
        let allowed = "a network is, such as '10.0.0.0/8', '192.0.2.1' or 'fd00::/8', without bits beyond its \
                       prefix; an IPv4 one as IPv4";
        p.read(&format!("{}[{j}]", at("to")), Some(w), allowed, network)
    });
    let to = to.collect();
    let ports = ports.iter().enumerate().filter_map(|(j, w)| {
        let allowed = "a port or a range of ports from 1 to 65535 is, such as '443' or '8000-8099'";
        p.from_str::<PortRange>(&format!("{}[{j}]", at("ports")), Some(w), allowed)
    });
    let ports = ports.collect();
    Some(Rule { action: action?, to, kind, ports })
}

/// A network, or a single address.
fn network(text: &str) -> Option<IpNet> {
    let net =
        text.parse::<IpNet>().ok().or_else(|| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?)))?;
    let mapped = matches!(net, IpNet::V6(n) if n.prefix_len() >= 96 && n.addr().to_ipv4_mapped().is_some());
    (net.trunc() == net && !mapped).then_some(net)
}
