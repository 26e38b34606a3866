//! Questions that the guest's agent answers, in the words of `kubevirt.io/v1`.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use podvirt_api::v1;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::agent::{self, ANSWER, AgentError, text};
use super::shared::Shared;

/// How many rows of an answer are passed on.
const MAX_ROWS: usize = 1_000;
/// Between two looks whether a program in the guest has ended.
const EXEC_INTERVAL: Duration = Duration::from_millis(100);
/// What an agent has for an answer at least: the hypervisor counts in seconds.
const AGENT_MIN: Duration = Duration::from_secs(1);

fn rows(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten().take(MAX_ROWS)
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// The guest as its agent knows it.
pub(super) async fn guest_info(
    shared: &Shared,
) -> Result<v1::VirtualMachineInstanceGuestAgentInfo, AgentError> {
    let info = shared.agent_command("guest-info", Value::Null, ANSWER).await?;
    // An agent may lack any of these.
    let ask =
        async |command: &str| shared.agent_command(command, Value::Null, ANSWER).await.unwrap_or_default();
    let (os, host, zone) =
        (ask("guest-get-osinfo").await, ask("guest-get-host-name").await, ask("guest-get-timezone").await);
    let (users, filesystems, freeze) =
        (ask("guest-get-users").await, ask("guest-get-fsinfo").await, ask("guest-fsfreeze-status").await);
    Ok(assemble(&info, &os, &host, &zone, &users, &filesystems, &freeze))
}

fn assemble(
    info: &Value,
    os: &Value,
    host: &Value,
    zone: &Value,
    users: &Value,
    filesystems: &Value,
    freeze: &Value,
) -> v1::VirtualMachineInstanceGuestAgentInfo {
    let os = agent::os_info(os);
    let commands = info.get("supported_commands").unwrap_or(&Value::Null);
    let zone_name = match (text(zone, "zone"), zone.get("offset").and_then(Value::as_i64)) {
        (name, Some(offset)) if !name.is_empty() => Some(format!("{name}, {offset}")),
        (name, _) => some(name),
    };
    v1::VirtualMachineInstanceGuestAgentInfo {
        guest_agent_version: some(text(info, "version")),
        supported_commands: rows(commands)
            .map(|command| v1::GuestAgentCommandInfo {
                name: text(command, "name"),
                enabled: command.get("enabled").and_then(Value::as_bool),
            })
            .collect(),
        hostname: some(text(host, "host-name")),
        os: Some(v1::VirtualMachineInstanceGuestOsInfo {
            name: some(os.name),
            kernel_release: some(os.kernel_release),
            version: some(os.version),
            pretty_name: some(os.pretty_name),
            version_id: some(os.version_id),
            kernel_version: some(os.kernel_version),
            machine: some(os.machine),
            id: some(os.id),
        }),
        timezone: zone_name,
        user_list: self::users(users),
        fs_info: Some(v1::VirtualMachineInstanceFileSystemInfo { disks: self::filesystems(filesystems) }),
        fs_freeze_status: freeze.as_str().filter(|s| *s == "frozen").map(str::to_owned),
        ..Default::default()
    }
}

/// The users who are logged in.
pub(super) fn users(told: &Value) -> Vec<v1::VirtualMachineInstanceGuestOsUser> {
    rows(told)
        .map(|user| v1::VirtualMachineInstanceGuestOsUser {
            user_name: text(user, "user"),
            domain: some(text(user, "domain")),
            login_time: user.get("login-time").and_then(Value::as_f64),
        })
        .collect()
}

/// What is mounted.
pub(super) fn filesystems(told: &Value) -> Vec<v1::VirtualMachineInstanceFileSystem> {
    let bytes = |row: &Value, field: &str| row.get(field).and_then(Value::as_i64).unwrap_or_default();
    rows(told)
        .map(|row| v1::VirtualMachineInstanceFileSystem {
            disk_name: text(row, "name"),
            mount_point: text(row, "mountpoint"),
            file_system_type: text(row, "type"),
            used_bytes: bytes(row, "used-bytes"),
            total_bytes: bytes(row, "total-bytes"),
            disk: rows(row.get("disk").unwrap_or(&Value::Null))
                .map(|disk| v1::VirtualMachineInstanceFileSystemDisk {
                    serial: some(text(disk, "serial")),
                    bus_type: text(disk, "bus-type"),
                })
                .collect(),
        })
        .collect()
}

/// How a program in the guest ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Executed {
    pub(super) code: i32,
    pub(super) output: String,
}

