//! `adm log-verbosity`: how much podvirt's components log, by the KubeVirt object.
//!
//! A flag without a value asks for what holds, one with a value sets it; the two do not go together. `--reset` takes back all
//! that was set, before the other flags set anew.

use anyhow::{anyhow, bail};
use serde_json::{Map, Value, json};

use crate::api::Cluster;
use crate::api::objects::{KUBEVIRTS, pointer};
use crate::args::{LogVerbosity, SHOW};
use crate::output::say;
use crate::target::checked;

/// What holds where the KubeVirt object says nothing.
const DEFAULT: u64 = 2;
const MOST: u64 = 9;

/// Components and the fields of `logVerbosity` that are theirs, in the order in which they are told.
const COMPONENTS: [(&str, &str); 5] = [
    ("virt-api", "virtAPI"),
    ("virt-controller", "virtController"),
    ("virt-handler", "virtHandler"),
    ("virt-launcher", "virtLauncher"),
    ("virt-operator", "virtOperator"),
];

pub(super) async fn run(cluster: &Cluster, args: &LogVerbosity) -> anyhow::Result<()> {
    let wish = wish(args)?;
    let all = cluster.list("kubevirts", None, None).await;
    let all = all.map_err(|error| error.explain_plain("list the KubeVirt objects of all namespaces"))?;
    let kubevirt = match all.as_slice() {
        [one] => one,
        [] => bail!("could not detect a KubeVirt installation"),
        _ => bail!("invalid kubevirt installation, more than one KubeVirt resource found"),
    };
    match wish {
        Wish::Show => shown(args, kubevirt).iter().try_for_each(|line| say(line)),
        Wish::Change => {
            if steps(args, kubevirt).is_empty() {
                return Ok(());
            }
            let text = |field: &str| kubevirt["metadata"][field].as_str().unwrap_or_default();
            let namespace = checked("namespace", text("namespace"))?;
            let name = checked("name", text("name"))?;
            let changed =
                cluster.change(KUBEVIRTS, &namespace, &name, |stored| Ok(steps(args, stored))).await;
            changed.map_err(|error| {
                error.explain(&format!("the KubeVirt object {name:?} in namespace {namespace:?}"))
            })?;
            say("successfully set/reset the log verbosity")
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Show,
    Change,
}

/// What the flags say of the components, in the order of [`COMPONENTS`].
fn flags(args: &LogVerbosity) -> [Option<u64>; 5] {
    [args.virt_api, args.virt_controller, args.virt_handler, args.virt_launcher, args.virt_operator]
}

fn wish(args: &LogVerbosity) -> anyhow::Result<Wish> {
    let names = COMPONENTS.iter().map(|(name, _)| *name).chain(["all"]);
    let given = || flags(args).into_iter().chain([args.all]);
    if let Some((name, _)) =
        names.zip(given()).find(|(_, value)| value.is_some_and(|value| value > MOST && value != SHOW))
    {
        bail!("{name}: log verbosity must be 0-{MOST}");
    }
    let shows = given().flatten().any(|value| value == SHOW);
    let changes = args.reset || given().flatten().any(|value| value != SHOW);
    match (shows, changes) {
        (true, true) => bail!("only show or set is allowed"),
        (true, false) => Ok(Wish::Show),
        (false, true) => Ok(Wish::Change),
        (false, false) => Err(anyhow!("no flag specified - expecting at least one flag")),
    }
}

/// What the KubeVirt object says.
fn stored(kubevirt: &Value) -> Map<String, Value> {
    let developer = &kubevirt["spec"]["configuration"]["developerConfiguration"];
    developer["logVerbosity"].as_object().cloned().unwrap_or_default()
}

fn shown(args: &LogVerbosity, kubevirt: &Value) -> Vec<String> {
    let stored = stored(kubevirt);
    let asked = COMPONENTS.iter().zip(flags(args)).filter(|(_, flag)| flag.is_some() || args.all.is_some());
    let line = |((name, field), _): (&(&str, &str), Option<u64>)| {
        let verbosity = stored.get(*field).and_then(Value::as_u64).unwrap_or(DEFAULT);
        format!("{name}={verbosity}")
    };
    asked.map(line).collect()
}

/// The steps of the patch; none where nothing is to change.
fn steps(args: &LogVerbosity, kubevirt: &Value) -> Vec<Value> {
    let developer = &kubevirt["spec"]["configuration"]["developerConfiguration"];
    let before = stored(kubevirt);
    let mut after = if args.reset { Map::new() } else { before.clone() };
    for ((_, field), flag) in COMPONENTS.iter().zip(flags(args)) {
        if let Some(verbosity) = flag.or(args.all) {
            after.insert((*field).to_owned(), verbosity.into());
        }
    }
    if after.is_empty() && before.is_empty() {
        return Vec::new();
    }
    let configuration = ["spec", "configuration", "developerConfiguration", "logVerbosity"];
    let mut steps = Vec::new();
    if !developer.is_object() {
        steps.push(json!({"op": "add", "path": pointer(&configuration[..3]), "value": {}}));
    }
    steps.push(json!({"op": "add", "path": pointer(&configuration), "value": after}));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{AdmWhat, Command};

    fn args(line: &str) -> LogVerbosity {
        let line = format!("virtctl adm log-verbosity {line}");
        let line: Vec<_> = line.split_whitespace().map(Into::into).collect();
        match crate::help::parse(&line).unwrap_or_else(|error| panic!("{error}")).command {
            Some(Command::Adm(args)) => match args.what {
                AdmWhat::LogVerbosity(args) => args,
            },
            other => panic!("{other:?}"),
        }
    }

    fn kubevirt(developer: &Value) -> Value {
        json!({"spec": {"configuration": {"developerConfiguration": developer}}})
    }

    #[test]
    fn a_flag_without_a_value_shows_and_one_with_a_value_sets() {
        for (line, expected) in [
            ("--all", Wish::Show),
            ("--virt-handler --virt-launcher=10", Wish::Show),
            ("--virt-api=0", Wish::Change),
            ("--reset", Wish::Change),
            ("--reset --virt-handler=7", Wish::Change),
        ] {
            assert_eq!(wish(&args(line)).unwrap(), expected, "{line}");
        }
        for (line, why) in [
            ("", "no flag specified - expecting at least one flag"),
            ("--virt-handler --virt-launcher=3", "only show or set is allowed"),
            ("--reset --virt-launcher", "only show or set is allowed"),
            ("--virt-api=11", "virt-api: log verbosity must be 0-9"),
            ("--virt-api=5 --virt-handler=20", "virt-handler: log verbosity must be 0-9"),
            ("--all=12", "all: log verbosity must be 0-9"),
        ] {
            assert_eq!(wish(&args(line)).unwrap_err().to_string(), why, "{line}");
        }
        for line in ["--reset --all=3", "--virt-api=-1", "--virt-api=a", "--node", "--all 3"] {
            let line = format!("virtctl adm log-verbosity {line}");
            let line: Vec<_> = line.split_whitespace().map(Into::into).collect();
            assert!(crate::help::parse(&line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn what_holds_is_told_with_the_default_for_what_is_not_set() {
        let object = kubevirt(&json!({"logVerbosity": {"virtAPI": 5, "nodeVerbosity": {"a": 1}}}));
        let all = ["virt-api=5", "virt-controller=2", "virt-handler=2", "virt-launcher=2", "virt-operator=2"];
        assert_eq!(shown(&args("--all"), &object), all);
        assert_eq!(shown(&args("--virt-handler --virt-api"), &object), [all[0], all[2]]);
        assert_eq!(shown(&args("--virt-api"), &kubevirt(&Value::Null)), ["virt-api=2"]);
    }

    #[test]
    fn what_is_set_goes_beside_what_was_unless_that_is_reset() {
        let path = "/spec/configuration/developerConfiguration";
        let set = |value: Value| json!({"op": "add", "path": format!("{path}/logVerbosity"), "value": value});
        let first = json!({"op": "add", "path": path, "value": {}});
        let stored = kubevirt(&json!({"logVerbosity": {"virtAPI": 5}}));
        for (line, object, expected) in [
            ("--reset", &kubevirt(&Value::Null), vec![]),
            ("--reset", &stored, vec![set(json!({}))]),
            ("--virt-handler=7", &stored, vec![set(json!({"virtAPI": 5, "virtHandler": 7}))]),
            ("--reset --virt-handler=7", &stored, vec![set(json!({"virtHandler": 7}))]),
            ("--virt-api=3 --virt-api=4", &kubevirt(&Value::Null), vec![first, set(json!({"virtAPI": 4}))]),
            (
                "--all=3 --virt-launcher=9",
                &stored,
                vec![set(json!({
                    "virtAPI": 3, "virtController": 3, "virtHandler": 3, "virtLauncher": 9, "virtOperator": 3,
                }))],
            ),
        ] {
            assert_eq!(steps(&args(line), object), expected, "{line}");
        }
    }
}
