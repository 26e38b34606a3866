//! `<interface>` and what stands in it.

use serde::{Deserialize, Serialize};

use super::{AcpiIndex, Boot, NameOnly, PciAddress, Rom, StateOnly, TypeOnly, unset};

elements! {
    /// `<interface>`.
    Interface {
        /// `vhostuser` or `ethernet`.
        "@type" kind: String,
        /// Ethernet address.
        "mac" mac: Mac,
        /// Largest packet.
        "mtu" mtu: Option<Mtu>,
        /// Socket of `vhostuser`.
        "source" source: Option<SocketSource>,
        /// Tap device of `ethernet`.
        "target" target: Option<TapTarget>,
        /// Model.
        "model" model: TypeOnly,
        /// Queues.
        "driver" driver: Option<InterfaceDriver>,
        /// Link.
        "link" link: Option<StateOnly>,
        /// Boot order.
        "boot" boot: Option<Boot>,
        /// Boot code on the card.
        "rom" rom: Option<Rom>,
        /// Index that gives the interface its name in the guest.
        "acpi" acpi: Option<AcpiIndex>,
        /// Name in libvirt and QEMU.
        "alias" alias: NameOnly,
        /// PCI address.
        "address" address: Option<PciAddress>,
    }

    /// `<mtu>`.
    Mtu {
        /// Bytes.
        "@size" size: u32,
    }

    /// `<target>` of an interface.
    TapTarget {
        /// Name of the tap device.
        "@dev" dev: String,
        /// `no`: it is there already.
        "@managed" managed: String,
    }

    /// `<mac>`.
    Mac {
        /// Address.
        "@address" address: String,
    }

    /// A UNIX socket.
    SocketSource {
        /// `unix`, where it has to be said.
        "@type" kind: Option<String>,
        /// Path.
        "@path" path: String,
        /// `client`, `bind`.
        "@mode" mode: String,
        /// Whether to connect again.
        "reconnect" reconnect: Option<Reconnect>,
    }

    /// `<reconnect>`.
    Reconnect {
        /// `yes` or `no`.
        "@enabled" enabled: String,
        /// Seconds between attempts.
        "@timeout" timeout: u32,
    }

    /// `<driver>` of an interface.
    InterfaceDriver {
        /// Queue pairs.
        "@queues" queues: Option<u64>,
        /// Descriptors of a receive ring.
        "@rx_queue_size" rx_queue_size: Option<u32>,
        /// Descriptors of a transmit ring.
        "@tx_queue_size" tx_queue_size: Option<u32>,
    }
}
