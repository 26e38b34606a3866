//! What the programs share that virt-launcher is under other names.
//!
//! ```text
//!  virt-probe, virt-freezer ──gRPC, launcher's socket──> virt-launcher ──libvirt──> the guest's agent
//! ```
//!
//! The launcher's image has a link to virt-launcher for each of these names. The first word of its command line tells which program
//! is meant.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use hyper_util::rt::TokioIo;
use podvirt_api::names::path;
use podvirt_proto::cmd::v1::Response;
use podvirt_proto::cmd::v1::cmd_client::CmdClient;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// Whether virt-launcher was called by the program's name.
#[must_use]
pub fn is_meant(called_by: Option<&OsStr>, program: &str) -> bool {
    called_by.map(Path::new).and_then(Path::file_name).is_some_and(|name| name == program)
}

/// A connection to virt-launcher: by its socket in the pod when none is given.
pub(crate) async fn launcher(socket: Option<&Path>) -> Result<CmdClient<Channel>> {
    let pods = Path::new(path::SOCKETS).join(path::LAUNCHER_SOCKET);
    let socket = socket.unwrap_or(&pods);
    let connect = {
        let socket = socket.to_owned();
        tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        })
    };
    // The address is for form's sake: the connector knows the way.
    let channel = Endpoint::from_static("http://virt-launcher").connect_with_connector(connect).await;
    Ok(CmdClient::new(channel.with_context(|| format!("cannot reach {}", socket.display()))?))
}

/// What virt-launcher says of what it was asked for, in its words.
pub(crate) fn judge(response: Option<Response>) -> Result<()> {
    match response {
        Some(Response { success: true, .. }) => Ok(()),
        Some(Response { message, .. }) => bail!("{message}"),
        None => bail!("virt-launcher gave an answer without an outcome"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_what_is_meant() {
        let meant = |name: &str| is_meant(Some(OsStr::new(name)), "virt-probe");
        assert!(meant("virt-probe") && meant("/usr/bin/virt-probe"));
        assert!(!meant("/usr/bin/virt-launcher") && !meant("virt-probe/x") && !is_meant(None, "virt-probe"));
        let emulator = OsStr::new("/var/run/libvirt/e/qemu-system-x86_64");
        assert!(is_meant(Some(emulator), crate::emulator::NAME));
    }

    #[test]
    fn an_outcome_is_told_in_the_launchers_words() {
        let response =
            |success| Some(Response { success, message: "the guest's agent is not connected".into() });
        assert!(judge(response(true)).is_ok());
        assert_eq!(judge(response(false)).unwrap_err().to_string(), "the guest's agent is not connected");
        assert!(judge(None).is_err());
    }

    #[tokio::test]
    async fn a_launcher_that_is_not_there_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let error = launcher(Some(&directory.path().join("none"))).await.unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot reach "), "{error:#}");
    }
}
