//! What the program says of itself.

use std::path::Path;

use crate::fake::{Done, Fake, Reply, program};

async fn said(program: &Path, words: &[&str]) -> String {
    let output = tokio::process::Command::new(program).args(words).env_clear().output().await.unwrap();
    let done = Done::from(output);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{words:?}");
    done.out
}

#[tokio::test]
async fn help_texts_are_as_recorded() {
    let mut all = String::new();
    let commands = [
        "adm",
        "adm log-verbosity",
        "console",
        "create",
        "create instancetype",
        "create preference",
        "create vm",
        "credentials",
        "credentials add-ssh-key",
        "credentials remove-ssh-key",
        "credentials set-password",
        "evacuate-cancel",
        "expand",
        "expose",
        "fslist",
        "guestfs",
        "guestosinfo",
        "image-upload",
        "memory-dump",
        "migrate",
        "migrate-cancel",
        "objectgraph",
        "pause",
        "permitted-devices",
        "port-forward",
        "reset",
        "restart",
        "scp",
        "soft-reboot",
        "ssh",
        "start",
        "stop",
        "unpause",
        "userlist",
        "version",
        "vmexport",
        "vnc",
    ];
    for words in [&[][..], &["options"]]
        .into_iter()
        .map(<[&str]>::to_vec)
        .chain(commands.map(|name| name.split(' ').chain(["--help"]).collect()))
    {
        all.push_str(&format!("$ virtctl {}\n{}\n", words.join(" "), said(&program(), &words).await));
    }
    insta::assert_snapshot!(all);
}

#[tokio::test]
async fn as_a_plugin_it_goes_by_the_plugins_name() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("kubectl-virt");
    std::os::unix::fs::symlink(program(), &plugin).unwrap();
    for words in [&[][..], &["--help"], &["start", "--help"], &["ssh", "--help"]] {
        let text = said(&plugin, words).await;
        assert!(text.contains("kubectl virt ") && !text.contains("virtctl"), "{text}");
    }
    let fake = Fake::start(|_| Reply::ok()).await;
    let output = tokio::process::Command::new(&plugin)
        .args(["start", "a"])
        .env("HOME", fake.home.path())
        .env_remove("KUBECONFIG")
        .output()
        .await
        .unwrap();
    assert_eq!(Done::from(output).out, "VM a was scheduled to start\n");
}
