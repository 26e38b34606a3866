//! How much the daemons log: `spec.configuration.developerConfiguration.logVerbosity` of the KubeVirt object.
//!
//! | number | podvirt's own lines | lines of libraries |
//! |---|---|---|
//! | 0, 1 | `warn` | `warn` |
//! | 2, which is the default | `info` | `info` |
//! | 3, 4 | `debug` | `info` |
//! | 5 to 9 | `trace` | `debug` |
//!
//! The numbers are upstream's, where each adds lines and none takes warnings away. A field of 0 counts as not set, as
//! upstream.

use serde_json::Value;

use crate::problem::{Problems, Reason};
use crate::v1::{KubeVirtConfiguration, LogVerbosity};

/// The number where nothing is said.
pub const DEFAULT: u64 = 2;
/// The highest number.
pub const MOST: u64 = 9;
/// Variable of a launcher pod's containers that holds the number; upstream's name.
pub const ENVIRONMENT: &str = "VIRT_LAUNCHER_LOG_VERBOSITY";
/// What the names of podvirt's crates, and so the targets of its lines, begin with.
const OWN: [&str; 3] = ["podvirt", "virt_", "netd"];

/// What logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Component {
    /// virt-api.
    Api,
    /// virt-controller.
    Controller,
    /// virt-handler.
    Handler {
        /// Its node.
        node: String,
    },
    /// The containers of new machines' pods.
    Launcher,
    /// virt-operator.
    Operator,
}

impl Component {
    /// How much it is to log.
    pub fn verbosity(&self, configuration: Option<&KubeVirtConfiguration>) -> u64 {
        let developer = configuration.and_then(|known| known.developer_configuration.as_ref());
        let said = developer.and_then(|developer| developer.log_verbosity.as_ref());
        let number = said.and_then(|said| self.said(said));
        number.map_or(DEFAULT, |number| number.min(MOST))
    }

    fn said(&self, said: &LogVerbosity) -> Option<u64> {
        let set = |number: Option<u64>| number.filter(|number| *number > 0);
        set(match self {
            Component::Api => said.virt_api,
            Component::Controller => said.virt_controller,
            Component::Handler { node } => {
                return set(said.node_verbosity.get(node).copied()).or(set(said.virt_handler));
            }
            Component::Launcher => said.virt_launcher,
            Component::Operator => said.virt_operator,
        })
    }
}

/// The number that a text says; `None` when it says none that is allowed.
pub fn parse(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number <= MOST)
}

/// What is logged by a number, in the form of `RUST_LOG`.
pub fn filter(verbosity: u64) -> String {
    let (own, libraries) = match verbosity {
        0 | 1 => return "warn".to_owned(),
        2 => return "info".to_owned(),
        3 | 4 => ("debug", "info"),
        _ => ("trace", "debug"),
    };
    let own = OWN.map(|crates| format!("{crates}={own}"));
    format!("{libraries},{}", own.join(","))
}

/// Notes numbers of `nodeVerbosity`, which is at `path`, that are not allowed.
pub(crate) fn check_nodes(nodes: &Value, path: &str, problems: &mut Problems) {
    let nodes = match nodes {
        Value::Null => return,
        Value::Object(nodes) => nodes,
        other => {
            let message =
                format!("'{other}' is not allowed; an object with a number for each node's name is");
            return problems.add(Reason::FieldValueTypeInvalid, path, message);
        }
    };
    for (node, number) in nodes {
        if number.as_u64().is_none_or(|number| number > MOST) {
            problems.invalid(format!("{path}[{node}]"), number, "a whole number from 0 to 9 is allowed");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_component_has_a_number_and_a_node_goes_first() {
        let configuration = json!({"developerConfiguration": {"logVerbosity": {
            "virtAPI": 5, "virtController": 0, "virtHandler": 3, "virtLauncher": 12,
            "nodeVerbosity": {"node1": 7, "node2": 0},
        }}});
        let configuration: KubeVirtConfiguration = serde_json::from_value(configuration).unwrap();
        let of = |component: Component| component.verbosity(Some(&configuration));
        let on = |node: &str| Component::Handler { node: node.to_owned() };
        assert_eq!(of(Component::Api), 5);
        assert_eq!(of(Component::Controller), DEFAULT, "0 is not set");
        assert_eq!(of(Component::Operator), DEFAULT);
        assert_eq!(of(Component::Launcher), MOST, "what an older release took");
        assert_eq!([of(on("node1")), of(on("node2")), of(on("node3"))], [7, 3, 3]);
        assert_eq!(Component::Api.verbosity(None), DEFAULT);
    }

    #[test]
    fn more_is_never_less() {
        assert_eq!(filter(DEFAULT), "info");
        assert_eq!(filter(4), "info,podvirt=debug,virt_=debug,netd=debug");
        assert_eq!(filter(9), "debug,podvirt=trace,virt_=trace,netd=trace");
        assert_eq!((parse("9"), parse("10"), parse("-1"), parse("x")), (Some(9), None, None, None));
    }
}
