//! Lists of users' objects, read in parts.
//!
//! A user's object may be as large as etcd takes it, and any number of them may have the label that is asked for. So a list comes in
//! pages, of which a caller keeps what it needs; the number of pages is bounded.

use std::fmt::Debug;

use kube::api::ListParams;
use kube::core::{ObjectList, PartialObjectMeta};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// Objects of a page.
pub(crate) const PAGE_OBJECTS: u32 = 32;
/// Most pages of a list: what is behind is not looked at.
const MAX_PAGES: usize = 32;

/// Reads the metadata of what `params` selects.
///
/// # Errors
///
/// The API server cannot be asked.
pub(crate) async fn each_metadata<K: Resource + Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    params: ListParams,
    mut visit: impl FnMut(PartialObjectMeta<K>),
) -> Result<(), kube::Error> {
    let mut params = params.limit(PAGE_OBJECTS);
    for _ in 0..MAX_PAGES {
        let list = api.list_metadata(&params).await?;
        let more = following(&list);
        list.items.into_iter().for_each(&mut visit);
        let Some(more) = more else { break };
        params = params.continue_token(&more);
    }
    Ok(())
}

/// Reads what `params` selects.
///
/// # Errors
///
/// The API server cannot be asked.
pub(crate) async fn each<K: Resource + Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    params: ListParams,
    mut visit: impl FnMut(K),
) -> Result<(), kube::Error> {
    let mut params = params.limit(PAGE_OBJECTS);
    for _ in 0..MAX_PAGES {
        let list = api.list(&params).await?;
        let more = following(&list);
        list.items.into_iter().for_each(&mut visit);
        let Some(more) = more else { break };
        params = params.continue_token(&more);
    }
    Ok(())
}

fn following<K: Clone>(list: &ObjectList<K>) -> Option<String> {
    list.metadata.continue_.clone().filter(|token| !token.is_empty())
}
