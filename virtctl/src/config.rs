//! From the kubeconfig and the global flags to one cluster, one identity and one namespace.
//!
//! kubectl's rules: `--kubeconfig`, else the files of `$KUBECONFIG` merged, else `~/.kube/config`, else the service
//! account of the pod virtctl runs in. Flags win over the files. Reading the files and deciding are apart, so that
//! the decisions are tested without files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::config::{
    Cluster, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext,
};

use crate::args::Global;

/// Name of what the flags alone say, where no file says anything.
const FLAGS: &str = "virtctl-flags";

/// Where requests go and as whom.
pub(crate) struct Settings {
    /// What kube makes its client of.
    pub(crate) config: kube::Config,
    /// The namespace of objects that name none.
    pub(crate) namespace: String,
    /// How long one answer may take, if that is limited.
    pub(crate) request_timeout: Option<Duration>,
}

/// Reads the kubeconfig and applies the flags.
///
/// # Errors
/// Says which file, context, cluster or flag is wrong and what there is instead.
pub(crate) async fn load(global: &Global) -> anyhow::Result<Settings> {
    let request_timeout = request_timeout(&global.request_timeout)?;
    let files = files(global)?;
    let mut config = match &files {
        None if global.server.is_none() && is_plain(global) => in_cluster()?,
        _ => {
            let kubeconfig = read(files.as_deref().unwrap_or_default())?;
            let place = place(files.as_deref().unwrap_or_default());
            let kubeconfig = apply(kubeconfig, global, &place)?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("cannot use {place}"))?
        }
    };
    // Fifteen retries of an answer 503 take minutes: a user would rather see it.
    config.default_retry = false;
    if let Some(proxy) = &config.proxy_url {
        if without_proxy(
            &config.cluster_url,
            &std::env::var("NO_PROXY").or_else(|_| std::env::var("no_proxy")).unwrap_or_default(),
        ) {
            config.proxy_url = None;
        } else {
            bail!(
                "the API server is to be reached through the proxy {proxy}, which virtctl cannot do yet\n  \
                 If it is not needed for {}: add the host to NO_PROXY, or remove proxy-url from the kubeconfig.",
                config.cluster_url
            );
        }
    }
    let namespace = global.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    Ok(Settings { config, namespace, request_timeout })
}

/// Whether no flag chooses anything of a kubeconfig.
fn is_plain(global: &Global) -> bool {
    global.context.is_none() && global.cluster.is_none() && global.user.is_none()
}

/// The kubeconfig files to read, or none where there are none and none was asked for.
fn files(global: &Global) -> anyhow::Result<Option<Vec<PathBuf>>> {
    if let Some(path) = &global.kubeconfig {
        return Ok(Some(vec![path.clone()]));
    }
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let listed: Vec<_> = std::env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect();
    if !listed.is_empty() {
        // As kubectl: a file of the list that is not there is left out, but one of them must be.
        let present: Vec<_> = listed.iter().filter(|path| path.exists()).cloned().collect();
        if present.is_empty() {
            bail!("none of the files of $KUBECONFIG exists: {}", place(&listed));
        }
        return Ok(Some(present));
    }
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
    Ok(home.filter(|path| path.exists()).map(|path| vec![path]))
}

fn place(files: &[PathBuf]) -> String {
    let names: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
    if names.is_empty() { "the flags given".into() } else { names.join(", ") }
}

fn read(files: &[PathBuf]) -> anyhow::Result<Kubeconfig> {
    let mut merged = Kubeconfig::default();
    for file in files {
        let next = Kubeconfig::read_from(file)
            .with_context(|| format!("cannot read the kubeconfig {}", file.display()))?;
        merged =
            merged.merge(next).with_context(|| format!("cannot merge the kubeconfig {}", file.display()))?;
    }
    Ok(merged)
}

fn in_cluster() -> anyhow::Result<kube::Config> {
    kube::Config::incluster().map_err(|_| {
        anyhow::anyhow!(
            "there is no kubeconfig\n  Make one at ~/.kube/config, name one by --kubeconfig or $KUBECONFIG, or give --server."
        )
    })
}