/// Runs a program in the guest; none when it did not end in time, in which case it goes on there.
pub(super) async fn execute(
    shared: &Shared,
    program: &str,
    arguments: &[String],
    limit: Duration,
) -> Result<Option<Executed>, AgentError> {
    let end = Instant::now() + limit;
    // An agent that does not answer is given up with the program.
    let answer = || end.saturating_duration_since(Instant::now()).clamp(AGENT_MIN, ANSWER);
    let start = json!({"path": program, "arg": arguments, "capture-output": true});
    let started = shared.agent_command("guest-exec", start, answer()).await?;
    let pid = started.get("pid").cloned().unwrap_or_default();
    loop {
        let status = shared.agent_command("guest-exec-status", json!({"pid": pid}), answer()).await?;
        if let Some(executed) = executed(&status) {
            return Ok(Some(executed));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        sleep(EXEC_INTERVAL).await;
    }
}

fn executed(status: &Value) -> Option<Executed> {
    if status.get("exited").and_then(Value::as_bool) != Some(true) {
        return None;
    }
    // A program that a signal ended has no code; shells tell it like this.
    let signal = status.get("signal").and_then(Value::as_i64).map(|signal| 128 + signal);
    let code = status.get("exitcode").and_then(Value::as_i64).or(signal).unwrap_or(-1);
    let output = status.get("out-data").and_then(Value::as_str).unwrap_or_default();
    let output = BASE64_STANDARD.decode(output).unwrap_or_default();
    Some(Executed {
        code: i32::try_from(code).unwrap_or(-1),
        output: String::from_utf8_lossy(&output).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_words_become_the_apis() {
        let info = assemble(
            &json!({"version": "9.2.0", "supported_commands": [{"name": "guest-exec", "enabled": false}]}),
            &json!({"id": "debian", "pretty-name": "Debian 13"}),
            &json!({"host-name": "web"}),
            &json!({"zone": "CET", "offset": 3600}),
            &json!([{"user": "root", "login-time": 17.5}]),
            &json!([{"name": "vda1", "mountpoint": "/", "type": "ext4", "used-bytes": 1, "total-bytes": 2,
                     "disk": [{"serial": "s", "bus-type": "virtio", "dev": "/dev/vda1"}]}]),
            &json!("thawed"),
        );
        let json = serde_json::to_value(&info).unwrap();
        assert_eq!(
            json,
            json!({
                "guestAgentVersion": "9.2.0",
                "supportedCommands": [{"name": "guest-exec", "enabled": false}],
                "hostname": "web",
                "os": {"id": "debian", "prettyName": "Debian 13"},
                "timezone": "CET, 3600",
                "userList": [{"userName": "root", "loginTime": 17.5}],
                "fsInfo": {"disks": [{
                    "diskName": "vda1", "mountPoint": "/", "fileSystemType": "ext4", "usedBytes": 1, "totalBytes": 2,
                    "disk": [{"serial": "s", "busType": "virtio"}],
                }]},
            })
        );
    }

    #[test]
    fn a_program_is_done_when_the_agent_says_so() {
        assert_eq!(executed(&json!({"exited": false})), None);
        let output = BASE64_STANDARD.encode("out\n");
        let done = executed(&json!({"exited": true, "exitcode": 3, "out-data": output}));
        assert_eq!(done, Some(Executed { code: 3, output: "out\n".into() }));
        assert_eq!(executed(&json!({"exited": true, "signal": 9})).unwrap().code, 137);
        assert_eq!(executed(&json!("nonsense")), None);
    }
}
