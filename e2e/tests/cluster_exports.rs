//! Disks of the test bed's own storage, exported and downloaded: from a pod of the cluster, and by virtctl from outside.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podvirt_api::v1;
use podvirt_e2e::cluster::{BOOT, ClientPod, Cluster, Manifest, Namespace, SOON, Security, prepare_volumes};

/// A download of all of a large disk.
const DOWNLOADED: Duration = Duration::from_secs(300);
/// Size of the disk that is downloaded in many ways, in MiB.
const DISK_MIB: u64 = 16;

/// Makes a claim that is a block device.
fn claim(namespace: &Namespace<'_>, name: &str, size: &str) {
    let manifest = format!(
        "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {name}}}, spec: {{storageClassName: bed-block, \
         volumeMode: Block, accessModes: [ReadWriteMany], resources: {{requests: {{storage: {size}}}}}}}}}"
    );
    namespace.apply(&manifest).unwrap();
}

/// A pod that has the claim `data` as /dev/data and runs a command.
fn user(namespace: &Namespace<'_>, name: &str, command: &str) {
    let manifest = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{restartPolicy: Never, \
         terminationGracePeriodSeconds: 1, automountServiceAccountToken: false, securityContext: {{runAsUser: 107, \
         runAsGroup: 107, fsGroup: 107, runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}}}, \
         containers: [{{name: user, image: 'podvirt/tools:dev', command: [bash, -c, '{command}'], \
         securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}, \
         volumeDevices: [{{name: data, devicePath: /dev/data}}]}}], \
         volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]}}}}"
    );
    namespace.apply(&manifest).unwrap();
}

/// Fills the claim `data` with so many MiB that no other has, behind a hole, and returns the digest of all of it.
fn fill(namespace: &Namespace<'_>, mib: u32) -> String {
    let command = format!(
        "dd if=/dev/urandom of=/dev/data bs=1M seek=5 count={mib} conv=fsync 2>/dev/null && sha256sum </dev/data"
    );
    user(namespace, "writer", &command);
    let done =
        |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Succeeded"));
    namespace.wait::<Pod>("writer", "what it writes", SOON, done).unwrap();
    digest(&namespace.kubectl(&["logs", "writer"]).unwrap())
}

/// The first word.
fn digest(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().to_owned()
}

fn digest_of(path: &Path) -> String {
    let told = Command::new("sha256sum").stdin(fs::File::open(path).unwrap()).output().unwrap();
    digest(&String::from_utf8(told.stdout).unwrap())
}

fn export(namespace: &Namespace<'_>, name: &str, source: &str, more: &str) {
    let manifest = format!(
        "{{apiVersion: export.kubevirt.io/v1beta1, kind: VirtualMachineExport, metadata: {{name: {name}}}, \
         spec: {{source: {source}{more}}}}}"
    );
    namespace.apply(&manifest).unwrap();
}

fn is_ready(one: &v1::VirtualMachineExport) -> bool {
    one.status.phase == Some(v1::VirtualMachineExportPhase::Ready)
}

/// The export once it is ready, and its link for clients in the cluster.
fn ready(namespace: &Namespace<'_>, name: &str) -> v1::VirtualMachineExportLink {
    let export: v1::VirtualMachineExport =
        namespace.wait(name, "an export that is ready", SOON, is_ready).unwrap();
    export.status.links.unwrap().internal.unwrap()
}

fn url(link: &v1::VirtualMachineExportLink, volume: &str, format: &str) -> String {
    let volume = link.volumes.iter().find(|one| one.name == volume).unwrap();
    volume.formats.iter().find(|one| one.format.as_str() == format).unwrap().url.clone()
}

/// A client in a pod, which trusts the link's certificate alone and finds Services by their names.
struct Client<'n>(ClientPod<'n>);

