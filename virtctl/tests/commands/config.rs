//! Which cluster, as whom.

use crate::fake::{Done, Fake, Reply, command};

#[tokio::test]
async fn states_and_streams_use_the_same_client_certificate() {
    let fake =
        Fake::start_tls(|asked| if asked.line.starts_with("PUT") { Reply::ok() } else { Reply::echo() })
            .await;
    let done = fake.run(&["start", "testvm"]).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    let done = fake.run(&["port-forward", "--stdio", "vmi/testvm", "22"]).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert_eq!(fake.seen().len(), 2);
}

#[tokio::test]
async fn a_server_with_an_unknown_authority_is_not_trusted() {
    let fake = Fake::start_tls(|_| Reply::ok()).await;
    let other = Fake::start_tls(|_| Reply::ok()).await;
    let config = |fake: &Fake| std::fs::read_to_string(fake.home.path().join(".kube/config")).unwrap();
    let server = |text: &str| text.split('"').find(|word| word.starts_with("https://")).unwrap().to_owned();
    let server = server(&config(&other));
    let done = fake.run(&["start", "testvm", "--server", &server]).await;
    assert_eq!(done.code, Some(1));
    assert!(done.err.contains("certificate-authority"), "{}", done.err);
    // virtctl does not check this server; the server still asks for a certificate, and does not know our authority.
    let done = fake.run(&["start", "testvm", "--server", &server, "--insecure-skip-tls-verify"]).await;
    assert_eq!(done.code, Some(1));
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn a_token_and_whom_it_stands_for_go_with_each_request() {
    let fake = Fake::start(|_| Reply::ok()).await;
    let done = fake.run(&["start", "a", "--token=secret", "--as=bob", "--as-group=ops"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let headers = fake.seen().remove(0).headers;
    assert_eq!(headers["authorization"], "Bearer secret");
    assert_eq!(headers["impersonate-user"], "bob");
    assert_eq!(headers["impersonate-group"], "ops");
}

#[tokio::test]
async fn a_wrong_context_is_answered_with_those_there_are() {
    let fake = Fake::start(|_| Reply::ok()).await;
    let done = fake.run(&["start", "a", "--context=green"]).await;
    let file = fake.home.path().join(".kube/config");
    assert_eq!(
        done.err,
        format!("error: there is no context \"green\" in {}\n  There are: test\n", file.display())
    );
    assert_eq!(done.code, Some(1));
}

#[tokio::test]
async fn without_a_kubeconfig_it_is_told_how_to_give_one() {
    let home = tempfile::tempdir().unwrap();
    let done = Done::from(command(home.path(), &["start", "a"]).output().await.unwrap());
    assert_eq!(done.code, Some(1));
    assert!(done.err.starts_with("error: there is no kubeconfig\n"), "{}", done.err);
    let missing = home.path().join("none");
    let missing = missing.to_str().unwrap();
    let done =
        Done::from(command(home.path(), &["start", "a", "--kubeconfig", missing]).output().await.unwrap());
    assert!(done.err.contains(missing), "{}", done.err);
    let done =
        Done::from(command(home.path(), &["start", "a"]).env("KUBECONFIG", missing).output().await.unwrap());
    assert!(done.err.contains(missing) && done.err.contains("$KUBECONFIG"), "{}", done.err);
}

#[tokio::test]
async fn kubeconfigs_of_the_environment_are_merged() {
    let fake = Fake::start(|_| Reply::ok()).await;
    let second = fake.home.path().join("second");
    std::fs::rename(fake.home.path().join(".kube/config"), &second).unwrap();
    let first = fake.home.path().join("first");
    std::fs::write(&first, "apiVersion: v1\nkind: Config\nusers: []\n").unwrap();
    let list = std::env::join_paths([first, fake.home.path().join("missing"), second]).unwrap();
    let output = fake.command(&["start", "a"]).env("KUBECONFIG", list).output().await.unwrap();
    assert_eq!(Done::from(output).out, "VM a was scheduled to start\n");
}

#[tokio::test]
async fn a_cluster_that_is_not_there_is_told_with_its_address() {
    let fake = Fake::start(|_| Reply::ok()).await;
    // A port that was free a moment ago; no program listens on it.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let done = fake.run(&["start", "a", "-s", &format!("http://{free}")]).await;
    assert_eq!(done.code, Some(1));
    assert!(done.err.contains(&format!("cannot reach the API server http://{free}")), "{}", done.err);
    assert!(done.err.contains("is the cluster up"), "{}", done.err);
}

#[tokio::test]
async fn a_proxy_is_refused_unless_the_server_needs_none() {
    let fake = Fake::start(|_| Reply::ok()).await;
    let with = |no_proxy: &str| {
        let mut command = fake.command(&["start", "a"]);
        command.env("HTTPS_PROXY", "http://proxy.example:3128").env("NO_PROXY", no_proxy);
        async move { Done::from(command.output().await.unwrap()) }
    };
    let done = with("").await;
    assert_eq!(done.code, Some(1));
    assert!(done.err.contains("proxy.example:3128") && done.err.contains("NO_PROXY"), "{}", done.err);
    assert_eq!(with("127.0.0.1").await.code, Some(0));
}
