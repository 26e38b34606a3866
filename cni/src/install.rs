//! `podvirt-cni install`: puts the plugin onto a node and keeps what it needs there fresh.
//!
//! | file | what |
//! |---|---|
//! | `BIN-DIR/podvirt-cni` | this program |
//! | [`DIRECTORY`]`/kubeconfig` | how the plugin reaches the API server, with the installer's token |
//! | [`DIRECTORY`]`/node` | the node's name |
//! | `CONF-DIR/10-podvirt.conflist` | where podvirt-cni is the primary plugin: the network, last of all |
//!
//! The token is one of the installer's pod: the kubelet renews it, the installer writes it anew, and it ends with the
//! pod. So the installer goes on for as long as the plugin shall work. Files are replaced, never written in place: a
//! plugin that runs at that moment reads the one or the other.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use podvirt_daemon::shutdown::Shutdown;
use serde_json::json;
use tracing::info;

/// Where the plugin looks on a node. It is not a field of a network's configuration: a user who writes one could name
/// any credentials of the node.
pub const DIRECTORY: &str = "/etc/cni/net.d/podvirt-cni.d";
/// Name of the plugin's program, as networks' configurations have it.
const NAME: &str = "podvirt-cni";
/// How often the token is looked at. The kubelet renews it long before it ends.
const PERIOD: Duration = Duration::from_secs(30);

/// What to put where.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The node's name
    #[arg(long, env = "NODE_NAME")]
    pub node: String,
    /// Directory of the node's CNI plugins
    #[arg(long, default_value = "/host/opt/cni/bin")]
    pub bin_dir: PathBuf,
    /// Directory of the plugin's own files: /etc/cni/net.d/podvirt-cni.d of the node
    #[arg(long, default_value = "/host/etc/cni/net.d/podvirt-cni.d")]
    pub directory: PathBuf,
    /// A network of which podvirt-cni is the primary plugin: its list is put into --conf-dir when all else stands
    #[arg(long, requires = "conf_dir")]
    pub network: Option<PathBuf>,
    /// Directory of the node's networks
    #[arg(long)]
    pub conf_dir: Option<PathBuf>,
    /// Address of the API server as nodes reach it; the one that pods are given where not set
    #[arg(long, env = "KUBERNETES_SERVER")]
    pub server: Option<String>,
    /// Directory of the pod's token and of the API server's certificate
    #[arg(long, default_value = "/var/run/secrets/kubernetes.io/serviceaccount")]
    pub account: PathBuf,
}

/// Installs, and keeps the files fresh until the end is asked for. They stay: pods have to be torn down, too.
///
/// # Errors
/// A file cannot be read or written.
pub async fn run(options: &Options, shutdown: &Shutdown) -> Result<()> {
    loop {
        for path in write(options)? {
            info!(path = %path.display(), "written");
        }
        if shutdown.or(tokio::time::sleep(PERIOD)).await.is_none() {
            return Ok(());
        }
    }
}

/// Writes what is not there or not up to date; answers that.
///
/// # Errors
/// A file cannot be read or written.
pub fn write(options: &Options) -> Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    let mut put = |path: PathBuf, content: &[u8], mode: u32| -> Result<()> {
        if replace(&path, content, mode).with_context(|| format!("write {}", path.display()))? {
            written.push(path);
        }
        Ok(())
    };
    let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
    fs::create_dir_all(&options.directory)
        .with_context(|| format!("make {}", options.directory.display()))?;
    let (ca, token) = (read(&options.account.join("ca.crt"))?, read(&options.account.join("token"))?);
    let token = String::from_utf8(token).context("the token is no text")?;
    ensure!(!token.trim().is_empty(), "the token is empty");
    let kubeconfig = kubeconfig(&server(options)?, &ca, token.trim());
    put(options.directory.join("kubeconfig"), kubeconfig.as_bytes(), 0o600)?;
    put(options.directory.join("node"), options.node.as_bytes(), 0o644)?;
    put(options.bin_dir.join(NAME), &read(Path::new("/proc/self/exe"))?, 0o755)?;
    if let (Some(network), Some(conf_dir)) = (&options.network, &options.conf_dir) {
        // Last: with this file the node takes pods.
        put(conf_dir.join("10-podvirt.conflist"), &read(network)?, 0o644)?;
    }
    Ok(written)
}

fn server(options: &Options) -> Result<String> {
    if let Some(server) = &options.server {
        return Ok(server.clone());
    }
    let get = |name: &str| std::env::var(name).with_context(|| format!("neither --server nor {name} is set"));
    let (host, port) = (get("KUBERNETES_SERVICE_HOST")?, get("KUBERNETES_SERVICE_PORT")?);
    Ok(if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") })
}

/// JSON, which is YAML.
fn kubeconfig(server: &str, ca: &[u8], token: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": NAME,
        "clusters": [{"name": NAME, "cluster": {"server": server, "certificate-authority-data": STANDARD.encode(ca)}}],
        "users": [{"name": NAME, "user": {"token": token}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
    })
    .to_string()
}

/// Puts `content` at `path` as a whole; whether it was not there already.
fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<bool> {
    match fs::read(path) {
        Ok(there) if there == content => return Ok(false),
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}.new", std::process::id()));
    let new = PathBuf::from(new);
    let put = || {
        fs::write(&new, [])?;
        // Before the content, which may be secret.
        fs::set_permissions(&new, Permissions::from_mode(mode))?;
        fs::write(&new, content)?;
        fs::rename(&new, path)
    };
    put().inspect_err(|_| {
        // What is told is the first error.
        let _gone = fs::remove_file(&new);
    })?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_is_renewed_only_where_it_changed() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for dir in ["bin", "conf", "account"] {
            fs::create_dir(path(dir)).unwrap();
        }
        fs::write(path("account/ca.crt"), "CA").unwrap();
        fs::write(path("account/token"), "one\n").unwrap();
        fs::write(path("flat.conflist"), "{}").unwrap();
        let options = Options {
            node: "node1".into(),
            bin_dir: path("bin"),
            directory: path("conf/podvirt-cni.d"),
            network: Some(path("flat.conflist")),
            conf_dir: Some(path("conf")),
            server: Some("https://10.96.0.1:443".into()),
            account: path("account"),
        };
        assert_eq!(write(&options).unwrap().len(), 4);
        assert!(write(&options).unwrap().is_empty());
        let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("bin/podvirt-cni"), mode("conf/podvirt-cni.d/kubeconfig")), (0o755, 0o600));
        assert_eq!(fs::read(path("bin/podvirt-cni")).unwrap(), fs::read("/proc/self/exe").unwrap());

        fs::write(path("account/token"), "two").unwrap();
        assert_eq!(write(&options).unwrap(), [path("conf/podvirt-cni.d/kubeconfig")]);
        let config = kube::config::Kubeconfig::read_from(path("conf/podvirt-cni.d/kubeconfig")).unwrap();
        assert_eq!(
            config.clusters[0].cluster.as_ref().unwrap().server.as_deref(),
            Some("https://10.96.0.1:443")
        );
        let names = fs::read_dir(path("conf")).unwrap().count();
        assert_eq!(names, 2, "nothing is left of the way there");
    }
}
