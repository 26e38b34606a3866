//! A strict reader of JSON, for tests of what others read.
//!
//! RFC 8259 section 4 does not define an object in which a key occurs twice. Some JSON readers refuse such an object;
//! [`StrictJson`] refuses it, too.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// A JSON value whose reader refuses a key that an object has twice.
#[derive(Debug, PartialEq)]
pub enum StrictJson {
    /// An object.
    Object(BTreeMap<String, StrictJson>),
    /// A list.
    List(Vec<StrictJson>),
    /// A text, a number, a truth value, or null.
    Other(Value),
}

impl<'de> Deserialize<'de> for StrictJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = StrictJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StrictJson, A::Error> {
                let mut object = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, StrictJson>()? {
                    if object.insert(key.clone(), value).is_some() {
                        return Err(serde::de::Error::custom(format!("the key {key:?} is there twice")));
                    }
                }
                Ok(StrictJson::Object(object))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<StrictJson, A::Error> {
                let mut list = Vec::new();
                while let Some(element) = elements.next_element()? {
                    list.push(element);
                }
                Ok(StrictJson::List(list))
            }

            fn visit_str<E>(self, text: &str) -> Result<StrictJson, E> {
                Ok(StrictJson::Other(text.into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<StrictJson, E> {
                Ok(StrictJson::Other(number.into()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<StrictJson, E> {
                Ok(StrictJson::Other(number.into()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<StrictJson, E> {
                Ok(StrictJson::Other(number.into()))
            }

            fn visit_bool<E>(self, value: bool) -> Result<StrictJson, E> {
                Ok(StrictJson::Other(value.into()))
            }

            fn visit_unit<E>(self) -> Result<StrictJson, E> {
                Ok(StrictJson::Other(Value::Null))
            }
        }

        deserializer.deserialize_any(Any)
    }
}
