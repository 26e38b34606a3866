//! Label selectors, as Kubernetes' own clients read and write them.
//!
//! A selector is a list of requirements, all of which hold for the labels that it matches. One that is not there matches
//! nothing, one without requirements everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::validate::text::{is_label_name, is_label_value};

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A selector that can be evaluated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// `None` matches nothing.
    requirements: Option<Vec<Requirement>>,
}

/// Why a selector cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// A key that no label can have.
    #[error("'{0}' is not a label's key")]
    Key(String),
    /// A value that no label can have.
    #[error("'{value}' is not a label's value (of {key})")]
    Value {
        /// The label.
        key: String,
        /// The value.
        value: String,
    },
    /// An operator that does not exist.
    #[error("'{operator}' is not an operator (of {key}); {allowed} are")]
    Operator {
        /// The label.
        key: String,
        /// The operator.
        operator: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The operator takes another number of values.
    #[error("{operator} (of {key}) takes {wanted}, not {given} values")]
    Count {
        /// The label.
        key: String,
        /// The operator.
        operator: String,
        /// How many it takes, in words.
        wanted: &'static str,
        /// How many are given.
        given: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Test {
    Equals(String),
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
    /// The label is a whole number above the one that the requirement names.
    Above(i64),
    /// The label is a whole number below the one that the requirement names.
    Below(i64),
}

impl Selector {
    /// A selector of labels.
    ///
    /// # Errors
    ///
    /// See [`SelectorError`].
    pub fn of(selector: Option<&LabelSelector>) -> Result<Self, SelectorError> {
        let Some(selector) = selector else { return Ok(Self { requirements: None }) };
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements
                .push(Requirement { key: label_key(key)?, test: Test::Equals(value_of(key, value)?) });
        }
        for one in selector.match_expressions.iter().flatten() {
            let LabelSelectorRequirement { key, operator, values } = one;
            requirements.push(requirement(key, operator, values.as_deref().unwrap_or_default(), false)?);
        }
        requirements.sort();
        Ok(Self { requirements: Some(requirements) })
    }

    /// A selector of a node's labels, or of what a machine asks of them.
    ///
    /// # Errors
    ///
    /// See [`SelectorError`].
    pub fn of_nodes(terms: &[NodeSelectorRequirement]) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for NodeSelectorRequirement { key, operator, values } in terms {
            requirements.push(requirement(key, operator, values.as_deref().unwrap_or_default(), true)?);
        }
        requirements.sort();
        Ok(Self { requirements: Some(requirements) })
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        let Some(requirements) = &self.requirements else { return false };
        requirements.iter().all(|one| one.test.holds(labels.get(&one.key)))
    }
}

impl Test {
    fn holds(&self, value: Option<&String>) -> bool {
        let number = || value.and_then(|text| text.parse::<i64>().ok());
        match self {
            Test::Equals(wanted) => value == Some(wanted),
            Test::In(set) => value.is_some_and(|value| set.contains(value)),
            Test::NotIn(set) => value.is_none_or(|value| !set.contains(value)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
            Test::Above(limit) => number().is_some_and(|number| number > *limit),
            Test::Below(limit) => number().is_some_and(|number| number < *limit),
        }
    }
}

/// The form that the API takes in a query, and that a scale's `status.selector` has.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(",");
        for (n, Requirement { key, test }) in self.requirements.iter().flatten().enumerate() {
            f.write_str(if n == 0 { "" } else { "," })?;
            match test {
                Test::Equals(value) => write!(f, "{key}={value}")?,
                Test::In(values) => write!(f, "{key} in ({})", set(values))?,
                Test::NotIn(values) => write!(f, "{key} notin ({})", set(values))?,
                Test::Exists => f.write_str(key)?,
                Test::DoesNotExist => write!(f, "!{key}")?,
                Test::Above(limit) => write!(f, "{key}>{limit}")?,
                Test::Below(limit) => write!(f, "{key}<{limit}")?,
            }
        }
        Ok(())
    }
}

fn label_key(key: &str) -> Result<String, SelectorError> {
    if is_label_name(key) { Ok(key.to_owned()) } else { Err(SelectorError::Key(key.to_owned())) }
}

fn value_of(key: &str, value: &str) -> Result<String, SelectorError> {
    if is_label_value(value) {
        Ok(value.to_owned())
    } else {
        Err(SelectorError::Value { key: key.to_owned(), value: value.to_owned() })
    }
}

