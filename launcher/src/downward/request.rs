//! What a guest asks on the serial port: a line as of HTTP, and an empty one; the answer ends with an empty line.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// The longest line of a request, bytes.
const LINE: u64 = 1024;
/// The one request that there is.
const PATH: &str = "/metrics/XML";
/// The answer to any other one; vhostmd's.
pub const INVALID: &str = "INVALID REQUEST\n\n";
/// The answer where there is nothing to tell; vhostmd's.
pub const NOTHING: &str =
    "<metrics><!-- host metrics not available --><!-- VM metrics not available --></metrics>\n\n";

/// Reads a request. Whether it asks for the metrics; none at the end.
///
/// # Errors
///
/// The port cannot be read.
pub async fn read(port: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<bool>> {
    let Some(request) = line(port).await? else { return Ok(None) };
    let asks = asks(&request);
    if !asks {
        return Ok(Some(false));
    }
    Ok(line(port).await?.map(|blank| blank.is_empty()))
}

/// The next line without its end; what is longer than a line may be ends there.
async fn line(port: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    if port.take(LINE).read_until(b'\n', &mut bytes).await? == 0 {
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned()))
}

fn asks(line: &str) -> bool {
    let mut words = line.split(' ');
    words.next() == Some("GET") && words.next().is_some_and(|path| path.split('?').next() == Some(PATH))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(text: &[u8]) -> Vec<bool> {
        let mut port = text;
        let mut asked = Vec::new();
        while let Some(one) = read(&mut port).await.unwrap() {
            asked.push(one);
        }
        asked
    }

    #[tokio::test]
    async fn requests_are_told_apart() {
        assert_eq!(all(b"GET /metrics/XML\n\n").await, [true]);
        assert_eq!(all(b"GET /metrics/XML HTTP/1.0\r\n\r\nGET /metrics/XML\n\n").await, [true, true]);
        assert_eq!(all(b"PUT /metrics/XML\n").await, [false]);
        assert_eq!(all(b"GET /other\nGET /metrics/XML\n\n").await, [false, true]);
        assert_eq!(all(b"GET /metrics/XML\nmore\n").await, [false]);
        assert_eq!(all(b"").await, [false; 0]);
        // A guest that never ends its line costs no more than a line.
        let long = vec![b'x'; 4096];
        assert_eq!(all(&long).await, [false; 4]);
    }
}
