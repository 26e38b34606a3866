//! The netd process: configuration, workers, vhost-user server and control plane put together.
//!
//! A thread for each worker, one for the vhost-user server, and the main thread, which runs everything that waits for
//! another process or the kernel (gRPC, metrics, netlink, resolv.conf, signals) on a single-threaded runtime and lends
//! calls to the worker to the runtime's blocking threads. SIGTERM and SIGINT end netd in the order frontend, control
//! socket, workers; the exit code is then 0. When a worker or the vhost-user server ends by itself netd ends with 1.

use std::io::IsTerminal;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use futures::FutureExt;
use futures::future::FusedFuture;
use netd::config::cli::Args;
use netd::config::passt::{self, Passt};
use netd::config::ports::{Expansion, expand};
use netd::config::{Config, SocketRole, SpinMode};
use netd::control::Control;
use netd::counters::Counters;
use netd::ctl::metrics::Metrics;
use netd::ctl::server::ControlServer;
use netd::ctl::{Listening, http};
use netd::launch::Launch;
use netd::net::Link;
use netd::port::{PortRule, Proto};
use netd::repair::Helper;
use netd::stop::Stopper;
use netd::update::{self, Given, Offers, Parts, Source};
use netd::vhost::{Mover, ServerConfig, SocketMode};
use netd::{pod, sockets, worker};
use nix::sys::resource::{Resource, getrlimit};
use podvirt_proto::descriptors::raise_limit;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tracing::{Span, debug, error_span, info, warn};
use tracing_subscriber::EnvFilter;

