//! virt-launcher in a pod, as virt-handler sees it: containers as in a launcher pod, a handler that is this test.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

mod launched;
mod link;
mod mesh;
mod migration;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use podvirt_api::names::pod::ENDED_WITH_POD;
use podvirt_e2e::artefacts::artefact;
use podvirt_e2e::{Family, until};
use podvirt_proto::cmd::info::CmdInfoRequest;
use podvirt_proto::cmd::info::cmd_info_client::CmdInfoClient;
use podvirt_proto::cmd::v1::{EmptyRequest, ExecRequest, FreezeRequest, GuestPingRequest, MigrationRequest};
use podvirt_proto::domain::{Domain, Status, reason};
use serde_json::{Value, json};

use launched::{BOOT, GREETER, LIMIT, Launched, MARK, request, vmi};

/// A public key.
const SSH_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
/// Boot to GUEST-READY of a Debian.
const BOOT_DEBIAN: Duration = Duration::from_secs(400);

#[test]
fn a_handler_starts_pauses_and_ends_a_machine() {
    let mut launched = Launched::new("--allow-emulation");
    let (heard, handler) = launched.handler();
    let mut client = launched.client();
    let runtime = &launched.runtime;
    let info = CmdInfoClient::new(launched.channel());
    let versions = runtime.block_on({ info }.info(CmdInfoRequest {})).unwrap().into_inner();
    assert_eq!(versions.supported_cmd_versions, ["v1"]);
    assert_eq!(launched.domain(&mut client).status, Status::NoState);

    // What is wrong is told with its field, and changes nothing.
    let mut other = vmi();
    other["metadata"]["uid"] = json!("another");
    let answer = launched.sync(&mut client, &other);
    assert!(!answer.success && answer.message.starts_with("metadata.uid: 'another'"), "{answer:?}");
    let mut wrong = vmi();
    wrong["spec"]["domain"]["devices"]["interfaces"][0]["macvtap"] = json!({});
    let answer = launched.sync(&mut client, &wrong);
    assert!(answer.message.starts_with("spec.domain.devices.interfaces[0].macvtap: "), "{answer:?}");
    let migration = client.migrate_virtual_machine(MigrationRequest {
        options: br#"{"migrationUid": "a"}"#.to_vec(),
        ..Default::default()
    });
    assert_eq!(runtime.block_on(migration).unwrap().into_inner().message, "no machine runs here");

    let answer = launched.sync(&mut client, &vmi());
    assert!(answer.success, "{answer:?}\n{}", launched.compute.log());
    let qemu = launched.only("qemu-system-x86");
    assert!(launched.sync(&mut client, &vmi()).success, "again changes nothing");
    assert_eq!(launched.only("qemu-system-x86"), qemu);
    heard.wait("running", |d| d.status == Status::Running && d.reason == reason::BOOTED);

    let mut console = launched.console();
    assert_eq!(console.sh(&format!("head -c {} /dev/vda", MARK.len()), LIMIT).unwrap(), MARK);
    console.sh("echo overwritten >/dev/vda && sync", LIMIT).unwrap();
    let image = std::fs::read(launched.image.as_ref().unwrap().path().join("disk.img")).unwrap();
    assert!(image.starts_with(MARK.as_bytes()), "the image is never written");
    let stream = until("a greeting", LIMIT, || {
        Ok(launched.pod.net.connect(Family::V4.pod(GREETER)).ok().and_then(|stream| {
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).ok()?;
            (!line.is_empty()).then_some(line)
        }))
    });
    assert_eq!(stream.unwrap(), "GUEST-HELLO to 10.9.0.1\n");
    let report = heard.wait("addresses", |d| d.interfaces.first().is_some_and(|i| i.ips.len() == 2));
    let interface = &report.interfaces[0];
    assert_eq!((interface.name.as_str(), interface.ip.as_str()), ("default", "10.9.0.2"));
    assert_eq!((interface.ips[1].as_str(), interface.info_source.as_str()), ("fd00:9::2", "domain"));
    let mac = console.sh("cat /sys/class/net/eth0/address", LIMIT).unwrap();
    assert_eq!(interface.mac, mac, "netd, the domain and the report agree");
    assert!(report.machine.as_deref().is_some_and(|m| m.starts_with("pc-q35-")), "{report:?}");
    let mut greeting = [0; 4];
    UnixStream::connect(launched.private("virt-vnc")).unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"RFB ");
    for process in launched.pod.processes().unwrap() {
        let found = (process.uids[0], process.capabilities, process.no_new_privs, process.seccomp);
        assert_eq!(found, (107, 0, true, 2), "{}", process.name);
    }

    let order = client.pause_virtual_machine(request(&vmi()));
    assert!(runtime.block_on(order).unwrap().into_inner().success);
    heard.wait("paused", |d| d.status == Status::Paused && d.reason == reason::USER);

    // Another handler learns where things stand without asking.
    handler.abort();
    let (heard, _handler) = launched.handler();
    heard.wait("paused, again", |d| d.status == Status::Paused);
    // Another libvirtd finds the machine, and carries out what comes then.
    let libvirtd = launched.only("libvirtd");
    kill(libvirtd, Signal::SIGKILL).unwrap();
    until("another libvirtd", LIMIT, || {
        Ok(launched.pod.pids("libvirtd")?.into_iter().find(|p| *p != libvirtd))
    })
    .unwrap();
    until("an order that is carried out", LIMIT, || {
        let order = client.unpause_virtual_machine(request(&vmi()));
        Ok(runtime.block_on(order)?.into_inner().success.then_some(()))
    })
    .unwrap();
    heard.wait("running again", |d| d.status == Status::Running);
    assert_eq!(console.sh("echo alive", LIMIT).unwrap(), "alive");
    assert_eq!(launched.only("qemu-system-x86"), qemu);

    let order = client.soft_reboot_virtual_machine(request(&vmi()));
    assert!(runtime.block_on(order).unwrap().into_inner().success);
    console.wait_for("GUEST-POWER-BUTTON", LIMIT).unwrap();
    console.wait_for_nth("GUEST-READY", 2, BOOT).unwrap();
    assert_eq!(launched.only("qemu-system-x86"), qemu, "a reboot is not a new machine");

    launched.compute.signal(Signal::SIGTERM).unwrap();
    heard.wait("the wish to end", |d| d.graceful_shutdown_requested && d.kill_at_ms.is_some());
    // The pod ends because its VMI is deleted: it has done what it was for.
    let mut deleted = vmi();
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let order = client.shutdown_virtual_machine(request(&deleted));
    assert!(runtime.block_on(order).unwrap().into_inner().success);
    console.wait_for_nth("GUEST-POWER-BUTTON", 2, LIMIT).unwrap();
    let last = heard.wait("the end", |d| d.status.is_final());
    assert_eq!((last.status, last.reason.as_str()), (Status::Shutoff, reason::SHUTDOWN));
    assert!(!last.ended_with_pod);
    assert_eq!(launched.compute.wait(LIMIT).unwrap().code(), Some(0), "{}", launched.compute.log());
}

