//! Networks.

objects! {
    /// A network: what the interface of the same name attaches to.
    Network {
        /// Name.
        name: String,
        /// The pod's own network.
        pod: Option<PodNetwork>,
        /// A network that Multus attaches the pod to.
        multus: Option<MultusNetwork>,
    }

    /// The pod's own network.
    PodNetwork {
        /// The IPv4 network of a guest behind masquerade, with its prefix length: its first address is the gateway's, its
        /// second the guest's. 10.0.2.0/24 if not set.
        #[serde(rename = "vmNetworkCIDR")]
        vm_network_cidr: String,
        /// The same of IPv6; fd10:0:2::/120 if not set.
        #[serde(rename = "vmIPv6NetworkCIDR")]
        vm_ipv6_network_cidr: String,
    }

    /// A network that Multus attaches the pod to.
    MultusNetwork {
        /// Name of the NetworkAttachmentDefinition, with the namespace and `/` before it if that is another one.
        network_name: String,
        /// In place of the pod's own network, rather than beside it.
        default: bool,
    }
}

impl Network {
    /// Whether it is the pod's first network, its own or one in its place.
    pub fn is_primary(&self) -> bool {
        self.multus.as_ref().map_or(self.pod.is_some(), |multus| multus.default)
    }
}
