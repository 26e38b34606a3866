//! Why a sidecar could not be asked.

use std::str::Utf8Error;
use std::string::FromUtf8Error;
use std::time::Duration;

use quick_xml::DeError;
use tonic::Status;

use crate::xml_tree::TreeError;

/// Why a sidecar could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// It did not answer, or said no, or what it says cannot be used.
    #[error("{container}: {call}")]
    Call {
        /// Its container, and its name once it is known.
        container: String,
        /// What it was asked.
        call: &'static str,
        /// What went wrong.
        source: CallError,
    },
    /// It speaks no version that virt-launcher speaks.
    #[error("{container}: it speaks {given}; one of v1alpha3, v1alpha2, v1alpha1 is needed")]
    Version {
        /// Its container.
        container: String,
        /// What it speaks.
        given: String,
    },
}

/// What is wrong with a sidecar's call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The sidecar says no, or there is none any more.
    #[error("{}: {}", .0.code(), .0.message())]
    Refused(Status),
    /// It takes too long.
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
    /// It speaks a version without this call.
    #[error("v1alpha1 does not have it")]
    Unknown,
    /// A cloud-init gets what cannot be told to a sidecar.
    #[error("the {what} of the volume {volume} is no text")]
    Binary {
        /// The user's or the network's data.
        what: &'static str,
        /// The volume.
        volume: String,
        /// Where it ends to be text.
        source: Utf8Error,
    },
    /// The answer is no text.
    #[error("its answer is no text")]
    NoText(#[from] FromUtf8Error),
    /// The answer is no domain.
    #[error("its answer is no domain")]
    NoDomain(#[from] DeError),
    /// The answer is no XML.
    #[error(transparent)]
    NoXml(#[from] TreeError),
    /// The answer is another domain.
    #[error("its answer is a domain called '{given}'; '{needed}' is needed")]
    OtherDomain {
        /// The answer's name.
        given: String,
        /// The machine's.
        needed: String,
    },
    /// A part of the answer is no JSON.
    #[error("its {what} is no JSON")]
    NoJson {
        /// The part.
        what: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// The answer is for another source of cloud-init's.
    #[error("its DataSource is '{given}'; '{needed}' is needed, as the volume {volume} has it")]
    OtherSource {
        /// The answer's.
        given: String,
        /// The volume's.
        needed: &'static str,
        /// The volume.
        volume: String,
    },
    /// The answer has nothing for cloud-init.
    #[error(
        "its cloudInitData lacks user data or a description of the machine, and it has no cloudInitNoCloudSource"
    )]
    NoData,
}