#[test]
fn a_guest_that_ends_with_its_pod_lets_the_pod_fail() {
    let mut launched = Launched::new("--allow-emulation");
    let (heard, _handler) = launched.handler();
    let mut client = launched.client();
    let answer = launched.sync(&mut client, &vmi());
    assert!(answer.success, "{answer:?}\n{}", launched.compute.log());
    let console = launched.console();
    launched.compute.signal(Signal::SIGTERM).unwrap();
    let told = heard.wait("the wish to end", |d| d.graceful_shutdown_requested);
    assert!(!told.ended_with_pod, "it has not ended");
    let order = client.shutdown_virtual_machine(request(&vmi()));
    assert!(launched.runtime.block_on(order).unwrap().into_inner().success);
    console.wait_for("GUEST-POWER-BUTTON", LIMIT).unwrap();
    let last = heard.wait("the end", |d| d.status.is_final());
    assert_eq!((last.status, last.reason.as_str()), (Status::Shutoff, reason::SHUTDOWN));
    assert!(last.ended_with_pod);
    let code = launched.compute.wait(LIMIT).unwrap().code();
    assert_eq!(code, Some(ENDED_WITH_POD.into()), "{}", launched.compute.log());
}

#[test]
fn long_without_a_handler_the_guest_still_ends_cleanly() {
    let mut launched = Launched::new("--allow-emulation");
    let mut client = launched.client();
    let answer = launched.sync(&mut client, &vmi());
    assert!(answer.success, "{answer:?}\n{}", launched.compute.log());
    let console = launched.console();
    launched.compute.signal(Signal::SIGTERM).unwrap();
    console.wait_for("GUEST-POWER-BUTTON", LIMIT).unwrap();
    let code = launched.compute.wait(LIMIT).unwrap().code();
    assert_eq!(code, Some(ENDED_WITH_POD.into()), "{}", launched.compute.log());
}

