//! The running machine, as the hypervisor describes it.

use quick_xml::DeError;

use super::shared::Shared;
use crate::domain::schema::Domain;
use crate::hypervisor::HypervisorError;

/// Why it is not known how the machine is.
#[derive(Debug, thiserror::Error)]
pub(super) enum DescribeError {
    /// The hypervisor refuses.
    #[error(transparent)]
    Refused(#[from] HypervisorError),
    /// What it says is no domain.
    #[error("the domain's XML cannot be read")]
    Unreadable(#[from] DeError),
}

impl Shared {
    /// The machine with what it has now.
    ///
    /// # Errors
    ///
    /// There is none, or its description cannot be read.
    pub(super) async fn described(&self) -> Result<Domain, DescribeError> {
        let xml = self.call(|hypervisor| hypervisor.xml()).await?;
        Ok(Domain::from_xml(&xml)?)
    }
}
