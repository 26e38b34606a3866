//! How fast an exported disk is downloaded, beside `cat` of the same bytes over TLS.
//!
//! The client is the same for both, a small one in a pod, and only counts what comes. Two claims have the same content: one that is
//! exported must not be in use.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use podvirt_api::v1::{VirtualMachineExport, VirtualMachineExportLink, VirtualMachineExportPhase};
use podvirt_e2e::cluster::{ClientPod, Namespace, SOON};

use super::disks::{NODE, claim, pod};
use crate::sides::{Run, turns};

/// What is downloaded, MiB.
pub(super) const MIB: u32 = 1024;
/// The sides, in the order of the table.
pub(super) const SIDES: [(&str, &str); 2] = [("export", "export"), ("cat", "`cat` over TLS")];
/// The figure.
pub(super) const RATE: &str = "mib_per_second";
/// The port of `cat`.
const PORT: u16 = 8443;
/// The shell commands that start the server of `cat`, with a certificate of its own and large buffers.
fn cat_command() -> String {
    format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=cat -keyout /tmp/key \
         -out /tmp/cert 2>/dev/null && cat /tmp/key /tmp/cert >/tmp/pem && \
         (setsid socat -b 262144 OPENSSL-LISTEN:{PORT},reuseaddr,fork,cert=/tmp/pem,verify=0 EXEC:'cat /dev/catted' \
         >/tmp/log 2>&1 </dev/null &) && i=0; until ss -Hltn | grep -q :{PORT}; do i=$((i + 1)); [ $i -lt 100 ] || exit 1; \
         sleep 0.1; done"
    )
}

/// A place to download from.
struct Source {
    host: String,
    port: u16,
    /// What is said to it, if it waits for something.
    request: String,
}

/// Downloads in turns.
///
/// # Errors
/// A source is not there, or does not give all of it.
pub(super) fn measure(namespace: &Namespace<'_>, rounds: u32, out: &mut impl Write) -> Result<Vec<Run>> {
    for name in ["exported", "catted"] {
        claim(namespace, name, "Block", &format!("{MIB}Mi"))?;
    }
    pod(namespace, "both", &["exported", "catted"], &[])?;
    let fill = format!(
        "dd if=/dev/urandom of=/dev/exported bs=1M count={MIB} oflag=direct 2>/dev/null && \
         dd if=/dev/exported of=/dev/catted bs=1M oflag=direct 2>/dev/null"
    );
    namespace.exec("both", &["sh", "-c", &fill])?;
    namespace.kubectl(&["delete", "pod", "both"])?;

    pod(namespace, "cat", &["catted"], &[])?;
    namespace.exec("cat", &["sh", "-c", &cat_command()])?;
    let status = namespace.wait_pod("cat", SOON)?.status.context("a pod without a status")?;
    let cat = Source {
        host: status.pod_ip.context("a pod without an address")?,
        port: PORT,
        request: String::new(),
    };
    let export = exported(namespace)?;
    let client = ClientPod::start(namespace, "client", NODE, "")?;

    let mut runs = Vec::new();
    // The first one brings what is read into memory, and is not counted.
    for source in [&export, &cat] {
        fetch(&client, source)?;
    }
    for round in 0..rounds {
        for at in turns(SIDES.len(), round) {
            let Some((key, _)) = SIDES.get(at) else { continue };
            let rate = fetch(&client, if *key == "export" { &export } else { &cat })?;
            writeln!(out, "round {}, {key}: {rate:.0} MiB/s", round + 1)?;
            runs.push(Run {
                subject: (*key).to_owned(),
                round,
                figures: [(RATE.to_owned(), rate)].into(),
                ..Run::default()
            });
        }
    }
    Ok(runs)
}

/// Exports the claim, and waits for its server.
fn exported(namespace: &Namespace<'_>) -> Result<Source> {
    namespace.apply(
        "{apiVersion: export.kubevirt.io/v1beta1, kind: VirtualMachineExport, metadata: {name: out}, \
         spec: {source: {apiGroup: '', kind: PersistentVolumeClaim, name: exported}}}",
    )?;
    let ready = |one: &VirtualMachineExport| one.status.phase == Some(VirtualMachineExportPhase::Ready);
    let export = namespace.wait("out", "an export", Duration::from_secs(120), ready)?;
    let link = export.status.links.and_then(|links| links.internal).context("an export without a link")?;
    let token = namespace.kubectl(&[
        "get",
        "secret",
        &export.status.token_secret_ref.context("an export without a token")?,
        "-o",
        "go-template={{.data.token | base64decode}}",
    ])?;
    let url = raw(&link).context("no raw disk in the export")?;
    let rest = url.strip_prefix("https://").with_context(|| url.clone())?;
    let (host, path) = rest.split_once('/').with_context(|| url.clone())?;
    let request = format!(
        "GET /{path} HTTP/1.1\\r\\nHost: {host}\\r\\nx-kubevirt-export-token: {token}\\r\\nConnection: close\\r\\n\\r\\n"
    );
    Ok(Source { host: host.to_owned(), port: 443, request })
}

fn raw(link: &VirtualMachineExportLink) -> Option<String> {
    let mut formats = link.volumes.iter().flat_map(|volume| &volume.formats);
    formats.find(|one| one.format.as_str() == "raw").map(|one| one.url.clone())
}

/// Downloads by a small client in the pod, which counts, and says how many MiB came in a second.
///
/// # Errors
/// Not all of it comes.
fn fetch(client: &ClientPod<'_>, Source { host, port, request }: &Source) -> Result<f64> {
    // Neither side's certificate is what is measured.
    let script = format!(
        "import socket, ssl, time\n\
         tls = ssl.create_default_context(); tls.check_hostname = False; tls.verify_mode = ssl.CERT_NONE\n\
         for attempt in range(150):\n\
         \x20 try: plain = socket.create_connection(('{host}', {port}), 60); break\n\
         \x20 except ConnectionRefusedError: time.sleep(0.2)\n\
         stream = tls.wrap_socket(plain, server_hostname='{host}')\n\
         stream.sendall(b'{request}')\n\
         into = bytearray(1 << 20); count = 0; start = time.monotonic()\n\
         while True:\n\
         \x20 try: got = stream.recv_into(into)\n\
         \x20 except ssl.SSLEOFError: break\n\
         \x20 if got == 0: break\n\
         \x20 count += got\n\
         print(count, time.monotonic() - start)\n"
    );
    let told = client.sh(&format!("python3 - <<'EOF'\n{script}EOF"))?;
    let mut words = told.split_whitespace().map(str::parse::<f64>);
    let (Some(Ok(bytes)), Some(Ok(seconds))) = (words.next(), words.next()) else {
        bail!("the client says: {told}")
    };
    let mib = bytes / f64::from(1 << 20);
    // The answer's head comes with it.
    ensure!(mib >= f64::from(MIB) && mib < f64::from(MIB) + 0.1, "{bytes} bytes of {MIB} MiB from {host}");
    Ok(mib / seconds)
}
