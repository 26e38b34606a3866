//! Buttons of a machine and questions to its guest.
//!
//! Whether the machine is in the state for it is asked of the launcher, not read from the VMI, which may lag
//! behind: two users who pause at once get one success and one conflict.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use jiff::SignedDuration;
use podvirt_api::v1;
use podvirt_proto::domain::{Domain, Status};
use serde::Deserialize;

use super::guest::{self, List, Rows};
use super::{Failure, Server, not_running};
use crate::launcher::client::{Order, Question};

/// What QEMU makes pictures of the screen in.
const PICTURES: [&str; 2] = ["image/png", "image/x-portable-pixmap"];

type Name = Path<(String, String)>;
type Answer<T> = Result<T, Failure>;

pub(super) async fn pause(server: State<Server>, name: Name) -> Answer<StatusCode> {
    press(&server, &name, Order::Pause, |domain| {
        let paused = domain.status == Status::Paused;
        if paused { Err(Failure::conflict("VMI is already paused")) } else { Ok(()) }
    })
    .await
}

pub(super) async fn unpause(server: State<Server>, name: Name) -> Answer<StatusCode> {
    press(&server, &name, Order::Unpause, |domain| {
        let paused = domain.status == Status::Paused;
        if paused { Ok(()) } else { Err(Failure::conflict("VMI is not paused")) }
    })
    .await
}

pub(super) async fn reset(server: State<Server>, name: Name) -> Answer<StatusCode> {
    press(&server, &name, Order::Reset, |_| Ok(())).await
}

pub(super) async fn soft_reboot(server: State<Server>, name: Name) -> Answer<StatusCode> {
    press(&server, &name, Order::SoftReboot, |domain| {
        // A guest that stands still hears nothing.
        if domain.status == Status::Paused { Err(Failure::conflict("VMI is paused")) } else { Ok(()) }
    })
    .await
}

pub(super) async fn freeze(server: State<Server>, name: Name, body: Bytes) -> Answer<StatusCode> {
    let timeout = freeze_timeout(&body)?;
    press(&server, &name, Order::Freeze(timeout), agent).await
}

pub(super) async fn unfreeze(server: State<Server>, name: Name) -> Answer<StatusCode> {
    press(&server, &name, Order::Unfreeze, agent).await
}

pub(super) async fn guest_os_info(server: State<Server>, name: Name) -> Answer<Json<guest::Info>> {
    ask(&server, &name, Question::GuestInfo).await.map(Json)
}

pub(super) async fn user_list(
    server: State<Server>,
    name: Name,
) -> Answer<Json<List<v1::VirtualMachineInstanceGuestOsUser>>> {
    let users: Rows<v1::VirtualMachineInstanceGuestOsUser> = ask(&server, &name, Question::Users).await?;
    Ok(Json(users.into()))
}

pub(super) async fn filesystem_list(
    server: State<Server>,
    name: Name,
) -> Answer<Json<List<v1::VirtualMachineInstanceFileSystem>>> {
    let all: Rows<v1::VirtualMachineInstanceFileSystem> = ask(&server, &name, Question::Filesystems).await?;
    Ok(Json(all.into()))
}

/// A picture of the screen.
pub(super) async fn screenshot(server: State<Server>, Path((namespace, name)): Name) -> Answer<Response> {
    let (vmi, pod) = server.find(&namespace, &name)?;
    let client = server.launcher(&pod).await?;
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    client.domain(uid).await?.filter(|domain| domain.status.is_active()).ok_or_else(not_running)?;
    let (mime, data) = client.picture(&vmi).await?;
    // A guest that broke out may answer in its launcher's place. Only the media types of pictures are handed on, none that a
    // browser would run.
    let mime = PICTURES.iter().find(|known| **known == mime).copied().unwrap_or("application/octet-stream");
    Ok(([(header::CONTENT_TYPE, mime)], data).into_response())
}

/// Orders something, if the machine is in the state for it.
async fn press(
    server: &Server,
    Path((namespace, name)): &Name,
    order: Order,
    allowed: impl FnOnce(&Domain) -> Result<(), Failure>,
) -> Answer<StatusCode> {
    let (vmi, pod) = server.find(namespace, name)?;
    let client = server.launcher(&pod).await?;
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let domain = client.domain(uid).await?.filter(|domain| domain.status.is_active());
    allowed(&domain.ok_or_else(not_running)?)?;
    tracing::info!(namespace, vmi = name, uid, ?order, "ordered by a user");
    client.order(order, &vmi).await?;
    server.look_at(&vmi).await;
    Ok(StatusCode::ACCEPTED)
}

/// Asks the guest's agent.
async fn ask<T: serde::de::DeserializeOwned>(
    server: &Server,
    Path((namespace, name)): &Name,
    question: Question,
) -> Answer<T> {
    let (vmi, pod) = server.find(namespace, name)?;
    let client = server.launcher(&pod).await?;
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let domain = client.domain(uid).await?.filter(|domain| domain.status.is_active());
    agent(&domain.ok_or_else(not_running)?)?;
    let answer = client.ask(question).await?;
    serde_json::from_str(&answer)
        .map_err(|error| Failure::internal(format!("the guest agent's answer cannot be read: {error}")))
}

fn agent(domain: &Domain) -> Result<(), Failure> {
    if domain.agent_connected {
        Ok(())
    } else {
        Err(Failure::conflict("VMI does not have guest agent connected"))
    }
}

/// Seconds after which a freeze ends by itself, from the request's body; 0 when it says nothing.
pub(super) fn freeze_timeout(body: &[u8]) -> Result<i32, Failure> {
    #[derive(Default, Deserialize)]
    struct Wish {
        #[serde(default, rename = "unfreezeTimeout")]
        timeout: Option<String>,
    }
    if body.is_empty() {
        return Ok(0);
    }
    let wish: Wish = serde_json::from_slice(body).map_err(|error| Failure::bad_request(error.to_string()))?;
    let Some(text) = wish.timeout.filter(|text| text != "0" && !text.is_empty()) else { return Ok(0) };
    let duration: Option<SignedDuration> = text.parse().ok();
    let seconds = duration.filter(|d| !d.is_negative()).and_then(|d| i32::try_from(d.as_secs()).ok());
    seconds.ok_or_else(|| {
        Failure::bad_request(format!("unfreezeTimeout {text:?}: a duration such as 30s or 5m0s is allowed"))
    })
}
