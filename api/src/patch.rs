//! JSON patches (RFC 6902) that users write, with a bound on what they may make.
//!
//! A patch acts with the rights and in the memory of the process that applies it. `copy` doubles a value with each operation, and
//! an operation below a value that another one added nests without the limit of a parser: forty operations of fifty bytes fill any memory. So
//!
//! - `add`, `replace`, `remove` and `test` are allowed, which make nothing that does not stand in the patch;
//! - the number of operations, the bytes of their texts and the memory of their values are bounded;
//! - the depth of each value in the document, the segments of its path and its own levels, is bounded.
//!
//! All of it is known of the patch alone: admission refuses by the same rules by which the patch is refused where it is applied.

use json_patch::PatchOperation;
use serde_json::Value;

use crate::budget::{self, BudgetError};

/// Most operations of a patch.
pub const MAX_PATCH_OPERATIONS: usize = 1024;
/// Longest text of a patch, all operations together, in bytes.
pub const MAX_PATCH_BYTES: usize = 1 << 20;
/// Largest sum of the values of a patch, in bytes of memory.
pub const MAX_PATCH_TREE_BYTES: usize = 8 << 20;
/// Deepest level of the document at which a patch may leave a value.
pub const MAX_PATCH_DEPTH: usize = 100;

/// Why a patch is refused, or does not fit the document.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// There are too many operations.
    #[error("the patch has {operations} operations; at most {MAX_PATCH_OPERATIONS} are allowed")]
    Operations {
        /// How many there are.
        operations: usize,
    },
    /// The text is too long.
    #[error("the patch has {bytes} bytes; at most {MAX_PATCH_BYTES} are allowed")]
    Length {
        /// Its length.
        bytes: usize,
    },
    /// It is no JSON, or takes too much memory.
    #[error("the patch cannot be read")]
    Unreadable(#[from] BudgetError),
    /// It is no operation of a JSON patch.
    #[error("operation {index}: no operation of a JSON patch: {source}")]
    NoOperation {
        /// Its place in the patch, from 0 on.
        index: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The patch is no list.
    #[error("a list of operations is expected")]
    NoList,
    /// The operation may grow without bound.
    #[error("operation {index}: op '{op}' is not allowed; add, replace, remove and test are")]
    Op {
        /// Its place in the patch, from 0 on.
        index: usize,
        /// What it would do.
        op: &'static str,
    },
    /// The operation is for another part of the document.
    #[error("operation {index}: path '{path}' is not allowed; paths below {} are", .allowed.join(", "))]
    Path {
        /// Its place in the patch, from 0 on.
        index: usize,
        /// Its path.
        path: String,
        /// Beginnings of the paths that are allowed.
        allowed: Vec<String>,
    },
    /// The value would nest too deeply.
    #[error(
        "operation {index}: its value is at level {depth} of the document; at most {MAX_PATCH_DEPTH} are allowed"
    )]
    Depth {
        /// Its place in the patch, from 0 on.
        index: usize,
        /// The level.
        depth: usize,
    },
    /// An operation does not fit the document.
    #[error("operation {index} does not fit: {source}")]
    Misfit {
        /// Its place in the patch, from 0 on.
        index: usize,
        /// What is wrong.
        source: json_patch::PatchError,
    },
}

/// A patch that was found to be within the bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch(Vec<PatchOperation>);

impl Patch {
    /// Reads a patch whose text is a list of operations. `paths` are the beginnings of paths that are allowed; all are where it is empty.
    ///
    /// # Errors
    ///
    /// The text is no JSON patch, or it is beyond the bounds.
    pub fn from_list(text: &str, paths: &[&str]) -> Result<Self, PatchError> {
        check_length([text].into_iter())?;
        let Value::Array(operations) = budget::parse(text.as_bytes(), MAX_PATCH_TREE_BYTES)? else {
            return Err(PatchError::NoList);
        };
        Self::checked(operations, paths)
    }