/// Descriptors that netd needs beside those of flows and listeners.
const OWN_DESCRIPTORS: u64 = 64;
/// Calls that may block the runtime's own threads at once.
const BLOCKING_THREADS: usize = 4;
/// After this time every part has started and a frontend that waited has connected.
const STARTED: Duration = Duration::from_secs(1);
/// How long each part may take to end.
const END: Duration = Duration::from_secs(3);
/// How long clients of the control interface may take to let go.
const ANSWER: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let called = std::env::args_os().next();
    let result = if called.is_some_and(|name| passt::is_meant(&name)) {
        start_as_passt(&Passt::parse())
    } else {
        start(&Args::parse())
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log may not stand yet, and its filter may hide errors.
            eprintln!("netd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: &Args) -> Result<()> {
    if let Some(dir) = &args.man {
        return netd::man::write_netd(dir).with_context(|| format!("--man: {}", dir.display()));
    }
    let config = Config::load(args)?;
    if args.check {
        return Ok(());
    }
    // The command line is stronger than the environment, and that than the file.
    let filter = match std::env::var("RUST_LOG") {
        Ok(filter) if args.log.is_none() => filter,
        _ => config.log.clone(),
    };
    work(config, &filter, args.takeover.as_deref(), &Launch::default())
}

/// As [`start`], by the options that libvirt gives to passt.
fn start_as_passt(options: &Passt) -> Result<()> {
    let config = options.config()?;
    let Some(launch) = Launch::passt(options)? else { return Ok(()) };
    let filter = config.log.clone();
    work(config, &filter, None, &launch).inspect_err(|error| launch.failed(&format!("{error:#}")))
}

fn work(config: Config, filter: &str, takeover: Option<&Path>, launch: &Launch) -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(filter).with_context(|| format!("log filter '{filter}'"))?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    // In the sandbox netd cannot connect to a name that another process has made.
    let takeover = takeover.map(Source::connect).transpose().context("--takeover")?;
    // Every thread enters it once, so that each line of the log names the guest.
    let span = config.name.as_deref().map_or_else(Span::none, |guest| error_span!("netd", guest));
    let _named = span.enter();
    if let Some(interface) = config.interface.as_deref().filter(|_| config.bind_interface) {
        sockets::bind_to(interface).with_context(|| format!("bind_interface: {interface}"))?;
    }
    let spins = config.spin == SpinMode::Auto && !pod::cpu::is_limited();
    // Before there is a second thread: what comes after inherits it.
    let _sandbox = netd::sandbox::enter(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .context("cannot make the control thread's runtime")?;
    let result = runtime.block_on(run(config, spins, takeover, launch));
    // Blocking calls that wait for a worker that does not end shall not keep the process.
    runtime.shutdown_background();
    result
}

/// Starts every part, waits for the end and ends every part.
async fn run(mut config: Config, spins: bool, takeover: Option<Source>, launch: &Launch) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    if let Err(error) = raise_limit() {
        warn!(%error, "the limit of descriptors cannot be raised");
    }
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    let link = Arc::new(pod::read(&config, Path::new(pod::RESOLV_CONF)).await?);
    log_link(&link);
    if let Some(address) = config.metrics_listen {
        config.ports.reserved.add_tcp(address.port());
    }
    let (ports, later) = expand_ports(&mut config, descriptors);
    let make = |counters: &Arc<Counters>| worker::Settings {
        limits: config.limits,
        timeouts: config.timeouts,
        link: link.clone(),
        ports: ports.rules.clone(),
        port_spec: config.ports.clone(),
        counters: counters.clone(),
        pairs: config.vhost_user.queue_pairs,
        peek_offset: true,
        spins,
        ask_guest: config.ports.ask_guest,
        inherited: None,
    };
    // From here on the guest of a netd that is to be followed waits: nothing slow may be done before it goes on.
    let Parts { backend, counters, steering, mut heir } = update::begin(&config, takeover, &make, &later)?;
    let worker = backend.workers().clone();
    let listening = Listening::open(&config, &mut heir)?;
    if config.vhost_user.mode == SocketRole::Server {
        let at = &config.vhost_user.socket;
        let helper = heir.repair.take().map_or_else(|| Helper::open(at), |l| Helper::taken(at, l));
        match helper {
            Ok(helper) => backend.repair_by(helper),
            Err(error) => warn!(%error, "connections cannot move: the helper's socket cannot be made"),
        }
    }
    heir.go(&worker).context("the netd that was to be followed goes on")?;

    let mut worker_ended = on_thread("netd-wait", {
        let worker = worker.clone();
        move || worker.join()
    })?
    .fuse();

    let vhost = ServerConfig {
        socket: config.vhost_user.socket.clone(),
        mode: match config.vhost_user.mode {
            SocketRole::Server => SocketMode::Server,
            SocketRole::Client => SocketMode::Client,
        },
        queue_pairs: config.vhost_user.queue_pairs,
    };
    let stopper = Stopper::new().context("cannot make an eventfd")?;
    let mover = Mover::default();
    let (watch, mut ends) = launch.watch(Arc::new(backend.clone()), Arc::new(worker.clone()), &config.ports);
    let mut vhost_ended = on_thread("netd-vhost", {
        let (counters, stopper) = (counters.clone(), stopper.clone());
        let (mover, taken) = (mover.clone(), heir.vhost.take());
        move || netd::vhost::serve(vhost, Arc::new(watch), counters, stopper, mover, taken)
    })?
    .fuse();

    let giver = Arc::new(listening.giver(&backend, mover, steering.as_ref(), heir.generation)?);
    // The end comes at once and from the thread that hands over: this thread may be ending netd after a signal, and
    // what it tidies up belongs to the other netd by then.
    let span = Span::current();
    let offers = Offers::new(giver.clone(), move |done| {
        let _named = span.enter();
        end(done, "another netd")
    });
    let offers = Arc::new(offers.context("cannot be followed")?);

    let steering_ended = match steering {
        Some(steering) => {
            let (control, stopper) = (worker.clone(), stopper.clone());
            on_thread("netd-steer", move || steering.serve(&control, &stopper))?
        }
        None => on_thread("netd-steer", || {})?,
    }
    .fuse();

    let hold = config.hold.clone();
    let (stop_control, stopped) = oneshot::channel();
    let control =
        control_plane(Arc::new(config), link, Arc::new(worker.clone()), (listening, offers.clone()), stopped);
    let mut control = pin!(control.fuse());
    tokio::spawn(async {
        sleep(STARTED).await;
        netd::sys::release_startup_pages();
    });

    let result = tokio::select! {
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
        ended = ends.next() => ended.result().map_err(anyhow::Error::from),
        _ = &mut worker_ended => Err(anyhow!("the worker ended by itself")),
        ended = &mut vhost_ended => Err(match ended {
            Ok(Err(error)) => anyhow::Error::from(error),
            _ => anyhow!("the vhost-user server ended by itself"),
        }),
        ended = &mut control => Err(match ended {
            Err(error) => error,
            Ok(()) => anyhow!("the control plane ended by itself"),
        }),
    };

    if let Ok(reason) = &result {
        info!(reason, "ending");
    }
    // The socket's files are a successor's that is taking over at this moment, unless it fails; and then no other comes.
    tokio::task::spawn_blocking(move || offers.close()).await?;
    if let (Ok("SIGTERM"), Some(hold)) = (&result, hold) {
        match tokio::task::spawn_blocking(move || giver.deposit(&hold)).await? {
            Ok(given) => end(given, "the hold"),
            Err(error) => {
                warn!(error = %anyhow!(error), "the hold keeps nothing: the connections end with netd");
            }
        }
    }
    stopper.stop();
    wait("the vhost-user server", vhost_ended).await;
    wait("the steering", steering_ended).await;
    // It fails when the control plane has ended already.
    let _ = stop_control.send(());
    wait("the control plane", control.as_mut()).await;
    worker.shutdown();
    wait("the workers", worker_ended).await;
    result.map(|_| ())
}