impl Client<'_> {
    /// Code of the answer, number of bytes and digest of what comes, unpacked where it is compressed.
    fn get(
        &self,
        link: &v1::VirtualMachineExportLink,
        url: &str,
        token: &str,
        range: &str,
    ) -> (u16, u64, String) {
        self.get_by(&link.cert, url, token, range)
    }

    /// The same from a server that this certificate vouches for.
    fn get_by(&self, cert: &str, url: &str, token: &str, range: &str) -> (u16, u64, String) {
        // Nodes learn a moment after the export is ready where its Service leads; until then they refuse connections.
        let script = format!(
            "import gzip, hashlib, ssl, time, urllib.request, urllib.error\n\
             tls = ssl.create_default_context(cadata='''{cert}''')\n\
             fields = {{'x-kubevirt-export-token': '{token}', 'range': '{range}'}}\n\
             asked = urllib.request.Request('{url}', headers={{k: v for k, v in fields.items() if v}})\n\
             for attempt in range(150):\n\
             \x20 try: answer = urllib.request.urlopen(asked, context=tls, timeout=60); break\n\
             \x20 except urllib.error.HTTPError as error: answer = error; break\n\
             \x20 except urllib.error.URLError as error:\n\
             \x20   if not isinstance(error.reason, ConnectionRefusedError): raise\n\
             \x20   time.sleep(0.2)\n\
             body = answer.read()\n\
             if '{url}'.endswith('.gz') and answer.status == 200: body = gzip.decompress(body)\n\
             print(answer.status, len(body), hashlib.sha256(body).hexdigest())\n"
        );
        let told = self.0.sh(&format!("python3 - <<'EOF'\n{script}EOF")).unwrap();
        let words: Vec<&str> = told.split_whitespace().collect();
        (words[0].parse().unwrap(), words[1].parse().unwrap(), words[2].to_owned())
    }
}

fn token(namespace: &Namespace<'_>, name: &str) -> String {
    let path = "go-template={{.data.token | base64decode}}";
    namespace.kubectl(&["get", "secret", &format!("export-token-{name}"), "-o", path]).unwrap()
}

/// A server in the exporter's place, with a certificate that it has made itself: it tells what it is asked, and who leaves without asking.
const PRETENDER: &str = "\
import http.server, socket, ssl
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain('/tmp/pretender.pem')
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print('asked', self.headers, flush=True)
        self.send_response(200)
        self.send_header('content-length', '9')
        self.end_headers()
        self.wfile.write(b'PRETENDER')
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    def finish_request(self, request, client):
        try:
            stream = tls.wrap_socket(request, server_side=True)
        except OSError as error:
            print('refused', error, flush=True)
            return
        super().finish_request(stream, client)
Server(('::', 8443), Answer).serve_forever()
";

/// The Service of the export `x` leads to another pod of the namespace: virt-exportproxy refuses that pod's certificate and tells it no
/// token. In the end the Service leads to the exporter.
fn refuses_a_pod_in_the_exporters_place(
    namespace: &Namespace<'_>,
    client: &Client<'_>,
    proxied: impl Fn() -> u16,
    token: &str,
) {
    let host = format!("virt-export-x.{}.svc", namespace.name());
    let made = rcgen::generate_simple_self_signed(vec![host.clone()]).unwrap();
    let pretender = ClientPod::start(namespace, "pretender", "node1", "place: exporter").unwrap();
    let pair = [made.cert.pem(), made.signing_key.serialize_pem()].join("\n");
    pretender.sh(&format!("cat >/tmp/pretender.pem <<'EOF'\n{pair}\nEOF")).unwrap();
    pretender.sh(&format!("cat >/tmp/pretender.py <<'EOF'\n{PRETENDER}EOF")).unwrap();
    pretender.sh("setsid python3 /tmp/pretender.py >/tmp/log 2>&1 </dev/null &").unwrap();

    let select = |selector: &serde_json::Value| {
        let patch = serde_json::json!([{"op": "replace", "path": "/spec/selector", "value": selector}]);
        namespace
            .kubectl(&["patch", "service", "virt-export-x", "--type=json", "-p", &patch.to_string()])
            .unwrap();
    };
    // What a client that looks at no certificate gets at the Service.
    let script = format!(
        "import ssl, urllib.request, urllib.error\n\
         try: print(urllib.request.urlopen('https://{host}/', context=ssl._create_unverified_context(), timeout=5).read())\n\
         except urllib.error.HTTPError as error: print('HTTP', error.code)\n"
    );
    let leads_to = |words: &str| {
        let shown = || {
            let shown = client.0.sh(&format!("python3 - <<'EOF'\n{script}EOF"));
            Ok(shown.ok().filter(|text| text.contains(words)))
        };
        namespace.until(&format!("{words} at the Service"), SOON, shown).unwrap();
    };
    let path = ["get", "service", "virt-export-x", "-o", "jsonpath={.spec.selector}"];
    let own: serde_json::Value = serde_json::from_str(&namespace.kubectl(&path).unwrap()).unwrap();
    leads_to("HTTP 4");
    select(&serde_json::json!({"place": "exporter"}));
    leads_to("PRETENDER");
    // The proxy's node may hear of it later. Until then the exporter answers.
    let refused = || {
        let code = proxied();
        assert!([206, 502].contains(&code), "{code} by way of the proxy");
        let log = pretender.sh("cat /tmp/log")?;
        Ok((code == 502 && log.contains("refused")).then_some(log))
    };
    let log = namespace.until("a certificate that the proxy refuses", SOON, refused).unwrap();
    eprintln!("a pod in the exporter's place: {log}");
    assert!(!log.contains(token), "{log}");

    select(&own);
    leads_to("HTTP 4");
    namespace.until("the exporter behind the proxy", SOON, || Ok((proxied() == 206).then_some(()))).unwrap();
    namespace.kubectl(&["delete", "pod", pretender.name(), "--wait=false"]).unwrap();
}