#[test]
fn a_machine_that_dies_or_never_comes_is_a_failure() {
    let mut never = Launched::new("--allow-emulation --qemu-timeout 1s");
    assert_eq!(never.compute.wait(LIMIT).unwrap().code(), Some(1), "{}", never.compute.log());

    let mut launched = Launched::new("--allow-emulation");
    let (heard, _handler) = launched.handler();
    let mut client = launched.client();
    // A start that the hypervisor refuses leaves the launcher ready for the next one.
    let mut refused = vmi();
    refused["spec"]["domain"]["cpu"]["model"] = json!("no-such-model");
    let answer = launched.sync(&mut client, &refused);
    assert!(!answer.success && answer.message.contains("no-such-model"), "{answer:?}");
    let mut paused = vmi();
    paused["spec"]["startStrategy"] = json!("Paused");
    assert!(launched.sync(&mut client, &paused).success, "{}", launched.compute.log());
    heard.wait("paused from the start", |d| d.status == Status::Paused && d.reason == reason::USER);
    kill(launched.only("qemu-system-x86"), Signal::SIGKILL).unwrap();
    let last = heard.wait("the end", |d| d.status.is_final());
    assert_eq!((last.status, last.reason.as_str()), (Status::Crashed, reason::CRASHED));
    assert_eq!(launched.compute.wait(LIMIT).unwrap().code(), Some(3), "{}", launched.compute.log());
}

#[test]
fn what_a_machine_waits_for_is_told_and_the_wait_can_be_ended() {
    let mut launched = Launched::with("--allow-emulation", &vmi(), &[]);
    let (heard, _handler) = launched.handler();
    let mut client = launched.client();
    let mut waiting = client.clone();
    let answer = launched.runtime.spawn(async move { waiting.sync_virtual_machine(request(&vmi())).await });
    let report = heard.wait("what is waited for", |d| !d.waiting_for.is_empty());
    assert_eq!(report.waiting_for, "the image registry.example/data of the volume data");
    assert_eq!(launched.domain(&mut client).status, Status::NoState);
    launched.compute.signal(Signal::SIGTERM).unwrap();
    let last = heard.wait("the end", |d| d.status.is_final());
    assert_eq!((last.status, last.reason.as_str()), (Status::Shutoff, reason::FAILED));
    assert_eq!(launched.compute.wait(LIMIT).unwrap().code(), Some(1), "{}", launched.compute.log());
    drop(answer);
}

/// A machine whose QEMU asks for more queue pairs than its netd, which was told of one, offers.
fn with_two_pairs() -> Value {
    let mut vmi = vmi();
    vmi["spec"]["domain"]["cpu"]["cores"] = json!(2);
    vmi["spec"]["domain"]["devices"]["networkInterfaceMultiqueue"] = json!(true);
    vmi
}

