//! The environment that a runtime calls the plugin with (CNI specification 1.1, section 2, "Parameters").

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::error::{Code, Error};

/// Longest name of a Linux interface, in bytes (`IFNAMSIZ` without its end).
const INTERFACE_MAX: usize = 15;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Makes an attachment.
    Add,
    /// Looks at one.
    Check,
    /// Removes one.
    Del,
    /// Removes what is in no list of the runtime.
    Gc,
    /// Says whether ADD can be served.
    Status,
    /// Says which versions are spoken.
    Version,
}

/// One interface of one container: what the specification calls an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Attachment {
    /// The sandbox's identifier.
    #[serde(rename = "containerID")]
    pub container: String,
    /// The interface's name inside.
    pub ifname: String,
}

/// The pod, as CNI_ARGS name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    /// K8S_POD_NAMESPACE.
    pub namespace: String,
    /// K8S_POD_NAME.
    pub name: String,
    /// K8S_POD_UID, of runtimes that say it.
    pub uid: Option<String>,
}

/// A call's parameters.
#[derive(Clone, Debug)]
pub struct Call {
    /// CNI_COMMAND.
    pub command: Command,
    variables: BTreeMap<&'static str, String>,
    args: BTreeMap<String, String>,
}

impl Call {
    /// Reads the parameters through `get`, which answers a variable of the environment.
    ///
    /// # Errors
    /// CNI_COMMAND or CNI_ARGS is not as specified.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Call, Error> {
        let command = match get("CNI_COMMAND").as_deref() {
            Some("ADD") => Command::Add,
            Some("CHECK") => Command::Check,
            Some("DEL") => Command::Del,
            Some("GC") => Command::Gc,
            Some("STATUS") => Command::Status,
            Some("VERSION") => Command::Version,
            other => {
                let allowed = "ADD, CHECK, DEL, GC, STATUS, VERSION";
                let value = other.unwrap_or_default();
                return Err(environment(format!("CNI_COMMAND is {value:?}; allowed: {allowed}")));
            }
        };
        let variables = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"]
            .into_iter()
            .filter_map(|name| Some((name, get(name).filter(|v| !v.is_empty())?)))
            .collect();
        let args = get("CNI_ARGS").unwrap_or_default();
        let args = args
            .split(';')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (key, value) = pair.split_once('=').ok_or_else(|| {
                    environment(format!("CNI_ARGS has {pair:?}; allowed: KEY=VALUE;KEY=VALUE"))
                })?;
                Ok((key.to_owned(), value.to_owned()))
            })
            .collect::<Result<_, Error>>()?;
        Ok(Call { command, variables, args })
    }

    /// The attachment.
    ///
    /// # Errors
    /// CNI_CONTAINERID or CNI_IFNAME is missing or not as specified.
    pub fn attachment(&self) -> Result<Attachment, Error> {
        let container = self.variable("CNI_CONTAINERID")?;
        if !is_identifier(container) {
            let allowed = "letters, digits, '_', '.', '-', a letter or digit first";
            return Err(environment(format!("CNI_CONTAINERID is {container:?}; allowed: {allowed}")));
        }
        let ifname = self.variable("CNI_IFNAME")?;
        let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
        if ifname.len() > INTERFACE_MAX || ifname == "." || ifname == ".." || ifname.contains(bad) {
            let allowed = "1 to 15 bytes without '/', ':' and spaces";
            return Err(environment(format!("CNI_IFNAME is {ifname:?}; allowed: {allowed}")));
        }
        Ok(Attachment { container: container.to_owned(), ifname: ifname.to_owned() })
    }

    /// The container's network namespace.
    ///
    /// # Errors
    /// CNI_NETNS is missing.
    pub fn netns(&self) -> Result<PathBuf, Error> {
        self.variable("CNI_NETNS").map(PathBuf::from)
    }

    /// The pod.
    ///
    /// # Errors
    /// CNI_ARGS do not name one.
    pub fn pod(&self) -> Result<PodName, Error> {
        let get = |key: &str| {
            let value = self.args.get(key).filter(|v| !v.is_empty()).cloned();
            value.ok_or_else(|| environment(format!("CNI_ARGS has no {key}: addresses are leased to pods")))
        };
        Ok(PodName {
            namespace: get("K8S_POD_NAMESPACE")?,
            name: get("K8S_POD_NAME")?,
            uid: get("K8S_POD_UID").ok(),
        })
    }

    /// The MAC address that CNI_ARGS ask for.
    pub fn mac(&self) -> Option<&str> {
        self.args.get("MAC").map(String::as_str)
    }

    fn variable(&self, name: &str) -> Result<&str, Error> {
        let value = self.variables.get(name).map(String::as_str);
        value.ok_or_else(|| environment(format!("{name} is not set")))
    }
}

/// Whether `text` is what the specification allows for names of networks and identifiers of containers.
pub fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

fn environment(msg: String) -> Error {
    Error::new(Code::Environment, msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(variables: &[(&str, &str)]) -> Result<Call, Error> {
        let map: BTreeMap<_, _> = variables.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Call::read(|name| map.get(name).cloned())
    }

    #[test]
    fn a_call_names_the_attachment_and_the_pod() {
        let call = call(&[
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c0ffee"),
            ("CNI_NETNS", "/run/netns/x"),
            ("CNI_IFNAME", "net1"),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u1;MAC=02:00:00:00:00:01"),
        ])
        .unwrap();
        assert_eq!(call.command, Command::Add);
        assert_eq!(
            call.attachment().unwrap(),
            Attachment { container: "c0ffee".into(), ifname: "net1".into() }
        );
        assert_eq!(call.netns().unwrap(), PathBuf::from("/run/netns/x"));
        let pod = PodName { namespace: "shop".into(), name: "web".into(), uid: Some("u1".into()) };
        assert_eq!(call.pod().unwrap(), pod);
        assert_eq!(call.mac(), Some("02:00:00:00:00:01"));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        assert!(call(&[]).unwrap_err().msg.contains("CNI_COMMAND"));
        assert!(call(&[("CNI_COMMAND", "add")]).unwrap_err().msg.contains("\"add\""));
        assert!(call(&[("CNI_COMMAND", "ADD"), ("CNI_ARGS", "x")]).unwrap_err().msg.contains("KEY=VALUE"));
        let bare = call(&[("CNI_COMMAND", "ADD")]).unwrap();
        assert!(bare.attachment().unwrap_err().msg.contains("CNI_CONTAINERID"));
        assert!(bare.netns().unwrap_err().msg.contains("CNI_NETNS"));
        assert!(bare.pod().unwrap_err().msg.contains("K8S_POD_NAMESPACE"));
        for (container, ifname, field) in [
            ("a/b", "net1", "CNI_CONTAINERID"),
            ("-a", "net1", "CNI_CONTAINERID"),
            ("a", "../x", "CNI_IFNAME"),
            ("a", "sixteen-bytes-xx", "CNI_IFNAME"),
            ("a", "a b", "CNI_IFNAME"),
        ] {
            let call =
                call(&[("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", container), ("CNI_IFNAME", ifname)])
                    .unwrap();
            let error = call.attachment().unwrap_err();
            assert!(error.msg.contains(field), "{error}");
            assert_eq!(error.code, Code::Environment);
        }
    }
}
