//! The VirtualMachineInstance: what one running virtual machine is to be.
//!
//! Only fields that podvirt carries out have a place here; the others are refused by [`crate::fields`] before
//! a value of these types exists. `None`, an empty list and an empty text all mean "not set"; what holds then
//! is decided once, by [`crate::defaults::set_defaults`].

mod devices;
mod domain;
mod network;
mod volume;

pub use devices::*;
pub use domain::*;
pub use network::*;
pub use volume::*;

use crate::meta::ObjectMeta;

/// Grace period when the manifest gives none, seconds; upstream's for a VirtualMachineInstance.
pub const DEFAULT_GRACE_PERIOD_SECONDS: i64 = 30;

objects! {
    /// One virtual machine that runs or is to run.
    VirtualMachineInstance {
        /// `kubevirt.io/v1`.
        api_version: String,
        /// `VirtualMachineInstance`.
        kind: String,
        /// Name and identity.
        metadata: ObjectMeta,
        /// What it is to be.
        spec: VirtualMachineInstanceSpec,
    }

    /// What a virtual machine is to be.
    VirtualMachineInstanceSpec {
        /// The machine.
        domain: DomainSpec,
        /// What the machine does once it is made; it runs when not set.
        start_strategy: Option<StartStrategy>,
        /// Seconds between the request to shut down and the end by force.
        termination_grace_period_seconds: Option<i64>,
        /// Credentials of the guest's users that lie in Secrets.
        access_credentials: Vec<AccessCredential>,
        /// Where the disks' contents come from.
        volumes: Vec<Volume>,
        /// Networks that interfaces attach to.
        networks: Vec<Network>,
        /// The guest's host name.
        hostname: String,
        /// Domain of the guest's fully qualified name.
        subdomain: String,
        /// Where resolvers come from.
        dns_policy: Option<DnsPolicy>,
        /// Resolvers of the guest's own.
        dns_config: Option<PodDnsConfig>,
        /// Processor architecture in Go's words.
        architecture: String,
    }

    /// A credential of the guest's users.
    AccessCredential {
        /// Keys with which users may log in by SSH.
        ssh_public_key: Option<SshPublicKey>,
        /// Passwords of users.
        user_password: Option<UserPassword>,
    }

    /// Passwords of users.
    UserPassword {
        /// Where they lie, each under its user's name.
        source: CredentialSource,
        /// How the guest gets them.
        propagation_method: UserPasswordPropagation,
    }

    /// How the guest gets passwords.
    UserPasswordPropagation {
        /// By its agent.
        qemu_guest_agent: Option<PasswordByAgent>,
    }

    /// Passwords by the guest's agent.
    PasswordByAgent {}

    /// Keys with which users may log in by SSH.
    SshPublicKey {
        /// Where they lie.
        source: CredentialSource,
        /// How the guest gets them.
        propagation_method: SshPublicKeyPropagation,
    }

    /// Where a credential lies.
    CredentialSource {
        /// In a Secret of the machine's namespace: the values of all of its keys.
        secret: Option<CredentialSecret>,
    }

    /// A Secret with a credential.
    CredentialSecret {
        /// Its name.
        secret_name: String,
    }

    /// How the guest gets SSH keys.
    SshPublicKeyPropagation {
        /// By cloud-init's NoCloud disk, as it is made when the machine starts.
        no_cloud: Option<ByCloudInit>,
        /// By cloud-init's ConfigDrive disk, as it is made when the machine starts.
        config_drive: Option<ByCloudInit>,
        /// By its agent, also while it runs.
        qemu_guest_agent: Option<KeysByAgent>,
    }

    /// Keys by the guest's agent.
    KeysByAgent {
        /// Users whose keys they are.
        users: Vec<String>,
    }

    /// By a disk of cloud-init.
    ByCloudInit {}

    /// Resolvers that are added to, or stand in place of, the pod's.
    PodDnsConfig {
        /// Addresses.
        nameservers: Vec<String>,
        /// Search domains.
        searches: Vec<String>,
    }
}

words! {
    /// What a machine does once it is made.
    StartStrategy {
        /// It waits until a user lets it go on.
        Paused = "Paused",
    }

    /// Where resolvers come from.
    DnsPolicy {
        /// The pod's resolv.conf, which names the cluster's resolver.
        ClusterFirst = "ClusterFirst",
        /// As [`DnsPolicy::ClusterFirst`].
        ClusterFirstWithHostNet = "ClusterFirstWithHostNet",
        /// The pod's resolv.conf, which is the node's.
        Default = "Default",
        /// Only `dnsConfig`.
        None = "None",
    }
}

impl VirtualMachineInstance {
    /// Namespace and name as one text, for people.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace(), self.metadata.name)
    }

    /// The namespace, `default` when none is set.
    pub fn namespace(&self) -> &str {
        if self.metadata.namespace.is_empty() { "default" } else { &self.metadata.namespace }
    }

    /// The network that an interface attaches to: the one with its name.
    pub fn network_of(&self, interface: &Interface) -> Option<&Network> {
        self.spec.networks.iter().find(|n| n.name == interface.name)
    }

    /// Whether a volume is shown as a disk.
    pub fn is_disk(&self, volume: &Volume) -> bool {
        self.spec.domain.devices.disks.iter().any(|disk| disk.name == volume.name)
    }

    /// The volume behind a disk: the one with its name.
    pub fn volume_of(&self, disk: &Disk) -> Option<&Volume> {
        self.spec.volumes.iter().find(|v| v.name == disk.name)
    }
}
