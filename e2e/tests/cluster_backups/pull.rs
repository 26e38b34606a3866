//! Backups that are read from an endpoint.

use k8s_openapi::api::core::v1::Pod;
use podvirt_api::v1;
use podvirt_api::v1::BackupConditionType as Condition;
use podvirt_e2e::Console;
use podvirt_e2e::cluster::{ClientPod, Cluster, Namespace, SOON, Security, prepare_volumes};

use super::{BACKUP, COMMAND, COPIED, SMALL, claim, is, reason, start, track, write};

/// Size of the machine's disk, MiB.
const DISK: u64 = 32;
/// The token of the test's backups.
const TOKEN: &str = "a-token-for-the-test";
/// The copy of the disk in the client's pod.
const COPY: &str = "/tmp/disk";

/// A client in a pod, which trusts the certificates that the backup tells alone.
struct Reader<'n> {
    pod: ClientPod<'n>,
    backup: v1::VirtualMachineBackup,
}

impl Reader<'_> {
    /// What a program in the pod prints that has `get(url, parameters)`, which returns an answer's code and body, and the disk's
    /// `data` and `map`. A connection that does not come up is tried again: a service leads to a pod that has gone for a moment, and
    /// what is sent there is not answered.
    fn run(&self, program: &str) -> String {
        let status = &self.backup.status;
        assert_eq!(status.included_volumes.len(), 1, "{status:?}");
        let volume = status.included_volumes.first().unwrap();
        let of = |link: &Option<String>| link.clone().unwrap();
        let script = format!(
            "import hashlib, json, ssl, time, urllib.request, urllib.error\n\
             tls = ssl.create_default_context(cadata='''{cert}''')\n\
             data, map, token, copy = '{data}', '{map}', '{TOKEN}', '{COPY}'\n\
             def get(url, more='', token=token):\n\
             \x20 asked = urllib.request.Request(url + more, headers={{'x-kubevirt-export-token': token}})\n\
             \x20 for attempt in range(100):\n\
             \x20   try: answer = urllib.request.urlopen(asked, context=tls, timeout=20)\n\
             \x20   except urllib.error.HTTPError as error: answer = error\n\
             \x20   except urllib.error.URLError as error:\n\
             \x20     if isinstance(error.reason, ssl.SSLCertVerificationError): raise\n\
             \x20     time.sleep(0.2); continue\n\
             \x20   if answer.status != 503: return answer.status, answer.read()\n\
             \x20 raise Exception(f'{{url}}: no answer in 100 attempts')\n\
             {program}",
            cert = of(&status.endpoint_cert),
            data = of(&volume.data_endpoint),
            map = of(&volume.map_endpoint),
        );
        self.pod.sh(&format!("python3 - <<'EOF'\n{script}EOF")).unwrap()
    }

    /// Reads all of the disk into the copy; its size and digest.
    fn read(&self) -> String {
        self.run(
            "code, body = get(data)\n\
             open(copy, 'wb').write(body)\n\
             print(code, len(body), hashlib.sha256(body).hexdigest())\n",
        )
    }

    /// Brings into the copy what has changed; how many bytes that are, and the copy's digest.
    fn update(&self) -> (u64, String) {
        let told = self.run(
            "place, count, file = 0, 0, open(copy, 'r+b')\n\
             while place is not None:\n\
             \x20 code, body = get(map, f'?offset={place}&page_size=2')\n\
             \x20 assert code == 200, body\n\
             \x20 page = json.loads(body)\n\
             \x20 for extent in page['extents']:\n\
             \x20   if extent['description'] != 'dirty': continue\n\
             \x20   code, body = get(data, '?offset={offset}&length={length}'.format(**extent))\n\
             \x20   assert code == 200 and len(body) == extent['length'], (code, extent)\n\
             \x20   file.seek(extent['offset']); file.write(body); count += len(body)\n\
             \x20 place = page['next_offset']\n\
             file.close()\n\
             print(count, hashlib.sha256(open(copy, 'rb').read()).hexdigest())\n",
        );
        let (count, digest) = told.trim().split_once(' ').unwrap();
        (count.parse().unwrap(), digest.to_owned())
    }
}

