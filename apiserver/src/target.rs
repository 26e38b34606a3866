//! What a path of the aggregated API asks for.
//!
//! [`SUBRESOURCES`] is the one table of upstream's subresources and of what podvirt makes of them; discovery, OpenAPI,
//! dispatch and the documentation follow it.

use http::Method;

use crate::status::Status;

/// Group of the aggregated API.
pub const GROUP: &str = podvirt_api::names::SUBRESOURCES_GROUP;
/// Its versions, the preferred one first. They are the same API.
pub const VERSIONS: [&str; 2] = ["v1", "v1alpha3"];

/// Kind of object that has subresources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `virtualmachines`.
    VirtualMachine,
    /// `virtualmachineinstances`.
    Instance,
}

impl Kind {
    /// Plural, as in paths.
    pub fn plural(self) -> &'static str {
        match self {
            Kind::VirtualMachine => "virtualmachines",
            Kind::Instance => "virtualmachineinstances",
        }
    }

    /// Name of the kind in errors.
    pub fn in_errors(self) -> &'static str {
        match self {
            Kind::VirtualMachine => "virtualmachine",
            Kind::Instance => "virtualmachineinstance",
        }
    }

    fn from_plural(plural: &str) -> Option<Kind> {
        [Kind::VirtualMachine, Kind::Instance].into_iter().find(|kind| kind.plural() == plural)
    }
}

/// What podvirt does for a subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Starts the VM.
    Start,
    /// Stops the VM.
    Stop,
    /// Stops the VM and starts it again.
    Restart,
    /// Makes a migration of the VM's instance.
    Migrate,
    /// Plugs a volume.
    AddVolume,
    /// Unplugs a volume.
    RemoveVolume,
    /// Takes back that the instance is to leave its node.
    EvacuateCancel,
    /// A short request to the instance's virt-handler.
    Handler,
    /// A stream between the client and the instance's virt-handler.
    Stream,
    /// A stream between the client and a port of the guest.
    PortForward,
    /// The VM with its instance type and its preference in its template.
    ExpandStored,
    /// The same of a VM that comes as the request's body.
    Expand,
    /// Writes the guest's memory to a claim.
    MemoryDump,
    /// The machine has no more to do with its memory dump.
    RemoveMemoryDump,
    /// What the machine depends on.
    ObjectGraph,
    /// Nothing: 501.
    Refused,
}

impl Action {
    /// Whether the client's connection becomes a stream: the request has no body then.
    pub fn is_stream(self) -> bool {
        matches!(self, Action::Stream | Action::PortForward)
    }
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subresource {
    /// Kind of object.
    pub kind: Kind,
    /// Name; slashes included.
    pub name: &'static str,
    /// Method.
    pub method: Method,
    /// What is done.
    pub action: Action,
}

const fn row(kind: Kind, name: &'static str, method: Method, action: Action) -> Subresource {
    Subresource { kind, name, method, action }
}

/// All subresources of upstream.
pub const SUBRESOURCES: &[Subresource] = &[
    row(Kind::VirtualMachine, "start", Method::PUT, Action::Start),
    row(Kind::VirtualMachine, "stop", Method::PUT, Action::Stop),
    row(Kind::VirtualMachine, "restart", Method::PUT, Action::Restart),
    row(Kind::VirtualMachine, "portforward", Method::GET, Action::PortForward),
    row(Kind::VirtualMachine, "migrate", Method::PUT, Action::Migrate),
    row(Kind::VirtualMachine, "addvolume", Method::PUT, Action::AddVolume),
    row(Kind::VirtualMachine, "removevolume", Method::PUT, Action::RemoveVolume),
    row(Kind::VirtualMachine, "memorydump", Method::PUT, Action::MemoryDump),
    row(Kind::VirtualMachine, "removememorydump", Method::PUT, Action::RemoveMemoryDump),
    row(Kind::VirtualMachine, "evacuate/cancel", Method::PUT, Action::EvacuateCancel),
    row(Kind::VirtualMachine, "expand-spec", Method::GET, Action::ExpandStored),
    row(Kind::VirtualMachine, "objectgraph", Method::GET, Action::ObjectGraph),
    row(Kind::Instance, "console", Method::GET, Action::Stream),
    row(Kind::Instance, "vnc", Method::GET, Action::Stream),
    row(Kind::Instance, "portforward", Method::GET, Action::PortForward),
    row(Kind::Instance, "pause", Method::PUT, Action::Handler),
    row(Kind::Instance, "unpause", Method::PUT, Action::Handler),
    row(Kind::Instance, "freeze", Method::PUT, Action::Handler),
    row(Kind::Instance, "unfreeze", Method::PUT, Action::Handler),
    row(Kind::Instance, "reset", Method::PUT, Action::Handler),
    row(Kind::Instance, "softreboot", Method::PUT, Action::Handler),
    row(Kind::Instance, "guestosinfo", Method::GET, Action::Handler),
    row(Kind::Instance, "userlist", Method::GET, Action::Handler),
    row(Kind::Instance, "filesystemlist", Method::GET, Action::Handler),
    row(Kind::Instance, "usbredir", Method::GET, Action::Refused),
    row(Kind::Instance, "vsock", Method::GET, Action::Refused),
    row(Kind::Instance, "vnc/screenshot", Method::GET, Action::Handler),
    row(Kind::Instance, "addvolume", Method::PUT, Action::AddVolume),
    row(Kind::Instance, "removevolume", Method::PUT, Action::RemoveVolume),
    row(Kind::Instance, "backup", Method::PUT, Action::Handler),
    row(Kind::Instance, "redefine-checkpoint", Method::PUT, Action::Handler),
    row(Kind::Instance, "evacuate/cancel", Method::PUT, Action::EvacuateCancel),
    row(Kind::Instance, "objectgraph", Method::GET, Action::ObjectGraph),
    row(Kind::Instance, "sev/setupsession", Method::PUT, Action::Refused),
    row(Kind::Instance, "sev/injectlaunchsecret", Method::PUT, Action::Refused),
    row(Kind::Instance, "sev/fetchcertchain", Method::GET, Action::Refused),
    row(Kind::Instance, "sev/querylaunchmeasurement", Method::GET, Action::Refused),
];

/// What stands below a namespace itself, with its own name as the resource.
pub static EXPAND: Subresource = row(Kind::VirtualMachine, "expand-vm-spec", Method::PUT, Action::Expand);

/// Protocol of a forwarded port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP: a stream of bytes.
    Tcp,
    /// UDP: one datagram a frame.
    Udp,
}

