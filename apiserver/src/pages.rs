//! Lists of users' objects, read in parts.
//!
//! A user's object may be as large as etcd takes it, and any number of them may have the label that is asked for. So a list comes in
//! pages, of which a caller keeps what it needs; the number of pages is bounded.

use std::fmt::Debug;

use kube::api::ListParams;
use kube::core::{ObjectList, PartialObjectMeta};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// Objects of a page: each may have 1.5 MB, in its metadata alone, and several lists are read at a time.
pub(crate) const PAGE_OBJECTS: u32 = 4;
/// Most pages of a list: what is behind is not looked at.
const MAX_PAGES: usize = 256;

/// Reads the metadata of what `params` selects.
///
/// # Errors
///
/// The API server cannot be asked.
pub(crate) async fn each_metadata<K: Resource + Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    params: ListParams,
    visit: impl FnMut(PartialObjectMeta<K>),
) -> Result<(), kube::Error> {
    each_item(params, move |page| async move { api.list_metadata(&page).await }, visit).await
}

/// Reads what `params` selects.
///
/// # Errors
///
/// The API server cannot be asked.
pub(crate) async fn each<K: Resource + Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    params: ListParams,
    visit: impl FnMut(K),
) -> Result<(), kube::Error> {
    each_item(params, move |page| async move { api.list(&page).await }, visit).await
}

/// Reads pages by `request`, up to the bound.
async fn each_item<T, F>(
    params: ListParams,
    request: impl Fn(ListParams) -> F,
    mut visit: impl FnMut(T),
) -> Result<(), kube::Error>
where
    T: Clone,
    F: Future<Output = Result<ObjectList<T>, kube::Error>>,
{
    let mut params = params.limit(PAGE_OBJECTS);
    for _ in 0..MAX_PAGES {
        let list = request(params.clone()).await?;
        list.items.into_iter().for_each(&mut visit);
        let Some(token) = list.metadata.continue_.filter(|token| !token.is_empty()) else { break };
        params = params.continue_token(&token);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use podvirt_daemon::testing;
    use serde_json::json;

    use super::*;

    /// Pods on so many pages, one on each, whose names are the pages' numbers.
    fn pods(pages: usize) -> Api<Pod> {
        let client = testing::client("ns", move |_, uri, _| {
            let query = uri.query().unwrap_or_default();
            assert!(query.contains(&format!("limit={PAGE_OBJECTS}")), "{query}");
            let token = query.split('&').find_map(|pair| pair.strip_prefix("continue="));
            let page: usize = token.map_or(0, |token| token.parse().unwrap());
            let next = if page + 1 < pages { (page + 1).to_string() } else { String::new() };
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": page.to_string()}});
            let metadata = json!({"continue": next});
            (200, json!({"apiVersion": "v1", "kind": "PodList", "metadata": metadata, "items": [pod]}))
        });
        Api::namespaced(client, "ns")
    }

    #[tokio::test]
    async fn lists_are_read_page_by_page_up_to_a_bound() {
        for (pages, read) in [(1, 1), (3, 3), (MAX_PAGES + 1, MAX_PAGES)] {
            let expected: Vec<String> = (0..read).map(|page| page.to_string()).collect();
            let (mut objects, mut metadata) = (Vec::new(), Vec::new());
            let (api, all) = (pods(pages), ListParams::default());
            each(&api, all.clone(), |pod| objects.extend(pod.metadata.name)).await.unwrap();
            each_metadata(&api, all, |pod| metadata.extend(pod.metadata.name)).await.unwrap();
            assert_eq!((&objects, &metadata), (&expected, &expected), "{pages} pages");
        }
    }
}
