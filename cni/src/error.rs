//! What the plugin answers when it cannot (CNI specification 1.1, section 5, "Error").

use podvirt_api::error::chain;
use serde::Serialize;

/// Kinds of errors; below 100 the specification's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// The configuration's cniVersion is not one of ours.
    IncompatibleVersion = 1,
    /// A field that would have to be carried out and is not.
    UnsupportedField = 2,
    /// The container or its namespace is not there.
    UnknownContainer = 3,
    /// A variable of the environment is missing or wrong.
    Environment = 4,
    /// Files, sockets, the kernel.
    Io = 5,
    /// What was read is no JSON of the expected form.
    Decode = 6,
    /// The network's configuration says what cannot be.
    Config = 7,
    /// Trying again may help.
    TryAgain = 11,
    /// STATUS: no ADD can be served.
    Unavailable = 50,
    /// Every address of the network is taken.
    Exhausted = 100,
    /// The lease says something else than the network or the pod asks for.
    Lease = 101,
    /// CHECK: the attachment is not as it was made.
    Changed = 102,
    /// The kernel cannot keep an interface silent.
    Silence = 103,
}

/// An error as the runtime gets it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{msg}")]
pub struct Error {
    /// What kind.
    pub code: Code,
    /// What happened, with the field, the value and what is allowed.
    pub msg: String,
    /// The causes, innermost last.
    pub details: String,
}

impl Error {
    /// An error without causes.
    pub fn new(code: Code, msg: impl Into<String>) -> Self {
        Error { code, msg: msg.into(), details: String::new() }
    }

    /// An error with the chain of its causes.
    pub fn because(code: Code, msg: impl Into<String>, cause: &(dyn std::error::Error + 'static)) -> Self {
        Error { code, msg: msg.into(), details: chain(cause) }
    }

    /// The object that is printed.
    pub fn json(&self, version: &str) -> String {
        let object =
            Json { cni_version: version, code: self.code as u32, msg: &self.msg, details: &self.details };
        // Strings and a number: it cannot fail.
        serde_json::to_string(&object).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(rename = "cniVersion")]
    cni_version: &'a str,
    code: u32,
    msg: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    details: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_printed_with_its_code_and_causes() {
        let cause = std::io::Error::other("no such thing");
        let error = Error::because(Code::Io, "the bridge \"br1\"", &cause);
        let printed: serde_json::Value = serde_json::from_str(&error.json("1.1.0")).unwrap();
        let expected = serde_json::json!(
            {"cniVersion": "1.1.0", "code": 5, "msg": "the bridge \"br1\"", "details": "no such thing"}
        );
        assert_eq!(printed, expected);
    }
}