/// Where a forwarded port leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Number, not 0.
    pub number: u16,
    /// Protocol.
    pub protocol: Protocol,
}

/// An object's subresource, as a path names it. It need not be one of the table's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Version of the API.
    pub version: &'static str,
    /// Namespace of the object.
    pub namespace: String,
    /// Plural of its kind.
    pub resource: String,
    /// Name of the object; empty for `expand-vm-spec`.
    pub name: String,
    /// Subresource, without a port and what follows it.
    pub subresource: String,
    /// Segments behind `portforward`.
    pub rest: Vec<String>,
}

impl Target {
    /// Reads a path; `None` when it is no object's.
    pub fn parse(path: &str) -> Option<Target> {
        let path = path.strip_prefix("/apis/")?.strip_prefix(GROUP)?.strip_prefix('/')?;
        // Names in these paths are DNS names, which no client percent-encodes; anything else finds no object.
        let mut segments = path.trim_end_matches('/').split('/');
        let version = segments.next()?;
        let version = *VERSIONS.iter().find(|known| **known == version)?;
        if segments.next()? != "namespaces" {
            return None;
        }
        let mut segment = || segments.next().filter(|s| !s.is_empty()).map(ToOwned::to_owned);
        let (namespace, resource) = (segment()?, segment()?);
        let name = segment().unwrap_or_default();
        let behind: Vec<String> = segments.map(ToOwned::to_owned).collect();
        let is_forward = behind.first().is_some_and(|first| first == "portforward");
        let (subresource, rest) = if is_forward {
            (behind[0].clone(), behind[1..].to_vec())
        } else {
            (behind.join("/"), Vec::new())
        };
        Some(Target { version, namespace, resource, name, subresource, rest })
    }

