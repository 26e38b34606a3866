//! Texts of which the values are known, and resources.

/// Defines enumerations over texts. A text that is not among the values is kept in `Other`; no text is
/// `Other("")`, which is the default.
macro_rules! open_words {
    ($( $(#[$doc:meta])* $name:ident { $( $(#[$vdoc:meta])* $variant:ident = $text:literal, )* } )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $( $(#[$vdoc])* $variant, )*
            /// Another text, or none.
            Other(String),
        }

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => $text, )*
                    Self::Other(text) => text,
                }
            }

            /// Whether there is no text.
            pub fn is_empty(&self) -> bool {
                self.as_str().is_empty()
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::Other(String::new())
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $( $text => Self::$variant, )*
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Ok(Self::from(String::deserialize(from)?.as_str()))
            }
        }
    )* };
}
pub(super) use open_words;

/// A value made by hand needs no version: the type says it.
pub(super) fn write_api_version<S: serde::Serializer>(version: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(if version.is_empty() { super::API_VERSION } else { version })
}

/// Makes a type a namespaced resource of the group, or of the one that is named, so that a client can be told by it what to ask for.
macro_rules! resource {
    ($kind:ident, $plural:literal) => {
        resource!(@ $kind, $plural, super::GROUP, super::VERSION, super::API_VERSION);
    };
    // Of another group.
    ($kind:ident, $plural:literal, $group:literal, $version:literal) => {
        resource!(@ $kind, $plural, $group, $version, concat!($group, "/", $version));

        impl $kind {
            /// A value made by hand needs no version: the type says it.
            fn write_api_version<S: serde::Serializer>(version: &str, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(if version.is_empty() { concat!($group, "/", $version) } else { version })
            }
        }
    };
    (@ $kind:ident, $plural:literal, $group:expr, $version:expr, $api_version:expr) => {
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = $api_version;
            const GROUP: &'static str = $group;
            const KIND: &'static str = stringify!($kind);
            const VERSION: &'static str = $version;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = k8s_openapi::NamespaceResourceScope;
        }

        impl $kind {
            /// A value made by hand needs no kind: the type says it.
            fn write_kind<S: serde::Serializer>(kind: &str, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(if kind.is_empty() { stringify!($kind) } else { kind })
            }
        }

        impl k8s_openapi::Metadata for $kind {
            type Ty = meta::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}
pub(super) use resource;