/// Links that the writer of a claim has left there lead to nothing but the claim's own files: not to the exporter's key, nor to its token.
fn serves_no_file_beside_a_claim(namespace: &Namespace<'_>, client: &Client<'_>) {
    namespace
        .apply(
            "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: files}, spec: {storageClassName: bed-filesystem, \
             accessModes: [ReadWriteMany], resources: {requests: {storage: 16Mi}}}}",
        )
        .unwrap();
    let command = "cd /data && echo honest >honest && ln -s /cert/tls.key key && ln -s ../../token/token up && ln -s / root";
    let writer = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: linker}}, spec: {{restartPolicy: Never, automountServiceAccountToken: false, \
         securityContext: {{runAsUser: 107, runAsGroup: 107, fsGroup: 107, runAsNonRoot: true, \
         seccompProfile: {{type: RuntimeDefault}}}}, \
         containers: [{{name: linker, image: 'podvirt/tools:dev', command: [bash, -c, '{command}'], \
         securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}, \
         volumeMounts: [{{name: data, mountPath: /data}}]}}], \
         volumes: [{{name: data, persistentVolumeClaim: {{claimName: files}}}}]}}}}"
    );
    namespace.apply(&writer).unwrap();
    let done =
        |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Succeeded"));
    namespace.wait::<Pod>("linker", "links on a claim", SOON, done).unwrap();
    namespace.kubectl(&["delete", "pod", "linker"]).unwrap();
    export(namespace, "files", "{apiGroup: '', kind: PersistentVolumeClaim, name: files}", "");
    let link = ready(namespace, "files");
    let (directory, own) = (url(&link, "files", "dir"), token(namespace, "files"));
    let get = |path: &str| client.get(&link, &format!("{directory}/{path}"), &own, "");
    // A link to the root leads to the claim's own.
    for path in ["honest", "root/honest"] {
        let (code, length, _) = get(path);
        assert_eq!((code, length), (200, 7), "{path}");
    }
    for path in ["key", "up", "root/cert/tls.key", "root/token/token", "../../../token/token"] {
        assert_eq!(get(path).0, 404, "{path}");
    }
    namespace.kubectl(&["delete", "vmexport", "files", "--wait=false"]).unwrap();
}

