//! `netctl flows`: the flow table, filtered by netd and sorted here.

use anyhow::Result;
use clap::ValueEnum;
use ipnet::IpNet;
use netctl::client::Client;
use netctl::show::{self, FlowRow, FlowSort};
use podvirt_proto::netd::v1 as proto;

/// Which flows are shown; all of the options must fit, one value of each is enough.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Which {
    /// Only flows of this kind
    #[arg(short, long, value_name = "KIND")]
    kind: Vec<Kind>,
    /// Only flows in this state, as the table names it, in any case
    #[arg(short = 't', long, value_name = "STATE")]
    state: Vec<String>,
    /// Only flows with an end in this network, or at this address
    #[arg(short, long, value_name = "ADDRESS[/LENGTH]", value_parser = network)]
    address: Vec<IpNet>,
    /// Only flows with an end at this port
    #[arg(short, long)]
    port: Vec<u16>,
    /// Only flows that were opened by this side
    #[arg(short, long, value_name = "SIDE")]
    by: Option<Side>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FlowsArgs {
    #[command(flatten)]
    which: Which,
    /// Sort by this, the largest first (idle: the shortest)
    #[arg(short = 'o', long, value_name = "KEY")]
    sort: Option<FlowSort>,
    /// How many flows at most; 0: all
    #[arg(short, long, default_value_t = 0)]
    limit: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Tcp,
    Udp,
    Echo,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Side {
    Guest,
    Pod,
}

fn network(text: &str) -> Result<IpNet, String> {
    let parsed = text.parse().or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from));
    parsed.map_err(|_| "an address or ADDRESS/LENGTH is allowed".to_owned())
}

impl Which {
    /// The filter that netd applies.
    pub(crate) fn filter(&self) -> proto::FlowFilter {
        let kind = |k: &Kind| {
            i32::from(match k {
                Kind::Tcp => proto::FlowKind::Tcp,
                Kind::Udp => proto::FlowKind::Udp,
                Kind::Echo => proto::FlowKind::Echo,
            })
        };
        let origin = match self.by {
            None => proto::FlowOrigin::Unspecified,
            Some(Side::Guest) => proto::FlowOrigin::Guest,
            Some(Side::Pod) => proto::FlowOrigin::Pod,
        };
        proto::FlowFilter {
            kinds: self.kind.iter().map(kind).collect(),
            states: self.state.clone(),
            networks: self.address.iter().map(IpNet::to_string).collect(),
            ports: self.port.iter().map(|p| u32::from(*p)).collect(),
            pod_peer: String::new(),
            origin: origin.into(),
        }
    }
}

pub(crate) async fn run(client: &mut Client, args: &FlowsArgs, json: bool) -> Result<()> {
    // What is sorted must be known whole.
    let limit = if args.sort.is_some() { 0 } else { args.limit };
    let request = proto::ListFlowsRequest { limit, filter: Some(args.which.filter()), sockets: true };
    let mut rows: Vec<FlowRow> = client.flows(request).await?.into_iter().map(FlowRow::from).collect();
    if let Some(by) = args.sort {
        show::sort_flows(&mut rows, by);
        if args.limit > 0 {
            rows.truncate(args.limit as usize);
        }
    }
    crate::print(json, &rows, |rows| show::flows(rows))
}
