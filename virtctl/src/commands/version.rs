//! `version`: what this is and what the cluster runs, in upstream's form.

use serde::Deserialize;

use super::cluster;
use crate::args::{Global, Version};
use crate::output::say;

/// `k8s.io/apimachinery` version.Info, as KubeVirt serves it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Info {
    git_version: String,
    git_commit: String,
    git_tree_state: String,
    build_date: String,
    go_version: String,
    compiler: String,
    platform: String,
}

impl Info {
    fn own() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            git_version: concat!("v", env!("CARGO_PKG_VERSION")).into(),
            compiler: "rustc".into(),
            platform: format!("{}/{architecture}", std::env::consts::OS),
            ..Self::default()
        }
    }
}

impl std::fmt::Display for Info {
    // Scripts look for GitVersion:"..." in this form.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "version.Info{{GitVersion:{:?}, GitCommit:{:?}, GitTreeState:{:?}, BuildDate:{:?}, GoVersion:{:?}, Compiler:{:?}, Platform:{:?}}}",
            self.git_version,
            self.git_commit,
            self.git_tree_state,
            self.build_date,
            self.go_version,
            self.compiler,
            self.platform
        )
    }
}

pub(super) async fn run(global: &Global, args: &Version) -> anyhow::Result<()> {
    say(&format!("Client Version: {}", Info::own()))?;
    if args.client {
        return Ok(());
    }
    let server: Info = cluster(global)
        .await?
        .version()
        .await
        .map_err(|error| error.explain_plain("read the server's version"))?;
    say(&format!("Server Version: {server}"))
}
