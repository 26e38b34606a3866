//! What a machine has used so far: JSON in `DomainStatsResponse.domainStats`, in KubeVirt's form.
//!
//! A number that the hypervisor does not tell is absent here. In the JSON every number has a flag beside it, as `TimeSet`
//! beside `Time`: where the flag is false, the number says nothing. Numbers that only grow begin at 0 with the machine's
//! process, so that they begin anew when a machine moves.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bounded;

/// Disks, interfaces or virtual CPUs of a machine that are read; those beyond are passed over.
pub const MAX_ROWS: usize = 512;
/// Processors of a node that are read of a virtual CPU's map.
const MAX_PROCESSORS: usize = 4096;

/// The version of [`DomainStats`], as `Info` tells it.
pub const VERSION: &str = "v1";

/// States of a virtual CPU, as [`Vcpu::state`] has them.
pub mod state {
    /// It is switched off.
    pub const OFFLINE: i64 = 0;
    /// It runs.
    pub const RUNNING: i64 = 1;
    /// It waits for something.
    pub const BLOCKED: i64 = 2;
}

/// Declares structures whose fields each stand in the JSON as a value and a flag that says whether the value is known. A field
/// in braces has no flag; it is empty where it is not known.
macro_rules! told {
    ($($(#[$doc:meta])* $type:ident {
        $({ $(#[$plain_help:meta])* $plain:ident: $plain_of:ty = $plain_name:literal })?
        $($(#[$help:meta])* $field:ident: $of:ty = $name:literal,)+
    })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $type {
            $($(#[$plain_help])* pub $plain: $plain_of,)?
            $($(#[$help])* pub $field: Option<$of>,)+
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(None)?;
                $(map.serialize_entry($plain_name, &self.$plain)?;)?
                $(
                    map.serialize_entry(concat!($name, "Set"), &self.$field.is_some())?;
                    map.serialize_entry($name, &self.$field.clone().unwrap_or_default())?;
                )+
                map.end()
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Fields;

                impl<'de> Visitor<'de> for Fields {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("an object with the fields of ", stringify!($type)))
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$type, A::Error> {
                        $(let mut $plain: Option<$plain_of> = None;)?
                        $(let mut $field = Flagged::<$of>::default();)+
                        while let Some(key) = map.next_key::<String>()? {
                            match key.as_str() {
                                $($plain_name => $plain = map.next_value()?,)?
                                $(
                                    $name => $field.value = map.next_value()?,
                                    concat!($name, "Set") => $field.is_known = map.next_value()?,
                                )+
                                // Passed over as text: a tree of what is not known could take any memory.
                                _ => drop(map.next_value::<IgnoredAny>()?),
                            }
                        }
                        Ok($type {
                            $($plain: $plain.unwrap_or_default(),)?
                            $($field: $field.value.filter(|_| $field.is_known == Some(true)),)+
                        })
                    }
                }

                deserializer.deserialize_map(Fields)
            }
        }
    )+};
}

/// A field that is being read, with the flag beside it: either may come first.
struct Flagged<T> {
    value: Option<T>,
    is_known: Option<bool>,
}

impl<T> Default for Flagged<T> {
    fn default() -> Self {
        Self { value: None, is_known: None }
    }
}

told! {
    /// Time of the machine's process, in nanoseconds.
    Cpu {
        /// In all: the guest's and the hypervisor's.
        time: u64 = "Time",
        /// In user mode.
        user: u64 = "User",
        /// In the kernel.
        system: u64 = "System",
    }

    /// Memory in KiB as the guest's driver of the balloon and the node's kernel tell it; faults are numbers.
    Memory {
        /// Not used for anything.
        unused: u64 = "Unused",
        /// Used as caches that can be given up.
        cached: u64 = "Cached",
        /// What the guest's kernel has.
        available: u64 = "Available",
        /// What the balloon leaves to the guest.
        actual_balloon: u64 = "ActualBalloon",
        /// What of the machine's process is in the node's memory.
        rss: u64 = "RSS",
        /// Read from swap so far.
        swap_in: u64 = "SwapIn",
        /// Written to swap so far.
        swap_out: u64 = "SwapOut",
        /// Page faults that had to read a disk.
        major_fault: u64 = "MajorFault",
        /// Page faults that read no disk.
        minor_fault: u64 = "MinorFault",
        /// What the balloon could take without having the guest swap.
        usable: u64 = "Usable",
        /// What the machine has now.
        total: u64 = "Total",
    }

    /// A virtual CPU. Times are in nanoseconds.
    Vcpu {
        /// See [`state`].
        state: i64 = "State",
        /// It ran so long.
        time: u64 = "Time",
        /// It waited so long for input and output.
        wait: u64 = "Wait",
        /// It was ready to run for so long and had no processor.
        delay: u64 = "Delay",
    }

    /// A network interface, as the guest sees it: what is received, the guest receives.
    Net {
        /// The node's name of it.
        name: String = "Name",
        /// The machine's name of it.
        alias: String = "Alias",
        /// Bytes received.
        rx_bytes: u64 = "RxBytes",
        /// Packets received.
        rx_packets: u64 = "RxPkts",
        /// Packets that were damaged on their way to the guest.
        rx_errors: u64 = "RxErrs",
        /// Packets that did not reach the guest.
        rx_dropped: u64 = "RxDrop",
        /// Bytes sent.
        tx_bytes: u64 = "TxBytes",
        /// Packets sent.
        tx_packets: u64 = "TxPkts",
        /// Packets of the guest that were damaged.
        tx_errors: u64 = "TxErrs",
        /// Packets of the guest that were not carried.
        tx_dropped: u64 = "TxDrop",
    }

    /// A disk. Times are in nanoseconds.
    Block {
        {
            /// The machine's name of it; empty where it has none.
            alias: String = "Alias"
        }
        /// Its place in the guest, such as `vda`.
        name: String = "Name",
        /// Which image of a chain it is.
        backing_index: u64 = "BackingIndex",
        /// The image's file or device.
        path: String = "Path",
        /// Requests that read.
        read_requests: u64 = "RdReqs",
        /// Bytes read.
        read_bytes: u64 = "RdBytes",
        /// Time spent on reading.
        read_time: u64 = "RdTimes",
        /// Requests that write.
        write_requests: u64 = "WrReqs",
        /// Bytes written.
        write_bytes: u64 = "WrBytes",
        /// Time spent on writing.
        write_time: u64 = "WrTimes",
        /// Requests to flush caches.
        flush_requests: u64 = "FlReqs",
        /// Time spent on flushing.
        flush_time: u64 = "FlTimes",
        /// Requests that failed.
        errors: u64 = "Errors",
        /// Bytes of the image that have a place.
        allocation: u64 = "Allocation",
        /// Bytes that the guest sees.
        capacity: u64 = "Capacity",
        /// Bytes of the file.
        physical: u64 = "Physical",
    }

    /// The present migration from here, in bytes and bytes per second.
    Job {
        /// What has to be copied.
        data_total: u64 = "DataTotal",
        /// What is copied.
        data_processed: u64 = "DataProcessed",
        /// How fast memory is sent.
        memory_bps: u64 = "MemoryBps",
        /// What is left.
        data_remaining: u64 = "DataRemaining",
        /// How fast the guest writes.
        dirty_rate: u64 = "MemDirtyRate",
    }

    /// The guest's load, as its agent tells it: processes that run or want to.
    Load {
        /// Over a minute.
        one: f64 = "Load1m",
        /// Over five minutes.
        five: f64 = "Load5m",
        /// Over a quarter of an hour.
        fifteen: f64 = "Load15m",
    }
}

/// What one machine has used so far.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DomainStats {
    /// The domain's name; empty: there is no machine.
    pub name: String,
    /// The domain's UUID.
    #[serde(rename = "UUID")]
    pub uuid: String,
    /// The process.
    pub cpu: Option<Cpu>,
    /// The memory.
    pub memory: Option<Memory>,
    /// The migration from here; absent while there is none.
    #[serde(rename = "MigrateDomainJobInfo")]
    pub job: Option<Job>,
    /// The virtual CPUs, by their numbers.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_ROWS>")]
    pub vcpu: Vec<Vcpu>,
    /// The interfaces.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_ROWS>")]
    pub net: Vec<Net>,
    /// The disks.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_ROWS>")]
    pub block: Vec<Block>,
    /// Whether `cpu_map` is known.
    #[serde(rename = "CPUMapSet")]
    pub cpu_map_set: bool,
    /// For every virtual CPU, the node's processors in their order: whether it may run there.
    #[serde(rename = "CPUMap", deserialize_with = "maps")]
    pub cpu_map: Vec<Vec<bool>>,
    /// How many virtual CPUs there are.
    #[serde(rename = "NrVirtCpu")]
    pub vcpus: u64,
    /// The guest's load; absent where no agent tells it.
    pub load: Option<Load>,
}

/// The maps of the virtual CPUs.
fn maps<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<bool>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Processors(#[serde(deserialize_with = "bounded::list::<_, _, MAX_PROCESSORS>")] Vec<bool>);

    let maps: Vec<Processors> = bounded::list::<_, _, MAX_ROWS>(deserializer)?;
    Ok(maps.into_iter().map(|processors| processors.0).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_known_has_a_flag_beside_it() {
        let cpu = Cpu { time: Some(7), ..Cpu::default() };
        let json = json!({
            "TimeSet": true, "Time": 7, "UserSet": false, "User": 0, "SystemSet": false, "System": 0,
        });
        assert_eq!(serde_json::to_value(&cpu).unwrap(), json);
        assert_eq!(serde_json::from_value::<Cpu>(json).unwrap(), cpu);
    }

    #[test]
    fn an_answer_comes_back_as_it_was() {
        let stats = DomainStats {
            name: "shop_web".into(),
            cpu: Some(Cpu::default()),
            vcpu: vec![Vcpu { state: Some(state::RUNNING), time: Some(u64::MAX), ..Vcpu::default() }],
            block: vec![Block {
                alias: "root".into(),
                name: Some("vda".into()),
                read_bytes: Some(3),
                ..Block::default()
            }],
            net: vec![Net { alias: Some("default".into()), rx_bytes: Some(1), ..Net::default() }],
            cpu_map_set: true,
            cpu_map: vec![vec![true, false]],
            vcpus: 1,
            load: Some(Load { one: Some(0.5), ..Load::default() }),
            ..DomainStats::default()
        };
        let json = serde_json::to_string(&stats).unwrap();
        assert_eq!(serde_json::from_str::<DomainStats>(&json).unwrap(), stats);
        for field in
            [r#""CPUMapSet":true"#, r#""Alias":"root""#, r#""RdBytesSet":true,"RdBytes":3"#, r#""UUID":"""#]
        {
            assert!(json.contains(field), "{field} in {json}");
        }
    }

    #[test]
    fn an_answer_of_upstreams_launcher_is_read() {
        let stats: DomainStats = serde_json::from_value(json!({
            "Name": "default_vm", "UUID": "u", "Cpu": null, "Memory": {"RSSSet": true, "RSS": 5, "UnusedSet": false, "Unused": 9},
            "MigrateDomainJobInfo": null, "Vcpu": null, "Net": [], "Block": null, "CPUMapSet": false, "CPUMap": null,
            "NrVirtCpu": 2, "DirtyRate": {"CalcStatusSet": false}, "Load": null,
        }))
        .unwrap();
        assert_eq!(stats.memory, Some(Memory { rss: Some(5), ..Memory::default() }));
        assert_eq!((stats.vcpus, stats.vcpu.len()), (2, 0));
    }
    #[test]
    fn an_answer_with_too_many_rows_has_the_first_ones() {
        let rows = vec![json!({}); 2 * MAX_ROWS];
        let stats: DomainStats = serde_json::from_value(json!({
            "Name": "a", "Vcpu": rows, "Net": rows, "Block": rows, "CPUMap": vec![vec![true; 2 * MAX_PROCESSORS]; 2 * MAX_ROWS],
        }))
        .unwrap();
        let capacities = [stats.vcpu.capacity(), stats.net.capacity(), stats.block.capacity()];
        assert_eq!(capacities, [MAX_ROWS; 3]);
        assert_eq!((stats.cpu_map.len(), stats.cpu_map[0].len()), (MAX_ROWS, MAX_PROCESSORS));
    }

    #[test]
    fn what_is_not_known_is_passed_over() {
        let text = r#"{"Time": 9, "Later": {"a": [1]}, "TimeSet": true, "User": 1, "UserSet": null, "SystemSet": true}"#;
        assert_eq!(serde_json::from_str::<Cpu>(text).unwrap(), Cpu { time: Some(9), ..Cpu::default() });
        let wrong = serde_json::from_str::<Cpu>("[1]").unwrap_err().to_string();
        assert!(wrong.contains("the fields of Cpu"), "{wrong}");
    }
}
