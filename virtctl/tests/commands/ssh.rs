//! ssh and scp: what the local programs are called with, and that they can connect by it.

use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;

use crate::fake::{Done, Fake, Reply, program};

/// Prints its words, one a line.
const LISTS: &str = "#!/bin/sh\nfor word; do printf '%s\\n' \"$word\"; done\nexit 7\n";
/// Connects as ssh does: by the shell, with what ProxyCommand says.
const CONNECTS: &str = "#!/bin/sh
for word; do case $word in ProxyCommand=*) command=${word#ProxyCommand=} ;; esac; done
exec sh -c \"exec $command\"
";

async fn called(fake: &Fake, words: &[&str]) -> Vec<String> {
    let done = Done::from(fake.command(words).env("PATH", fake.path()).output().await.unwrap());
    // The exit code is the local program's.
    assert_eq!((done.code, done.err.as_str()), (Some(7), ""), "{words:?}");
    done.out.lines().map(Into::into).collect()
}

fn proxy_command(flags: &str, target: &str, port: u16) -> String {
    format!("ProxyCommand={}{flags} port-forward --stdio=true {target} {port}", program().display())
}

#[tokio::test]
async fn the_local_ssh_is_called() {
    let fake = Fake::start(|_| Reply::ok()).await;
    fake.install("ssh", LISTS);
    assert_eq!(
        called(&fake, &["ssh", "jdoe@vmi/testvmi"]).await,
        ["-o", &proxy_command("", "vmi/testvmi/blue", 22), "jdoe@vmi.testvmi.blue"]
    );
    assert_eq!(
        called(
            &fake,
            &[
                "ssh",
                "vm/testvm/red",
                "-p",
                "2222",
                "-i",
                "key",
                "-t",
                "-v",
                "-t",
                "-o StrictHostKeyChecking=no",
                "-c",
                "ls /",
                "--context=test"
            ]
        )
        .await,
        [
            "-o",
            &proxy_command(" --context=test", "vm/testvm/red", 2222),
            "-v",
            "-o StrictHostKeyChecking=no",
            "-i",
            "key",
            "tester@vm.testvm.red",
            "ls /"
        ]
    );
    // Nothing was asked of the cluster: ssh may never connect.
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn the_local_scp_is_called() {
    let fake = Fake::start(|_| Reply::ok()).await;
    fake.install("scp", LISTS);
    assert_eq!(
        called(&fake, &["scp", "-r", "--preserve", "my dir", "jdoe@vmi/testvmi:there", "--known-hosts=/k"])
            .await,
        [
            "-o",
            &proxy_command("", "vmi/testvmi/blue", 22),
            "-o",
            "UserKnownHostsFile=\"/k\"",
            "-r",
            "-p",
            "my dir",
            "jdoe@vmi.testvmi.blue:there"
        ]
    );
    assert_eq!(
        called(&fake, &["scp", "vmi/testvmi:file", ".", "--username", "root"]).await,
        ["-o", &proxy_command("", "vmi/testvmi/blue", 22), "root@vmi.testvmi.blue:file", "."]
    );
}

#[tokio::test]
async fn ssh_connects_through_this_program() {
    let fake = Fake::start(|_| Reply::echo()).await;
    fake.install("ssh", CONNECTS);
    // A kubeconfig by flag, in a place no shell leaves alone.
    let odd = fake.home.path().join("a 'config'");
    std::fs::rename(fake.home.path().join(".kube/config"), &odd).unwrap();
    let mut child = fake
        .command(&["ssh", "vmi/testvmi", "--kubeconfig", odd.to_str().unwrap()])
        .env("PATH", fake.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"SSH-2.0-test\r\n").await.unwrap();
    let done = Done::from(child.wait_with_output().await.unwrap());
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "SSH-2.0-test\r\n", ""));
    assert_eq!(
        fake.lines(),
        [
            "GET /apis/subresources.kubevirt.io/v1/namespaces/blue/virtualmachineinstances/testvmi/portforward/22/tcp"
        ]
    );
}

#[tokio::test]
async fn a_machine_without_ssh_is_told_what_to_install() {
    let fake = Fake::start(|_| Reply::ok()).await;
    let done =
        Done::from(fake.command(&["ssh", "vmi/a"]).env("PATH", "/nonexistent").output().await.unwrap());
    assert_eq!(done.code, Some(1));
    assert!(done.err.starts_with("error: there is no ssh in $PATH"), "{}", done.err);
    let done = fake.run(&["ssh", "@vmi/a"]).await;
    assert!(done.err.contains("has no user before its '@'"), "{}", done.err);
    let done = fake.run(&["scp", "a", "b"]).await;
    assert!(done.err.contains("must name a machine"), "{}", done.err);
}
