//! An image on its way to a file.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use flate2::write::MultiGzDecoder;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use podvirt_api::v1::{ExportVolumeFormat as Format, VirtualMachineExportVolume as Volume};
use tokio::time::timeout;

use super::connect::Server;
use super::flags::{Form, Wishes};
use super::sparse::Sparse;
use crate::output::complain;

/// How often progress is shown.
const SHOWN: Duration = Duration::from_secs(1);
/// Longest time without a byte.
const SILENCE: Duration = Duration::from_secs(120);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) url: String,
    /// Whether what comes is compressed, and is to be written as it was.
    pub(super) unpacks: bool,
    /// Whether a part of it can be asked for.
    pub(super) resumes: bool,
}

impl Wanted {
    /// The format that serves best. An image that is wanted as it is comes compressed, as its holes then take no time; where
    /// further attempts are wanted it comes as it is, as it then goes on where it broke off.
    pub(super) fn of(volume: &Volume, wishes: &Wishes) -> Option<Self> {
        let url = |format: Format| {
            volume.formats.iter().find(|one| one.format == format).map(|one| one.url.clone())
        };
        let raw = || url(Format::Raw).map(|url| Wanted { url, unpacks: false, resumes: true });
        let packed = |unpacks| url(Format::Gzip).map(|url| Wanted { url, unpacks, resumes: false });
        let unpacks = wishes.form == Form::Raw;
        let archive = || url(Format::Targz).map(|url| Wanted { url, unpacks, resumes: false });
        let image = match wishes.form {
            Form::Gzip => packed(false).or_else(raw),
            Form::Raw if wishes.retries > 0 => raw().or_else(|| packed(true)),
            Form::Raw => packed(true).or_else(raw),
        };
        image.or_else(archive)
    }
}

/// Where the image goes.
pub(super) struct Target {
    to: To,
    /// Which version of the image the bytes that are written are of.
    tag: Option<HeaderValue>,
}

enum To {
    File(Sparse),
    Stream(io::Stdout, u64),
}

impl Write for To {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            To::File(file) => file.write(bytes),
            To::Stream(out, at) => {
                out.write_all(bytes)?;
                *at += bytes.len() as u64;
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            To::File(file) => file.flush(),
            To::Stream(out, _) => out.flush(),
        }
    }
}

impl Target {
    /// Makes the file.
    pub(super) fn open(wishes: &Wishes) -> anyhow::Result<Self> {
        let to = match &wishes.file {
            Some(path) => {
                let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
                To::File(Sparse::new(file))
            }
            None => To::Stream(io::stdout(), 0),
        };
        Ok(Target { to, tag: None })
    }

    fn at(&self) -> u64 {
        match &self.to {
            To::File(file) => file.at(),
            To::Stream(_, at) => *at,
        }
    }

    /// Begins anew, where that can be.
    fn restart(&mut self) -> anyhow::Result<()> {
        self.tag = None;
        match &mut self.to {
            To::File(file) => file.restart().context("cannot begin the file anew"),
            To::Stream(_, 0) => Ok(()),
            To::Stream(..) => {
                anyhow::bail!("what is written to the standard output already cannot be taken back")
            }
        }
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        match &mut self.to {
            To::File(file) => file.finish().context("cannot end the file"),
            To::Stream(out, _) => out.flush().context("cannot write to the standard output"),
        }
    }

    /// Writes a text.
    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.restart()?;
        self.to.write_all(bytes).context("cannot write")?;
        self.finish()
    }
}

/// Shows on the terminal how far it is.
struct Progress {
    begun: Instant,
    shown: Instant,
    bytes: u64,
}

fn human(bytes: f64) -> String {
    let mut rest = bytes;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if rest < 1024.0 {
            return format!("{rest:.1} {unit}");
        }
        rest /= 1024.0;
    }
    format!("{rest:.1} TiB")
}

impl Progress {
    fn new() -> Self {
        let now = Instant::now();
        Progress { begun: now, shown: now, bytes: 0 }
    }

    #[allow(clippy::cast_precision_loss, reason = "for people")]
    fn line(&self) -> String {
        let seconds = self.begun.elapsed().as_secs_f64().max(0.001);
        format!("Downloading file: {} {}/s", human(self.bytes as f64), human(self.bytes as f64 / seconds))
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if self.shown.elapsed() >= SHOWN && io::stderr().is_terminal() {
            self.shown = Instant::now();
            // Where stderr cannot be written nothing is lost.
            let _ = write!(io::stderr().lock(), "\r{}\x1b[K", self.line());
        }
    }

