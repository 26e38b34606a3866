//! Whether a manifest makes sense, after its defaults were set.
//!
//! Every check runs, whatever the others found: the user sees all problems at once. The types of values were
//! judged before ([`crate::fields`]); here stand the rules between fields and the forms of texts.

mod credentials;
mod devices;
mod filesystems;
mod machine;
mod network;
mod options;
pub(crate) mod placement;
pub(crate) mod text;
mod volumes;

use crate::problem::{Problems, Reason};
use crate::vmi::{DnsPolicy, VirtualMachineInstance};

pub use text::{is_dns_label, is_dns_subdomain, is_pci_address};
pub(crate) use text::{is_label_name, is_label_value, is_plain_serial, is_uuid};

/// Most resolvers that a pod can have.
const MAX_NAMESERVERS: usize = 3;
/// Most search domains that a pod can have.
const MAX_SEARCHES: usize = 32;

/// Finds everything that is wrong with `vmi`; none found means that it can be run.
pub fn validate(vmi: &VirtualMachineInstance) -> Problems {
    let mut problems = Problems::default();
    identity(vmi, &mut problems);
    machine::check(&vmi.spec.domain, &mut problems);
    devices::check(vmi, &mut problems);
    filesystems::check(vmi, &mut problems);
    network::check(vmi, &mut problems);
    volumes::tables(vmi, &mut problems);
    volumes::check(vmi, &mut problems);
    credentials::check(vmi, &mut problems);
    names(vmi, &mut problems);
    problems
}

fn identity(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    for (field, value, wanted) in
        [("apiVersion", &vmi.api_version, crate::API_VERSION), ("kind", &vmi.kind, "VirtualMachineInstance")]
    {
        if value.is_empty() {
            problems.required(field, format!("'{wanted}' is required"));
        } else if value != wanted {
            problems.invalid(field, value, &format!("'{wanted}' is allowed"));
        }
    }
    let name = &vmi.metadata.name;
    if name.is_empty() {
        problems.required("metadata.name", "a name is required");
    } else if !is_dns_subdomain(name) {
        problems.invalid(
            "metadata.name",
            name,
            "at most 253 of a-z, 0-9, '-' and '.' are allowed, letters or digits at the ends and around dots",
        );
    }
    if !is_dns_label(vmi.namespace()) {
        problems.invalid("metadata.namespace", vmi.namespace(), "at most 63 of a-z, 0-9 and '-' are allowed");
    }
}

fn names(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    let spec = &vmi.spec;
    if !spec.hostname.is_empty() && !is_dns_label(&spec.hostname) {
        problems.invalid("spec.hostname", &spec.hostname, "at most 63 of a-z, 0-9 and '-' are allowed");
    }
    // The guest's full name is made of it, and a part of a domain name has at most 63 letters.
    let is_domain = |text: &str| is_dns_subdomain(text) && text.split('.').all(is_dns_label);
    if !spec.subdomain.is_empty() && !is_domain(&spec.subdomain) {
        problems.invalid("spec.subdomain", &spec.subdomain, "a domain name in small letters is allowed");
    }
    let config = spec.dns_config.as_ref();
    let nameservers = config.map_or(&[][..], |c| &c.nameservers);
    let searches = config.map_or(&[][..], |c| &c.searches);
    if spec.dns_policy == Some(DnsPolicy::None) && nameservers.is_empty() {
        problems.required("spec.dnsConfig.nameservers", "dnsPolicy None needs at least one resolver");
    }
    if nameservers.len() > MAX_NAMESERVERS {
        let count = nameservers.len();
        problems.add(
            Reason::FieldValueInvalid,
            "spec.dnsConfig.nameservers",
            format!("{count} resolvers; at most {MAX_NAMESERVERS} are allowed"),
        );
    }
    // netd tells them to the guest, and starts with none that the guest could not ask.
    let is_told = !spec.domain.devices.interfaces.is_empty();
    for (n, server) in nameservers.iter().enumerate() {
        let allowed = match crate::ip::parse(server) {
            None => "an IPv4 or IPv6 address is allowed",
            Some(a) if is_told && (a.is_loopback() || a.is_multicast() || a.is_unspecified()) => {
                "the address of a resolver is allowed; not a loopback, multicast or unspecified one"
            }
            Some(_) => continue,
        };
        problems.invalid(format!("spec.dnsConfig.nameservers[{n}]"), server, allowed);
    }
    if searches.len() > MAX_SEARCHES {
        let count = searches.len();
        problems.add(
            Reason::FieldValueInvalid,
            "spec.dnsConfig.searches",
            format!("{count} domains; at most {MAX_SEARCHES} are allowed"),
        );
    }
    for (n, domain) in searches.iter().enumerate() {
        if !is_dns_subdomain(domain.strip_suffix('.').unwrap_or(domain)) {
            problems.invalid(
                format!("spec.dnsConfig.searches[{n}]"),
                domain,
                "a domain name in small letters is allowed",
            );
        }
    }
}

#[cfg(test)]
mod tests;