/// Ends after everything was handed over.
fn end(given: Given, to: &str) -> ! {
    let took_us = u64::try_from(given.took.as_micros()).unwrap_or(u64::MAX);
    info!(to, flows = given.flows, took_us, "everything was handed over; ending without a word to any peer");
    update::end()
}

/// Waits for a part's end, if it has not ended before.
async fn wait<F: FusedFuture>(what: &str, ended: F) {
    if !ended.is_terminated() && timeout(END, ended).await.is_err() {
        warn!("{what} does not end; it is left behind");
    }
}

/// Runs `f` on a thread of its own and tells its result.
fn on_thread<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>> {
    let (sender, receiver) = oneshot::channel();
    let span = Span::current();
    let run = move || {
        let _named = span.enter();
        // No thread may wait any more.
        let _ = sender.send(f());
    };
    std::thread::Builder::new().name(name.into()).spawn(run).context("cannot start a thread")?;
    Ok(receiver)
}

/// The control socket, the metrics and the watch on the pod's network, until `stop` is ready.
async fn control_plane(
    config: Arc<Config>,
    link: Arc<Link>,
    control: Arc<dyn Control>,
    (listening, offers): (Listening, Arc<Offers>),
    stop: oneshot::Receiver<()>,
) -> Result<()> {
    let name = config.name.as_deref().unwrap_or_default();
    let metrics = Arc::new(Metrics::new(control.clone(), name));
    if let Some((address, listener)) = listening.metrics {
        let listener = tokio::net::TcpListener::from_std(listener).context("metrics.listen")?;
        info!(%address, "serving metrics");
        tokio::spawn(http::serve(listener, metrics.clone()));
    }
    let (stop_server, server_stopped) = oneshot::channel::<()>();
    // The sender is never used but dropped, which stops the server as well.
    let server_stopped = server_stopped.map(|_| ());
    let (present, links) = watch::channel(link.clone());
    let mut socket_file = None;
    let server = match listening.control {
        Some((path, listener, file)) => {
            socket_file = Some(file);
            info!(socket = %path.display(), "serving the control interface");
            let server = ControlServer::new(control.clone(), metrics, links, config.ports.reserved.clone());
            server.named(name).with_offers(offers).serve(listener, server_stopped).boxed()
        }
        None => server_stopped.map(Ok).boxed(),
    };
    let mut server = server.fuse();
    let push = async move |link: Arc<Link>| {
        let (control, new) = (control.clone(), link.clone());
        // It fails only when the runtime ends.
        let _ = tokio::task::spawn_blocking(move || control.set_link(new)).await;
        present.send_replace(link);
    };
    let watching = pod::watch(config, pod::RESOLV_CONF.into(), link, push);

    let result = tokio::select! {
        _ = stop => Ok(()),
        result = watching => result.context("the pod's network cannot be watched"),
        ended = &mut server => ended.context("the control interface failed"),
    };
    // No new client, but the calls of this moment are answered.
    drop(socket_file);
    drop(stop_server);
    if !server.is_terminated() && timeout(ANSWER, server).await.is_err() {
        debug!("a client keeps its connection to the control interface");
    }
    result
}

