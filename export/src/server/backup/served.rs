//! An exporter of a backup that serves by TLS, for tests. Built for tests and by the feature `testing`, never into a program.
#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use jiff::Timestamp;
use podvirt_api::export::backup::path;
use podvirt_daemon::pki::{KeyPairPem, Purpose, make_ca, make_leaf};
use podvirt_daemon::serve::serve;
use podvirt_daemon::shutdown::{Shutdown, Trigger};
use tokio::net::TcpListener;

use super::super::config::{Backup, Config, Disk};
use super::super::{router, tls};
use crate::BOUNDS;

/// Name in its certificate.
pub const NAME: &str = "virt-export-b.ns.svc";
/// The token that it wants.
pub const TOKEN: &str = "secret";
/// The backup's UID.
pub const UID: &str = "u-1";
const HOUR: Duration = Duration::from_secs(3600);

/// An exporter, which serves until it is dropped.
pub struct Served {
    /// What it was told.
    pub config: Config,
    /// CAs of its own certificate, and of the machine's.
    pub cas: [KeyPairPem; 2],
    /// Where it is reached.
    pub address: SocketAddr,
    /// What it serves: the same as by TLS.
    pub routes: Router,
    _running: Trigger,
}

/// A certificate of a CA.
pub fn leaf(ca: &KeyPairPem, name: &str, purpose: Purpose) -> KeyPairPem {
    make_leaf(ca, name, &[NAME.to_owned()], purpose, Timestamp::now(), HOUR).unwrap()
}

impl Served {
    /// Serves a backup of these volumes; `files`: a directory for its files.
    pub async fn new(files: &Path, volumes: &[&str]) -> Self {
        let cas = [make_ca(Timestamp::now(), HOUR).unwrap(), make_ca(Timestamp::now(), HOUR).unwrap()];
        let file = |name: &str, text: &str| -> PathBuf {
            let path = files.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let pair = leaf(&cas[0], NAME, Purpose::Server);
        let disk = |volume: &&str| Disk {
            volume: (*volume).to_owned(),
            data: Some(path(volume, "data")),
            map: Some(path(volume, "map")),
        };
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            certificate: file("tls.crt", &pair.certificate),
            key: file("tls.key", &pair.key),
            token: file("token", TOKEN),
            deadline: None,
            volumes: Vec::new(),
            backup: Some(Backup {
                uid: UID.to_owned(),
                kind: None,
                ca: cas[1].certificate.clone(),
                disks: volumes.iter().map(disk).collect(),
            }),
            manifests: None,
            secret: None,
            data: files.to_owned(),
        };
        let listener = TcpListener::bind(config.listen).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (running, shutdown) = Shutdown::manual();
        let routes = router(&config);
        let by_tls = Some(tls::config(&config).unwrap());
        tokio::spawn(serve(listener, by_tls, routes.clone(), BOUNDS, shutdown));
        Served { config, cas, address, routes, _running: running }
    }
}
