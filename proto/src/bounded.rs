//! Lists in messages of a process that is not trusted: bounded while they are read.
//!
//! An element takes a hundred times its text in memory: `{}` becomes a structure with all of its fields. A list that is cut
//! once it is whole has taken that memory already.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

/// Reads the first `MAX` elements of a list and passes over the rest. `null`, which Go writes for an empty list, is one.
///
/// # Errors
///
/// It is no list, or one of its first elements cannot be read.
pub fn list<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_option(Elements::<T, MAX>(PhantomData))
}

struct Elements<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Elements<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_none<E>(self) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }

    fn visit_unit<E>(self) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while list.len() < MAX {
            let Some(element) = elements.next_element()? else { break };
            list.push(element);
        }
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        list.shrink_to_fit();
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Message {
        #[serde(deserialize_with = "super::list::<_, _, 2>")]
        numbers: Vec<u8>,
        after: u8,
    }

    #[test]
    fn what_is_beyond_the_bound_is_passed_over_whatever_it_is() {
        let read = |text| serde_json::from_str::<Message>(text).map_err(|error| error.to_string());
        let message = |numbers: &[u8]| Ok(Message { numbers: numbers.to_vec(), after: 7 });
        assert_eq!(read(r#"{"numbers": [1, 2, "x", {"a": []}], "after": 7}"#), message(&[1, 2]));
        assert_eq!(read(r#"{"numbers": [1], "after": 7}"#), message(&[1]));
        assert_eq!(read(r#"{"numbers": null, "after": 7}"#), message(&[]));
        assert_eq!(read(r#"{"after": 7}"#), message(&[]));
        assert!(read(r#"{"numbers": 3}"#).unwrap_err().contains("a list"));
        read(r#"{"numbers": ["x"]}"#).unwrap_err();
        read(r#"{"numbers": [1, 2, 3"#).unwrap_err();
    }
}