/// Expands the configured ports as far as the descriptors go, and logs what that leaves out.
///
/// The second part is of those that wait for the ports to be steered: the listeners that `all` has without.
fn expand_ports(config: &mut Config, descriptors: u64) -> (Expansion, Vec<PortRule>) {
    let flows = u64::from(config.limits.flows);
    // Flows come first, but a guest without ports is of no use: listeners have half of it at least.
    let room = descriptors.saturating_sub(flows + OWN_DESCRIPTORS).max(descriptors / 2);
    let budget = config.ports.all_ports_budget.min(u32::try_from(room).unwrap_or(u32::MAX));
    config.ports.all_ports_budget = budget;
    let mut ports = expand(&config.ports, pod::ephemeral_ports());
    for rule in &ports.reserved {
        warn!(proto = ?rule.proto, port = rule.pod, "the port is reserved and not forwarded (ports.reserved)");
    }
    if (config.ports.tcp.all || config.ports.udp.all) && !config.ports.is_steered() {
        info!(
            listeners = ports.rules.len(),
            budget,
            left_out = ports.beyond_budget,
            "'all' ports are the lowest that are neither ephemeral nor reserved, within ports.all_ports_budget"
        );
    }
    if !config.ports.is_steered() {
        warn_of_descriptors(flows, &ports.rules, descriptors);
        return (ports, Vec::new());
    }
    let explicit = |rule: &PortRule| {
        let spec = if rule.proto == Proto::Tcp { &config.ports.tcp } else { &config.ports.udp };
        spec.maps.iter().any(|m| m.pod.contains(rule.pod))
    };
    let (now, later) = ports.rules.into_iter().partition(explicit);
    ports.rules = now;
    // Where every port is steered the others have no listeners, unless no helper comes.
    warn_of_descriptors(flows, &ports.rules, descriptors);
    (ports, later)
}

fn warn_of_descriptors(flows: u64, listeners: &[PortRule], descriptors: u64) {
    let listeners = u64::try_from(listeners.len()).unwrap_or(u64::MAX);
    let wanted = flows.saturating_add(listeners).saturating_add(OWN_DESCRIPTORS);
    if wanted > descriptors {
        warn!(
            descriptors,
            flows,
            listeners,
            "the limit of descriptors (RLIMIT_NOFILE) is below limits.flows and the listeners: flows beyond it are refused"
        );
    }
}

fn log_link(link: &Link) {
    let v4 = link.v4.as_ref().map(|l| format!("{}/{}", l.guest, l.prefix_len));
    let v6 = link.v6.as_ref().map(|l| format!("{}/{}", l.guest, l.prefix_len));
    info!(mode = ?link.mode, mac = %link.mac, mtu = link.mtu, v4, v6, dns = ?link.dns, "the guest's link");
}