/// Applies the flags: what comes back has one context, the current one, with the cluster and the user that were
/// chosen, changed as the flags say.
fn apply(mut kubeconfig: Kubeconfig, global: &Global, place: &str) -> anyhow::Result<Kubeconfig> {
    let chosen =
        global.context.clone().or_else(|| kubeconfig.current_context.clone()).filter(|name| !name.is_empty());
    let mut context = match &chosen {
        Some(name) => match kubeconfig.contexts.iter().find(|context| context.name == *name) {
            Some(context) => context.context.clone().unwrap_or_else(|| bare("", None)),
            None => bail!(
                "there is no context {name:?} in {place}\n  There are: {}",
                listed(kubeconfig.contexts.iter().map(|context| context.name.as_str()))
            ),
        },
        None if global.server.is_some() || global.cluster.is_some() => bare("", None),
        None => bail!(
            "no context is chosen in {place}\n  Choose one by --context or kubectl config use-context. There are: {}",
            listed(kubeconfig.contexts.iter().map(|context| context.name.as_str()))
        ),
    };

    if let Some(name) = &global.cluster {
        context.cluster.clone_from(name);
    }
    if let Some(name) = &global.user {
        if !kubeconfig.auth_infos.iter().any(|user| user.name == *name) {
            bail!(
                "there is no user {name:?} in {place}\n  There are: {}",
                listed(kubeconfig.auth_infos.iter().map(|user| user.name.as_str()))
            );
        }
        context.user = Some(name.clone());
    }

    let found = kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster);
    let mut cluster = match found {
        Some(found) => found.cluster.clone().unwrap_or_default(),
        None if context.cluster.is_empty() && global.server.is_some() => Cluster::default(),
        None => bail!(
            "there is no cluster {:?} in {place}\n  There are: {}",
            context.cluster,
            listed(kubeconfig.clusters.iter().map(|cluster| cluster.name.as_str()))
        ),
    };
    change_cluster(&mut cluster, global)?;

    let user = context.user.clone().unwrap_or_default();
    let mut auth = kubeconfig
        .auth_infos
        .iter()
        .find(|info| info.name == user)
        .and_then(|info| info.auth_info.clone())
        .unwrap_or_default();
    change_user(&mut auth, global)?;

    context.cluster = FLAGS.into();
    context.user = Some(FLAGS.into());
    kubeconfig.clusters =
        vec![NamedCluster { name: FLAGS.into(), cluster: Some(cluster), ..NamedCluster::default() }];
    kubeconfig.auth_infos =
        vec![NamedAuthInfo { name: FLAGS.into(), auth_info: Some(auth), ..NamedAuthInfo::default() }];
    kubeconfig.contexts =
        vec![NamedContext { name: FLAGS.into(), context: Some(context), ..NamedContext::default() }];
    kubeconfig.current_context = Some(FLAGS.into());
    Ok(kubeconfig)
}

fn bare(cluster: &str, user: Option<String>) -> Context {
    Context { cluster: cluster.into(), user, ..Context::default() }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

fn change_cluster(cluster: &mut Cluster, global: &Global) -> anyhow::Result<()> {
    if let Some(server) = &global.server {
        // As kubectl: an address without a scheme is one of plain HTTP.
        let server = if server.contains("://") { server.clone() } else { format!("http://{server}") };
        cluster.server = Some(server);
    }
    if global.insecure_skip_tls_verify {
        if global.certificate_authority.is_some() {
            bail!("--insecure-skip-tls-verify and --certificate-authority exclude each other");
        }
        cluster.insecure_skip_tls_verify = Some(true);
        cluster.certificate_authority = None;
        cluster.certificate_authority_data = None;
    }
    if let Some(path) = &global.certificate_authority {
        cluster.certificate_authority = Some(path.display().to_string());
        cluster.certificate_authority_data = None;
        cluster.insecure_skip_tls_verify = None;
    }
    if let Some(name) = &global.tls_server_name {
        cluster.tls_server_name = Some(name.clone());
    }
    Ok(())
}

fn change_user(auth: &mut kube::config::AuthInfo, global: &Global) -> anyhow::Result<()> {
    if let Some(token) = &global.token {
        auth.token = Some(token.clone().into());
        auth.token_file = None;
        auth.exec = None;
        auth.auth_provider = None;
    }
    if let Some(path) = &global.client_certificate {
        auth.client_certificate = Some(path.display().to_string());
        auth.client_certificate_data = None;
    }
    if let Some(path) = &global.client_key {
        auth.client_key = Some(path.display().to_string());
        auth.client_key_data = None;
    }
    let groups = !global.impersonate_groups.is_empty() || global.impersonate_uid.is_some();
    if groups && global.impersonate.is_none() {
        bail!("--as-group and --as-uid need --as");
    }
    if let Some(user) = &global.impersonate {
        auth.impersonate = Some(user.clone());
        auth.impersonate_groups = Some(global.impersonate_groups.clone()).filter(|groups| !groups.is_empty());
        auth.impersonate_uid.clone_from(&global.impersonate_uid);
    }
    Ok(())
}

/// Reads `--request-timeout`: a number with a unit, or of seconds; 0 is no limit.
fn request_timeout(text: &str) -> anyhow::Result<Option<Duration>> {
    let wrong = || {
        format!(
            "--request-timeout {text:?} is not a duration: use a number with a unit, for example 10s, 2m, or 0"
        )
    };
    let timeout = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let parsed = text.parse::<jiff::SignedDuration>().ok().context(wrong())?;
            Duration::try_from(parsed).ok().context(wrong())?
        }
    };
    Ok(Some(timeout).filter(|timeout| !timeout.is_zero()))
}

