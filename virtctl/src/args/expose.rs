//! `expose`: flags that become a Service.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Expose {
    /// What is exposed: vmi, vm or vmirs (or the long names, singular or plural)
    #[arg(value_name = "vmi|vm|vmirs")]
    pub(crate) kind: String,
    /// Name of the virtual machine instance, virtual machine or replica set
    #[arg(value_name = "NAME")]
    pub(crate) target: String,
    /// Name of the Service
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// Address of the Service in the cluster; None makes it a headless one
    #[arg(long = "cluster-ip", value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    pub(crate) cluster_ip: String,
    /// Further address at which the nodes take what is sent to the Service
    #[arg(long = "external-ip", value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    pub(crate) external_ip: String,
    /// Port of the Service; without it the machine's own list of ports is taken
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub(crate) port: i32,
    /// Protocol: TCP or UDP
    #[arg(long, value_name = "PROTOCOL", default_value = "TCP")]
    pub(crate) protocol: String,
    /// Port of the machine, by number or name; that of the Service when not given
    #[arg(long, value_name = "PORT", default_value = "", hide_default_value = true)]
    pub(crate) target_port: String,
    /// Type: ClusterIP, NodePort or LoadBalancer
    #[arg(long = "type", value_name = "TYPE", default_value = "ClusterIP")]
    pub(crate) service_type: String,
    /// Name of the port
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) port_name: String,
    /// Families of addresses: IPv4, IPv6, IPv4,IPv6 or IPv6,IPv4
    #[arg(long, value_name = "FAMILIES", default_value = "", hide_default_value = true)]
    pub(crate) ip_family: String,
    /// Whether both families are wanted: SingleStack, PreferDualStack or RequireDualStack
    #[arg(long, value_name = "POLICY", default_value = "", hide_default_value = true)]
    pub(crate) ip_family_policy: String,
}
