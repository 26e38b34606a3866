//! How API objects look in Rust: public fields, JSON names in camel case, unset fields left out.

/// Whether a field has its zero value, which JSON leaves out (what Go's `omitempty` does).
pub(crate) fn unset<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Declares API objects: structs with the derives and the serde attributes that all of them share.
macro_rules! objects {
    ($($(#[$meta:meta])* $name:ident { $($(#[$fmeta:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $($(#[$fmeta])* #[serde(skip_serializing_if = "crate::object::unset")] pub $field: $ty,)*
        }
    )*};
}

/// Makes a type with `metadata` a resource, so that a client can be told by it what to ask for: group, version, kind, plural and scope.
macro_rules! kind {
    ($type:ident, $group:literal, $version:literal, $kind:literal, $plural:literal, $scope:ident) => {
        impl k8s_openapi::Resource for $type {
            const API_VERSION: &'static str = concat!($group, "/", $version);
            const GROUP: &'static str = $group;
            const KIND: &'static str = $kind;
            const VERSION: &'static str = $version;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = k8s_openapi::$scope;
        }

        impl k8s_openapi::Metadata for $type {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}

/// Declares string enumerations with their JSON values.
macro_rules! words {
    ($($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$vmeta])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// Every value as JSON has it.
            pub const NAMES: &'static [&'static str] = &[$($text),*];

            /// The value as JSON has it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    )*};
}