    /// The row of the table.
    ///
    /// # Errors
    ///
    /// There is none, or it has another method.
    pub fn find(&self, method: &Method) -> Result<&'static Subresource, Status> {
        let found = if self.name.is_empty() && self.resource == EXPAND.name {
            &EXPAND
        } else {
            let kind = Kind::from_plural(&self.resource).ok_or_else(Status::no_such_path)?;
            let is_it = |row: &&Subresource| row.kind == kind && row.name == self.subresource;
            SUBRESOURCES.iter().find(is_it).ok_or_else(Status::no_such_path)?
        };
        if found.method == *method {
            Ok(found)
        } else {
            Err(Status::method_not_allowed(method, &found.method))
        }
    }

    /// The port behind `portforward`.
    ///
    /// # Errors
    ///
    /// It is missing or none, or the protocol is unknown.
    pub fn port(&self) -> Result<Port, Status> {
        let (number, protocol) = match self.rest.as_slice() {
            [number] => (number, "tcp"),
            [number, protocol] => (number, protocol.as_str()),
            _ => return Err(Status::no_such_path()),
        };
        let number = number.parse::<u16>().ok().filter(|number| *number != 0).ok_or_else(|| {
            Status::bad_request(format!("port '{number}' is not allowed; a number from 1 to 65535 is"))
        })?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            other => {
                let message = format!("protocol '{other}' is not allowed; tcp and udp are");
                return Err(Status::bad_request(message));
            }
        };
        Ok(Port { number, protocol })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VMI: &str = "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm1";

    #[test]
    fn paths_are_read_into_their_parts() {
        for (path, resource, name, subresource, rest) in [
            ("console", "virtualmachineinstances", "vm1", "console", vec![]),
            ("sev/setupsession", "virtualmachineinstances", "vm1", "sev/setupsession", vec![]),
            ("portforward/22", "virtualmachineinstances", "vm1", "portforward", vec!["22"]),
            ("portforward/22/udp", "virtualmachineinstances", "vm1", "portforward", vec!["22", "udp"]),
        ] {
            let target = Target::parse(&format!("{VMI}/{path}")).unwrap();
            assert_eq!(
                (target.version, target.namespace.as_str(), target.resource.as_str(), target.name.as_str()),
                ("v1", "ns", resource, name)
            );
            assert_eq!(
                (target.subresource.as_str(), &target.rest),
                (subresource, &rest.iter().map(ToString::to_string).collect())
            );
        }
        let alpha = Target::parse(&VMI.replace("v1/", "v1alpha3/")).unwrap();
        assert_eq!(alpha.version, "v1alpha3");
    }

    #[test]
    fn paths_of_no_object_are_none() {
        for path in [
            "/",
            "/apis/subresources.kubevirt.io",
            "/apis/subresources.kubevirt.io/v1/version",
            "/apis/subresources.kubevirt.io/v2/namespaces/ns/virtualmachines/vm1/start",
            "/apis/subresources.kubevirt.io.evil/v1/namespaces/ns/virtualmachines/vm1/start",
            "/apis/subresources.kubevirt.io/v1/namespaces/ns",
            "/apis/subresources.kubevirt.io/v1/namespaces//virtualmachines/vm1/start",
        ] {
            assert_eq!(Target::parse(path), None, "{path}");
        }
    }

    #[test]
    fn every_row_is_found_by_its_path_and_method_only() {
        for row in SUBRESOURCES {
            let path = format!("/apis/{GROUP}/v1/namespaces/ns/{}/vm1/{}", row.kind.plural(), row.name);
            let target = Target::parse(&path).unwrap();
            assert_eq!(target.find(&row.method).unwrap(), row);
            assert_eq!(target.find(&Method::DELETE).unwrap_err().code, 405);
        }
        for (path, code) in [
            (format!("{VMI}/nothing"), 404),
            (VMI.to_owned(), 404),
            (format!("/apis/{GROUP}/v1/namespaces/ns/pods/vm1/console"), 404),
            (format!("/apis/{GROUP}/v1/namespaces/ns/expand-vm-spec"), 405),
        ] {
            assert_eq!(Target::parse(&path).unwrap().find(&Method::GET).unwrap_err().code, code, "{path}");
        }
        let expand = format!("/apis/{GROUP}/v1/namespaces/ns/expand-vm-spec");
        assert_eq!(Target::parse(&expand).unwrap().find(&Method::PUT).unwrap(), &EXPAND);
    }

    #[test]
    fn ports_are_numbers_with_a_known_protocol() {
        let port = |rest: &str| Target::parse(&format!("{VMI}/portforward{rest}")).unwrap().port();
        assert_eq!(port("/22").unwrap(), Port { number: 22, protocol: Protocol::Tcp });
        assert_eq!(port("/53/udp").unwrap(), Port { number: 53, protocol: Protocol::Udp });
        for (rest, code) in
            [("", 404), ("/0", 400), ("/65536", 400), ("/ssh", 400), ("/22/sctp", 400), ("/22/tcp/x", 404)]
        {
            assert_eq!(port(rest).unwrap_err().code, code, "{rest}");
        }
    }
}
