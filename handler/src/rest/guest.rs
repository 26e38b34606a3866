//! What a guest's agent tells, as virt-api hands it on.
//!
//! The launcher that passes it on belongs to its tenant: lists are bounded while they are read.

use podvirt_api::v1;
use podvirt_proto::bounded;
use serde::{Deserialize, Serialize};

/// Rows of a list that are handed on; a launcher passes on as many.
const MAX_ROWS: usize = 1000;

/// A list of what the agent tells, in Kubernetes' form.
#[derive(Debug, Serialize)]
pub(super) struct List<T> {
    metadata: Metadata,
    items: Vec<T>,
}

#[derive(Debug, Serialize)]
struct Metadata {}

impl<T> From<Rows<T>> for List<T> {
    fn from(rows: Rows<T>) -> Self {
        Self { metadata: Metadata {}, items: rows.0 }
    }
}

/// The rows of a launcher's answer.
#[derive(Debug, Deserialize)]
#[serde(transparent, bound = "T: Deserialize<'de>")]
pub(super) struct Rows<T>(#[serde(deserialize_with = "bounded::list::<_, _, MAX_ROWS>")] pub(super) Vec<T>);

/// The fields of `VirtualMachineInstanceGuestAgentInfo` that a launcher fills in.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Info {
    #[serde(skip_serializing_if = "Option::is_none")]
    guest_agent_version: Option<String>,
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_ROWS>", skip_serializing_if = "Vec::is_empty")]
    supported_commands: Vec<v1::GuestAgentCommandInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    os: Option<v1::VirtualMachineInstanceGuestOsInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timezone: Option<String>,
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_ROWS>", skip_serializing_if = "Vec::is_empty")]
    user_list: Vec<v1::VirtualMachineInstanceGuestOsUser>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fs_info: Option<Filesystems>,
    #[serde(rename = "fsFreezeStatus", skip_serializing_if = "Option::is_none")]
    freeze_status: Option<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Filesystems {
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_ROWS>")]
    disks: Vec<v1::VirtualMachineInstanceFileSystem>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_is_handed_on_with_its_names() {
        let answer = json!({
            "guestAgentVersion": "9.2", "supportedCommands": [{"name": "guest-info", "enabled": true}],
            "hostname": "vm", "os": {"id": "debian"}, "timezone": "UTC, 0",
            "userList": [{"userName": "root", "domain": "d", "loginTime": 1.5}],
            "fsInfo": {"disks": [{
                "diskName": "vda1", "mountPoint": "/", "fileSystemType": "ext4", "usedBytes": 1, "totalBytes": 2,
                "disk": [{"serial": "s", "busType": "virtio"}],
            }]},
            "fsFreezeStatus": "frozen",
        });
        let typed: v1::VirtualMachineInstanceGuestAgentInfo = serde_json::from_value(answer.clone()).unwrap();
        let info: Info = serde_json::from_value(answer).unwrap();
        assert_eq!(serde_json::to_value(info).unwrap(), serde_json::to_value(typed).unwrap());
    }

    #[test]
    fn lists_are_bounded() {
        let many = vec![json!({}); 2 * MAX_ROWS];
        let info: Info = serde_json::from_value(
            json!({"supportedCommands": many, "userList": many, "fsInfo": {"disks": many}}),
        )
        .unwrap();
        let disks = info.fs_info.unwrap().disks.len();
        assert_eq!([info.supported_commands.len(), info.user_list.len(), disks], [MAX_ROWS; 3]);
        let rows: Rows<v1::VirtualMachineInstanceGuestOsUser> = serde_json::from_value(json!(many)).unwrap();
        let list = serde_json::to_value(List::from(rows)).unwrap();
        assert_eq!(list["metadata"], json!({}));
        assert_eq!(list["items"].as_array().map(Vec::len), Some(MAX_ROWS));
    }
}
