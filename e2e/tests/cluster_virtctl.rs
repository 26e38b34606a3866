//! What virtctl's users do with a machine: with upstream's virtctl, as it is, and with this project's.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Service;
use podvirt_api::v1;
use podvirt_e2e::cluster::talk::{GREETER, echo, greeting};
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, Running, SOON, Security};

/// A command in the guest, or an answer from it.
const COMMAND: Duration = Duration::from_secs(30);
/// The port of the echo that the test starts.
const ECHO: u16 = 7778;

type Tool = fn(&Cluster) -> Result<Command>;
const TOOLS: [(&str, Tool); 2] =
    [("this project's", Cluster::virtctl), ("upstream's", Cluster::upstream_virtctl)];

fn wait_status(namespace: &Namespace<'_>, name: &str, status: &str, limit: Duration) {
    let is =
        |vm: &v1::VirtualMachine| vm.status.printable_status.as_ref().is_some_and(|s| s.as_str() == status);
    namespace.wait(name, &format!("{name} {status}"), limit, is).unwrap();
}

#[test]
fn upstreams_virtctl_starts_pauses_restarts_and_stops() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let virtctl = |args: &[&str]| namespace.run(cluster.upstream_virtctl()?, args);
    let says = |args: &[&str], words: &str| {
        let text = virtctl(args).unwrap();
        assert!(text.contains(words), "virtctl {}: {text}", args.join(" "));
    };
    says(&["version"], "Server Version: version.Info{GitVersion:\"v1.8.0+podvirt");

    let manifest = Manifest { name: "vm", run: "Manual", idle: true, ..Default::default() };
    namespace.apply(&manifest.machine()).unwrap();
    wait_status(&namespace, "vm", "Stopped", SOON);
    let error = virtctl(&["stop", "vm"]).unwrap_err().to_string();
    assert!(error.contains("VM is not running"), "{error}");
    says(&["start", "vm", "--paused"], "VM vm was scheduled to start");
    wait_status(&namespace, "vm", "Paused", BOOT);
    let first = namespace.wait_phase("vm", "Running", SOON).unwrap();
    says(&["unpause", "vm", "vm"], "VMI vm was scheduled to unpause");
    wait_status(&namespace, "vm", "Running", SOON);
    let error = virtctl(&["start", "vm"]).unwrap_err().to_string();
    assert!(error.contains("already running"), "{error}");

    says(&["restart", "vm", "--force", "--grace-period=0"], "VM vm was scheduled to restart");
    let other = |i: &v1::VirtualMachineInstance| {
        i.metadata.uid != first.metadata.uid
            && i.status.phase.as_ref().is_some_and(|p| p.as_str() == "Running")
    };
    namespace.wait("vm", "another instance", BOOT, other).unwrap();
    says(&["pause", "vmi", "vm"], "VMI vm was scheduled to pause");
    wait_status(&namespace, "vm", "Paused", SOON);
    let error = virtctl(&["pause", "vmi", "vm"]).unwrap_err().to_string();
    assert!(error.contains("paused"), "{error}");
    says(&["stop", "vm", "--force", "--grace-period=0"], "VM vm was scheduled to stop");
    namespace.wait_gone::<v1::VirtualMachineInstance>("vm", SOON).unwrap();
    wait_status(&namespace, "vm", "Stopped", SOON);
}

/// A port at which nothing in the guest listens.
const CLOSED: &str = "9";

/// A local port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// One of the virtctls with its arguments, running for as long as the value lives.
fn start(namespace: &Namespace<'_>, tool: Tool, args: &[&str]) -> Running {
    let mut virtctl = tool(namespace.cluster()).unwrap();
    Running(virtctl.args(["--namespace", namespace.name()]).args(args).spawn().unwrap())
}

/// Ends by the escape character, which leaves the guest running.
fn console(namespace: &Namespace<'_>, tool: Tool) {
    let (mut console, mut virtctl) = namespace.console_by(tool(namespace.cluster()).unwrap(), "vm").unwrap();
    namespace.wait_shell(&mut console, &mut virtctl).unwrap();
    assert_eq!(console.sh("hostname", COMMAND).unwrap(), "chosen");
    console.press("\u{1d}").unwrap();
    let ended = namespace.until("the end of virtctl console", SOON, || Ok(virtctl.0.try_wait()?)).unwrap();
    assert!(ended.success(), "{ended}");
}