    /// Reads a patch of which each operation is a text of its own, as restores and clones have it. `paths` as for [`Patch::from_list`].
    ///
    /// # Errors
    ///
    /// A text is no operation, or the patch is beyond the bounds.
    pub fn from_operations<T: AsRef<str>>(texts: &[T], paths: &[&str]) -> Result<Self, PatchError> {
        if texts.len() > MAX_PATCH_OPERATIONS {
            return Err(PatchError::Operations { operations: texts.len() });
        }
        check_length(texts.iter().map(AsRef::as_ref))?;
        let mut left = MAX_PATCH_TREE_BYTES;
        let mut operations = Vec::with_capacity(texts.len());
        for text in texts {
            let operation = budget::parse(text.as_ref().as_bytes(), left)?;
            left = left.saturating_sub(budget::weigh(&operation));
            operations.push(operation);
        }
        Self::checked(operations, paths)
    }

    fn checked(operations: Vec<Value>, paths: &[&str]) -> Result<Self, PatchError> {
        if operations.len() > MAX_PATCH_OPERATIONS {
            return Err(PatchError::Operations { operations: operations.len() });
        }
        let operations = operations.into_iter().enumerate();
        operations
            .map(|(index, operation)| checked(index, operation, paths))
            .collect::<Result<_, _>>()
            .map(Patch)
    }

    /// Applies the operations in their order. The document is left as it was where one does not fit.
    ///
    /// # Errors
    ///
    /// An operation does not fit the document.
    pub fn apply(&self, document: &mut Value) -> Result<(), PatchError> {
        json_patch::patch(document, &self.0)
            .map_err(|source| PatchError::Misfit { index: source.operation, source })
    }

