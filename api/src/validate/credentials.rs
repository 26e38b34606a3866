//! Credentials of the guest's users.

use crate::problem::Problems;
use crate::vmi::{CredentialSource, SshPublicKey, UserPassword, VirtualMachineInstance};

use super::is_dns_subdomain;

pub(super) fn check(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    for (n, credential) in vmi.spec.access_credentials.iter().enumerate() {
        let path = format!("spec.accessCredentials[{n}]");
        match (&credential.ssh_public_key, &credential.user_password) {
            (Some(key), None) => ssh_public_key(vmi, key, &format!("{path}.sshPublicKey"), problems),
            (None, Some(password)) => user_password(password, &format!("{path}.userPassword"), problems),
            (None, None) => problems.required(path, "sshPublicKey or userPassword is required"),
            (Some(_), Some(_)) => {
                problems.invalid(path, "sshPublicKey, userPassword", "one of them is allowed");
            }
        }
    }
}

fn source(source: &CredentialSource, path: &str, problems: &mut Problems) {
    match &source.secret {
        None => problems.required(format!("{path}.source.secret"), "a Secret is required"),
        Some(secret) if !is_dns_subdomain(&secret.secret_name) => {
            problems.required(format!("{path}.source.secret.secretName"), "a Secret's name is required");
        }
        Some(_) => {}
    }
}

fn user_password(password: &UserPassword, path: &str, problems: &mut Problems) {
    source(&password.source, path, problems);
    if password.propagation_method.qemu_guest_agent.is_none() {
        problems.required(format!("{path}.propagationMethod"), "qemuGuestAgent is required");
    }
}

fn ssh_public_key(vmi: &VirtualMachineInstance, key: &SshPublicKey, path: &str, problems: &mut Problems) {
    source(&key.source, path, problems);
    let (method, by) = (format!("{path}.propagationMethod"), &key.propagation_method);
    let given: Vec<&str> = [
        ("noCloud", by.no_cloud.is_some()),
        ("configDrive", by.config_drive.is_some()),
        ("qemuGuestAgent", by.qemu_guest_agent.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, given)| given.then_some(name))
    .collect();
    match given.as_slice() {
        [] => return problems.required(method, "noCloud, configDrive or qemuGuestAgent is required"),
        [_] => {}
        several => return problems.invalid(method, several.join(", "), "one of them is allowed"),
    }
    if by.qemu_guest_agent.as_ref().is_some_and(|agent| agent.users.is_empty()) {
        problems.required(format!("{method}.qemuGuestAgent.users"), "a user is required");
    }
    let volumes = &vmi.spec.volumes;
    let has_no_cloud = volumes.iter().any(|volume| volume.cloud_init_no_cloud.is_some());
    let has_config_drive = volumes.iter().any(|volume| volume.cloud_init_config_drive.is_some());
    let lacks = match (&by.no_cloud, &by.config_drive) {
        (Some(_), _) if !has_no_cloud => "cloudInitNoCloud",
        (_, Some(_)) if !has_config_drive => "cloudInitConfigDrive",
        _ => return,
    };
    problems.required(method, format!("a volume {lacks} is required, whose disk has the keys"));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(credential: Value, volume: &str) -> Vec<String> {
        let vmi = VirtualMachineInstance::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}}, "accessCredentials": [credential],
                "volumes": [{"name": "ci", volume: {"userData": "x"}}]},
        }));
        let mut problems = Problems::default();
        check(&vmi.unwrap(), &mut problems);
        problems.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_key_has_a_secret_and_one_disk_that_is_there() {
        let key = |method: Value| json!({"sshPublicKey": {"source": {"secret": {"secretName": "keys"}}, "propagationMethod": method}});
        let none: [&str; 0] = [];
        assert_eq!(problems(key(json!({"noCloud": {}})), "cloudInitNoCloud"), none);
        assert_eq!(problems(key(json!({"configDrive": {}})), "cloudInitConfigDrive"), none);
        let path = "spec.accessCredentials[0].sshPublicKey.propagationMethod";
        for (method, told) in [
            (
                json!({"configDrive": {}}),
                "a volume cloudInitConfigDrive is required, whose disk has the keys",
            ),
            (json!({}), "noCloud, configDrive or qemuGuestAgent is required"),
            (
                json!({"noCloud": {}, "configDrive": {}}),
                "'noCloud, configDrive' is not allowed; one of them is allowed",
            ),
        ] {
            assert_eq!(problems(key(method), "cloudInitNoCloud"), [format!("{path}: {told}")]);
        }
        let nothing =
            problems(json!({"sshPublicKey": {"propagationMethod": {"noCloud": {}}}}), "cloudInitNoCloud");
        assert_eq!(nothing, ["spec.accessCredentials[0].sshPublicKey.source.secret: a Secret is required"]);
        let users = problems(key(json!({"qemuGuestAgent": {"users": []}})), "cloudInitNoCloud");
        assert_eq!(users, [format!("{path}.qemuGuestAgent.users: a user is required")]);
        let password =
            json!({"userPassword": {"source": {"secret": {"secretName": "p"}}, "propagationMethod": {}}});
        let path = "spec.accessCredentials[0].userPassword.propagationMethod";
        assert_eq!(problems(password, "cloudInitNoCloud"), [format!("{path}: qemuGuestAgent is required")]);
        assert_eq!(
            problems(json!({}), "cloudInitNoCloud"),
            ["spec.accessCredentials[0]: sshPublicKey or userPassword is required"]
        );
    }
}