/// The first message of the display, which is the server's version of the protocol.
fn display(namespace: &Namespace<'_>, tool: Tool) {
    let mut virtctl = tool(namespace.cluster()).unwrap();
    virtctl.args(["--namespace", namespace.name(), "vnc", "vm", "--proxy-only", "--port=0"]);
    let mut virtctl = Running(virtctl.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(virtctl.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    let port = u16::try_from(told["port"].as_u64().unwrap()).unwrap();
    let mut viewer = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    viewer.set_read_timeout(Some(COMMAND)).unwrap();
    let mut version = [0; 12];
    viewer.read_exact(&mut version).unwrap();
    assert_eq!(&version, b"RFB 003.008\n");
    drop(viewer);
    let ended = namespace.until("the end of virtctl vnc", SOON, || Ok(virtctl.0.try_wait()?)).unwrap();
    assert!(ended.success(), "{ended}");
}

/// The display as a picture.
fn screenshot(namespace: &Namespace<'_>, tool: Tool) {
    let virtctl = tool(namespace.cluster()).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    namespace.run(virtctl, &["vnc", "screenshot", "vm", "-f", file.path().to_str().unwrap()]).unwrap();
    let picture = std::fs::read(file.path()).unwrap();
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n"), "{:?}", picture.get(..16));
    assert!(picture.len() > 100, "{} bytes", picture.len());
}

fn forwards(namespace: &Namespace<'_>, tool: Tool, target: &str) {
    let (tcp, udp) = (free_port(), free_port());
    let ports = [format!("{tcp}:{GREETER}"), format!("udp/{udp}:{ECHO}")];
    let _virtctl = start(namespace, tool, &["port-forward", target, &ports[0], &ports[1]]);
    let here = Ipv4Addr::LOCALHOST.into();
    namespace.until("a greeting", SOON, || Ok(greeting(here, tcp))).unwrap();
    namespace.until("an echo", SOON, || Ok(echo(here, udp).ok())).unwrap();
}

#[test]
fn long_ports_are_forwarded_into_the_guest_by_every_binding_of_the_kernels_and_behind_masquerade() {
    let cluster = Cluster::get().unwrap();
    for (binding, annotations) in
        [("masquerade", ""), ("masquerade", "podvirt.io/masquerade: nftables"), ("bridge", "")]
    {
        eprintln!("{binding} {annotations}");
        let namespace = cluster.namespace(Security::Restricted).unwrap();
        let devices = format!("interfaces: [{{name: default, {binding}: {{}}}}]");
        let manifest = Manifest { name: "vm", annotations, devices: &devices, ..Default::default() };
        namespace.apply(&manifest.machine()).unwrap();
        namespace.wait_phase("vm", "Running", BOOT).unwrap();
        let (mut console, _running) = namespace.shell("vm").unwrap();
        console.sh(&format!("socat UDP6-RECVFROM:{ECHO},fork PIPE &"), COMMAND).unwrap();
        for (whose, tool) in TOOLS {
            eprintln!("{whose} virtctl");
            forwards(&namespace, tool, "vmi/vm");
        }
    }
}

/// A key pair; returns its public part.
fn key(file: &Path) -> String {
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::read_to_string(file.with_extension("pub")).unwrap().trim().to_owned()
}

#[test]
fn console_display_ports_and_ssh_lead_into_the_guest() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    let user_data = format!("#cloud-config\nhostname: chosen\nssh_authorized_keys:\n- {}\n", key(&file));
    namespace.apply(&Manifest { name: "vm", user_data: &user_data, ..Default::default() }.machine()).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();

    for (whose, tool) in TOOLS {
        eprintln!("{whose} virtctl");
        console(&namespace, tool);
        display(&namespace, tool);
        screenshot(&namespace, tool);
    }
    let (mut console, _running) = namespace.shell("vm").unwrap();
    console.sh(&format!("socat UDP6-RECVFROM:{ECHO},fork PIPE &"), COMMAND).unwrap();
    for (whose, tool) in TOOLS {
        eprintln!("{whose} virtctl");
        forwards(&namespace, tool, "vmi/vm");
        // Nothing listens there: the tunnel does not open.
        let args = ["port-forward", "--stdio=true", "vmi/vm", CLOSED];
        let error = namespace.run(tool(&cluster).unwrap(), &args).unwrap_err().to_string();
        assert!(error.contains("connection refused"), "{error}");
        let options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes"]
            .map(|option| format!("--local-ssh-opts=-o {option}"));
        let [check, known, batch] = &options;
        let ssh = |target: &str, command: &str| {
            let key = file.to_str().unwrap();
            let args = ["ssh", "-l", "root", target, "-i", key, check, known, batch, "-c", command];
            namespace.run(tool(&cluster).unwrap(), &args)
        };
        assert!(ssh("vmi/vm", "uname -a").unwrap().contains("Linux chosen "));
        assert!(ssh("vm/vm", "hostname").unwrap().contains("chosen"));
        assert!(ssh("vmi/vm", "false").is_err());
    }

    // A stop that gives the guest its time: it is told, and switches itself off.
    let text = namespace.run(cluster.upstream_virtctl().unwrap(), &["stop", "vm"]).unwrap();
    assert!(text.contains("VM vm was scheduled to stop"), "{text}");
    console.wait_for("Power down", SOON).unwrap();
    namespace.wait_gone::<v1::VirtualMachineInstance>("vm", SOON).unwrap();
    wait_status(&namespace, "vm", "Stopped", SOON);
}

/// The document without what says nothing.
fn without_nulls(mut value: serde_json::Value) -> serde_json::Value {
    match &mut value {
        serde_json::Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(|field| *field = without_nulls(field.take()));
        }
        serde_json::Value::Array(all) => all.iter_mut().for_each(|one| *one = without_nulls(one.take())),
        _ => {}
    }
    value
}

