//! Questions to the API server, repeated until a timeout, and its answers.

use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use podvirt_api::error::chain;

use crate::ipam::StoreError;

/// How long one answer of the API server is waited for.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Objects in one part of a list.
const PAGE: u32 = 500;

/// Waits for an answer until a timeout.
pub(super) async fn asked_raw<T>(
    what: &str,
    question: impl Future<Output = kube::Result<T>>,
) -> Result<kube::Result<T>, StoreError> {
    let answer = tokio::time::timeout(TIMEOUT, question).await;
    answer.map_err(|_| unanswered(what, &format!("no answer within {} s", TIMEOUT.as_secs())))
}

pub(super) async fn asked<T>(
    what: &str,
    question: impl Future<Output = kube::Result<T>>,
) -> Result<T, StoreError> {
    answered(what, asked_raw(what, question).await?)
}

/// No value for the answer `status`.
pub(super) fn unless<T>(status: u16, answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Err(kube::Error::Api(e)) if e.code == status => Ok(None),
        other => other.map(Some),
    }
}

pub(super) fn answered<T>(what: &str, answer: kube::Result<T>) -> Result<T, StoreError> {
    answer.map_err(|e| match e {
        kube::Error::Api(_) | kube::Error::SerdeError(_) => failed(what, &chain(&e)),
        _ => unanswered(what, &chain(&e)),
    })
}

pub(super) fn gone_is_none<T>(what: &str, answer: kube::Result<Option<T>>) -> Result<Option<T>, StoreError> {
    answered(what, unless(404, answer)).map(Option::flatten)
}

pub(super) async fn list<K>(what: &str, api: &Api<K>, params: ListParams) -> Result<Vec<K>, StoreError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    list_if_known(what, api, params)
        .await?
        .ok_or_else(|| failed(what, "the API server does not know the kind"))
}

/// Nothing, where the API server does not know the kind.
pub(super) async fn list_if_known<K>(
    what: &str,
    api: &Api<K>,
    params: ListParams,
) -> Result<Option<Vec<K>>, StoreError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut params = params.limit(PAGE);
    let mut all = Vec::new();
    loop {
        // A part that is too old is an error: the next pass begins anew.
        let page = answered(what, unless(404, asked_raw(what, api.list(&params)).await?))?;
        let Some(page) = page else { return Ok(None) };
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(Some(all)),
        }
    }
}

pub(super) fn failed(what: &str, why: &str) -> StoreError {
    StoreError { what: what.to_owned(), why: why.to_owned(), is_answered: true }
}

fn unanswered(what: &str, why: &str) -> StoreError {
    StoreError { is_answered: false, ..failed(what, why) }
}