#[test]
fn a_qemu_that_its_netd_does_not_suit_is_told_in_its_own_words() {
    let launched = Launched::new("--allow-emulation");
    let (heard, _handler) = launched.handler();
    let mut client = launched.client();
    let answer = launched.runtime.spawn(async move {
        let _ended = client.sync_virtual_machine(request(&with_two_pairs())).await;
    });
    let report = heard.wait("why QEMU does not start", |d| d.waiting_for.contains("queues"));
    assert!(report.waiting_for.starts_with("QEMU, which is starting"), "{}", report.waiting_for);
    assert!(report.waiting_since_ms.is_some() && report.status == Status::NoState);
    answer.abort();
}

#[test]
fn long_a_start_that_lasts_is_ended_and_the_next_one_may_succeed() {
    let launched = Launched::new("--allow-emulation");
    let (_heard, _handler) = launched.handler();
    let mut client = launched.client();
    let answer = launched.sync(&mut client, &with_two_pairs());
    assert!(!answer.success, "{answer:?}");
    assert!(answer.message.contains("no guest 60 s after the start"), "{answer:?}");
    assert!(answer.message.contains("queues"), "{answer:?}");
    assert!(launched.sync(&mut client, &vmi()).success, "{}", launched.compute.log());
    launched.console();
}

#[test]
fn emulation_is_used_only_when_it_is_allowed() {
    let launched = Launched::new("");
    let (heard, _handler) = launched.handler();
    let mut client = launched.client();
    let answer = launched.sync(&mut client, &vmi());
    assert!(!answer.success && answer.message.contains("useEmulation"), "{answer:?}");
    // The reporter is a task of its own: its report follows the answer.
    heard.wait("the same reason in the report", |domain| domain.message == answer.message);
}

/// A Debian that boots from its container disk by the firmware, with cloud-init and the guest agent.
fn debian() -> Value {
    let mut vmi = vmi();
    let spec = &mut vmi["spec"];
    spec["domain"]["memory"]["guest"] = json!("512Mi");
    spec["domain"].as_object_mut().unwrap().remove("firmware");
    spec["domain"]["devices"]["disks"] = json!([{"name": "root", "disk": {"bus": "virtio"}, "bootOrder": 1}, {"name": "init", "disk": {"bus": "virtio"}}]);
    let user_data = "#cloud-config\nusers: [default, {name: jane}]\nwrite_files: [{path: /etc/mark, content: from-cloud-init}]\n";
    spec["volumes"] = json!([
        {"name": "root", "containerDisk": {"image": "registry.example/debian"}},
        {"name": "init", "cloudInitNoCloud": {"userData": user_data}},
    ]);
    let key = |method: Value| json!({"sshPublicKey": {"source": {"secret": {"secretName": "keys"}}, "propagationMethod": method}});
    spec["accessCredentials"] = json!([
        key(json!({"noCloud": {}})),
        key(json!({"qemuGuestAgent": {"users": ["root"]}})),
        {"userPassword": {"source": {"secret": {"secretName": "words"}}, "propagationMethod": {"qemuGuestAgent": {}}}},
    ]);
    vmi
}

/// Writes the Secret of one of [`debian()`]'s credentials as the pod has it mounted.
fn credential(launched: &Launched, place: usize, key: &str, value: &str) {
    let directory = launched.pod.path(&format!("private/access-credentials/{place}"));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join(key), value).unwrap();
}