/// What both virtctls write with these words is the same document.
fn write_the_same(namespace: &Namespace<'_>, words: &[&str]) {
    let documents = TOOLS.map(|(_, tool)| {
        let text = namespace.run(tool(namespace.cluster()).unwrap(), words).unwrap();
        let read = ["create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-"];
        let json = namespace.cluster().kubectl_with(&read, &text).unwrap();
        without_nulls(serde_json::from_str(&json).unwrap())
    });
    assert_eq!(documents[0], documents[1], "{words:?}");
}

#[test]
fn instance_types_are_written_and_credentials_changed_as_upstream_does() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let device =
        ["--gpu=name:g,devicename:a/b", "--hostdevice=name:h,devicename:c/d", "--iothreadspolicy=auto"];
    for (kind, flags) in [
        ("instancetype", &["--cpu=2", "--memory=512Mi"][..]),
        ("instancetype", &[&["--cpu=2", "--memory=1Gi", "--namespaced"], &device[..]].concat()),
        ("preference", &[]),
        (
            "preference",
            &["--cpu-topology=spread", "--machine-type=q35", "--volume-storage-class=fast", "--namespaced"],
        ),
    ] {
        write_the_same(&namespace, &[&["create", kind, "--name=a"], flags].concat());
    }

    let says = |tool: Tool, args: &[&str]| namespace.run(tool(&cluster).unwrap(), args);
    for (place, (name, tool)) in TOOLS.into_iter().enumerate() {
        let vm = format!("vm{place}");
        namespace.apply(&Manifest { name: &vm, run: "Halted", ..Default::default() }.machine()).unwrap();
        let change = |words: &[&str]| says(tool, &[&["credentials"], words, &["--user=joe", &vm]].concat());
        let of_secret = || {
            let path =
                "jsonpath={.spec.template.spec.accessCredentials[0].sshPublicKey.source.secret.secretName}";
            let secret = namespace.kubectl(&["get", "vm", &vm, "-o", path]).unwrap();
            assert!(secret.starts_with(&format!("{vm}-ssh-key-")), "{name}: {secret}");
            let all = namespace.kubectl(&[
                "get",
                "secret",
                &secret,
                "-o",
                "go-template={{range .data}}{{. | base64decode}} {{end}}",
            ]);
            let mut all: Vec<String> = all.unwrap().split_whitespace().map(str::to_owned).collect();
            all.sort();
            all
        };
        change(&["add-ssh-key", "--value=first"]).unwrap();
        assert_eq!(of_secret(), ["first"], "{name}");
        let told = change(&["add-ssh-key", "--value=second"]).unwrap();
        assert!(told.contains("Successfully added the key to secret"), "{name}: {told}");
        assert_eq!(of_secret(), ["first", "second"], "{name}");
        let told = change(&["add-ssh-key", "--value=second"]).unwrap();
        assert!(told.contains("already contains this SSH key"), "{name}: {told}");
        change(&["remove-ssh-key", "--value=first"]).unwrap();
        assert_eq!(of_secret(), ["second"], "{name}");
        let error = change(&["set-password", "--password=secret"]).unwrap_err().to_string();
        assert!(error.contains("no secrets assigned to UserPassword AccessCredentials"), "{name}: {error}");
    }
}

