//! Objects of a list that cannot be read.
//!
//! IPAMClaims are other programs' and users' objects, and their definition bounds little of what is in them. One that
//! cannot be read is left out of the list and warned of once; the others are as they are.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use kube::api::DynamicObject;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::ask::failed;
use crate::ipam::StoreError;

/// What is wrong with each object that cannot be read, by UID.
type Reasons = BTreeMap<String, String>;

/// Which objects each list lacked when it was read last. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Unreadable(Arc<Mutex<BTreeMap<String, Reasons>>>);

/// A list as far as it can be read.
pub(super) struct Listed<T> {
    /// What was read.
    pub(super) objects: Vec<T>,
    /// UIDs of the others.
    pub(super) unreadable: HashSet<String>,
}

impl Unreadable {
    /// Reads the objects of the list `list` by `read`, and warns of those that cannot be read now and could before.
    pub(super) fn without<K, T>(
        &self,
        list: &str,
        objects: Vec<DynamicObject>,
        read: impl Fn(&K) -> Result<T, StoreError>,
    ) -> Listed<T>
    where
        K: Resource + DeserializeOwned,
    {
        let (mut found, mut reasons) = (Vec::with_capacity(objects.len()), Reasons::new());
        for object in objects {
            let uid = object.uid().unwrap_or_default();
            let title = format!("read {}/{}", object.namespace().unwrap_or_default(), object.name_any());
            let typed = object.try_parse::<K>().map_err(|error| failed(&title, &error.to_string()));
            match typed.and_then(|typed| read(&typed)) {
                Ok(value) => found.push(value),
                Err(error) => {
                    reasons.insert(uid, error.to_string());
                }
            }
        }
        let unreadable = reasons.keys().cloned().collect();
        self.warn(list, reasons);
        Listed { objects: found, unreadable }
    }

    fn warn(&self, list: &str, reasons: Reasons) {
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = lists.remove(list).unwrap_or_default();
        for (uid, reason) in &reasons {
            if before.get(uid) != Some(reason) {
                warn!(list, uid, reason, "an object cannot be read: it is left out, its addresses stay held");
            }
        }
        if !reasons.is_empty() {
            lists.insert(list.to_owned(), reasons);
        }
    }
}