    fn end(&self) {
        if io::stderr().is_terminal() {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
        complain(&self.line());
    }
}

/// Where the answer begins within the image.
enum Begin {
    Here,
    Anew,
    /// Nothing is missing.
    Complete,
}

fn begin(answer: &Response<Incoming>, at: u64) -> Result<Begin, String> {
    let range = answer.headers().get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
    match answer.status() {
        StatusCode::OK => Ok(Begin::Anew),
        StatusCode::PARTIAL_CONTENT
            if range.is_some_and(|range| range.starts_with(&format!("bytes {at}-"))) =>
        {
            Ok(Begin::Here)
        }
        StatusCode::RANGE_NOT_SATISFIABLE if range == Some(&format!("bytes */{at}")) => Ok(Begin::Complete),
        status => Err(format!("Bad status: {status}")),
    }
}

/// Fetches what is wanted, from where the target ends; why not, if a further attempt may do better.
///
/// # Errors
///
/// What is here cannot be written.
pub(super) async fn fetch(
    server: &Server<'_>,
    wanted: &Wanted,
    target: &mut Target,
) -> anyhow::Result<Option<String>> {
    let mut fields = HeaderMap::new();
    let at = target.at();
    if at > 0 && wanted.resumes {
        fields.insert(header::RANGE, HeaderValue::try_from(format!("bytes={at}-"))?);
        if let Some(tag) = &target.tag {
            fields.insert(header::IF_RANGE, tag.clone());
        }
    } else {
        target.restart()?;
    }
    let answer = match server.get(&wanted.url, fields).await {
        Ok(answer) => answer,
        Err(error) => return Ok(Some(format!("{error:#}"))),
    };
    match begin(&answer, target.at()) {
        Ok(Begin::Here) => {}
        Ok(Begin::Anew) => {
            target.restart()?;
            target.tag = answer.headers().get(header::ETAG).cloned();
        }
        Ok(Begin::Complete) => return target.finish().map(|()| None),
        Err(status) => return Ok(Some(status)),
    }
    let mut progress = Progress::new();
    let broken = if wanted.unpacks {
        let mut unpacked = MultiGzDecoder::new(&mut target.to);
        let broken = copy(answer, &mut unpacked, &mut progress).await?;
        match broken {
            None => unpacked.try_finish().err().map(|error| format!("the image is not complete: {error}")),
            broken => broken,
        }
    } else {
        copy(answer, &mut target.to, &mut progress).await?
    };
    progress.end();
    if broken.is_none() {
        target.finish()?;
    }
    Ok(broken)
}

/// Writes the answer; why it broke off, if it did.
async fn copy(
    answer: Response<Incoming>,
    to: &mut impl Write,
    progress: &mut Progress,
) -> anyhow::Result<Option<String>> {
    let mut body = answer.into_body();
    loop {
        let frame = match timeout(SILENCE, body.frame()).await {
            Ok(None) => return Ok(None),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => return Ok(Some(format!("the connection broke off: {error}"))),
            Err(_) => return Ok(Some(format!("nothing came for {} s", SILENCE.as_secs()))),
        };
        if let Ok(bytes) = frame.into_data() {
            progress.add(bytes.len());
            to.write_all(&bytes).context("cannot write what was downloaded")?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::VmExport;

    #[test]
    fn the_format_serves_what_is_wanted() {
        let volume = |formats: &[&str]| -> Volume {
            let formats: Vec<_> =
                formats.iter().map(|format| serde_json::json!({"format": format, "url": format})).collect();
            serde_json::from_value(serde_json::json!({"name": "v", "formats": formats})).unwrap()
        };
        let chosen = |formats: &[&str], format: &str, retry: i64| {
            let args = VmExport {
                function: "download".into(),
                output: Some("-".into()),
                format: Some(format.into()),
                local_port: "0".into(),
                retry,
                ..VmExport::default()
            };
            let wanted = Wanted::of(&volume(formats), &Wishes::of(&args).unwrap())?;
            Some((wanted.url, wanted.unpacks, wanted.resumes))
        };
        let image = ["raw", "gzip"];
        assert_eq!(chosen(&image, "gzip", 0), Some(("gzip".into(), false, false)));
        assert_eq!(chosen(&image, "raw", 0), Some(("gzip".into(), true, false)));
        assert_eq!(chosen(&image, "raw", 3), Some(("raw".into(), false, true)));
        assert_eq!(chosen(&["dir", "tar.gz"], "gzip", 0), Some(("tar.gz".into(), false, false)));
        assert_eq!(chosen(&["dir"], "raw", 0), None);
        assert_eq!((human(512.0), human(1536.0)), ("512.0 B".into(), "1.5 KiB".into()));
    }
}
