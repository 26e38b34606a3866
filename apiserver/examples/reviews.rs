//! virt-api's admission webhooks without a server: an AdmissionReview a line in, one a line out.
//!
//! `e2e/conformance/admission` asks it and upstream's webhooks the same questions. The argument is the configuration of
//! the KubeVirt object, as JSON.

#![forbid(unsafe_code)]

use std::io::{BufRead, Write};

use anyhow::Context;
use serde::Deserialize;
use virt_api::admission::review::{Request, Response, Review};
use virt_api::admission::{HOOKS, Task, answer};

/// A line that is asked.
#[derive(Deserialize)]
struct Line {
    /// `mutate` or `validate`.
    task: String,
    /// What the API server would send.
    review: Review,
}

/// Name of the resource of a kind.
fn resource(kind: &str) -> &'static str {
    if kind == "VirtualMachine" { "virtualmachines" } else { "virtualmachineinstances" }
}

/// Answers as the webhooks do that the API server would call.
fn reviewed(
    line: &Line,
    request: &Request,
    cluster: &podvirt_api::admission::Cluster,
) -> anyhow::Result<Response> {
    let mut asked = HOOKS.iter().filter(|hook| {
        hook.resources.contains(&resource(&request.kind.kind))
            && hook.operations.contains(&request.operation.as_str())
            && hook.mutates() == (line.task == "mutate")
    });
    match (asked.next(), asked.next()) {
        (Some(hook), None) => match hook.task {
            Task::Alone(task) => Ok(answer(task, request, cluster, "kubevirt")),
            Task::Lookup(_) => anyhow::bail!("{} looks at other objects", hook.name),
        },
        (None, _) => Ok(Response::allowed(&request.uid)),
        (Some(_), Some(_)) => anyhow::bail!("several webhooks {} a {}", line.task, request.kind.kind),
    }
}

fn main() -> anyhow::Result<()> {
    let text = std::env::args().nth(1).context("the configuration of the KubeVirt object is required")?;
    let cluster = podvirt_api::admission::Cluster {
        configuration: serde_json::from_str(&text).context("the configuration")?,
        ..podvirt_api::admission::Cluster::default()
    };
    let mut out = std::io::stdout().lock();
    for text in std::io::stdin().lock().lines() {
        let line: Line = serde_json::from_str(&text?).context("a line")?;
        let request = line.review.clone().into_request().map_err(anyhow::Error::msg)?;
        let response = reviewed(&line, &request, &cluster)?;
        serde_json::to_writer(&mut out, &response.into_review())?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}
