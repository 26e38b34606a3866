//! Elections in virtual time, before an API server that is a table and can be made unreachable.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use kube::core::Status;
use tokio::task::LocalSet;

use super::*;
use crate::shutdown::Trigger;

const SECOND: Duration = Duration::from_secs(1);

/// The API server of a test.
#[derive(Default)]
struct Table {
    lease: RefCell<Option<Lease>>,
    version: Cell<u64>,
    writes: Cell<u64>,
}

/// One replica's way to the table.
#[derive(Clone)]
struct Line {
    table: Rc<Table>,
    /// Requests never come back.
    cut: Rc<Cell<bool>>,
    /// Writes arrive, but their answers are lost.
    deaf: Rc<Cell<bool>>,
}

fn failure(code: u16, reason: &str) -> kube::Error {
    kube::Error::Api(Box::new(Status { code, reason: reason.to_owned(), ..Status::default() }))
}

impl Line {
    fn new(table: &Rc<Table>) -> Self {
        Self { table: table.clone(), cut: Rc::default(), deaf: Rc::default() }
    }

    async fn pass(&self) {
        if self.cut.get() {
            std::future::pending::<()>().await;
        }
    }

    async fn write(&self, lease: &Lease) -> Lease {
        let mut lease = lease.clone();
        self.table.version.set(self.table.version.get() + 1);
        self.table.writes.set(self.table.writes.get() + 1);
        lease.metadata.resource_version = Some(self.table.version.get().to_string());
        *self.table.lease.borrow_mut() = Some(lease.clone());
        if self.deaf.get() {
            std::future::pending::<()>().await;
        }
        lease
    }
}

impl Store for Line {
    async fn read(&self) -> Result<Option<Lease>, kube::Error> {
        self.pass().await;
        Ok(self.table.lease.borrow().clone())
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, kube::Error> {
        self.pass().await;
        if self.table.lease.borrow().is_some() {
            return Err(failure(409, "AlreadyExists"));
        }
        Ok(self.write(lease).await)
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, kube::Error> {
        self.pass().await;
        let there = self.table.lease.borrow().clone();
        let Some(there) = there else { return Err(failure(404, "NotFound")) };
        if there.metadata.resource_version != lease.metadata.resource_version {
            return Err(failure(409, "Conflict"));
        }
        Ok(self.write(lease).await)
    }
}

/// Counts the workers of a test, of which there must never be two.
#[derive(Clone, Default)]
struct Workers {
    now: Rc<RefCell<Vec<&'static str>>>,
    most: Rc<Cell<usize>>,
    begun: Rc<Cell<u32>>,
}

struct Working(Workers, &'static str);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.now.borrow_mut().retain(|name| *name != self.1);
    }
}

impl Workers {
    fn begin(&self, name: &'static str) -> Working {
        self.now.borrow_mut().push(name);
        self.most.set(self.most.get().max(self.now.borrow().len()));
        self.begun.set(self.begun.get() + 1);
        Working(self.clone(), name)
    }

    fn names(&self) -> Vec<&'static str> {
        self.now.borrow().clone()
    }
}

struct Replica {
    line: Line,
    trigger: Trigger,
    gauge: Gauge,
    task: tokio::task::JoinHandle<Result<Option<()>, TimingError>>,
}

/// Starts a replica that works forever. To be called in a `LocalSet`.
fn start(name: &'static str, table: &Rc<Table>, workers: &Workers) -> Replica {
    let (line, workers) = (Line::new(table), workers.clone());
    let (trigger, shutdown) = Shutdown::manual();
    let config = LeaseConfig::new("kubevirt", "virt-controller", name);
    let gauge = config.leading.clone();
    let task = tokio::task::spawn_local({
        let line = line.clone();
        async move {
            run_on(&line, config, &shutdown, || {
                let working = workers.begin(name);
                async move {
                    std::future::pending::<()>().await;
                    drop(working);
                }
            })
            .await
        }
    });
    Replica { line, trigger, gauge, task }
}

async fn in_virtual_time(test: impl Future<Output = ()>) {
    tokio::time::pause();
    LocalSet::new().run_until(test).await;
}

