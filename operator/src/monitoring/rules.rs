//! Alerts and the series that they use, in PromQL. An alert that means the same as one of upstream's has its name.
//!
//! The expressions use metrics of podvirt's daemons, `up` of Prometheus itself, and some of kube-state-metrics (`kube_…`). An
//! alert that uses a metric of kube-state-metrics never fires where Prometheus does not collect them. Upstream also has alerts
//! about failed requests, for which podvirt's daemons have no metrics, and about guests.

use serde_json::{Value, json};

/// Stands for podvirt's namespace.
const NAMESPACE: &str = "NAMESPACE";

/// Series that Prometheus computes from others: name and expression.
pub(super) const RECORDS: [(&str, &str); 14] = [
    ("kubevirt_virt_api_up", "sum(up{namespace='NAMESPACE', pod=~'virt-api-.*'}) or vector(0)"),
    ("kubevirt_virt_controller_up", "sum(up{namespace='NAMESPACE', pod=~'virt-controller-.*'}) or vector(0)"),
    ("kubevirt_virt_handler_up", "sum(up{namespace='NAMESPACE', pod=~'virt-handler-.*'}) or vector(0)"),
    ("kubevirt_virt_operator_up", "sum(up{namespace='NAMESPACE', pod=~'virt-operator-.*'}) or vector(0)"),
    (
        "kubevirt_virt_controller_ready",
        "sum(kubevirt_virt_controller_ready_status{namespace='NAMESPACE'}) or vector(0)",
    ),
    (
        "kubevirt_virt_operator_ready",
        "sum(kubevirt_virt_operator_ready_status{namespace='NAMESPACE'}) or vector(0)",
    ),
    (
        "kubevirt_virt_operator_leading",
        "sum(kubevirt_virt_operator_leading_status{namespace='NAMESPACE'}) or vector(0)",
    ),
    ("kubevirt_allocatable_nodes", "count(count(kube_node_status_allocatable) by (node))"),
    (
        "kubevirt_nodes_with_kvm",
        "count(kube_node_status_allocatable{resource='devices_kubevirt_io_kvm'} != 0) or vector(0)",
    ),
    ("kubevirt_number_of_vms", "count by (namespace) (kubevirt_vm_info)"),
    (
        "kubevirt_vmi_phase_count",
        "sum by (node, phase, guest_os_name, guest_os_version_id, guest_os_kernel_release) (kubevirt_vmi_info)",
    ),
    (
        "kubevirt_vmi_memory_used_bytes",
        "kubevirt_vmi_memory_available_bytes - kubevirt_vmi_memory_usable_bytes",
    ),
    ("vmi:kubevirt_vmi_vcpu:count", "count by (namespace, name, node) (kubevirt_vmi_vcpu_seconds_total)"),
    // What a guest would run beside what its virtual CPUs run.
    (
        "kubevirt_vmi_guest_vcpu_queue",
        "clamp_min(sum by (namespace, name, node) (kubevirt_vmi_guest_load_1m) - vmi:kubevirt_vmi_vcpu:count, 0)",
    ),
];

/// How bad a state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// A person is needed soon.
    Critical,
    /// Something is not as it should be.
    Warning,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
        }
    }
}

/// An alert: it fires when its expression has held for some time.
pub(super) struct Alert {
    /// Its name.
    pub(super) name: &'static str,
    /// Holds while something is wrong.
    pub(super) expression: &'static str,
    /// How long the expression has to hold before the alert fires, in Prometheus' notation.
    lasts: &'static str,
    severity: Severity,
    /// Whether podvirt itself is worse off, or only machines are.
    harms_podvirt: bool,
    summary: &'static str,
}

const fn alert(
    name: &'static str,
    lasts: &'static str,
    severity: Severity,
    expression: &'static str,
    summary: &'static str,
) -> Alert {
    Alert { name, expression, lasts, severity, harms_podvirt: true, summary }
}

use Severity::{Critical, Warning};

/// An alert of which podvirt itself is none the worse.
const fn machine_alert(
    name: &'static str,
    lasts: &'static str,
    severity: Severity,
    expression: &'static str,
    summary: &'static str,
) -> Alert {
    Alert { harms_podvirt: false, ..alert(name, lasts, severity, expression, summary) }
}

