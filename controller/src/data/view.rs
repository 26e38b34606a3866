//! DataVolumes as the cache has them, for all controllers, and word of every change.

use kube::Client;
use kube::runtime::reflector::store::Writer;
use podvirt_api::cdi::DataVolume;

use crate::kept::Kept;
use crate::watch;

/// The DataVolumes of the cluster. Clones see the same.
pub type DataVolumes = Kept<DataVolume>;

/// Keeps the cache filled until it is dropped. A cluster that gets CDI later, or loses CDI, is seen within half a minute.
pub async fn keep(client: Client, view: DataVolumes, writer: Writer<DataVolume>) {
    view.keep_if_there(|| watch::all::<DataVolume>(&client), writer).await;
}
