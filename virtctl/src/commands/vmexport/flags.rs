//! What the flags say, checked, in upstream's words.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use podvirt_api::{duration, snapshot, v1};
use serde_json::{Value, json};

use crate::args::VmExport;

/// How long an export may take to be ready where no flag says it.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Create,
    Delete,
    Download,
}

/// How an image is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Gzip,
    Raw,
}

/// What the flags say.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wishes {
    pub(super) function: Function,
    /// What a new export is of.
    pub(super) source: Option<Value>,
    pub(super) ttl: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    /// Where to; none is the standard output.
    pub(super) file: Option<PathBuf>,
    pub(super) volume: Option<String>,
    pub(super) form: Form,
    pub(super) insecure: bool,
    pub(super) keeps: bool,
    pub(super) deletes: bool,
    pub(super) manifest: bool,
    pub(super) include_secret: bool,
    /// In which form manifests are wanted.
    pub(super) accept: &'static str,
    pub(super) forwards: bool,
    pub(super) service: Option<String>,
    pub(super) retries: u32,
    pub(super) timeout: Duration,
}

fn pairs(all: &[String]) -> BTreeMap<String, String> {
    let pairs = all.iter().filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

impl Wishes {
    /// Checks the flags.
    pub(super) fn of(args: &VmExport) -> anyhow::Result<Self> {
        let function = match args.function.to_lowercase().as_str() {
            "create" => Function::Create,
            "delete" => Function::Delete,
            "download" => Function::Download,
            _ => bail!("invalid function '{}'; create, download and delete are allowed", args.function),
        };
        let source = source(args);
        let of_downloads = [
            ("--output", args.output.is_some()),
            ("--volume", args.volume.is_some()),
            ("--insecure", args.insecure),
            ("--keep-vme", args.keep_vme),
            ("--delete-vme", args.delete_vme),
            ("--port-forward", args.port_forward),
            ("--local-port", args.local_port != "0"),
            ("--format", args.format.is_some()),
            ("--service-url", args.service_url.is_some()),
            ("--retry", args.retry != 0),
        ];
        let of_creation = [
            ("--readiness-timeout", args.readiness_timeout.is_some()),
            ("--labels", !args.labels.is_empty()),
            ("--annotations", !args.annotations.is_empty()),
        ];
        let refuse = |flags: &[(&str, bool)], with: &str| match flags.iter().find(|(_, set)| *set) {
            Some((flag, _)) => bail!("the '{flag}' flag is incompatible with '{with}'"),
            None => Ok(()),
        };
        match function {
            Function::Create => {
                if source.is_none() {
                    bail!(
                        "need to specify export kind when attempting to create a VirtualMachineExport [--pvc|--vm|--snapshot]"
                    );
                }
                refuse(&of_downloads, "create")?;
            }
            Function::Delete => {
                if source.is_some() {
                    bail!("should not specify export kind");
                }
                refuse(&of_downloads, "delete")?;
                refuse(&of_creation, "delete")?;
            }
            Function::Download => {}
        }
        if args.port_forward && args.local_port.parse::<u16>().is_err() {
            bail!("--local-port is not a valid value, acceptable values are valid port numbers");
        }
        let form = match args.format.as_deref() {
            None | Some("gzip") => Form::Gzip,
            Some("raw") => Form::Raw,
            Some(_) => bail!("--format is not a valid value, acceptable values are gzip/raw"),
        };
        let Ok(retries) = u32::try_from(args.retry) else {
            bail!("--retry is not a valid value, acceptable values are positive integers");
        };
        let accept = match args.manifest_output_format.as_deref().map(str::to_lowercase).as_deref() {
            Some("json") => "application/json",
            None | Some("" | "yaml") => "application/yaml",
            Some(_) => {
                bail!("--manifest-output-format is not a valid value, acceptable values are json/yaml")
            }
        };
        if args.manifest {
            refuse(&[("--volume", args.volume.is_some()), ("--pvc", args.pvc.is_some())], "--manifest")?;
        }
        if function == Function::Download && !args.manifest && args.output.is_none() {
            bail!(
                "warning: Binary output can mess up your terminal. Use '--output -' to output into stdout anyway or consider \
                 '--output <FILE>' to save to a file"
            );
        }
        let span = |said: &Option<String>, flag: &str| {
            let span = said.as_deref().map(|said| {
                duration::parse(said)
                    .with_context(|| format!("{flag}: {said:?} is no span of time like 30s or 2h"))
            });
            span.transpose()
        };
        let ttl = span(&args.ttl, "--ttl")?.filter(|ttl| !ttl.is_zero());
        Ok(Wishes {
            function,
            source,
            ttl: ttl.and(args.ttl.clone()),
            labels: pairs(&args.labels),
            annotations: pairs(&args.annotations),
            file: args.output.clone().filter(|file| file.as_os_str() != "-"),
            volume: args.volume.clone(),
            form,
            insecure: args.insecure,
            keeps: args.keep_vme,
            deletes: args.delete_vme,
            manifest: args.manifest,
            include_secret: args.include_secret,
            accept,
            forwards: args.port_forward,
            service: args.service_url.clone(),
            retries,
            timeout: span(&args.readiness_timeout, "--readiness-timeout")?.unwrap_or(TIMEOUT),
        })
    }

    /// Whether the exporter is reached without the proxy.
    pub(super) fn is_direct(&self) -> bool {
        self.forwards || self.service.is_some()
    }
}

fn source(args: &VmExport) -> Option<Value> {
    let of = |group: &str, kind: &str, name: &String| json!({"apiGroup": group, "kind": kind, "name": name});
    let vm = args.vm.as_ref().map(|name| of(v1::GROUP, "VirtualMachine", name));
    let snapshot = args.snapshot.as_ref().map(|name| of(snapshot::GROUP, "VirtualMachineSnapshot", name));
    vm.or(snapshot).or_else(|| args.pvc.as_ref().map(|name| of("", "PersistentVolumeClaim", name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(function: &str) -> VmExport {
        VmExport {
            function: function.into(),
            name: "x".into(),
            local_port: "0".into(),
            ..VmExport::default()
        }
    }

    fn refused(args: &VmExport) -> String {
        Wishes::of(args).unwrap_err().to_string()
    }

    #[test]
    fn flags_that_do_not_fit_are_refused_in_upstreams_words() {
        assert!(refused(&args("create")).contains("[--pvc|--vm|--snapshot]"));
        assert!(refused(&args("show")).starts_with("invalid function 'show'"));
        let create = VmExport { pvc: Some("c".into()), output: Some("f".into()), ..args("create") };
        assert_eq!(refused(&create), "the '--output' flag is incompatible with 'create'");
        let delete = VmExport { labels: vec!["a=b".into()], ..args("delete") };
        assert_eq!(refused(&delete), "the '--labels' flag is incompatible with 'delete'");
        assert_eq!(
            refused(&VmExport { vm: Some("v".into()), ..args("delete") }),
            "should not specify export kind"
        );
        assert!(refused(&args("download")).starts_with("warning: Binary output"));
        let pvc = VmExport { pvc: Some("c".into()), manifest: true, ..args("download") };
        assert_eq!(refused(&pvc), "the '--pvc' flag is incompatible with '--manifest'");
        let to = || VmExport { output: Some("-".into()), ..args("download") };
        let format = VmExport { format: Some("qcow2".into()), ..to() };
        assert_eq!(refused(&format), "--format is not a valid value, acceptable values are gzip/raw");
        assert!(refused(&VmExport { retry: -1, ..to() }).contains("positive integers"));
        assert!(refused(&VmExport { ttl: Some("soon".into()), ..to() }).contains("\"soon\" is no span"));
    }

    #[test]
    fn flags_become_what_is_asked_for() {
        let create = VmExport {
            snapshot: Some("s".into()),
            ttl: Some("10m".into()),
            labels: vec!["a=b".into(), "c=d=e".into(), "f".into()],
            ..args("CREATE")
        };
        let wishes = Wishes::of(&create).unwrap();
        let source =
            json!({"apiGroup": "snapshot.kubevirt.io", "kind": "VirtualMachineSnapshot", "name": "s"});
        assert_eq!((wishes.source, wishes.ttl), (Some(source), Some("10m".into())));
        assert_eq!(wishes.labels, BTreeMap::from([("a".into(), "b".into()), ("c".into(), "d=e".into())]));
        let download = VmExport { output: Some("-".into()), port_forward: true, ..args("download") };
        let wishes = Wishes::of(&download).unwrap();
        assert_eq!((wishes.file.clone(), wishes.is_direct(), wishes.timeout), (None, true, TIMEOUT));
    }
}