/// The settings of all daemons are one object: tests that change it run one at a time.
#[test]
fn daemons_log_as_virtctl_asks() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let says = |tool: Tool, args: &[&str]| namespace.run(tool(&cluster).unwrap(), args);
    for (name, tool) in TOOLS {
        let shown = says(tool, &["adm", "log-verbosity", "--virt-api"]).unwrap();
        assert!(shown.contains("virt-api=2"), "{name}: {shown}");
        says(tool, &["adm", "log-verbosity", "--virt-controller=3"]).unwrap();
        let shown = says(tool, &["adm", "log-verbosity", "--all"]).unwrap();
        says(tool, &["adm", "log-verbosity", "--reset"]).unwrap();
        assert!(shown.contains("virt-api=2") && shown.contains("virt-controller=3"), "{name}: {shown}");
        let error = says(tool, &["permitted-devices"]).unwrap_err().to_string();
        assert!(error.contains("no KubeVirt resource in"), "{name}: {error}");
    }
    // Several clients at once: each change is there, the first ones too.
    let daemons = ["virt-api", "virt-controller", "virt-handler", "virt-launcher", "virt-operator"];
    std::thread::scope(|scope| {
        for daemon in daemons {
            let flag = format!("--{daemon}=4");
            let args = ["adm", "log-verbosity", &flag].map(str::to_owned);
            scope.spawn(move || says(Cluster::virtctl, &args.each_ref().map(String::as_str)).unwrap());
        }
    });
    let shown = says(Cluster::virtctl, &["adm", "log-verbosity", "--all"]).unwrap();
    says(Cluster::virtctl, &["adm", "log-verbosity", "--reset"]).unwrap();
    for daemon in daemons {
        assert!(shown.contains(&format!("{daemon}=4")), "{shown}");
    }
}

#[test]
fn long_a_machine_is_made_exposed_and_reset() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let by = |tool: Tool, args: &[&str]| namespace.run(tool(&cluster).unwrap(), args).unwrap();

    // Both write the same documents.
    let image = "--volume-containerdisk=src:podvirt/disk-tiny:dev";
    let machine = ["create", "vm", "--name=made", "--memory=256Mi", image, "--termination-grace-period=30"];
    for flags in [
        &["--name=a"][..],
        &machine[2..],
        &["--name=a", "--run-strategy=halted", "--volume-pvc=src:data,bootorder:1", image],
        &["--name=a", "--volume-pvc=src:data", "--infer-instancetype", "--infer-preference-from=data"],
        &["--name=a", "--instancetype=u1.small", "--preference=virtualmachinepreference/linux", image],
        &["--name=a", "--user=joe", "--ssh-key=ssh-ed25519 AAAA", "--cloud-init=configdrive"],
        &[
            "--name=a",
            "--cloud-init-user-data=YQ==",
            "--cloud-init-network-data=Yg==",
            "--volume-sysprep=src:answers",
        ],
        &["--name=a", "--access-cred=src:keys,user:joe", "--access-cred=type:password,src:words"],
    ] {
        write_the_same(&namespace, &[&["create", "vm"], flags].concat());
    }

    namespace.apply(&by(Cluster::virtctl, &machine)).unwrap();
    namespace.wait_phase("made", "Running", BOOT).unwrap();
    for (place, (_, tool)) in TOOLS.into_iter().enumerate() {
        let (service, port) = (format!("made{place}"), format!("--port={GREETER}"));
        let says = by(tool, &["expose", "vm", "made", &format!("--name={service}"), &port]);
        assert!(says.contains(&format!("Service {service} successfully created for vm made")), "{says}");
        let service = namespace.wait(&service, "the service", SOON, |_: &Service| true).unwrap();
        let address = service.spec.unwrap().cluster_ip.unwrap().parse().unwrap();
        namespace.until("a greeting by the service", BOOT, || Ok(greeting(address, GREETER))).unwrap();
    }

    let boot = || -> Result<String> {
        let (mut console, _running) = namespace.shell("made")?;
        console.sh("cat /proc/sys/kernel/random/boot_id", COMMAND)
    };
    let mut last = boot().unwrap();
    for (tool, command) in [
        (Cluster::virtctl as Tool, "reset"),
        (Cluster::upstream_virtctl, "reset"),
        (Cluster::virtctl, "soft-reboot"),
    ] {
        let says = by(tool, &[command, "made"]);
        assert!(says.contains(&format!("VMI made was scheduled to {command}")), "{says}");
        let other = || Ok(boot().ok().filter(|boot| *boot != last));
        last = namespace.until("another boot", BOOT, other).unwrap();
    }
}