#[test]
fn long_the_guests_agent_is_heard_and_asked() {
    let vmi = debian();
    let image = artefact("debian").unwrap();
    let disks = [("volumeroot", image.as_path(), "disk_0.sock --path /mnt/image/disk.qcow2")];
    let mut launched = Launched::with("--allow-emulation", &vmi, &disks);
    let (heard, _handler) = launched.handler();
    let mut client = launched.client();
    credential(&launched, 0, "key", &format!("{SSH_KEY} by-cloud-init\n"));
    credential(&launched, 1, "key", &format!("{SSH_KEY} by-agent"));
    credential(&launched, 2, "jane", "a word");
    let answer = launched.sync(&mut client, &vmi);
    assert!(answer.success, "{answer:?}\n{}", launched.compute.log());
    let runtime = &launched.runtime;
    let early = runtime.block_on(client.get_users(EmptyRequest {})).unwrap().into_inner();
    assert_eq!(early.response.unwrap().message, "the guest's agent is not connected");

    let told =
        |d: &Domain| d.guest_os_info.is_some() && d.interfaces.iter().any(|i| !i.interface_name.is_empty());
    let report = heard.wait_within(BOOT_DEBIAN, "the agent's word", told);
    assert!(report.agent_connected && report.agent_version.is_some(), "{report:?}");
    assert_eq!(report.guest_os_info.unwrap().id, "debian");
    let interface = &report.interfaces[0];
    assert_eq!((interface.ip.as_str(), interface.info_source.as_str()), ("10.9.0.2", "domain, guest-agent"));

    let mut exec = |command: &str| {
        let exec = ExecRequest {
            domain_name: "demo_tiny".into(),
            command: "/bin/sh".into(),
            args: vec!["-c".into(), command.into()],
            timeout_seconds: 240,
        };
        let executed = runtime.block_on(client.exec(exec)).unwrap().into_inner();
        assert!(executed.response.unwrap().success);
        (executed.std_out, executed.exit_code)
    };
    let waited = exec("cloud-init status --wait >/dev/null; cat /etc/mark; exit 7");
    assert_eq!(waited, ("from-cloud-init".into(), 7));
    // The agent cannot have set jane's password before cloud-init made her: it was told again.
    let set = |d: &Domain| d.access_credentials.as_ref().is_some_and(|told| told.synchronized);
    heard.wait_within(LIMIT, "credentials", set);
    assert_eq!(exec("cat /home/*/.ssh/authorized_keys | grep -c by-cloud-init").0, "1\n");
    assert_eq!(exec("cat /root/.ssh/authorized_keys").0.trim(), format!("{SSH_KEY} by-agent"));
    assert_eq!(exec("grep -c '^jane:[$]' /etc/shadow").0, "1\n");
    credential(&launched, 1, "key", &format!("{SSH_KEY} another"));
    until("another key", LIMIT, || {
        Ok(exec("cat /root/.ssh/authorized_keys").0.contains("another").then_some(()))
    })
    .unwrap();
    let ping = GuestPingRequest { domain_name: "demo_tiny".into(), timeout_seconds: 5 };
    assert!(runtime.block_on(client.guest_ping(ping)).unwrap().into_inner().response.unwrap().success);
    let info = runtime.block_on(client.get_guest_info(EmptyRequest {})).unwrap().into_inner();
    let info: Value = serde_json::from_str(&info.guest_info_response).unwrap();
    assert_eq!((&info["hostname"], &info["os"]["id"]), (&json!("tiny"), &json!("debian")));
    let mounted = runtime.block_on(client.get_filesystems(EmptyRequest {})).unwrap().into_inner();
    let mounted: Vec<Value> = serde_json::from_str(&mounted.guest_filesystems_response).unwrap();
    assert!(mounted.iter().any(|f| f["mountPoint"] == "/"), "{mounted:?}");

    let freeze = FreezeRequest { vmi: request(&vmi).vmi, unfreeze_timeout_seconds: 0 };
    let frozen = runtime.block_on(client.freeze_virtual_machine(freeze)).unwrap().into_inner();
    assert!(frozen.success, "{frozen:?}");
    heard.wait("frozen", |d| d.filesystems_frozen);
    let thawed = runtime.block_on(client.unfreeze_virtual_machine(request(&vmi))).unwrap().into_inner();
    assert!(thawed.success, "{thawed:?}");

    let killed = runtime.block_on(client.kill_virtual_machine(request(&vmi))).unwrap().into_inner();
    assert!(killed.success);
    let last = heard.wait("the end", |d| d.status.is_final());
    assert_eq!((last.status, last.reason.as_str()), (Status::Shutoff, reason::DESTROYED));
    assert_eq!(launched.compute.wait(LIMIT).unwrap().code(), Some(4), "{}", launched.compute.log());
}