/// Digest of what is on the disk, by the guest.
fn digest(console: &mut Console) -> String {
    let told = console.sh("sync; echo 3 >/proc/sys/vm/drop_caches; sha256sum /dev/vdc", COMMAND * 2).unwrap();
    told.split_whitespace().next().unwrap().to_owned()
}

/// Makes what the backups are read with: a tracker of the machine, and a token.
fn prepare(namespace: &Namespace<'_>) {
    track(namespace);
    let token = format!("--from-literal=token={TOKEN}");
    namespace.kubectl(&["create", "secret", "generic", "token", &token]).unwrap();
}

/// Begins a backup in pull mode.
fn begin(namespace: &Namespace<'_>, name: &str) {
    let manifest = format!(
        "{{apiVersion: {BACKUP}, kind: VirtualMachineBackup, metadata: {{name: {name}}}, spec: {{mode: Pull, tokenSecretRef: token, \
         source: {{apiGroup: backup.kubevirt.io, kind: VirtualMachineBackupTracker, name: vm}}, pvcName: scratch, skipQuiesce: true}}}}"
    );
    namespace.apply(&manifest).unwrap();
}

/// Begins a backup in pull mode, and waits until it can be read.
fn pull(namespace: &Namespace<'_>, name: &str, kind: &str) -> v1::VirtualMachineBackup {
    begin(namespace, name);
    let can = |one: &v1::VirtualMachineBackup| is(one, Condition::ExportReady);
    let backup = namespace.wait(name, "a backup that can be read", COPIED, can).unwrap();
    let told: &v1::VirtualMachineBackup = &backup;
    assert_eq!(told.status.r#type.as_ref().map(v1::BackupType::as_str), Some(kind), "{:?}", told.status);
    backup
}

/// Deletes a backup: the tracker has its checkpoint, and the exporter is gone.
fn end(namespace: &Namespace<'_>, name: &str) {
    namespace.kubectl(&["delete", "vmbackup", name]).unwrap();
    let tracker: v1::VirtualMachineBackupTracker =
        namespace.wait("vm", "the tracker", SOON, |_| true).unwrap();
    let checkpoint = tracker.status.latest_checkpoint.and_then(|one| one.name).unwrap();
    assert!(checkpoint.starts_with(&format!("{name}-")), "{checkpoint}");
    namespace.wait_gone::<Pod>(&format!("virt-export-{name}"), SOON).unwrap();
}

/// A disk is read as it was when the backup began, while the guest writes; of the next backup, what has changed makes up what the disk is
/// then. An export that is deleted comes back, also by the launcher's tunnel.
#[test]
fn a_backup_in_pull_mode_is_read_as_the_disk_was() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", "Block", &format!("{DISK}Mi"));
    claim(&namespace, "scratch", "Filesystem", "128Mi");
    prepare(&namespace);
    start(&namespace);
    let (mut console, running) = namespace.shell("vm").unwrap();
    write(&mut console, 1);
    write(&mut console, 30);
    let first = digest(&mut console);

    let backup = pull(&namespace, "full", "Full");
    write(&mut console, 30);
    write(&mut console, 8);
    let pod = ClientPod::start(&namespace, "client", "node1", "").unwrap();
    let reader = Reader { pod, backup };
    let whole = format!("200 {} {first}", DISK << 20);
    assert_eq!(reader.read().trim(), whole);
    let map = "print(*sorted({extent['description'] for extent in json.loads(get(map)[1])['extents']}))\n";
    assert!(reader.run(map).split_whitespace().any(|what| what == "data"), "{}", reader.run(map));
    let refused = "print(get(data, '', 'wrong')[0], get(map, '?offset=x')[0], get(data, '?offset=1048570&length=4')[1].hex())\n";
    let told = reader.run(refused);
    let words: Vec<_> = told.split_whitespace().collect();
    assert_eq!((words[0], words[1], words[2].len()), ("401", "400", 8), "{told}");

    // The export that goes comes back, and the launcher finds its new pod.
    let uid = |export: &v1::VirtualMachineExport| export.metadata.uid.clone();
    let old: v1::VirtualMachineExport = namespace.wait("full", "the export", SOON, |_| true).unwrap();
    namespace.kubectl(&["delete", "vmexport", "full"]).unwrap();
    let is_new = |new: &v1::VirtualMachineExport| uid(new) != uid(&old);
    namespace.wait("full", "another export", SOON, is_new).unwrap();
    let can = |one: &v1::VirtualMachineBackup| is(one, Condition::ExportReady);
    let backup = namespace.wait("full", "a backup that can be read again", COPIED, can).unwrap();
    let reader = Reader { backup, ..reader };
    assert_eq!(reader.read().trim(), whole);
    end(&namespace, "full");

    let second = digest(&mut console);
    let reader = Reader { backup: pull(&namespace, "second", "Incremental"), ..reader };
    write(&mut console, 20);
    let (count, made_up) = reader.update();
    assert_eq!(made_up, second);
    assert!((2 << 20..SMALL).contains(&count), "{count} bytes have changed of two MiB");
    end(&namespace, "second");
    drop((console, running));
}