fn requirement(
    key: &str,
    operator: &str,
    values: &[String],
    of_nodes: bool,
) -> Result<Requirement, SelectorError> {
    let key = label_key(key)?;
    let count = |wanted| {
        Err(SelectorError::Count { key: key.clone(), operator: operator.into(), wanted, given: values.len() })
    };
    let set = || values.iter().map(|value| value_of(&key, value)).collect::<Result<BTreeSet<_>, _>>();
    let number = |text: &String| {
        text.parse::<i64>().map_err(|_| SelectorError::Value { key: key.clone(), value: text.clone() })
    };
    let test = match (operator, values) {
        ("In" | "NotIn", []) => return count("one or more"),
        ("In", _) => Test::In(set()?),
        ("NotIn", _) => Test::NotIn(set()?),
        ("Exists", []) => Test::Exists,
        ("DoesNotExist", []) => Test::DoesNotExist,
        ("Exists" | "DoesNotExist", _) => return count("no"),
        ("Gt", [value]) if of_nodes => Test::Above(number(value)?),
        ("Lt", [value]) if of_nodes => Test::Below(number(value)?),
        ("Gt" | "Lt", _) if of_nodes => return count("one"),
        _ => {
            let allowed = if of_nodes {
                "In, NotIn, Exists, DoesNotExist, Gt, Lt"
            } else {
                "In, NotIn, Exists, DoesNotExist"
            };
            return Err(SelectorError::Operator { key, operator: operator.to_owned(), allowed });
        }
    };
    Ok(Requirement { key, test })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selector(value: Value) -> Result<Selector, SelectorError> {
        Selector::of(Some(&serde_json::from_value(value).unwrap()))
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn all_requirements_hold_for_what_is_selected() {
        let wanted = selector(json!({"matchLabels": {"app": "web"}, "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["b", "a"]},
            {"key": "old", "operator": "NotIn", "values": ["yes"]},
            {"key": "zone", "operator": "Exists"}, {"key": "gone", "operator": "DoesNotExist"}]}))
        .unwrap();
        let right = [("app", "web"), ("tier", "a"), ("zone", "1")];
        assert!(wanted.matches(&labels(&right)));
        for (key, value) in [("app", "db"), ("tier", "c"), ("old", "yes"), ("gone", "")] {
            let mut other = labels(&right);
            other.insert(key.into(), value.into());
            assert!(!wanted.matches(&other), "{key}");
        }
        assert_eq!(wanted.to_string(), "app=web,!gone,old notin (yes),tier in (a,b),zone");
    }

    #[test]
    fn none_selects_nothing_and_an_empty_one_everything() {
        let none = Selector::of(None).unwrap();
        assert!(!none.matches(&labels(&[("a", "b")])) && !none.matches(&Labels::new()));
        let empty = selector(json!({})).unwrap();
        assert!(empty.matches(&Labels::new()));
        assert_eq!((none.to_string(), empty.to_string()), (String::new(), String::new()));
    }

    #[test]
    fn node_terms_compare_numbers() {
        let terms = json!([{"key": "cpus", "operator": "Gt", "values": ["4"]},
            {"key": "age", "operator": "Lt", "values": ["3"]}]);
        let terms: Vec<NodeSelectorRequirement> = serde_json::from_value(terms).unwrap();
        let wanted = Selector::of_nodes(&terms).unwrap();
        assert!(wanted.matches(&labels(&[("cpus", "5"), ("age", "2")])));
        for other in
            [[("cpus", "4"), ("age", "2")], [("cpus", "many"), ("age", "2")], [("cpus", "5"), ("age", "3")]]
        {
            assert!(!wanted.matches(&labels(&other)), "{other:?}");
        }
    }

    #[test]
    fn what_cannot_be_evaluated_is_told() {
        for (given, why) in [
            (json!({"matchLabels": {"a b": "c"}}), "'a b' is not a label's key"),
            (json!({"matchLabels": {"a": "b c"}}), "'b c' is not a label's value (of a)"),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
                "In (of a) takes one or more, not 0 values",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
                "Exists (of a) takes no, not 1 values",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}),
                "'Gt' is not an operator (of a); In, NotIn, Exists, DoesNotExist are",
            ),
        ] {
            assert_eq!(selector(given).unwrap_err().to_string(), why);
        }
    }
}
