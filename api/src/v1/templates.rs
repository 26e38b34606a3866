//! Templates of DataVolumes, whose specifications have no schema: bounded in memory while they are read.
//!
//! Controllers hold the templates of all machines, pools and contents of snapshots, and users write these. Admission refuses what is too
//! large; an object that came past it is one that cannot be read, and is left alone.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::DataVolumeTemplateSpec;
use crate::budget;

/// Most bytes of memory that the templates of a machine take together, by [`budget::weigh`].
pub const MAX_TEMPLATES_BYTES: usize = 1 << 20;

/// Reads the templates of a machine. A null counts as not set.
pub(super) fn bounded<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<DataVolumeTemplateSpec>, D::Error> {
    let templates = budget::read(from, MAX_TEMPLATES_BYTES)?;
    Option::deserialize(templates).map(Option::unwrap_or_default).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::v1::{VirtualMachine, VirtualMachineSnapshotContent};

    #[test]
    fn templates_that_take_much_memory_are_not_read() {
        let template = |maps: usize| {
            let spec = json!({"x": vec![json!({"a": 0}); maps]});
            json!({"metadata": {"name": "a"}, "spec": spec})
        };
        let templates = |maps: usize| json!([template(maps)]);
        let vm = |templates: Value| {
            let read: Result<VirtualMachine, _> =
                serde_json::from_value(json!({"spec": {"dataVolumeTemplates": templates}}));
            read.map(|vm| vm.spec.data_volume_templates).map_err(|error| error.to_string())
        };
        assert_eq!(vm(templates(1_000)).unwrap()[0].spec["x"][999], json!({"a": 0}));
        assert_eq!(vm(Value::Null).unwrap(), []);
        assert!(vm(templates(60_000)).unwrap_err().contains("too much memory"));
        // The sum of all counts.
        assert!(vm(vec![template(50); 60].into()).unwrap_err().contains("too much memory"));

        let machine = json!({"spec": {"dataVolumeTemplates": templates(60_000)}});
        let content = json!({"spec": {"source": {"virtualMachine": machine}}});
        let read: Result<VirtualMachineSnapshotContent, _> = serde_json::from_value(content);
        assert!(read.unwrap_err().to_string().contains("too much memory"));
    }
}