#[tokio::test(flavor = "current_thread")]
async fn of_two_replicas_one_leads_and_renews() {
    in_virtual_time(async {
        let (table, workers) = (Rc::new(Table::default()), Workers::default());
        let (a, b) = (start("a", &table, &workers), start("b", &table, &workers));
        sleep(SECOND * 120).await;
        assert_eq!(workers.names().len(), 1);
        assert_eq!((workers.most.get(), workers.begun.get()), (1, 1));
        assert_eq!(a.gauge.get() + b.gauge.get(), 1);
        assert!((55..=62).contains(&table.writes.get()), "a renewal every 2 s: {}", table.writes.get());
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_leader_that_is_shut_down_hands_over_within_one_retry() {
    in_virtual_time(async {
        let (table, workers) = (Rc::new(Table::default()), Workers::default());
        let a = start("a", &table, &workers);
        sleep(SECOND * 5).await;
        let _b = start("b", &table, &workers);
        sleep(SECOND * 5).await;
        assert_eq!(workers.names(), ["a"]);
        a.trigger.request();
        assert_eq!(a.task.await.unwrap(), Ok(None));
        assert_eq!(workers.names(), [""; 0]);
        sleep(SECOND * 3).await;
        assert_eq!(workers.names(), ["b"]);
        let transitions = table.lease.borrow().clone().unwrap().spec.unwrap().lease_transitions;
        assert_eq!((workers.most.get(), transitions), (1, Some(1)));
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_leader_that_is_cut_off_stops_before_another_begins_and_comes_back_as_a_candidate() {
    in_virtual_time(async {
        let (table, workers) = (Rc::new(Table::default()), Workers::default());
        let a = start("a", &table, &workers);
        sleep(SECOND * 5).await;
        let b = start("b", &table, &workers);
        sleep(SECOND * 5).await;
        a.line.cut.set(true);
        let cut = Instant::now();
        while workers.names() == ["a"] {
            sleep(SECOND / 10).await;
        }
        let stopped = cut.elapsed();
        assert!(stopped > SECOND * 7 && stopped <= SECOND * 11, "{stopped:?}");
        assert_eq!(workers.names(), [""; 0]);
        while workers.names().is_empty() {
            sleep(SECOND / 10).await;
        }
        assert!(cut.elapsed() > SECOND * 12 && cut.elapsed() < SECOND * 20, "{:?}", cut.elapsed());
        assert_eq!(workers.names(), ["b"]);
        a.line.cut.set(false);
        sleep(SECOND * 60).await;
        assert_eq!((workers.names(), workers.most.get()), (vec!["b"], 1));
        b.trigger.request();
        sleep(SECOND * 20).await;
        assert_eq!((workers.names(), workers.most.get()), (vec!["a"], 1));
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_leader_whose_answers_are_lost_stops_and_no_other_replica_works_meanwhile() {
    in_virtual_time(async {
        let (table, workers) = (Rc::new(Table::default()), Workers::default());
        let a = start("a", &table, &workers);
        sleep(SECOND * 5).await;
        let _b = start("b", &table, &workers);
        sleep(SECOND * 5).await;
        a.line.deaf.set(true);
        sleep(SECOND * 14).await;
        assert_eq!(workers.names(), [""; 0]);
        sleep(SECOND * 20).await;
        assert_eq!((workers.names(), workers.most.get()), (vec!["b"], 1));
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_leader_that_lost_a_few_answers_leads_on() {
    in_virtual_time(async {
        let (table, workers) = (Rc::new(Table::default()), Workers::default());
        let a = start("a", &table, &workers);
        sleep(SECOND * 5).await;
        // The renewal arrived, its answer did not: the version is not the one the leader knows.
        let lease = table.lease.borrow().clone().unwrap();
        a.line.write(&lease).await;
        sleep(SECOND * 60).await;
        assert_eq!((workers.names(), workers.begun.get()), (vec!["a"], 1));
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_lease_that_another_client_took_away_ends_the_lead_at_the_next_renewal() {
    in_virtual_time(async {
        let (table, workers) = (Rc::new(Table::default()), Workers::default());
        let a = start("a", &table, &workers);
        sleep(SECOND * 5).await;
        let mut lease = table.lease.borrow().clone().unwrap();
        lease.spec.get_or_insert_default().holder_identity = Some("thief".to_owned());
        a.line.write(&lease).await;
        sleep(SECOND * 3).await;
        assert_eq!((workers.names(), a.gauge.get()), (vec![], 0));
        sleep(SECOND * 20).await;
        assert_eq!((workers.names(), workers.begun.get()), (vec!["a"], 2));
    })
    .await;
}

#[test]
fn the_lease_names_the_pod() {
    let config = LeaseConfig::new("kubevirt", "virt-controller", "virt-controller-7d8f-x2x9k");
    assert_eq!(config.identity, "virt-controller-7d8f-x2x9k");
}

#[tokio::test(flavor = "current_thread")]
async fn work_that_ends_gives_the_lease_back() {
    in_virtual_time(async {
        let table = Rc::new(Table::default());
        let (_trigger, shutdown) = Shutdown::manual();
        let config = LeaseConfig::new("kubevirt", "x", "a");
        let ended = run_on(&Line::new(&table), config, &shutdown, || async { 7 }).await;
        assert_eq!(ended, Ok(Some(7)));
        let spec = table.lease.borrow().clone().unwrap().spec.unwrap();
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some(""), Some(1)));
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn times_that_allow_two_leaders_are_refused() {
    let table = Rc::new(Table::default());
    let (_trigger, shutdown) = Shutdown::manual();
    for (lease, renew, retry) in [(15, 15, 2), (10, 12, 2), (15, 2, 2)] {
        let mut config = LeaseConfig::new("kubevirt", "x", "a");
        config.timing = Timing {
            lease_duration: SECOND * lease,
            renew_deadline: SECOND * renew,
            retry_period: SECOND * retry,
        };
        let error = run_on(&Line::new(&table), config, &shutdown, || async {}).await.unwrap_err();
        assert!(error.to_string().contains("retry_period < renew_deadline < lease_duration"));
    }
}
