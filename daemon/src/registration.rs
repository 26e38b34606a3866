//! Telling the API server of a daemon's webhooks, with the CA certificates that it checks the daemon by.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// How often a registration is made when nothing changes: what a user deleted or changed comes back.
const PERIOD: Duration = Duration::from_secs(60);
/// Wait after a registration that failed.
const RETRY: Duration = Duration::from_secs(3);

/// Registers by `register`, which gets the CA certificates as PEM: at once, whenever these change, once a minute, and soon
/// again after a failure, which is logged. Calls `registered` after each success. Ends when the certificates are followed no
/// more.
pub async fn maintain_registration<E: std::error::Error + 'static>(
    mut ca_bundle: watch::Receiver<Arc<str>>,
    register: impl AsyncFn(&str) -> Result<(), E>,
    registered: impl Fn(),
) {
    loop {
        let bundle = Arc::clone(&ca_bundle.borrow_and_update());
        let pause = match register(&bundle).await {
            Ok(()) => {
                registered();
                PERIOD
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "registering with the API server failed"
                );
                RETRY
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            changed = ca_bundle.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_registers_at_once_after_a_failure_and_when_the_certificates_change() {
        let (certificates, receiver) = watch::channel(Arc::from("first"));
        let seen = Mutex::new(Vec::new());
        let register = async |bundle: &str| {
            seen.lock().unwrap().push(bundle.to_owned());
            let is_first = seen.lock().unwrap().len() == 1;
            if is_first { Err(kube::Error::LinesCodecMaxLineLengthExceeded) } else { Ok(()) }
        };
        let successes = Mutex::new(0);
        let steps = async {
            tokio::time::sleep(RETRY * 2).await;
            assert_eq!(*seen.lock().unwrap(), ["first", "first"]);
            certificates.send_replace(Arc::from("second"));
            tokio::time::sleep(RETRY).await;
            assert_eq!(seen.lock().unwrap().last().unwrap(), "second");
            tokio::time::sleep(PERIOD).await;
            assert_eq!(seen.lock().unwrap().len(), 4);
            drop(certificates);
        };
        tokio::join!(maintain_registration(receiver, register, || *successes.lock().unwrap() += 1), steps);
        assert_eq!(*successes.lock().unwrap(), 3);
    }
}
