//! All controllers together, over one watch of each kind.
//!
//! A controller fills the caches of the kinds that it keeps; the others read them.
//!
//! | kind | watched by | read by |
//! |---|---|---|
//! | VirtualMachine, Namespaces, ControllerRevisions of instance types and preferences | [`vm`] | [`pool`], through [`Machines`](vm::Machines) |
//! | VirtualMachineInstance, launcher pods | [`vmi`] | [`vm`], [`replicaset`], [`pool`], [`migration`], [`drain`], [`node`], through [`View`] |
//! | claims, storage classes and profiles, VolumeSnapshots and their classes | [`storage`] | [`vm`], [`vmi`], [`migration`], through [`Storage`](storage::Storage) |
//! | DataVolume, where CDI is installed | [`data`] | [`vm`], [`vmi`], through [`DataVolumes`](data::DataVolumes) |
//! | VirtualMachineInstanceReplicaSet | [`replicaset`] | |
//! | VirtualMachineSnapshot, VirtualMachineSnapshotContent | [`snapshot`] | through [`Snapshots`](snapshot::Snapshots) |
//! | VirtualMachineRestore | [`restore`] | [`clone`] |
//! | VirtualMachineClone | [`clone`] | |
//! | VirtualMachineBackup, VirtualMachineBackupTracker | [`backup`] | [`export`], backups alone |
//! | VirtualMachineExport, exporter pods and their Services, Ingresses and Routes to the proxy | [`export`] | [`backup`], through [`Exports`](export::Exports), exports alone |
//! | VirtualMachinePool | [`pool`] | |
//! | VirtualMachineInstanceMigration | [`migration`] | [`drain`] |
//! | Node | [`node`] | [`drain`] |
//! | PodDisruptionBudget of machines | [`drain`] | |
//! | KubeVirt | [`settings`], also in replicas that wait for the lead | all |

use futures::FutureExt;
use kube::Client;
use kube::runtime::reflector::store;
use podvirt_daemon::events::Recorder;

use crate::metrics::Metrics;
use crate::objects::Caches;
use crate::vmi::View;
use crate::{
    backup, clone, data, drain, export, migration, node, pool, replicaset, restore, settings, snapshot,
    storage, vm, vmi,
};

/// What the controllers need of the process.
#[derive(Clone)]
pub struct Parts {
    /// Client for the API server.
    pub client: Client,
    /// Namespace of the KubeVirt object.
    pub namespace: String,
    /// Writes events.
    pub recorder: Recorder,
    /// Counts.
    pub metrics: Metrics,
    /// Image of the launcher.
    pub launcher_image: String,
    /// Image of exporter pods.
    pub exporter_image: String,
    /// The cluster's configuration.
    pub cluster: settings::Cluster,
    /// How nodes are judged.
    pub nodes: node::Config,
}

