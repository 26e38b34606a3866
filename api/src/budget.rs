//! JSON whose size in memory is bounded while it is read.
//!
//! A short text may become a large tree: an object of one member, five bytes of text, takes a node of a B-tree, more than
//! 600 bytes. So each value is charged against a budget before it is allocated, and reading ends where the budget does:
//!
//! | value | charge |
//! |---|---|
//! | object | [`OBJECT_BYTES`], the same where it is empty: typed structures are made of it |
//! | member | its name and [`TEXT_BYTES`]; from the twelfth on the further nodes |
//! | element of a list | twice a [`Value`], as the list grows by doubling |
//! | text | its length and [`TEXT_BYTES`] |
//!
//! The charge is an upper bound of the heap that the tree takes; a test counts the allocated bytes.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Largest tree, in bytes of memory, that a review of an object may become.
pub const MAX_REVIEW_TREE_BYTES: usize = 16 << 20;
/// Bytes of memory that a byte of JSON becomes at most, beside [`MIN_TREE_BYTES`].
pub const MAX_BYTES_OF_TEXT_BYTE: usize = 330;
/// Bytes by which even the shortest text is counted.
pub const MIN_TREE_BYTES: usize = 1024;

/// Charge of an object: a leaf with the place of eleven members, and the allocator's own bytes.
const OBJECT_BYTES: usize = 656;
/// Members that the first leaf holds.
const LEAF_MEMBERS: usize = 11;
/// Charge of the first member beyond a leaf: a second leaf and the node above.
const SPLIT_BYTES: usize = 1408;
/// Charge of each further member: a part of a leaf that is half full, and of the nodes above.
const MEMBER_BYTES: usize = 160;
/// The allocator's bytes of a text.
const TEXT_BYTES: usize = 32;
/// Elements that a list has place for at least.
const LEAST_ELEMENTS: usize = 4;
const ELEMENT_BYTES: usize = size_of::<Value>();

/// Why a text was not read.
#[derive(Debug, thiserror::Error)]
pub enum BudgetError {
    /// The text is no JSON, or nests too deeply.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It would take too much memory.
    #[error("the document takes more than {max} bytes of memory; at most {max} are allowed")]
    TooLarge {
        /// Bytes of the budget.
        max: usize,
    },
}

/// An upper bound of the memory that a JSON text of `length` bytes becomes, in bytes.
pub fn max_tree_bytes(length: usize) -> usize {
    length.saturating_mul(MAX_BYTES_OF_TEXT_BYTE).saturating_add(MIN_TREE_BYTES)
}

/// Reads a JSON text whose tree takes at most `max` bytes of memory.
///
/// ```
/// use podvirt_api::budget::{self, BudgetError};
///
/// assert_eq!(budget::parse(br#"{"a": [1]}"#, 4096).unwrap()["a"][0], 1);
/// let nested = format!("{}0{}", r#"{"":"#.repeat(100), "}".repeat(100));
/// assert!(matches!(budget::parse(nested.as_bytes(), 4096), Err(BudgetError::TooLarge { max: 4096 })));
/// ```
///
/// # Errors
///
/// The text is no JSON, nests more than 127 levels, or becomes larger than `max`.
pub fn parse(text: &[u8], max: usize) -> Result<Value, BudgetError> {
    let budget = Budget { left: Cell::new(max), is_spent: Cell::new(false) };
    let mut reader = serde_json::Deserializer::from_slice(text);
    let read = Tree(&budget).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    read.map_err(|error| if budget.is_spent.get() { BudgetError::TooLarge { max } } else { error.into() })
}

/// Reads a value from any reader; its tree takes at most `max` bytes of memory.
///
/// # Errors
///
/// What the reader holds is no value of JSON, or becomes larger than `max`.
pub fn read<'de, D: Deserializer<'de>>(reader: D, max: usize) -> Result<Value, D::Error> {
    let budget = Budget { left: Cell::new(max), is_spent: Cell::new(false) };
    Tree(&budget).deserialize(reader)
}

