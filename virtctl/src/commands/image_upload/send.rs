//! An image on its way to the upload proxy.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Seek as _, SeekFrom, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::stream;
use http::header::{self, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Limited, StreamBody};
use hyper::body::{Bytes, Frame};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::output::say;
use crate::web::{Both, Trust, bare, secured, spoken};

/// Path of the proxy that answers when it has got everything.
const ASYNC: &str = "/v1beta1/upload-async";
/// Path of the proxy that answers when everything is written; older ones have this alone.
const SYNC: &str = "/v1beta1/upload";
/// How much is read at a time.
const CHUNK: usize = 256 << 10;
/// Longest time until the proxy is reached.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Largest answer that is shown.
const MAX_ANSWER: usize = 64 << 10;
/// Time before the second attempt; each further one waits as much longer.
const PAUSE: Duration = Duration::from_millis(500);
/// How often progress is shown.
const SHOWN: Duration = Duration::from_secs(1);

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The proxy, and what it lets in.
pub(super) struct Sender {
    secure: bool,
    host: String,
    port: u16,
    /// The path before CDI's own, without a slash at the end.
    base: String,
    authorization: HeaderValue,
    insecure: bool,
}

impl Sender {
    /// Of the proxy at `url`.
    ///
    /// # Errors
    /// When it is no address of a server.
    pub(super) fn new(url: &str, token: &str, insecure: bool) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("--uploadproxy-url: {url:?} makes no sense"))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => bail!("--uploadproxy-url: {url:?} is not possible: https:// and http:// are"),
        };
        let host = uri.host().filter(|host| !host.is_empty());
        let host = bare(host.with_context(|| format!("--uploadproxy-url: {url:?} has no host"))?);
        let path = uri.path().trim_end_matches('/');
        let base = path.strip_suffix(ASYNC).or_else(|| path.strip_suffix(SYNC)).unwrap_or(path).to_owned();
        let mut authorization =
            HeaderValue::try_from(format!("Bearer {token}")).context("CDI's token makes no sense")?;
        authorization.set_sensitive(true);
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Ok(Sender { secure, host, port, base, authorization, insecure })
    }

    /// Sends the file, again where that fails.
    ///
    /// # Errors
    /// What the last attempt said.
    pub(super) async fn send(&self, file: File, attempts: u32) -> anyhow::Result<()> {
        let path = if self.has_async().await { ASYNC } else { SYNC };
        let length = file.metadata().context("cannot look at the image")?.len();
        let progress = Arc::new(Mutex::new(Progress::new(length)));
        let attempts = attempts.max(1);
        say("")?;
        for attempt in 1..=attempts {
            match self.attempt(path, file.try_clone()?, length, &progress).await {
                Ok(()) => {
                    locked(&progress).end();
                    return say("");
                }
                Err(error) if attempt == attempts => {
                    return Err(error.context(format!("error uploading image after {attempts} retries")));
                }
                Err(error) => {
                    tracing::info!(error = format!("{error:#}"), "the upload has failed; trying again");
                    sleep(PAUSE * attempt).await;
                }
            }
        }
        Ok(())
    }

    /// Whether the proxy answers as soon as it has got everything.
    async fn has_async(&self) -> bool {
        let asked = async {
            let body = Empty::new().map_err(|never: Infallible| match never {}).boxed_unsync();
            self.ask(Method::HEAD, ASYNC, 0, body).await
        };
        matches!(timeout(TIMEOUT, asked).await, Ok(Ok(answer)) if answer.0 == StatusCode::OK)
    }

    async fn attempt(
        &self,
        path: &str,
        mut file: File,
        length: u64,
        progress: &Arc<Mutex<Progress>>,
    ) -> anyhow::Result<()> {
        file.seek(SeekFrom::Start(0)).context("cannot read the image from its beginning")?;
        locked(progress).restart();
        let body = StreamBody::new(chunks(file, progress.clone())).boxed_unsync();
        match self.ask(Method::POST, path, length, body).await? {
            (StatusCode::OK, _) => Ok(()),
            (status, said) => bail!("unexpected return value {}, {said}", status.as_u16()),
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        length: u64,
        body: Body,
    ) -> anyhow::Result<(StatusCode, String)> {
        let connected = async {
            let address = (self.host.as_str(), self.port);
            let stream = TcpStream::connect(address).await;
            let stream = stream.with_context(|| format!("connect to {}:{}", self.host, self.port))?;
            let stream: Box<dyn Both> = if self.secure {
                let trust = if self.insecure { Trust::Any } else { Trust::System };
                secured(stream, &self.host, trust).await?
            } else {
                Box::new(stream)
            };
            spoken(stream).await
        };
        let connected = timeout(TIMEOUT, connected).await;
        let mut proxy = connected.with_context(|| format!("no answer within {} s", TIMEOUT.as_secs()))??;
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::HOST, format!("{}:{}", self.host, self.port))
            .header(header::AUTHORIZATION, self.authorization.clone())
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .header(header::CONTENT_LENGTH, length);
        let answer = proxy.send_request(request.body(body)?).await.context("the upload proxy broke off")?;
        let status = answer.status();
        let said = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let said = said.map_or_else(
            |_| String::new(),
            |body| String::from_utf8_lossy(&body.to_bytes()).trim().to_owned(),
        );
        Ok((status, said))
    }
}

