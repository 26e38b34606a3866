//! Headers of drivers that know the legacy interface of the device alone (VIRTIO 1.2, 5.1.6.1).
//!
//! # Theory of operation
//!
//! A driver that accepts neither VIRTIO_F_VERSION_1 nor VIRTIO_NET_F_MRG_RXBUF has no `num_buffers` at the end of the virtio header: its
//! frames begin 10 bytes into the chain, not 12. The datapath knows one length. So each chain of such a driver is lengthened as it comes
//! from the ring: behind its tenth byte stands a slice of netd's own, in place of the field that is missing, and what is told to the driver of
//! written bytes is shorter by that. Nothing else knows of it.
//!
//! ```text
//!   the driver's chain     │ header, 10 bytes │ frame ...
//!   what the datapath has  │ header, 10 bytes │ 2 bytes of netd │ frame ...
//! ```

use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;

use crate::ring::Iovs;
use crate::wire::VNET_LEN;

/// Bytes of the legacy header.
const LEGACY_LEN: usize = 10;

/// What lengthens the chains of one ring.
#[derive(Debug)]
pub(super) struct LegacyHeader {
    /// In place of the missing field.
    field: Iovs,
    /// The chain as the driver has it.
    chain: Iovs,
}

impl LegacyHeader {
    /// For a driver that has accepted `features`; none where its headers have all fields.
    pub(super) fn for_features(features: u64) -> Option<LegacyHeader> {
        let full = (1 << VIRTIO_F_VERSION_1) | (1 << VIRTIO_NET_F_MRG_RXBUF);
        let legacy =
            LegacyHeader { field: Iovs::from_owned(vec![0; VNET_LEN - LEGACY_LEN]), chain: Iovs::new() };
        (features & full == 0).then_some(legacy)
    }

    /// Where the next chain is to be popped.
    pub(super) fn chain(&mut self) -> &mut Iovs {
        self.chain.clear();
        &mut self.chain
    }

    /// Appends the chain that was popped, lengthened, and answers by how much it is longer. A chain that has no room for a header
    /// gets nothing.
    pub(super) fn lengthen(&mut self, slices: &mut Iovs) -> usize {
        let header = slices.append(&self.chain, 0, LEGACY_LEN);
        let added = if header == LEGACY_LEN { slices.append(&self.field, 0, self.added()) } else { 0 };
        slices.append(&self.chain, header, self.chain.bytes() - header);
        added
    }

    /// Bytes by which chains become longer.
    pub(super) fn added(&self) -> usize {
        self.field.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengthened(chain: &[u8]) -> (usize, Vec<u8>) {
        let mut legacy = LegacyHeader::for_features(0).unwrap();
        legacy.chain().append(&Iovs::from_owned(chain.to_vec()), 0, chain.len());
        let mut slices = Iovs::new();
        let added = legacy.lengthen(&mut slices);
        let mut bytes = vec![0xee; slices.bytes()];
        slices.read(0, 0, &mut bytes);
        (added, bytes)
    }

    #[test]
    fn a_legacy_header_is_followed_by_the_missing_field() {
        assert_eq!(lengthened(b"0123456789frame"), (2, b"0123456789\0\0frame".to_vec()));
        assert_eq!(lengthened(b"0123456789"), (2, b"0123456789\0\0".to_vec()));
        assert_eq!(lengthened(b"012"), (0, b"012".to_vec()));
        assert_eq!(lengthened(b""), (0, Vec::new()));
    }

    #[test]
    fn either_feature_makes_a_header_whole() {
        assert!(LegacyHeader::for_features(1 << VIRTIO_F_VERSION_1).is_none());
        assert!(LegacyHeader::for_features(1 << VIRTIO_NET_F_MRG_RXBUF).is_none());
        assert!(
            LegacyHeader::for_features(!((1 << VIRTIO_F_VERSION_1) | (1 << VIRTIO_NET_F_MRG_RXBUF)))
                .is_some()
        );
    }
}