/// A claim is exported whole, in part and compressed, and so is a snapshot of the machine that has it as a disk.
#[test]
fn disks_are_downloaded_as_they_are() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", &format!("{DISK_MIB}Mi"));
    claim(&namespace, "brief", "16Mi");
    let digest = fill(&namespace, 9);
    namespace.kubectl(&["delete", "pod", "writer"]).unwrap();

    // As long as another pod has the claim, nothing is exported.
    user(&namespace, "holder", "sleep infinity");
    namespace.wait_pod("holder", SOON).unwrap();
    let source = "{apiGroup: '', kind: PersistentVolumeClaim, name: data}";
    export(&namespace, "x", source, "");
    let in_use = |one: &v1::VirtualMachineExport| {
        one.status.conditions.iter().any(|one| one.reason.as_deref() == Some("InUse"))
    };
    namespace.wait("x", "an export that waits", SOON, in_use).unwrap();
    namespace.kubectl(&["delete", "pod", "holder"]).unwrap();
    // Its time passes while the others are downloaded.
    let brief = "{apiGroup: '', kind: PersistentVolumeClaim, name: brief}";
    export(&namespace, "short", brief, ", ttlDuration: 60s");
    let link = ready(&namespace, "x");
    ready(&namespace, "short");

    let client = Client(ClientPod::start(&namespace, "client", "node1", "").unwrap());
    let own = token(&namespace, "x");
    let (raw, gzip) = (url(&link, "data", "raw"), url(&link, "data", "gzip"));
    let size = DISK_MIB << 20;
    assert_eq!(client.get(&link, &raw, &own, ""), (200, size, digest.clone()));
    assert_eq!(client.get(&link, &gzip, &own, ""), (200, size, digest.clone()));
    for wrong in ["", "wrong", &own[1..]] {
        assert_eq!(client.get(&link, &raw, wrong, "").0, 401, "{wrong:?}");
    }
    // By way of the proxy, which knows no token.
    let path = "jsonpath={.data.ca-bundle}";
    let ca = cluster.kubectl(&["-n", "kubevirt", "get", "configmap", "kubevirt-ca", "-o", path]).unwrap();
    let proxy = |export: &str| {
        let path = "/api/export.kubevirt.io/v1beta1/namespaces";
        let place = format!("{}/virtualmachineexports/{export}/volumes/data/disk.img", namespace.name());
        format!("https://virt-exportproxy.kubevirt.svc{path}/{place}")
    };
    assert_eq!(client.get_by(&ca, &proxy("x"), &own, ""), (200, size, digest.clone()));
    assert_eq!(client.get_by(&ca, &proxy("x"), "wrong", "").0, 401);
    assert_eq!(client.get_by(&ca, &proxy("y"), &own, "").0, 404);
    let proxied = || client.get_by(&ca, &proxy("x"), &own, "bytes=0-0").0;
    assert_eq!(proxied(), 206);
    refuses_a_pod_in_the_exporters_place(&namespace, &client, proxied, &own);
    serves_no_file_beside_a_claim(&namespace, &client);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("disk.img");
    let to = file.to_str().unwrap();
    for more in [&["--format=raw"][..], &["--format=raw", "--retry=1"]] {
        let flags = [&["vmexport", "download", "x", "--port-forward", "--output", to], more].concat();
        let told = namespace.virtctl(&flags).unwrap();
        assert!(told.contains("Download finished succesfully"), "{told}");
        assert_eq!((file.metadata().unwrap().len(), digest_of(&file)), (size, digest.clone()), "{more:?}");
    }
    let (code, length, tail) = client.get(&link, &raw, &own, "bytes=6000000-");
    assert_eq!((code, length), (206, size - 6_000_000));
    let rest = directory.path().join("rest");
    fs::write(&rest, &fs::read(&file).unwrap()[6_000_000..]).unwrap();
    assert_eq!(tail, digest_of(&rest));

    // The machine's manifest, its snapshot, and the machine itself.
    let machine = Manifest {
        name: "vm",
        run: "Halted",
        volumes: "{name: data, persistentVolumeClaim: {claimName: data}}",
        disks: "{name: data, disk: {bus: virtio}}",
        ..Default::default()
    };
    namespace.apply(&machine.machine()).unwrap();
    namespace.kubectl(&["delete", "vmexport", "x"]).unwrap();
    namespace.wait_gone::<Pod>("virt-export-x", SOON).unwrap();
    let of = "{source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: vm}}";
    namespace.apply(&format!("{{apiVersion: snapshot.kubevirt.io/v1beta1, kind: VirtualMachineSnapshot, metadata: {{name: s}}, spec: {of}}}")).unwrap();
    let snapshot = "{apiGroup: snapshot.kubevirt.io, kind: VirtualMachineSnapshot, name: s}";
    export(&namespace, "taken", snapshot, "");
    let link = ready(&namespace, "taken");
    let own = token(&namespace, "taken");
    assert_eq!(client.get(&link, &url(&link, "data", "gzip"), &own, ""), (200, size, digest.clone()));
    let taken: v1::VirtualMachineExport = namespace.wait("taken", "the export", SOON, is_ready).unwrap();
    assert_eq!(taken.status.virtual_machine_name.as_deref(), Some("vm"));

    let flags =
        ["vmexport", "download", "whole", "--vm=vm", "--port-forward", "--manifest", "--include-secret"];
    let manifests = namespace.virtctl(&flags).unwrap();
    for what in
        ["kind: VirtualMachine\n", "kind: DataVolume", "volumes/data/disk.img.gz", "x-kubevirt-export-token:"]
    {
        assert!(manifests.contains(what), "{what}: {manifests}");
    }
    // virtctl of the upstream project makes an export, downloads and deletes it.
    let upstream = cluster.upstream_virtctl().unwrap();
    let flags =
        ["vmexport", "download", "theirs", "--pvc=data", "--port-forward", "--format=raw", "--output", to];
    namespace.kubectl(&["delete", "vmexport", "whole"]).unwrap();
    namespace.wait_gone::<Pod>("virt-export-whole", SOON).unwrap();
    namespace.run(upstream, &flags).unwrap();
    assert_eq!(digest_of(&file), digest);
    namespace.wait_gone::<v1::VirtualMachineExport>("theirs", SOON).unwrap();

    // Its time ends an export, with all that belongs to it.
    namespace.wait_gone::<v1::VirtualMachineExport>("short", BOOT).unwrap();
    namespace.wait_gone::<Pod>("virt-export-short", SOON).unwrap();
}