/// The charge of a tree, in bytes, by the same rules as [`parse`].
pub fn weigh(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text_bytes(text),
        Value::Array(list) => {
            (0..list.len()).map(element_bytes).sum::<usize>() + list.iter().map(weigh).sum::<usize>()
        }
        Value::Object(map) => {
            let members = map.iter().enumerate();
            let bytes = |(n, (name, value)): (usize, (&String, &Value))| member_bytes(n, name) + weigh(value);
            OBJECT_BYTES + members.map(bytes).sum::<usize>()
        }
    }
}

fn text_bytes(text: &str) -> usize {
    text.len() + TEXT_BYTES
}

/// What the member with number `n`, from 0 on, adds to its object.
fn member_bytes(n: usize, name: &str) -> usize {
    text_bytes(name)
        + match n {
            0..LEAF_MEMBERS => 0,
            LEAF_MEMBERS => SPLIT_BYTES,
            _ => MEMBER_BYTES,
        }
}

/// What the element with number `n`, from 0 on, adds to its list.
fn element_bytes(n: usize) -> usize {
    if n == 0 { LEAST_ELEMENTS * ELEMENT_BYTES + TEXT_BYTES } else { 2 * ELEMENT_BYTES }
}

/// What may still be allocated.
struct Budget {
    left: Cell<usize>,
    is_spent: Cell<bool>,
}

impl Budget {
    fn charge<E: serde::de::Error>(&self, bytes: usize) -> Result<(), E> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.is_spent.set(true);
                Err(E::custom("the document takes too much memory"))
            }
        }
    }

    fn text<E: serde::de::Error>(&self, text: &str) -> Result<String, E> {
        self.charge(text_bytes(text))?;
        Ok(text.to_owned())
    }
}

/// Reads a value.
#[derive(Clone, Copy)]
struct Tree<'a>(&'a Budget);

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.0.text(text).map(Value::String)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = elements.next_element_seed(self)? {
            self.0.charge(element_bytes(list.len()))?;
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        self.0.charge(OBJECT_BYTES)?;
        let mut map = Map::new();
        while let Some(name) = members.next_key_seed(Name(self.0))? {
            let value = members.next_value_seed(self)?;
            self.0.charge(member_bytes(map.len(), ""))?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

/// Reads the name of a member.
struct Name<'a>(&'a Budget);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<String, D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<String, E> {
        self.0.charge(text.len())?;
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Any tree of a few levels.
    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 64, 20, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::from),
                prop::collection::btree_map(".{0,4}", inner, 0..20)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_tree_is_read_by_exactly_its_charge_as_serde_json_reads_it(value in tree()) {
            let text = value.to_string();
            let (read, bytes) = (serde_json::from_str::<Value>(&text).unwrap(), weigh(&value));
            prop_assert_eq!(parse(text.as_bytes(), bytes).unwrap(), read);
            if let Some(less) = bytes.checked_sub(1) {
                let is_refused =
                    matches!(parse(text.as_bytes(), less), Err(BudgetError::TooLarge { max }) if max == less);
                prop_assert!(is_refused);
            }
            prop_assert!(bytes <= max_tree_bytes(text.len()), "{bytes} bytes of {}", text.len());
        }
    }

    #[test]
    fn the_densest_texts_stay_below_the_bound_of_their_length() {
        for text in
            ["[{},{},{},{},{},{}]", "{}", "[[[[[[]]]]]]", r#"{"":{"":{"":{"":0}}}}"#, "[0,0,0,0,0]", "[]"]
        {
            let bytes = weigh(&serde_json::from_str(text).unwrap());
            assert!(bytes <= max_tree_bytes(text.len()), "{text}: {bytes}");
        }
        let maps = format!("[{}{{}}]", "{},".repeat(10_000));
        assert!(weigh(&serde_json::from_str(&maps).unwrap()) <= max_tree_bytes(maps.len()));
    }

    #[test]
    fn a_text_that_is_no_json_says_where() {
        for text in ["{", "[1,]", "{} {}", "", "nul", &"[".repeat(200)] {
            assert!(matches!(parse(text.as_bytes(), 1 << 20), Err(BudgetError::Json(_))), "{text}");
        }
        assert_eq!(parse(br#"{"a": 1, "a": 2}"#, 4096).unwrap(), json!({"a": 2}), "the last counts, as ever");
    }
}