pub(super) const ALERTS: [Alert; 21] = [
    alert("VirtAPIDown", "10m", Critical, "kubevirt_virt_api_up == 0", "No virt-api answers."),
    alert(
        "LowVirtAPICount",
        "60m",
        Warning,
        "(kubevirt_allocatable_nodes > 1) and (kubevirt_virt_api_up < 2)",
        "Only one virt-api answers, in a cluster of several nodes.",
    ),
    alert(
        "VirtControllerDown",
        "10m",
        Critical,
        "kubevirt_virt_controller_up == 0",
        "No virt-controller answers.",
    ),
    alert(
        "LowReadyVirtControllersCount",
        "10m",
        Warning,
        "kubevirt_virt_controller_ready < kubevirt_virt_controller_up",
        "A virt-controller answers, but does not reach the API server.",
    ),
    alert(
        "NoReadyVirtController",
        "10m",
        Critical,
        "kubevirt_virt_controller_ready == 0",
        "No virt-controller is ready.",
    ),
    alert(
        "NoLeadingVirtController",
        "10m",
        Critical,
        "(sum(kubevirt_virt_controller_leading_status{namespace='NAMESPACE'}) or vector(0)) == 0",
        "No virt-controller works: none has the lead.",
    ),
    alert(
        "LowVirtControllersCount",
        "10m",
        Warning,
        "(kubevirt_allocatable_nodes > 1) and (kubevirt_virt_controller_ready < 2)",
        "Only one virt-controller is ready, in a cluster of several nodes.",
    ),
    alert("VirtOperatorDown", "10m", Critical, "kubevirt_virt_operator_up == 0", "No virt-operator answers."),
    alert(
        "LowVirtOperatorCount",
        "60m",
        Warning,
        "(kubevirt_allocatable_nodes > 1) and (kubevirt_virt_operator_up < 2)",
        "Only one virt-operator answers, in a cluster of several nodes.",
    ),
    alert(
        "LowReadyVirtOperatorsCount",
        "10m",
        Warning,
        "kubevirt_virt_operator_ready < kubevirt_virt_operator_up",
        "A virt-operator answers, but has not registered its webhook.",
    ),
    alert(
        "NoReadyVirtOperator",
        "10m",
        Critical,
        "kubevirt_virt_operator_ready == 0",
        "No virt-operator is ready.",
    ),
    alert(
        "NoLeadingVirtOperator",
        "10m",
        Critical,
        "kubevirt_virt_operator_leading == 0",
        "No virt-operator works: none has the lead.",
    ),
    alert(
        "VirtHandlerDaemonSetRolloutFailing",
        "15m",
        Warning,
        "(kube_daemonset_status_number_ready{namespace='NAMESPACE', daemonset='virt-handler'} - \
         kube_daemonset_status_desired_number_scheduled{namespace='NAMESPACE', daemonset='virt-handler'}) != 0",
        "virt-handler is not ready on every node.",
    ),
    alert(
        "LowKVMNodesCount",
        "5m",
        Warning,
        "(kubevirt_allocatable_nodes > 1) and (kubevirt_nodes_with_kvm < 2)",
        "Less than two nodes have KVM: machines that use it cannot be migrated.",
    ),
    Alert {
        harms_podvirt: false,
        ..alert(
            "OutdatedVirtualMachineInstanceWorkloads",
            "24h",
            Warning,
            "kubevirt_vmi_number_of_outdated != 0",
            "Machines run in pods of an older version of podvirt.",
        )
    },
    Alert {
        harms_podvirt: false,
        ..alert(
            "VirtLauncherPodsStuckFailed",
            "10m",
            Critical,
            "sum by (namespace) (kube_pod_status_phase{phase='Failed', pod=~'virt-launcher-.*'}) >= 200",
            "At least 200 failed pods of machines are not deleted.",
        )
    },
    machine_alert(
        "VMCannotBeEvicted",
        "1m",
        Warning,
        "kubevirt_vmi_non_evictable == 1",
        "A machine's eviction is to migrate it, and it cannot be migrated.",
    ),
    machine_alert(
        "KubeVirtVMIExcessiveMigrations",
        "1m",
        Warning,
        "sum by (namespace, vmi) (max by (namespace, vmi, vmim) (max_over_time(kubevirt_vmi_migration_succeeded[1d]))) >= 12",
        "A machine was migrated at least twelve times within a day.",
    ),
    machine_alert(
        "GuestVCPUQueueHighWarning",
        "1m",
        Warning,
        "kubevirt_vmi_guest_vcpu_queue > 10",
        "More than ten processes of a guest wait for a virtual CPU.",
    ),
    machine_alert(
        "GuestVCPUQueueHighCritical",
        "1m",
        Critical,
        "kubevirt_vmi_guest_vcpu_queue > 20",
        "More than twenty processes of a guest wait for a virtual CPU.",
    ),
    machine_alert(
        "GuestFilesystemAlmostOutOfSpace",
        "10m",
        Critical,
        // Media that cannot be written are always full.
        "kubevirt_vmi_filesystem_used_bytes{file_system_type!~'(?i)(cdfs|cramfs|erofs|iso9660|squashfs|udf)'} / \
         (kubevirt_vmi_filesystem_capacity_bytes > 0) >= 0.95",
        "A file system of a guest is at least 95 % full.",
    ),
];

/// The groups of the PrometheusRule, for podvirt in `namespace`.
pub(super) fn groups(namespace: &str) -> Value {
    let of = |expression: &str| expression.replace(NAMESPACE, namespace);
    let records = RECORDS.iter().map(|(name, expression)| json!({"record": name, "expr": of(expression)}));
    let alerts = ALERTS.iter().map(|alert| {
        json!({
            "alert": alert.name,
            "expr": of(alert.expression),
            "for": alert.lasts,
            "annotations": {"summary": alert.summary},
            "labels": {
                "severity": alert.severity.word(),
                "operator_health_impact": if alert.harms_podvirt { alert.severity.word() } else { "none" },
                "kubernetes_operator_part_of": "kubevirt",
                "kubernetes_operator_component": "kubevirt",
            },
        })
    });
    json!([
        {"name": "recordingRules.rules", "rules": records.collect::<Vec<_>>()},
        {"name": "alerts.rules", "rules": alerts.collect::<Vec<_>>()},
    ])
}
