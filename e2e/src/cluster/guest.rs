//! Guests that a test drives by their consoles, by the binding of their one interface.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use podvirt_api::names::path;
use podvirt_api::v1;
use podvirt_bed_tools::Console;
use serde_json::Value;

use super::{BOOT, Manifest, Namespace, Running};

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);

/// How a machine is bound to the pod's network.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// What tells it from the others; a machine's name as well.
    pub name: &'static str,
    /// What the interface says of it.
    pub interface: &'static str,
    /// What the machine's annotations say of it.
    pub annotations: &'static str,
    /// Whether the guest has what the pod has of IPv6.
    pub ipv6: bool,
}

impl Binding {
    /// netd, with the pod's own addresses.
    pub const PASST: Binding =
        Binding { name: "passt", interface: "passtBinding: {}", annotations: "", ipv6: true };
    /// The same by the name of the plugin that netd stands in for.
    pub const PLUGIN: Binding =
        Binding { name: "plugin", interface: "binding: {name: passt}", ..Self::PASST };
    /// netd, with addresses of the guest's own.
    pub const MASQUERADE: Binding =
        Binding { name: "masquerade", interface: "masquerade: {}", annotations: "", ipv6: true };
    /// The same by the kernel.
    pub const BY_KERNEL: Binding =
        Binding { name: "by-kernel", annotations: "podvirt.io/masquerade: nftables", ..Self::MASQUERADE };
    /// In the pod's place.
    pub const BRIDGE: Binding =
        Binding { name: "bridge", interface: "bridge: {}", annotations: "", ipv6: false };
    /// Those that differ.
    pub const ALL: [Binding; 4] = [Self::PASST, Self::MASQUERADE, Self::BY_KERNEL, Self::BRIDGE];

    /// Whether netd serves it.
    pub fn by_netd(self) -> bool {
        ![Self::BY_KERNEL.name, Self::BRIDGE.name].contains(&self.name)
    }

    /// Makes the machine of a manifest with one interface of this binding, of which `more` says more.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn apply(self, namespace: &Namespace<'_>, manifest: &Manifest<'_>, more: &str) -> Result<()> {
        let join = |parts: [&str; 2]| {
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
        };
        let interface = format!("interfaces: [{{name: default, {}}}]", join([self.interface, more]));
        let devices = join([manifest.devices, &interface]);
        let annotations = join([manifest.annotations, self.annotations]);
        let manifest = Manifest { annotations: &annotations, devices: &devices, ..manifest.clone() };
        namespace.apply(&manifest.machine())
    }
}

/// A running machine with a shell.
pub struct Guest<'n> {
    /// Where it is.
    pub namespace: &'n Namespace<'n>,
    /// Its name.
    pub name: String,
    /// Its instance, as it was when the guest came up.
    pub instance: v1::VirtualMachineInstance,
    /// The pod's addresses that lead to it, in the pod's order.
    pub addresses: Vec<IpAddr>,
    // In this order: the console ends with the program.
    console: Console,
    _running: Running,
}

impl<'n> Guest<'n> {
    /// Makes the machine of a manifest as [`Binding::apply`] does, and waits until its guest is up.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start(
        namespace: &'n Namespace<'n>,
        binding: Binding,
        manifest: &Manifest<'_>,
        more: &str,
    ) -> Result<Guest<'n>> {
        binding.apply(namespace, manifest, more)?;
        let mut guest = Guest::of(namespace, manifest.name)?;
        guest.addresses.retain(|address| binding.ipv6 || address.is_ipv4());
        Ok(guest)
    }

    /// The guest of a machine that was made before, once it is up. All of the pod's addresses are taken for its own.
    ///
    /// # Errors
    /// It does not come up.
    pub fn of(namespace: &'n Namespace<'n>, name: &str) -> Result<Guest<'n>> {
        let instance = namespace.wait_phase(name, "Running", BOOT)?;
        let (console, running) = namespace.shell(name)?;
        let status = namespace.launcher(name)?.status.unwrap_or_default();
        let addresses = status.pod_ips.iter().flatten().map(|address| Ok(address.ip.parse()?));
        let addresses = addresses.collect::<Result<_>>()?;
        Ok(Guest { namespace, name: name.to_owned(), instance, addresses, console, _running: running })
    }

    /// What a command in the guest prints.
    ///
    /// # Errors
    /// It failed, or said nothing for long.
    pub fn sh(&mut self, command: &str) -> Result<String> {
        self.console.sh(command, COMMAND)
    }

    /// Whether a command in the guest succeeds.
    ///
    /// # Errors
    /// It said nothing for long.
    pub fn succeeds(&mut self, command: &str) -> Result<bool> {
        Ok(self.console.run(command, COMMAND)?.status == 0)
    }

    /// How much the netd of the interface at this place has dropped for this reason.
    ///
    /// # Errors
    /// There is no such netd, or no such reason.
    pub fn dropped(&self, place: usize, reason: &str) -> Result<u64> {
        let rows = self.namespace.netctl(&self.name, place, "counters")?;
        counter(&rows, &format!("dropped.{reason}"))
    }

    /// The node that it was started on.
    ///
    /// # Errors
    /// The instance does not say it.
    pub fn node(&self) -> Result<&str> {
        self.instance.status.node_name.as_deref().context("an instance without a node")
    }

    /// The node that it was not started on.
    ///
    /// # Errors
    /// The instance does not say where it was.
    pub fn other_node(&self) -> Result<&'static str> {
        Ok(if self.node()? == "node1" { "node2" } else { "node1" })
    }

    /// What DHCP offers by a network card, by the names that the guest's client has for it; a number that it has no name
    /// for is `opt` with that number. Nothing is configured by it.
    ///
    /// # Errors
    /// Nothing is offered.
    pub fn offer(&mut self, card: &str) -> Result<BTreeMap<String, String>> {
        let text = self.sh(&format!(
            "printf '#!/bin/sh\\nenv >/tmp/offer\\n' >/tmp/show; chmod 755 /tmp/show; ip link set {card} up; \
             udhcpc -i {card} -n -q -f -t 8 -T 1 -O bootfile -O tftp -O ntpsrv -O mtu -O search -O staticroutes -O 240 \
             -s /tmp/show >/dev/null 2>&1; cat /tmp/offer"
        ))?;
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        Ok(pairs.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect())
    }
}

impl Namespace<'_> {
    /// What the netd of a machine's interface, the one at this place of its list, answers to `netctl --json`.
    ///
    /// # Errors
    /// There is no such netd.
    pub fn netctl(&self, machine: &str, place: usize, word: &str) -> Result<Value> {
        let pod = self.launcher(machine)?.metadata.name.unwrap_or_default();
        let container = if place == 0 { "netd".to_owned() } else { format!("netd-{place}") };
        let control = path::netd_control(place);
        let control = control.to_string_lossy();
        let ask = ["exec", &pod, "-c", &container, "--", "netctl", "--json", "--socket", &control, word];
        Ok(serde_json::from_str(&self.kubectl(&ask)?)?)
    }
}

/// A counter among those that netctl shows.
///
/// # Errors
/// It is not there.
pub fn counter(rows: &Value, name: &str) -> Result<u64> {
    let row = rows.as_array().into_iter().flatten().find(|row| row["name"] == name);
    row.and_then(|row| row["value"].as_u64()).with_context(|| format!("no counter {name}: {rows}"))
}