/// The exporter pod and all virt-controllers are killed in the middle of a download, which goes on where it was.
#[test]
fn long_a_download_goes_on_when_its_server_and_virt_controller_are_killed() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", "768Mi");
    let digest = fill(&namespace, 700);
    export(&namespace, "x", "{apiGroup: '', kind: PersistentVolumeClaim, name: data}", "");
    ready(&namespace, "x");
    let before: Pod = namespace.wait_pod("virt-export-x", SOON).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("disk.img");
    let mut download = cluster.virtctl().unwrap();
    download.args([
        "--namespace",
        namespace.name(),
        "vmexport",
        "download",
        "x",
        "--port-forward",
        "--format=raw",
    ]);
    download.args(["--retry=20", "--output"]).arg(&file).stderr(Stdio::piped()).stdout(Stdio::piped());
    let mut download = download.spawn().unwrap();
    namespace
        .until("a part of the download", SOON, || {
            Ok(file.metadata().is_ok_and(|file| file.len() > 64 << 20).then_some(()))
        })
        .unwrap();
    let force = ["--grace-period=0", "--force"];
    let own = [
        &["-n", "kubevirt", "delete", "pod", "-l", "kubevirt.io=virt-controller", "--wait=false"],
        &force[..],
    ];
    cluster.kubectl(&own.concat()).unwrap();
    namespace.kubectl(&[&["delete", "pod", "virt-export-x", "--wait=false"], &force[..]].concat()).unwrap();
    assert!(download.try_wait().unwrap().is_none(), "it was over before");
    namespace.until("the end of the download", DOWNLOADED, || Ok(download.try_wait()?)).unwrap();
    let done = download.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success() && told.contains("Retrying..."), "{told}");
    assert_eq!(digest_of(&file), digest);
    let after: Pod = namespace.wait_pod("virt-export-x", SOON).unwrap();
    assert_ne!(before.uid(), after.uid());
}
