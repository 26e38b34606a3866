//! The table of facts: what a guest can expect of its network, observed in the same way behind netd and behind passt.
//!
//! A fact is one observation and what it shall be. Where the two backends differ by design the table has both values,
//! and `docs/compatibility.md` has to name the fact. All facts of a guest are observed before any is judged: a boot is
//! dear.

pub(crate) mod address;
pub(crate) mod icmp;
pub(crate) mod path;
pub(crate) mod stall;
pub(crate) mod tcp;
pub(crate) mod udp;

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::Result;
use podvirt_e2e::{Backend, Bed};

/// A port of the pod that leads to the guest, where nothing listens unless a fact says so.
pub(crate) const SILENT: u16 = 8002;
/// A port of the client on which nothing listens.
pub(crate) const CLOSED: u16 = 7009;
/// The observation of every fact that can have no other outcome.
pub(crate) const OK: &str = "ok";

/// Topics of the documentation.
pub(crate) const FRAGMENTS: &str = "Fragments";
pub(crate) const ERRORS: &str = "Connection errors";
pub(crate) const REFUSED: &str = "Refused or reset by the guest";

type Observe = Box<dyn Fn(&mut Bed) -> Result<String>>;

/// One row of the table.
pub(crate) struct Fact {
    pub(crate) name: String,
    pub(crate) netd: String,
    pub(crate) passt: String,
    /// Where `docs/compatibility.md` tells why they differ.
    pub(crate) topic: &'static str,
    pub(crate) observe: Observe,
}

impl Fact {
    /// A fact that is the same with both backends.
    pub(crate) fn new(
        name: impl Into<String>,
        expected: impl Into<String>,
        observe: impl Fn(&mut Bed) -> Result<String> + 'static,
    ) -> Fact {
        let expected = expected.into();
        Fact {
            name: name.into(),
            passt: expected.clone(),
            netd: expected,
            topic: "",
            observe: Box::new(observe),
        }
    }

    /// passt differs by design; the documentation has a line for the topic.
    #[must_use]
    pub(crate) fn passt(mut self, topic: &'static str, expected: impl Into<String>) -> Fact {
        self.topic = topic;
        self.passt = expected.into();
        self
    }
}

/// The observation of something that either works or tells why not.
pub(crate) fn told(result: Result<()>) -> Result<String> {
    Ok(result.map_or_else(|e| format!("{e:#}"), |()| OK.into()))
}

/// Observes every fact and tells all that are not as expected.
pub(crate) fn check(bed: &mut Bed, facts: Vec<Fact>) {
    let backend = bed.backend;
    let mut wrong = String::new();
    for fact in &facts {
        let expected = if backend == Backend::Netd { &fact.netd } else { &fact.passt };
        let start = Instant::now();
        let observed = (fact.observe)(bed).unwrap_or_else(|e| format!("error: {e:#}"));
        println!("{:6.2} s  {}: {observed}", start.elapsed().as_secs_f32(), fact.name);
        if observed != *expected {
            writeln!(wrong, "{}\n  expected: {expected}\n  observed: {observed}", fact.name).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{backend}: of {} facts these are not so:\n{wrong}", facts.len());
}