/// The file in pieces.
fn chunks(
    file: File,
    progress: Arc<Mutex<Progress>>,
) -> impl futures::Stream<Item = io::Result<Frame<Bytes>>> + Send {
    stream::try_unfold((file, progress), async |(mut file, progress)| {
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; CHUNK];
            let count = file.read(&mut bytes)?;
            bytes.truncate(count);
            Ok::<_, io::Error>((file, bytes))
        });
        let (file, bytes) = read.await.map_err(io::Error::other)??;
        if bytes.is_empty() {
            return Ok(None);
        }
        locked(&progress).add(bytes.len());
        Ok(Some((Frame::data(Bytes::from(bytes)), (file, progress))))
    })
}

fn locked(progress: &Mutex<Progress>) -> std::sync::MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows on the standard output how far it is.
struct Progress {
    begun: Instant,
    shown: Instant,
    bytes: u64,
    length: u64,
}

impl Progress {
    fn new(length: u64) -> Self {
        let now = Instant::now();
        Progress { begun: now, shown: now, bytes: 0, length }
    }

    fn restart(&mut self) {
        *self = Progress::new(self.length);
    }

    #[allow(clippy::cast_precision_loss, reason = "for people")]
    fn line(&self) -> String {
        const MIB: f64 = 1_048_576.0;
        let seconds = self.begun.elapsed().as_secs_f64().max(0.001);
        let (done, all) = (self.bytes as f64, self.length as f64);
        let share = if self.length == 0 { 100.0 } else { done / all * 100.0 };
        format!("{:.2} MiB / {:.2} MiB {share:.2}% {:.2} MiB/s", done / MIB, all / MIB, done / MIB / seconds)
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if self.shown.elapsed() >= SHOWN {
            self.shown = Instant::now();
            self.show("");
        }
    }

    fn end(&self) {
        self.show("\n");
    }

    /// A line of a terminal is written over. Where the standard output cannot be written the upload goes on.
    fn show(&self, end: &str) {
        let mut out = io::stdout().lock();
        let _ = if out.is_terminal() {
            write!(out, "\r{}\x1b[K{end}", self.line())
        } else {
            writeln!(out, "{}", self.line())
        };
        let _ = out.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxys_address_may_have_a_path() {
        for (url, secure, host, port, base) in [
            ("https://cdi.example.org", true, "cdi.example.org", 443, ""),
            ("https://127.0.0.1:18443/", true, "127.0.0.1", 18443, ""),
            ("http://[fd00::1]/cdi/v1beta1/upload", false, "fd00::1", 80, "/cdi"),
            ("https://a:1/v1beta1/upload-async", true, "a", 1, ""),
        ] {
            let sender = Sender::new(url, "token", false).unwrap();
            let got = (sender.secure, sender.host.as_str(), sender.port, sender.base.as_str());
            assert_eq!(got, (secure, host, port, base), "{url}");
        }
        for url in ["ftp://a", "https://", "a b"] {
            let error = Sender::new(url, "token", false).err().unwrap().to_string();
            assert!(error.starts_with("--uploadproxy-url"), "{error}");
        }
    }

    #[test]
    fn progress_is_told_in_hundredths() {
        let mut progress = Progress::new(4 << 20);
        progress.bytes = 1 << 20;
        assert!(progress.line().starts_with("1.00 MiB / 4.00 MiB 25.00% "), "{}", progress.line());
        assert!(Progress::new(0).line().contains(" 100.00% "));
    }
}
