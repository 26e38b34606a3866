//! What a command acts on, read from its words. Pure: nothing here asks a cluster.
//!
//! The forms are upstream's: `TYPE/NAME[/NAMESPACE]` for streams, `USER@` before it for ssh, `:PATH` behind it for
//! scp, `[PROTOCOL/]LOCAL[:TARGET]` for ports. Names are checked here because they become part of a URL.

use std::fmt;
use std::str::FromStr;

/// What is wrong with a word of the command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TargetError {
    /// Neither one slash nor two.
    #[error("target {0:?} must have the form TYPE/NAME or TYPE/NAME/NAMESPACE, for example vmi/myvmi")]
    Form(String),
    /// Not a kind of machine.
    #[error("{0:?} is not a type of machine: use vm or vmi")]
    Kind(String),
    /// Not a Kubernetes name.
    #[error(
        "{what} {name:?} is not valid: it must be 1 to 253 of a-z, 0-9, '-' and '.', and start and end with a letter or digit"
    )]
    Name {
        /// What the name is of.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An `@` without a user.
    #[error("target {0:?} has no user before its '@'")]
    User(String),
    /// Not a port argument.
    #[error(
        "port {0:?} must have the form [tcp/|udp/]LOCAL[:TARGET] with ports from 1 to 65535 (LOCAL may be 0), for example 8080:80"
    )]
    Port(String),
    /// scp between two guests.
    #[error(
        "copying from one machine to another is not supported: one of {0:?} and {1:?} must be a local path"
    )]
    BothRemote(String, String),
    /// scp without a guest.
    #[error("one of {0:?} and {1:?} must name a machine: [USER@]TYPE/NAME[/NAMESPACE]:PATH")]
    NoneRemote(String, String),
}

/// The two kinds that have streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// VirtualMachine.
    Vm,
    /// VirtualMachineInstance.
    Vmi,
}

impl Kind {
    /// The plural the API uses in paths.
    pub(crate) fn resource(self) -> &'static str {
        match self {
            Self::Vm => "virtualmachines",
            Self::Vmi => "virtualmachineinstances",
        }
    }

    /// The short form users type.
    pub(crate) fn short(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Vmi => "vmi",
        }
    }
}

impl FromStr for Kind {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        match text.to_ascii_lowercase().as_str() {
            "vm" | "vms" | "virtualmachine" | "virtualmachines" => Ok(Self::Vm),
            "vmi" | "vmis" | "virtualmachineinstance" | "virtualmachineinstances" => Ok(Self::Vmi),
            _ => Err(TargetError::Kind(text.into())),
        }
    }
}

/// One machine of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) namespace: String,
}

impl Object {
    /// A machine whose name comes from the command line.
    ///
    /// # Errors
    /// When the name or the namespace is none.
    pub(crate) fn new(kind: Kind, name: &str, namespace: &str) -> Result<Self, TargetError> {
        Ok(Self { kind, name: checked("name", name)?, namespace: checked("namespace", namespace)? })
    }

    /// `vmi/name` as in a target.
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.kind.short(), self.name)
    }

    /// The host name by which ssh and its known_hosts know the guest.
    pub(crate) fn host(&self) -> String {
        format!("{}.{}.{}", self.kind.short(), self.name, self.namespace)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.short().to_ascii_uppercase();
        write!(f, "{kind} {:?} in namespace {:?}", self.name, self.namespace)
    }
}

/// A machine as a target names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
}

impl Target {
    /// What the target meant before 1.7, when a dot divided name and namespace: `vmi/name.namespace`. None where it
    /// cannot be meant.
    pub(crate) fn dotted(&self) -> Option<(&str, &str)> {
        match self.namespace {
            Some(_) => None,
            None => self.name.rsplit_once('.'),
        }
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let form = || TargetError::Form(text.into());
        let mut parts = text.split('/');
        let kind = parts.next().unwrap_or_default();
        let name = parts.next().ok_or_else(form)?;
        let namespace = parts.next();
        if parts.next().is_some() {
            return Err(form());
        }
        Ok(Self {
            kind: kind.parse()?,
            name: checked("name", name)?,
            namespace: namespace.map(|namespace| checked("namespace", namespace)).transpose()?,
        })
    }
}

/// A target with the user to log in as: `[USER@]TYPE/NAME[/NAMESPACE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) target: Target,
}

impl FromStr for Login {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        match text.rsplit_once('@') {
            Some(("", _)) => Err(TargetError::User(text.into())),
            Some((user, target)) => Ok(Self { user: Some(user.into()), target: target.parse()? }),
            None => Ok(Self { user: None, target: text.parse()? }),
        }
    }
}

/// The two ends of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) login: Login,
    pub(crate) remote_path: String,
    pub(crate) local_path: String,
    pub(crate) to_guest: bool,
}

impl Copy {
    /// Tells which of the two words names a machine.
    ///
    /// # Errors
    /// When none or both do, or the one that does is no target.
    pub(crate) fn parse(source: &str, destination: &str) -> Result<Self, TargetError> {
        let (remote, local_path, to_guest) = match (source.split_once(':'), destination.split_once(':')) {
            (Some(_), Some(_)) => return Err(TargetError::BothRemote(source.into(), destination.into())),
            (None, None) => return Err(TargetError::NoneRemote(source.into(), destination.into())),
            (Some(remote), None) => (remote, destination, false),
            (None, Some(remote)) => (remote, source, true),
        };
        Ok(Self {
            login: remote.0.parse()?,
            remote_path: remote.1.into(),
            local_path: local_path.into(),
            to_guest,
        })
    }
}

/// What is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// One forwarded port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forward {
    pub(crate) protocol: Protocol,
    /// 0 takes a free one.
    pub(crate) local: u16,
    pub(crate) remote: u16,
}

