//! A flow that moves while frames of it are on their way (ADR 0006): what `worker/peers.rs` does with the directory and
//! the mailboxes, without all that it does to frames and flows.

use std::collections::HashSet;

use loom::sync::Arc;
use loom::thread::spawn;

use super::budget::{Budget, Side};
use super::directory::Directory;
use super::limits::Limits;
use super::mailbox::{Inbox, Mailbox, mailbox};
use super::time::Time;
use super::{bounded, key};

enum Command {
    /// A frame that another worker's ring has carried, by its place in the guest's order.
    Frame(u32),
    Adopt,
    /// Give the flow to the other.
    Request,
}

struct Shared {
    directory: Directory,
    budget: Budget,
}

struct Worker {
    index: usize,
    shared: Arc<Shared>,
    other: Mailbox<Command>,
    inbox: Inbox<Command>,
    has_flow: bool,
    limbo: Vec<u32>,
    carried: Vec<u32>,
    /// The directory first, and then the flow; the other way around for the counter-example.
    ordered: bool,
}

impl Worker {
    fn on_frame(&mut self, frame: u32) {
        if self.has_flow {
            self.carried.push(frame);
            return;
        }
        match self.shared.directory.owner(&key()) {
            Some(owner) if owner == self.index => self.limbo.push(frame),
            Some(_) => drop(self.other.send(Command::Frame(frame))),
            None => panic!("the flow has no owner while it moves"),
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Frame(frame) => self.on_frame(frame),
            Command::Adopt => {
                assert!(!self.has_flow, "owned twice");
                self.has_flow = true;
                for frame in std::mem::take(&mut self.limbo) {
                    self.on_frame(frame);
                }
            }
            Command::Request => {
                assert!(std::mem::take(&mut self.has_flow));
                let to = 1 - self.index;
                if self.ordered {
                    self.shared.directory.hand_over(&key(), to);
                    self.other.send(Command::Adopt);
                } else {
                    self.other.send(Command::Adopt);
                    self.shared.directory.hand_over(&key(), to);
                }
            }
        }
    }

    fn end_flow(&mut self) {
        assert!(std::mem::take(&mut self.has_flow));
        self.shared.directory.release(&key());
        self.shared.budget.give_back(Side::Guest);
    }
}

/// A flow of worker 0, and both workers.
fn workers(ordered: bool) -> (Arc<Shared>, Worker, Worker) {
    let limits = Limits { flows: 1, ..Limits::default() };
    let shared =
        Arc::new(Shared { directory: Directory::new(true), budget: Budget::new(&limits, Time::ZERO) });
    assert!(shared.budget.take(Side::Guest));
    shared.directory.claim(&key(), 0).unwrap();
    let (to_first, first_inbox) = mailbox().unwrap();
    let (to_second, second_inbox) = mailbox().unwrap();
    let worker = |index, other, inbox| {
        let (limbo, carried) = (Vec::new(), Vec::new());
        Worker { index, shared: shared.clone(), other, inbox, has_flow: index == 0, limbo, carried, ordered }
    };
    let both = (worker(0, to_second, first_inbox), worker(1, to_first, second_inbox));
    (shared, both.0, both.1)
}

/// Runs the worker until the other has ended or has no more to say; what it has carried.
fn run(mut worker: Worker) -> Vec<u32> {
    while let Some(command) = worker.inbox.wait() {
        worker.on_command(command);
    }
    worker.carried
}

#[test]
fn a_flow_that_moves_has_one_owner_and_loses_no_frame() {
    bounded(|| {
        let (shared, first, mut second) = workers(true);
        let thread = spawn(move || run(first));
        // Its ring carries the frames of the other's flow; it asks for the flow, and more of them come.
        second.on_frame(0);
        second.other.send(Command::Request);
        second.on_frame(1);
        while !second.has_flow {
            let command = second.inbox.wait().unwrap();
            second.on_command(command);
        }
        second.on_frame(2);
        // It has no more to say to the other worker, which then ends.
        second.other = mailbox().unwrap().0;
        let mut carried = run(second);
        assert_eq!(thread.join().unwrap(), [0], "it was passed before the flow was asked for");
        carried.sort_unstable();
        assert_eq!(carried, [1, 2], "a frame was lost, or carried twice");
        assert_eq!(shared.directory.owner(&key()), Some(1));
    });
}

/// The flow ends with the worker to which it has come, at once; whose it is by the directory when all is over.
fn ends_where_it_has_come_to(ordered: bool) -> Option<usize> {
    let (shared, first, mut second) = workers(ordered);
    let thread = spawn(move || run(first));
    second.other.send(Command::Request);
    while !second.has_flow {
        let command = second.inbox.wait().unwrap();
        second.on_command(command);
    }
    second.end_flow();
    assert!(!shared.budget.is_full(Side::Guest));
    second.other = mailbox().unwrap().0;
    run(second);
    thread.join().unwrap();
    shared.directory.owner(&key())
}

#[test]
fn a_flow_that_ends_where_it_has_come_to_has_no_owner() {
    bounded(|| assert_eq!(ends_where_it_has_come_to(true), None));
}

/// That the directory is changed first matters, and these models would show it.
#[test]
fn sent_before_it_is_handed_over_it_could_have_one_for_ever() {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(HashSet::new()));
    let outcomes = seen.clone();
    bounded(move || {
        outcomes.lock().unwrap().insert(ends_where_it_has_come_to(false));
    });
    assert_eq!(*seen.lock().unwrap(), HashSet::from([None, Some(1)]));
}
