//! `ssh`: the local ssh, with a forwarded port as its connection.
//!
//! ssh does what it does best: keys, agents, known hosts, terminals. It connects through a `ProxyCommand`, which is
//! this program's `port-forward --stdio`, with the flags that lead to the same cluster. virtctl becomes the ssh
//! process, so signals, the terminal and the exit code are ssh's own.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{anyhow, bail};

use crate::api::Cluster;
use crate::args::{Global, Ssh, SshFlags};
use crate::target::{Login, Object};

pub(super) async fn run(cluster: &Cluster, global: &Global, args: &Ssh) -> anyhow::Result<()> {
    let login: Login = args.target.parse()?;
    let guest = cluster.resolve(&login.target).await?;
    let mut words = options(&proxy_command(&program(), global, &guest, args.flags.port)?, &args.flags);
    words.push(destination(&args.flags, login.user, &guest));
    words.extend(args.command.clone());
    become_program("ssh", &words)
}

/// Replaces this process by the program.
pub(super) fn become_program(program: &str, words: &[String]) -> anyhow::Result<()> {
    tracing::info!(?words, "running {program}");
    // Only comes back when it failed.
    let error = Command::new(program).args(words).exec();
    if error.kind() == std::io::ErrorKind::NotFound {
        bail!(
            "there is no {program} in $PATH: install OpenSSH's client (Debian, Fedora: openssh-client, openssh-clients)"
        );
    }
    Err(anyhow!(error).context(format!("cannot run {program}")))
}

/// The path of this program, by which ssh calls it again.
pub(super) fn program() -> String {
    let argv0 = || std::env::args().next().unwrap_or_else(|| "virtctl".into());
    std::env::current_exe().ok().and_then(|path| path.to_str().map(Into::into)).unwrap_or_else(argv0)
}

/// The options that ssh and scp share.
pub(super) fn options(proxy_command: &str, flags: &SshFlags) -> Vec<String> {
    let mut words = vec!["-o".into(), format!("ProxyCommand={proxy_command}")];
    if let Some(path) = &flags.known_hosts {
        words.extend(["-o".into(), format!("UserKnownHostsFile=\"{}\"", path.display())]);
    }
    words.extend(flags.local_ssh_opts.iter().cloned());
    if let Some(path) = &flags.identity_file {
        words.extend(["-i".into(), path.display().to_string()]);
    }
    words
}

/// `user@vmi.name.namespace`: what stands before the `@` of the target wins over the flag, that over `$USER`.
pub(super) fn destination(flags: &SshFlags, user: Option<String>, guest: &Object) -> String {
    let local = || {
        ["USER", "USERNAME", "LOGNAME"]
            .iter()
            .filter_map(|name| std::env::var(name).ok())
            .find(|name| !name.is_empty())
    };
    match user.or_else(|| flags.username.clone()).filter(|user| !user.is_empty()).or_else(local) {
        Some(user) => format!("{user}@{}", guest.host()),
        None => guest.host(),
    }
}

/// What ssh gives the user's shell to connect.
pub(super) fn proxy_command(
    program: &str,
    global: &Global,
    guest: &Object,
    port: u16,
) -> anyhow::Result<String> {
    if port == 0 {
        bail!("--port 0 is not possible: it must be the port of the guest's SSH server, from 1 to 65535");
    }
    let target = format!("{}/{}", guest.path(), guest.namespace);
    let mut words = vec![program.to_owned()];
    words.extend(global.connection_flags());
    words.extend(["port-forward".into(), "--stdio=true".into(), target, port.to_string()]);
    let quoted: Vec<_> = words.iter().map(|word| quote(word)).collect();
    // ssh replaces %h and the like.
    Ok(quoted.join(" ").replace('%', "%%"))
}

/// A word as any shell takes it.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Kind;

    fn flags() -> SshFlags {
        SshFlags {
            username: Some("flag".into()),
            identity_file: None,
            known_hosts: None,
            port: 22,
            local_ssh_opts: vec![],
        }
    }

    #[test]
    fn ssh_calls_back_with_the_same_cluster() {
        let guest = Object::new(Kind::Vm, "a.b", "blue").unwrap();
        let global = Global {
            kubeconfig: Some("/home/j doe/config".into()),
            context: Some("it's 100%".into()),
            namespace: Some("other".into()),
            ..Global::default()
        };
        assert_eq!(
            proxy_command("/usr/bin/virtctl", &global, &guest, 2222).unwrap(),
            r"/usr/bin/virtctl '--context=it'\''s 100%%' '--kubeconfig=/home/j doe/config' port-forward --stdio=true vm/a.b/blue 2222"
        );
        assert!(proxy_command("virtctl", &global, &guest, 0).is_err());
    }

    #[test]
    fn the_target_names_the_user_before_the_flag() {
        let guest = Object::new(Kind::Vmi, "a", "blue").unwrap();
        assert_eq!(destination(&flags(), Some("word".into()), &guest), "word@vmi.a.blue");
        assert_eq!(destination(&flags(), None, &guest), "flag@vmi.a.blue");
    }

    #[test]
    fn flags_become_ssh_options() {
        let flags = SshFlags {
            identity_file: Some("key".into()),
            known_hosts: Some("/tmp/known hosts".into()),
            local_ssh_opts: vec!["-o StrictHostKeyChecking=no".into(), "-v".into()],
            ..flags()
        };
        assert_eq!(
            options("cmd", &flags),
            [
                "-o",
                "ProxyCommand=cmd",
                "-o",
                "UserKnownHostsFile=\"/tmp/known hosts\"",
                "-o StrictHostKeyChecking=no",
                "-v",
                "-i",
                "key"
            ]
        );
    }
}
