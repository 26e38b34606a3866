//! Networks.

objects! {
    /// A network: what the interface of the same name attaches to.
    Network {
        /// Name.
        name: String,
        /// The pod's own network.
        pod: Option<PodNetwork>,
    }

    /// The pod's own network.
    PodNetwork {}
}