/// Whether `$NO_PROXY` takes the server out: `*`, a host, or a domain with all below it.
fn without_proxy(server: &http::Uri, list: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let domain = entry.trim_start_matches('.');
        entry == "*"
            || host == entry
            || host == domain
            || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "
apiVersion: v1
kind: Config
current-context: blue
contexts:
- {name: blue, context: {cluster: here, user: me, namespace: work}}
- {name: red, context: {cluster: there, user: you}}
clusters:
- {name: here, cluster: {server: 'https://here:6443', certificate-authority-data: AAAA}}
- {name: there, cluster: {server: 'https://there:6443'}}
users:
- {name: me, user: {token: mine}}
- {name: you, user: {exec: {command: login, apiVersion: client.authentication.k8s.io/v1}}}
";

    fn applied(global: &Global) -> anyhow::Result<(Cluster, kube::config::AuthInfo, Option<String>)> {
        let mut out = apply(Kubeconfig::from_yaml(TWO).unwrap(), global, "the file")?;
        Ok((
            out.clusters.remove(0).cluster.unwrap(),
            out.auth_infos.remove(0).auth_info.unwrap(),
            out.contexts.remove(0).context.unwrap().namespace,
        ))
    }

    #[test]
    fn the_current_context_is_used_unless_another_is_named() {
        let (cluster, auth, namespace) = applied(&Global::default()).unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://here:6443"));
        assert!(auth.token.is_some());
        assert_eq!(namespace.as_deref(), Some("work"));
        let (cluster, auth, namespace) =
            applied(&Global { context: Some("red".into()), ..Global::default() }).unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://there:6443"));
        assert!(auth.exec.is_some());
        assert_eq!(namespace, None);
    }

    #[test]
    fn flags_win_over_the_file() {
        let global = Global {
            cluster: Some("there".into()),
            token: Some("new".into()),
            user: Some("you".into()),
            certificate_authority: Some("ca.pem".into()),
            impersonate: Some("bob".into()),
            impersonate_groups: vec!["ops".into()],
            ..Global::default()
        };
        let (cluster, auth, _) = applied(&global).unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://there:6443"));
        assert_eq!(cluster.certificate_authority.as_deref(), Some("ca.pem"));
        assert!(auth.exec.is_none() && auth.token.is_some());
        assert_eq!(auth.impersonate.as_deref(), Some("bob"));
        assert_eq!(auth.impersonate_groups, Some(vec!["ops".to_owned()]));
    }

    #[test]
    fn a_wrong_choice_is_answered_with_what_there_is() {
        for (global, words) in [
            (
                Global { context: Some("green".into()), ..Global::default() },
                ["context \"green\"", "blue, red"],
            ),
            (
                Global { cluster: Some("away".into()), ..Global::default() },
                ["cluster \"away\"", "here, there"],
            ),
            (Global { user: Some("him".into()), ..Global::default() }, ["user \"him\"", "me, you"]),
        ] {
            let error = applied(&global).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn a_server_alone_is_a_cluster() {
        let global = Global { server: Some("localhost:8080".into()), ..Global::default() };
        let out = apply(Kubeconfig::default(), &global, "the flags given").unwrap();
        assert_eq!(
            out.clusters[0].cluster.as_ref().unwrap().server.as_deref(),
            Some("http://localhost:8080")
        );
    }

    #[test]
    fn timeouts_have_units_or_are_seconds() {
        assert_eq!(request_timeout("0").unwrap(), None);
        assert_eq!(request_timeout("0s").unwrap(), None);
        assert_eq!(request_timeout("7").unwrap(), Some(Duration::from_secs(7)));
        assert_eq!(request_timeout("1m30s").unwrap(), Some(Duration::from_secs(90)));
        assert!(request_timeout("-1s").is_err());
        assert!(request_timeout("soon").unwrap_err().to_string().contains("\"soon\""));
    }

    #[test]
    fn no_proxy_names_hosts_and_domains() {
        let server: http::Uri = "https://api.blue.example:6443".parse().unwrap();
        for (list, out) in [
            ("", false),
            ("*", true),
            ("localhost, api.blue.example", true),
            (".example", true),
            ("blue.example", true),
            ("lue.example", false),
        ] {
            assert_eq!(without_proxy(&server, list), out, "{list}");
        }
    }
}
