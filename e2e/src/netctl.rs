//! netd's control interface, by the command that its users have.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::artefacts::program_dir;
use crate::backend::RunningBackend;

/// What `netctl` said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netctl {
    /// Exit status 0.
    pub success: bool,
    /// Standard output.
    pub text: String,
    /// Standard error.
    pub errors: String,
}

impl RunningBackend {
    /// Runs `netctl` with these arguments on netd's control socket.
    ///
    /// # Errors
    /// It cannot be started; that it fails is no error.
    pub fn netctl(&self, arguments: &[&str]) -> Result<Netctl> {
        let mut command = Command::new(program_dir("netctl")?.join("netctl"));
        let out = command.arg("--socket").arg(&self.control).args(arguments).output()?;
        Ok(Netctl {
            success: out.status.success(),
            text: String::from_utf8(out.stdout)?,
            errors: String::from_utf8(out.stderr)?,
        })
    }

    /// Starts `netctl` with these arguments, its output on pipes.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn netctl_running(&self, arguments: &[&str]) -> Result<Child> {
        let mut command = Command::new(program_dir("netctl")?.join("netctl"));
        command.arg("--socket").arg(&self.control).args(arguments);
        Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    /// The answer of `netctl --json COMMAND`.
    ///
    /// # Errors
    /// It fails, or answers something else than JSON.
    pub fn ask(&self, command: &str) -> Result<Value> {
        let out = self.netctl(&["--json", command])?;
        serde_json::from_str(&out.text)
            .with_context(|| format!("netctl {command}: {}{}", out.text, out.errors))
    }

    /// A counter's value.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let rows = self.ask("counters")?;
        let row = rows.as_array().and_then(|rows| rows.iter().find(|r| r["name"] == name));
        row.and_then(|r| r["value"].as_u64()).with_context(|| format!("no counter is called {name}"))
    }
}