/// A machine whose pod is not let out to the exporter says so, and the backup can be read once it is.
#[test]
fn long_a_machine_that_is_not_let_out_to_the_exporter_says_so() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let _policies = cluster.enforce_policies().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", "Block", &format!("{DISK}Mi"));
    claim(&namespace, "scratch", "Filesystem", "128Mi");
    prepare(&namespace);
    let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: shut}, spec: {podSelector: {matchLabels: \
                  {kubevirt.io: virt-launcher}}, policyTypes: [Egress]}}";
    namespace.apply(policy).unwrap();
    start(&namespace);
    begin(&namespace, "shut");
    let unreached = |one: &v1::VirtualMachineBackup| {
        one.status.conditions.iter().any(|told| {
            let why = told.reason.as_deref().unwrap_or_default();
            told.r#type == Condition::ExportReady
                && told.status == "False"
                && why.starts_with("the exporter is not reached: ")
        })
    };
    namespace.wait("shut", "why it cannot be read", SOON, unreached).unwrap();
    namespace.kubectl(&["delete", "networkpolicy", "shut"]).unwrap();
    let can = |one: &v1::VirtualMachineBackup| is(one, Condition::ExportReady);
    namespace.wait("shut", "a backup that can be read", SOON, can).unwrap();
    end(&namespace, "shut");
}

/// Where the guest overwrites more than the claim can take, the backup ends, and the guest goes on.
#[test]
fn long_a_backup_in_pull_mode_ends_before_its_claim_is_full() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", "Block", "256Mi");
    claim(&namespace, "scratch", "Filesystem", "128Mi");
    prepare(&namespace);
    start(&namespace);
    let (mut console, running) = namespace.shell("vm").unwrap();
    pull(&namespace, "large", "Full");
    // No faster than what is to be left of the claim lasts.
    let slowly = "for place in $(seq 0 2 150); do dd if=/dev/zero of=/dev/vdc bs=1M count=2 seek=$place conv=notrunc,fsync 2>/dev/null || \
                  echo failed; usleep 100000; done; echo written";
    assert_eq!(console.sh(slowly, COPIED).unwrap().trim(), "written");
    let done = |one: &v1::VirtualMachineBackup| is(one, Condition::Done);
    let failed = namespace.wait("large", "a backup without room", COPIED, done).unwrap();
    assert!(reason(&failed).contains("No space left on device"), "{}", reason(&failed));
    namespace.wait_gone::<Pod>("virt-export-large", SOON).unwrap();
    write(&mut console, 200);
    drop((console, running));
}
