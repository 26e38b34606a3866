//! QEMU's monitor protocol, as far as tests need it: one command at a time, events put aside.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use podvirt_bed_tools::wait;
use serde_json::{Value, json};

/// A connection to one QEMU's monitor.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    events: Vec<Value>,
}

impl Qmp {
    /// Connects and negotiates.
    ///
    /// # Errors
    /// The monitor does not answer within `limit`.
    pub fn connect(socket: &Path, limit: Duration) -> Result<Qmp> {
        let writer = wait::until("the monitor", limit, || Ok(UnixStream::connect(socket).ok()))?;
        writer.set_read_timeout(Some(limit))?;
        let mut qmp = Qmp { reader: BufReader::new(writer.try_clone()?), writer, events: Vec::new() };
        qmp.message()?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    fn message(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            bail!("QEMU closed its monitor");
        }
        serde_json::from_str(&line).with_context(|| format!("from the monitor: {line}"))
    }

    /// Executes a command and returns its result.
    ///
    /// # Errors
    /// QEMU refuses it or is gone.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        writeln!(self.writer, "{}", json!({"execute": command, "arguments": arguments}))?;
        loop {
            let mut message = self.message()?;
            if message.get("event").is_some() {
                self.events.push(message);
            } else if let Some(result) = message.get_mut("return") {
                return Ok(result.take());
            } else {
                bail!("{command}: {message}");
            }
        }
    }

    /// Waits for an event, or takes one that came before.
    ///
    /// # Errors
    /// It does not come within the time limit of the connection.
    pub fn event(&mut self, name: &str) -> Result<Value> {
        loop {
            if let Some(at) = self.events.iter().position(|e| e["event"] == name) {
                return Ok(self.events.remove(at));
            }
            let message = self.message().with_context(|| format!("waiting for {name}"))?;
            self.events.push(message);
        }
    }
}