impl Forward {
    /// The subresource that leads to the port.
    pub(crate) fn subresource(&self) -> String {
        format!("portforward/{}/{}", self.remote, self.protocol)
    }
}

impl FromStr for Forward {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let wrong = || TargetError::Port(text.into());
        let (protocol, ports) = match text.split_once('/') {
            None => (Protocol::Tcp, text),
            Some((protocol, ports)) if protocol.eq_ignore_ascii_case("tcp") => (Protocol::Tcp, ports),
            Some((protocol, ports)) if protocol.eq_ignore_ascii_case("udp") => (Protocol::Udp, ports),
            Some(_) => return Err(wrong()),
        };
        let (local, remote) = ports.split_once(':').unwrap_or((ports, ports));
        let number = |text: &str| {
            // u16 would also read a sign.
            text.bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| text.parse::<u16>().ok())
                .flatten()
                .ok_or_else(wrong)
        };
        let forward = Self { protocol, local: number(local)?, remote: number(remote)? };
        if forward.remote == 0 { Err(wrong()) } else { Ok(forward) }
    }
}

/// A name that may stand in a URL: RFC 1123's subdomain, which all names of the API are.
pub(crate) fn checked(what: &'static str, name: &str) -> Result<String, TargetError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let valid = bytes.len() <= 253
        && bytes.first().is_some_and(|byte| plain(*byte))
        && bytes.last().is_some_and(|byte| plain(*byte))
        && bytes.iter().all(|byte| plain(*byte) || matches!(byte, b'-' | b'.'));
    if valid { Ok(name.into()) } else { Err(TargetError::Name { what, name: name.into() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(kind: Kind, name: &str, namespace: Option<&str>) -> Target {
        Target { kind, name: name.into(), namespace: namespace.map(Into::into) }
    }

    #[test]
    fn targets_are_read_as_upstream_reads_them() {
        use Kind::{Vm, Vmi};
        for (text, expected) in [
            ("vmi/testvmi", target(Vmi, "testvmi", None)),
            ("vmi/testvmi/default", target(Vmi, "testvmi", Some("default"))),
            ("vm/testvm/default", target(Vm, "testvm", Some("default"))),
            ("VMs/testvm", target(Vm, "testvm", None)),
            ("virtualmachines/a", target(Vm, "a", None)),
            ("virtualmachineinstances/a", target(Vmi, "a", None)),
            ("vmi/with.dots/name.space", target(Vmi, "with.dots", Some("name.space"))),
            ("vmi/testvmi.default", target(Vmi, "testvmi.default", None)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_target_is_refused_with_its_value() {
        for text in [
            "",
            "testvmi",
            ".",
            "vmi/",
            "/",
            "//",
            "vmi/a/",
            "vmi/a/b/c",
            "pod/a",
            "vmi/../x",
            "vmi/A",
            "vmi/a?b",
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            let named = text.split('/').any(|part| error.contains(&format!("{part:?}")));
            assert!(named || error.contains(&format!("{text:?}")), "{text}: {error}");
        }
    }

    #[test]
    fn a_dot_may_have_divided_name_and_namespace() {
        assert_eq!("vmi/a.b".parse::<Target>().unwrap().dotted(), Some(("a", "b")));
        assert_eq!("vmi/a.b/c".parse::<Target>().unwrap().dotted(), None);
        assert_eq!("vmi/a".parse::<Target>().unwrap().dotted(), None);
    }

    #[test]
    fn logins_may_name_a_user() {
        let login: Login = "jdoe@vm/testvm/blue".parse().unwrap();
        assert_eq!(login.user.as_deref(), Some("jdoe"));
        assert_eq!(login.target, target(Kind::Vm, "testvm", Some("blue")));
        // Users of a directory service have an '@' in their name.
        assert_eq!("a@b@vm/c".parse::<Login>().unwrap().user.as_deref(), Some("a@b"));
        assert_eq!("@vm/c".parse::<Login>(), Err(TargetError::User("@vm/c".into())));
        assert!("jdoe@".parse::<Login>().is_err());
    }

    #[test]
    fn one_end_of_a_copy_is_a_machine() {
        let copy = Copy::parse("my file", "jdoe@vmi/a/b:dir/file:1").unwrap();
        assert!(copy.to_guest);
        assert_eq!((copy.local_path.as_str(), copy.remote_path.as_str()), ("my file", "dir/file:1"));
        let copy = Copy::parse("vmi/a:", ".").unwrap();
        assert!(!copy.to_guest);
        assert_eq!((copy.local_path.as_str(), copy.remote_path.as_str()), (".", ""));
        assert!(matches!(Copy::parse("vm/a:x", "vm/b:x"), Err(TargetError::BothRemote(..))));
        assert!(matches!(Copy::parse("x", "y"), Err(TargetError::NoneRemote(..))));
    }

    #[test]
    fn ports_have_defaults() {
        use Protocol::{Tcp, Udp};
        for (text, protocol, local, remote) in [
            ("8080", Tcp, 8080, 8080),
            ("8080:8090", Tcp, 8080, 8090),
            ("udp/8080", Udp, 8080, 8080),
            ("UDP/8080:53", Udp, 8080, 53),
            ("tcp/0:22", Tcp, 0, 22),
        ] {
            assert_eq!(text.parse(), Ok(Forward { protocol, local, remote }), "{text}");
        }
        for text in ["", "udp", "udp/", "80C0:8X90", "0", "1:0", "65536", "sctp/1", "1:2:3", "+1", ":1", "1:"]
        {
            assert_eq!(text.parse::<Forward>(), Err(TargetError::Port(text.into())), "{text}");
        }
    }
}