    /// Applies the operations in their order; a replacement of what is not there adds it. The document is left in between where one
    /// does not fit.
    ///
    /// # Errors
    ///
    /// An operation does not fit the document.
    pub fn apply_or_add(&self, document: &mut Value) -> Result<(), PatchError> {
        for (index, operation) in self.0.iter().enumerate() {
            let added = match operation {
                PatchOperation::Replace(replace) if document.pointer(replace.path.as_str()).is_none() => {
                    let (path, value) = (replace.path.clone(), replace.value.clone());
                    Some(PatchOperation::Add(json_patch::AddOperation { path, value }))
                }
                _ => None,
            };
            json_patch::patch(document, std::slice::from_ref(added.as_ref().unwrap_or(operation)))
                .map_err(|source| PatchError::Misfit { index, source })?;
        }
        Ok(())
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no operation.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn check_length<'a>(texts: impl Iterator<Item = &'a str>) -> Result<(), PatchError> {
    let bytes = texts.map(str::len).sum();
    if bytes > MAX_PATCH_BYTES { Err(PatchError::Length { bytes }) } else { Ok(()) }
}

fn checked(index: usize, operation: Value, paths: &[&str]) -> Result<PatchOperation, PatchError> {
    let operation =
        serde_json::from_value(operation).map_err(|source| PatchError::NoOperation { index, source })?;
    let (path, value) = match &operation {
        PatchOperation::Add(add) => (&add.path, Some(&add.value)),
        PatchOperation::Replace(replace) => (&replace.path, Some(&replace.value)),
        PatchOperation::Test(test) => (&test.path, Some(&test.value)),
        PatchOperation::Remove(remove) => (&remove.path, None),
        PatchOperation::Copy(_) => return Err(PatchError::Op { index, op: "copy" }),
        PatchOperation::Move(_) => return Err(PatchError::Op { index, op: "move" }),
    };
    if !paths.is_empty() && !paths.iter().any(|start| path.as_str().starts_with(start)) {
        let allowed = paths.iter().map(|path| (*path).to_owned()).collect();
        return Err(PatchError::Path { index, path: path.as_str().to_owned(), allowed });
    }
    let depth = path.as_str().matches('/').count() + value.map_or(0, depth);
    if depth > MAX_PATCH_DEPTH { Err(PatchError::Depth { index, depth }) } else { Ok(operation) }
}

/// Levels of a value; the parser bounds them.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_grows_by_itself_is_refused() {
        for op in ["copy", "move"] {
            let doubling = json!({"op": op, "from": "/spec/a", "path": "/spec/a/-"}).to_string();
            let refused = Patch::from_operations(&[&doubling], &["/spec/"]);
            assert!(matches!(refused, Err(PatchError::Op { index: 0, op: told }) if told == op));
            assert!(matches!(Patch::from_list(&format!("[{doubling}]"), &[]), Err(PatchError::Op { .. })));
        }
    }

    #[test]
    fn a_patch_is_bounded_in_number_length_memory_and_depth() {
        let add = |path: &str, value: &str| format!(r#"{{"op":"add","path":"{path}","value":{value}}}"#);
        let many = vec![add("/a", "0"); MAX_PATCH_OPERATIONS + 1];
        assert!(matches!(
            Patch::from_operations(&many, &[]),
            Err(PatchError::Operations { operations: 1025 })
        ));
        assert!(matches!(
            Patch::from_list(&format!("[{}]", many.join(",")), &[]),
            Err(PatchError::Operations { .. })
        ));
        assert_eq!(Patch::from_operations(&many[1..], &[]).unwrap().len(), MAX_PATCH_OPERATIONS);
        let long = add("/a", &format!("\"{}\"", "x".repeat(MAX_PATCH_BYTES)));
        assert!(matches!(Patch::from_list(&format!("[{long}]"), &[]), Err(PatchError::Length { .. })));
        let maps = add("/a", &format!("[{}{{}}]", "{},".repeat(20_000)));
        let refused = Patch::from_operations(&[&maps], &[]);
        assert!(matches!(refused, Err(PatchError::Unreadable(BudgetError::TooLarge { .. }))));
        let half = add("/a", &format!("[{}{{}}]", "{},".repeat(8_000)));
        assert!(Patch::from_operations(&[&half], &[]).is_ok());
        let refused = Patch::from_operations(&[&half, &half], &[]);
        assert!(matches!(refused, Err(PatchError::Unreadable(_))), "the sum counts");
        let deep = add(&"/a".repeat(60), &format!("{}{}", "[".repeat(41), "]".repeat(41)));
        assert!(matches!(
            Patch::from_operations(&[&deep], &[]),
            Err(PatchError::Depth { index: 0, depth: 101 })
        ));
    }

    #[test]
    fn paths_are_bounded_to_what_is_allowed() {
        let remove = |path: &str| json!({"op": "remove", "path": path}).to_string();
        assert!(Patch::from_operations(&[remove("/spec/a")], &["/spec/", "/metadata/labels/"]).is_ok());
        let error = Patch::from_operations(&[remove("/status/a")], &["/spec/"]).unwrap_err();
        assert_eq!(error.to_string(), "operation 0: path '/status/a' is not allowed; paths below /spec/ are");
    }

    #[test]
    fn operations_are_applied_in_their_order_and_a_replacement_may_add() {
        let text = r#"[{"op":"replace","path":"/a","value":1},{"op":"test","path":"/a","value":1},{"op":"remove","path":"/b"}]"#;
        let patch = Patch::from_list(text, &[]).unwrap();
        let mut document = json!({"b": 0});
        assert!(matches!(patch.apply(&mut document), Err(PatchError::Misfit { index: 0, .. })));
        assert_eq!(document, json!({"b": 0}));
        patch.apply_or_add(&mut document).unwrap();
        assert_eq!(document, json!({"a": 1}));
    }

    #[test]
    fn what_is_no_patch_is_refused() {
        assert!(matches!(Patch::from_list("{}", &[]), Err(PatchError::NoList)));
        assert!(matches!(Patch::from_list("[", &[]), Err(PatchError::Unreadable(_))));
        for text in [
            "{}",
            "[]",
            r#"{"op":"add","path":"/a"}"#,
            r#"{"op":"grow","path":"/a"}"#,
            r#"{"op":"remove","path":"a"}"#,
        ] {
            assert!(
                matches!(Patch::from_operations(&[text], &[]), Err(PatchError::NoOperation { .. })),
                "{text}"
            );
        }
    }
}
