//! Documents that are made from the model of upstream's API.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use podvirt_api::v1;
use serde_json::{Map, Value, json};

type Types = BTreeMap<String, Value>;

fn json_file(name: &str) -> Value {
    let path = format!("{}/model/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

static TYPES: LazyLock<Types> = LazyLock::new(|| {
    let mut packages = json_file("kubevirt-v1.8.json");
    let mut types = |package: &str| serde_json::from_value::<Types>(packages[package].take()).unwrap();
    let mut all = types("core/v1");
    all.extend(types("pool/v1beta1"));
    all
});
static SHAPES: LazyLock<Value> = LazyLock::new(|| json_file("kubernetes-v1.34.json"));

/// Makes documents; a seed decides what they hold.
#[derive(Debug)]
pub(crate) struct Maker {
    pub(crate) state: u64,
    /// Of 256 optional fields, how many are there.
    pub(crate) density: u64,
}

impl Maker {
    /// A number below `bound` (SplitMix64).
    fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn wants(&mut self) -> bool {
        self.below(256) < self.density
    }

    fn text(&mut self) -> Value {
        format!("text-{}", self.below(1 << 20)).into()
    }

    fn time(&mut self) -> Value {
        format!("2026-01-0{}T03:04:05Z", 1 + self.below(9)).into()
    }

    fn quantity(&mut self) -> Value {
        format!("{}Mi", 1 + self.below(4096)).into()
    }

    /// A document of a type.
    pub(crate) fn record(&mut self, name: &str) -> Value {
        let mut map = Map::new();
        self.fields(name, &mut map, false);
        map.into()
    }

    fn fields(&mut self, name: &str, map: &mut Map<String, Value>, optional: bool) {
        for field in TYPES[name]["fields"].as_array().into_iter().flatten() {
            let go = field["type"].as_str().unwrap();
            if field["inline"] == true {
                match go.trim_start_matches('*') {
                    // A value has its kind and version always; those of a request may be left out.
                    "metav1.TypeMeta" => {
                        map.insert("kind".into(), name.into());
                        map.insert("apiVersion".into(), v1::API_VERSION.into());
                    }
                    "v1.LocalObjectReference" => drop(map.insert("name".into(), self.text())),
                    "v1.PersistentVolumeClaimVolumeSource" => {
                        map.insert("claimName".into(), self.text());
                        map.insert("readOnly".into(), true.into());
                    }
                    inlined => self.fields(inlined, map, optional || go.starts_with('*')),
                }
            } else if !(optional || field["optional"] == true) || self.wants() {
                map.insert(field["json"].as_str().unwrap().into(), self.value(go));
            }
        }
    }

    fn value(&mut self, go: &str) -> Value {
        if let Some(inner) = go.strip_prefix('*') {
            self.value(inner)
        } else if go == "[]byte" {
            "AAEC".into()
        } else if let Some(inner) = go.strip_prefix("[]") {
            let count = 1 + self.below(2);
            (0..count).map(|_| self.value(inner)).collect()
        } else if let Some((_, inner)) = go.strip_prefix("map[").and_then(|m| m.split_once(']')) {
            json!({ "one": self.value(inner), "two.io/x": self.value(inner) })
        } else {
            self.named(go)
        }
    }

    fn named(&mut self, name: &str) -> Value {
        let name = name.strip_prefix("virtv1.").unwrap_or(name);
        if let Some(ty) = TYPES.get(name) {
            if ty.get("alias").is_none() {
                return self.record(name);
            }
            let values: Vec<&Value> =
                ty["enum"].as_array().into_iter().flatten().filter(|v| *v != "").collect();
            // A word that podvirt has not heard of is kept, too.
            let choice = self.below(values.len() as u64 + 1);
            return values.get(choice as usize).map_or_else(|| "Unheard".into(), |v| (*v).clone());
        }
        match name {
            "bool" => (self.below(2) == 0).into(),
            "int32" => json!(self.below(1 << 31) as i64 - (1 << 30)),
            "int" | "int64" => json!(self.below(1 << 62) as i64 - (1 << 61)),
            "uint" | "uint64" => json!(self.below(1 << 63)),
            "uint32" => json!(self.below(1 << 32)),
            "uint8" => json!(self.below(256)),
            "float32" | "float64" => json!(self.below(1000) as f64 / 8.0),
            "metav1.Time" => self.time(),
            "resource.Quantity" => self.quantity(),
            "k8sv1.ResourceList" | "v1.ResourceList" => json!({ "cpu": "2", "memory": self.quantity() }),
            "metav1.ObjectMeta" => json!({
                "name": self.text(), "namespace": "default", "generateName": "a-", "uid": self.text(),
                "resourceVersion": "7", "generation": 3, "creationTimestamp": self.time(),
                "labels": { "a": self.text() }, "annotations": { "b": self.text() }, "finalizers": [self.text()],
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true },
                ],
            }),
            "metav1.ListMeta" => json!({ "resourceVersion": "8" }),
            "cdiv1.DataVolumeSpec" | "backupv1.BackupVolumeInfo" => {
                json!({ "anything": [1, { "more": self.text() }] })
            }
            _ => match name.rsplit_once('.') {
                Some((_, short)) if SHAPES.get(short).is_some() => self.shape(&SHAPES[short]),
                _ => self.text(),
            },
        }
    }

    fn shape(&mut self, shape: &Value) -> Value {
        if let Some(name) = shape["$ref"].as_str() {
            return match name {
                "Quantity" => self.quantity(),
                "IntOrString" if self.below(2) == 0 => json!(self.below(65536)),
                "IntOrString" => self.text(),
                "Time" => self.time(),
                _ => self.shape(&SHAPES[name]),
            };
        }
        match (shape["type"].as_str(), &shape["properties"], &shape["additionalProperties"]) {
            (Some("object"), Value::Object(properties), _) => {
                let required =
                    |name: &str| shape["required"].as_array().is_some_and(|r| r.contains(&name.into()));
                let mut map = Map::new();
                for (name, inner) in properties {
                    // Kubernetes, too, writes an empty name of a reference where none is.
                    if required(name) || name == "name" || self.wants() {
                        map.insert(name.clone(), self.shape(inner));
                    }
                }
                map.into()
            }
            (Some("object"), _, inner) if !inner.is_null() => json!({ "key": self.shape(inner) }),
            (Some("object"), ..) => json!({}),
            (Some("array"), ..) => json!([self.shape(&shape["items"])]),
            (Some("boolean"), ..) => json!(true),
            (Some("integer"), ..) => json!(self.below(1 << 31)),
            _ => self.text(),
        }
    }
}
