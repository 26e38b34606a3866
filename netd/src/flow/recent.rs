//! Which flow of a list was put there first, or was used least recently: lists through the table's slots.
//!
//! A slot is in one list at most, between the slot that was used before it and the one that was used after it. Every
//! operation touches a slot and its two neighbours, however long the list is.

/// Lists that there are.
pub const LISTS: usize = 10;
/// No slot; no list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Links {
    older: u32,
    newer: u32,
    list: u32,
}

const UNLINKED: Links = Links { older: NONE, newer: NONE, list: NONE };

#[derive(Debug)]
pub(super) struct Recent {
    links: Vec<Links>,
    /// The oldest and the newest of each list.
    ends: [(u32, u32); LISTS],
    lengths: [u32; LISTS],
}

impl Recent {
    /// Empty lists.
    pub(super) fn with_capacity(slots: usize) -> Recent {
        Recent { links: Vec::with_capacity(slots), ends: [(NONE, NONE); LISTS], lengths: [0; LISTS] }
    }

    /// Puts a slot at the newest end of a list, wherever it was before.
    pub(super) fn put(&mut self, slot: u32, list: usize) {
        self.remove(slot);
        if list >= LISTS {
            return;
        }
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, UNLINKED);
        }
        self.lengths[list] += 1;
        let before = std::mem::replace(&mut self.ends[list].1, slot);
        self.links[slot as usize] = Links { older: before, newer: NONE, list: list as u32 };
        match self.links.get_mut(before as usize) {
            Some(links) => links.newer = slot,
            None => self.ends[list].0 = slot,
        }
    }

    /// Takes a slot out of its list, if it is in one.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(links) = self.links.get_mut(slot as usize) else { return };
        let Links { older, newer, list } = std::mem::replace(links, UNLINKED);
        let Some(ends) = self.ends.get_mut(list as usize) else { return };
        self.lengths[list as usize] -= 1;
        match self.links.get_mut(older as usize) {
            Some(links) => links.newer = newer,
            None => ends.0 = newer,
        }
        match self.links.get_mut(newer as usize) {
            Some(links) => links.older = older,
            None => ends.1 = older,
        }
    }

    /// Slots of a list.
    pub(super) fn len(&self, list: usize) -> u32 {
        self.lengths.get(list).copied().unwrap_or(0)
    }

    /// The slot of a list that was used least recently.
    pub(super) fn oldest(&self, list: usize) -> Option<u32> {
        self.ends.get(list).map(|ends| ends.0).filter(|slot| *slot != NONE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_are_as_plain_ones_would_be(
            steps in prop::collection::vec((0u32..12, 0usize..LISTS + 2), 0..200),
        ) {
            let mut recent = Recent::with_capacity(4);
            let mut plain: [Vec<u32>; LISTS] = Default::default();
            for (slot, list) in steps {
                plain.iter_mut().for_each(|l| l.retain(|s| *s != slot));
                if list == LISTS {
                    recent.remove(slot);
                } else {
                    recent.put(slot, list);
                    if let Some(l) = plain.get_mut(list) {
                        l.push(slot);
                    }
                }
                for (list, plain) in plain.iter().enumerate() {
                    prop_assert_eq!(recent.oldest(list), plain.first().copied());
                    prop_assert_eq!(recent.len(list) as usize, plain.len());
                }
            }
            // From the oldest to the newest, until nothing is left.
            for (list, plain) in plain.iter().enumerate() {
                for slot in plain {
                    prop_assert_eq!(recent.oldest(list), Some(*slot));
                    recent.remove(*slot);
                }
                prop_assert_eq!(recent.oldest(list), None);
            }
        }
    }
}
