//! Which consecutive datagrams of a flow one system call can carry.
//!
//! The kernel takes a run of datagrams of one size, of which only the last may be shorter, as one message and cuts
//! it apart as late as it can (`UDP_SEGMENT`): they pass through its network stack once, not one by one. That is what
//! bulk protocols over UDP send. Order is kept in any case: runs follow each other as the datagrams do.

/// Datagrams of one run: what kernels of any age take (`UDP_MAX_SEGMENTS`).
pub const MAX_SEGMENTS: usize = 64;
/// Bytes of one run: the largest IPv6 packet without its headers.
const MAX_BYTES: u32 = 65_535 - 40 - 8;
/// Slices of one run: IOV_MAX.
const MAX_SLICES: u32 = 1024;

/// A datagram to be sent, as a run of slices of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// First slice.
    pub first: u32,
    /// Number of slices.
    pub slices: u32,
    /// Payload bytes.
    pub bytes: u32,
}

/// Consecutive datagrams that go as one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// How many.
    pub items: usize,
    /// First slice.
    pub first: u32,
    /// Number of slices.
    pub slices: u32,
    /// Size of each but the last where there are several.
    pub segment: Option<u16>,
}

/// The longest run at the start of `items`; none when there is no item. Datagrams larger than `largest` go one by
/// one: what is larger than the path has to be fragmented, which the kernel does not do to runs.
pub fn first_run(items: &[Item], largest: u16) -> Option<Run> {
    let (head, rest) = items.split_first()?;
    let mut run = Run { items: 1, first: head.first, slices: head.slices, segment: None };
    let size = u16::try_from(head.bytes).ok().filter(|n| (1..=largest).contains(n));
    let Some(size) = size else { return Some(run) };
    let mut bytes = head.bytes;
    for item in rest {
        let fits = (1..=head.bytes).contains(&item.bytes)
            && item.first == run.first + run.slices
            && run.items < MAX_SEGMENTS
            && bytes + item.bytes <= MAX_BYTES
            && run.slices + item.slices <= MAX_SLICES;
        if !fits {
            break;
        }
        run.items += 1;
        run.slices += item.slices;
        run.segment = Some(size);
        bytes += item.bytes;
        if item.bytes < head.bytes {
            break;
        }
    }
    Some(run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Datagrams of these sizes, each in so many slices.
    fn items(sizes: &[(u32, u32)]) -> Vec<Item> {
        let mut first = 0;
        let item = |&(bytes, slices): &(u32, u32)| {
            let item = Item { first, slices, bytes };
            first += slices;
            item
        };
        sizes.iter().map(item).collect()
    }

    fn runs(items: &[Item], largest: u16) -> Vec<Run> {
        let mut rest = items;
        std::iter::from_fn(|| {
            let run = first_run(rest, largest)?;
            rest = &rest[run.items..];
            Some(run)
        })
        .collect()
    }

    /// Sizes of runs in datagrams, and their segment sizes.
    fn shape(sizes: &[u32], largest: u16) -> Vec<(usize, u16)> {
        let sizes: Vec<_> = sizes.iter().map(|&bytes| (bytes, 1)).collect();
        runs(&items(&sizes), largest).iter().map(|r| (r.items, r.segment.unwrap_or(0))).collect()
    }

    #[test]
    fn equal_datagrams_are_one_run() {
        assert_eq!(shape(&[1200, 1200, 1200], 1472), [(3, 1200)]);
        assert_eq!(shape(&[1200], 1472), [(1, 0)]);
        assert_eq!(shape(&[], 1472), []);
    }

    #[test]
    fn a_shorter_one_ends_a_run_and_a_longer_one_begins_another() {
        assert_eq!(shape(&[1200, 1200, 100, 1200, 1200], 1472), [(3, 1200), (2, 1200)]);
        assert_eq!(shape(&[100, 1200, 1200, 7], 1472), [(1, 0), (3, 1200)]);
        assert_eq!(shape(&[5, 4, 3, 2, 1], 1472), [(2, 5), (2, 3), (1, 0)]);
    }

    #[test]
    fn empty_and_large_datagrams_go_alone() {
        assert_eq!(shape(&[0, 0, 0], 1472), [(1, 0), (1, 0), (1, 0)]);
        assert_eq!(shape(&[10, 0, 10], 1472), [(1, 0), (1, 0), (1, 0)]);
        assert_eq!(shape(&[1473, 1473], 1472), [(1, 0), (1, 0)]);
        assert_eq!(shape(&[10, 10], 0), [(1, 0), (1, 0)]);
    }

    #[test]
    fn a_run_is_as_long_as_the_kernel_takes() {
        assert_eq!(shape(&[10; 130], 1472), [(64, 10), (64, 10), (2, 10)]);
        assert_eq!(shape(&[1472; 60], 1472), [(44, 1472), (16, 1472)]);
        let scattered = items(&[(10, 500), (10, 500), (10, 500)]);
        assert_eq!(runs(&scattered, 1472).iter().map(|r| r.items).collect::<Vec<_>>(), [2, 1]);
    }

    proptest! {
        #[test]
        fn every_datagram_goes_once_and_as_the_kernel_cuts_it(
            sizes in proptest::collection::vec((0u32..4, 1u32..4), 0..300),
            largest in 0u16..4,
        ) {
            let items = items(&sizes);
            let mut at = 0;
            for run in runs(&items, largest) {
                let own = &items[at..at + run.items];
                at += run.items;
                prop_assert_eq!(run.first, own[0].first);
                prop_assert_eq!(run.slices, own.iter().map(|i| i.slices).sum::<u32>());
                let Some(size) = run.segment else {
                    prop_assert_eq!(own.len(), 1);
                    continue;
                };
                prop_assert!((2..=MAX_SEGMENTS).contains(&own.len()) && (1..=largest).contains(&size));
                let (last, others) = own.split_last().unwrap();
                prop_assert!(others.iter().all(|i| i.bytes == u32::from(size)));
                prop_assert!((1..=u32::from(size)).contains(&last.bytes));
            }
            prop_assert_eq!(at, items.len());
        }
    }
}