/// Works until it is dropped. To be run while leading; it leaves nothing behind that runs.
pub async fn run(parts: Parts) {
    let Parts {
        client,
        namespace,
        recorder,
        metrics,
        launcher_image,
        exporter_image,
        cluster,
        nodes: judged,
    } = parts;
    let (view, writer) = View::new();
    let (nodes, node_writer) = store();
    let (migrations, migration_writer) = store();
    let (shown, machine_writer) = vm::Machines::new();
    let (volumes, volume_writer) = data::DataVolumes::new();
    let (stored, storage_writers) = storage::Storage::new();
    let (taken, snapshot_writers) = snapshot::Snapshots::new();
    let _shown = metrics.objects.show(Caches {
        machines: shown.clone(),
        instances: view.clone(),
        migrations: migrations.clone(),
        snapshots: taken.snapshots.store().clone(),
        cluster: cluster.clone(),
    });
    let machines = vm::run(
        vm::Context {
            client: client.clone(),
            recorder: recorder.clone(),
            metrics: metrics.clone(),
            cluster: cluster.clone(),
            view: view.clone(),
            data: volumes.clone(),
            storage: stored.clone(),
        },
        shown.clone(),
        machine_writer,
    );
    let snapshots = snapshot::run(
        snapshot::Context {
            client: client.clone(),
            recorder: recorder.clone(),
            metrics: metrics.clone(),
            machines: shown.clone(),
            view: view.clone(),
            storage: stored.clone(),
            data: volumes.clone(),
            snapshots: taken.clone(),
        },
        snapshot_writers,
    );
    let (restores, restore_writer) = restore::cache();
    let restoring = restore::run(
        restore::Context {
            client: client.clone(),
            recorder: recorder.clone(),
            metrics: metrics.clone(),
            machines: shown.clone(),
            view: view.clone(),
            storage: stored.clone(),
            data: volumes.clone(),
            snapshots: taken.clone(),
            restores: restores.clone(),
        },
        restore_writer,
    );
    let (backups, backup_writer) = backup::cache();
    let (exports, export_writers) = export::Exports::new(client.clone(), &namespace);
    let exporting = export::run(
        export::Context {
            client: client.clone(),
            recorder: recorder.clone(),
            metrics: metrics.clone(),
            cluster: cluster.clone(),
            image: exporter_image,
            machines: shown.clone(),
            view: view.clone(),
            storage: stored.clone(),
            data: volumes.clone(),
            snapshots: taken.clone(),
            backups: backups.clone(),
            exports: exports.clone(),
        },
        export_writers,
    )
    .boxed();
    let cloning = clone::run(clone::Context {
        client: client.clone(),
        recorder: recorder.clone(),
        metrics: metrics.clone(),
        machines: shown.clone(),
        storage: stored.clone(),
        snapshots: taken,
        restores,
    });
    let backing_up = backup::run(
        backup::Context {
            migrations: migrations.clone(),
            client: client.clone(),
            recorder: recorder.clone(),
            metrics: metrics.clone(),
            machines: shown.clone(),
            view: view.clone(),
            storage: stored.clone(),
            exports,
        },
        (backups, backup_writer),
    )
    .boxed();
    let pools = pool::run(pool::Context {
        client: client.clone(),
        recorder: recorder.clone(),
        metrics: metrics.clone(),
        machines: shown,
        view: view.clone(),
    });
    let sets = replicaset::run(replicaset::Context {
        client: client.clone(),
        recorder: recorder.clone(),
        metrics: metrics.clone(),
        view: view.clone(),
    });
    let judging =
        node::run(client.clone(), recorder.clone(), judged, view.clone(), (nodes.clone(), node_writer));
    let moving = migration::run(
        migration::Context {
            client: client.clone(),
            cluster: cluster.clone(),
            launcher_image: launcher_image.clone(),
            recorder: recorder.clone(),
            metrics: metrics.clone(),
            view: view.clone(),
            nodes: nodes.clone(),
            storage: stored.clone(),
        },
        migrations.clone(),
        migration_writer,
    );
    let draining = drain::run(drain::Context {
        client: client.clone(),
        recorder: recorder.clone(),
        cluster: cluster.clone(),
        view: view.clone(),
        migrations,
        nodes,
        namespace,
        metrics: metrics.clone(),
    });
    let keeping = data::keep(client.clone(), volumes.clone(), volume_writer);
    let storing = storage::keep(client.clone(), stored.clone(), storage_writers);
    let instances = vmi::run(
        vmi::Context {
            client,
            cluster,
            launcher_image,
            recorder,
            metrics,
            data: volumes,
            storage: stored.clone(),
        },
        view,
        writer,
    );
    // On the heap: together they are more than a thread's stack is for.
    let [snapshots, restoring, cloning, storing] =
        [snapshots.boxed(), restoring.boxed(), cloning.boxed(), storing.boxed()];
    // Those that read are polled before those that fill, and so miss no change.
    tokio::join!(
        exporting, cloning, backing_up, snapshots, restoring, pools, machines, sets, moving, draining,
        judging, instances, keeping, storing
    );
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use podvirt_api::verbosity::Component;
    use podvirt_daemon::health::Health;
    use podvirt_daemon::settings::Settings;
    use podvirt_daemon::telemetry::Logs;
    use podvirt_daemon::testing;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_kind_is_listed_and_watched_once() {
        let (client, asked) = testing::idle("shop");
        let (own, _) = Settings::new(Component::Controller, Logs::fixed());
        let (cluster, following) = settings::follow(client.clone(), "kubevirt", own, Health::default());
        let parts = Parts {
            namespace: "kubevirt".into(),
            recorder: Recorder::new(client.clone(), "virt-controller", None),
            client,
            metrics: Metrics::new(&mut Default::default()),
            launcher_image: "launcher:1".into(),
            exporter_image: "exporter:1".into(),
            cluster,
            nodes: node::Config::default(),
        };
        // A minute of the test's own time, in which everything looks around many times.
        let work = Box::pin(async { tokio::join!(following, run(parts)) });
        let ended = tokio::time::timeout(Duration::from_secs(60), work).await;
        assert!(ended.is_err(), "it works until it is dropped");
        let mut counts = BTreeMap::new();
        for what in asked.lock().unwrap().drain(..) {
            *counts.entry(what).or_insert(0) += 1;
        }
        let kinds = [
            "/api/v1/namespaces",
            "/api/v1/namespaces/kubevirt/configmaps",
            "/api/v1/namespaces/kubevirt/secrets",
            "/api/v1/nodes",
            "/api/v1/services",
            "/apis/export.kubevirt.io/v1beta1/virtualmachineexports",
            "/apis/networking.k8s.io/v1/namespaces/kubevirt/ingresses",
            "/apis/route.openshift.io/v1/namespaces/kubevirt/routes",
            "/api/v1/persistentvolumeclaims",
            "/api/v1/pods",
            "/apis/apps/v1/controllerrevisions",
            "/apis/backup.kubevirt.io/v1alpha1/virtualmachinebackups",
            "/apis/backup.kubevirt.io/v1alpha1/virtualmachinebackuptrackers",
            "/apis/cdi.kubevirt.io/v1beta1/datavolumes",
            "/apis/clone.kubevirt.io/v1beta1/virtualmachineclones",
            "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts",
            "/apis/kubevirt.io/v1/virtualmachineinstancemigrations",
            "/apis/kubevirt.io/v1/virtualmachineinstancereplicasets",
            "/apis/kubevirt.io/v1/virtualmachineinstances",
            "/apis/kubevirt.io/v1/virtualmachines",
            "/apis/cdi.kubevirt.io/v1beta1/cdiconfigs",
            "/apis/cdi.kubevirt.io/v1beta1/storageprofiles",
            "/apis/policy/v1/poddisruptionbudgets",
            "/apis/pool.kubevirt.io/v1beta1/virtualmachinepools",
            "/apis/snapshot.kubevirt.io/v1beta1/virtualmachinerestores",
            "/apis/snapshot.kubevirt.io/v1beta1/virtualmachinesnapshotcontents",
            "/apis/snapshot.kubevirt.io/v1beta1/virtualmachinesnapshots",
            "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses",
            "/apis/snapshot.storage.k8s.io/v1/volumesnapshots",
            "/apis/storage.k8s.io/v1/storageclasses",
        ];
        let once = ["LIST", "WATCH"].iter().flat_map(|what| kinds.map(|kind| (format!("{what} {kind}"), 1)));
        let mut wanted: BTreeMap<String, i32> = once.collect();
        // Launcher pods and exporter pods, which have labels of their own.
        for what in ["LIST", "WATCH"] {
            wanted.insert(format!("{what} /api/v1/pods"), 2);
        }
        assert_eq!(counts, wanted);
    }
}
