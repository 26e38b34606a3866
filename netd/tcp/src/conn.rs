//! The connection's variables, how it opens, and what the pod's side tells it.

use std::time::Duration;

use super::config::{ACK_DELAY, Config, DEFAULT_MSS, POLL_MAX, POLL_MIN, STRETCH};
use super::ending::End;
use super::rtt::Rtt;
use super::seq::Seq;
use netd_base::time::Time;
use netd_wire::TcpFlags;

/// State of the guest-facing side, by the names of RFC 9293 3.3.2. `Connecting` is netd's own: the guest's SYN
/// is held until the pod's connect() has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum State {
    Connecting,
    SynReceived,
    SynSent,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

impl State {
    /// The name of the state (RFC 9293, section 3.3.2).
    pub fn name(self) -> &'static str {
        match self {
            State::Connecting => "CONNECTING",
            State::SynReceived => "SYN-RECEIVED",
            State::SynSent => "SYN-SENT",
            State::Established => "ESTABLISHED",
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::CloseWait => "CLOSE-WAIT",
            State::Closing => "CLOSING",
            State::LastAck => "LAST-ACK",
            State::TimeWait => "TIME-WAIT",
            State::Closed => "CLOSED",
        }
    }
}

/// A segment of the guest, without its payload.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Sequence number of the first byte.
    pub seq: Seq,
    /// Acknowledgement number.
    pub ack: Seq,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window field, not scaled.
    pub window: u16,
    /// Payload bytes.
    pub len: u32,
    /// Options of a SYN.
    pub mss: Option<u16>,
    /// Options of a SYN.
    pub window_scale: Option<u8>,
}

/// What the pod's socket says of itself.
#[derive(Clone, Copy, Debug)]
pub struct PodState {
    /// Free space of the send buffer in bytes.
    pub space: u32,
    /// Payload bytes that the peer has acknowledged since the connection opened, modulo 2^32.
    pub acked: u32,
    /// The peer's window in bytes.
    pub peer_window: u32,
    /// The peer is near enough to acknowledge what is queued ([`Config::ack_queued_rtt`]).
    pub near: bool,
    /// The shortest round trip to the peer; zero where it is not known. A near peer's does not matter.
    pub rtt: Duration,
    /// The worker is told when the buffer has room again: a near peer's is not to be read for that.
    pub notifies: bool,
}

/// What the worker must do with the pod's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Remove this many bytes from the receive queue: the guest has them.
    Consume(u32),
    /// Put the peek offset back to the first byte of the receive queue.
    Rewind,
    /// shutdown(SHUT_WR): the guest has sent its last byte.
    ShutdownWrite,
    /// Probe a silent peer each so many seconds, and now if it has been silent for as long.
    Keepalive(u32),
    /// Close with a RST to the peer.
    Abort,
}

/// One TCP connection between the guest and a socket of the pod. See the [module](super) for its theory.
#[derive(Clone, Debug)]
pub struct Conn {
    pub(super) config: Config,
    pub(super) state: State,

    // Pod to guest: "send" of RFC 9293 3.3.1.
    pub(super) iss: Seq,
    pub(super) snd_una: Seq,
    pub(super) snd_nxt: Seq,
    /// The highest `snd_nxt` ever: differs after a rewind.
    pub(super) snd_max: Seq,
    pub(super) snd_wnd: u32,
    pub(super) snd_wnd_max: u32,
    pub(super) snd_wl1: Seq,
    pub(super) snd_wl2: Seq,
    pub(super) snd_scale: u8,
    pub(super) mss: u16,
    /// Congestion window: only limits after a loss.
    pub(super) cwnd: u32,
    /// Slow-start threshold: up to it the congestion window doubles per round trip, beyond it grows by a segment.
    pub(super) ssthresh: u32,
    /// Where the stream ends, once the peer has closed: the FIN's sequence number.
    pub(super) fin_at: Option<Seq>,
    pub(super) dup_acks: u8,
    /// `snd_max` at the last rewind until it is acknowledged; no second one by duplicate ACKs before.
    pub(super) recover: Option<Seq>,
    /// The guest closed its window over what was in flight to this number: it had no memory for it.
    pub(super) unheard: Option<Seq>,
    /// Data waits in the socket and the guest's window is closed.
    pub(super) blocked: bool,
    pub(super) retransmits: u32,

    // Guest to pod: "receive".
    pub(super) irs: Seq,
    pub(super) rcv_nxt: Seq,
    /// The last acknowledgement sent to the guest.
    pub(super) acked: Seq,
    /// What may be acknowledged: at most `rcv_nxt`.
    pub(super) ack_ready: Seq,
    /// Right edge of the window as last advertised.
    pub(super) edge: Seq,
    /// Right edge that the socket would allow now.
    pub(super) edge_ready: Seq,
    /// The most that the socket, and a far peer's window, ever had room for.
    pub(super) space_max: u32,
    pub(super) peer_max: Option<u32>,
    /// The window has been small for long: what little there is, is told.
    pub(super) impatient: bool,
    pub(super) rcv_scale: u8,
    /// The socket took less than it was offered; the guest waits for a timeout where nothing tells it.
    pub(super) refused: bool,
    /// A FIN follows what is being flushed.
    pub(super) fin_pending: bool,

    // What is to be sent.
    pub(super) need_syn: bool,
    pub(super) need_ack: bool,
    /// ACKs owed for segments out of order: each must go by itself to be counted (RFC 5681 3.2).
    pub(super) repeat_ack: u8,
    pub(super) need_probe: bool,
    pub(super) need_rst: bool,
    /// The socket broke with bytes for the guest, which gets a RST behind the last of them; see [`super::ending`].
    pub(super) broken: bool,
    /// A RST with this number answers an impossible acknowledgement; the connection goes on.
    pub(super) stray_rst: Option<Seq>,
    pub(super) consume: u32,
    pub(super) rewind: bool,
    pub(super) shutdown: bool,
    pub(super) abort: bool,

    // Timers.
    pub(super) rtt: Rtt,
    pub(super) retries: u8,
    pub(super) rto_at: Option<Time>,
    pub(super) poll_at: Option<Time>,
    /// When an acknowledgement that was held back is sent at the latest.
    pub(super) ack_at: Option<Time>,
    pub(super) poll_interval: Duration,
    /// Reads of the socket's state since one has found something.
    pub(super) vain_reads: u8,
    /// When the socket's state was read last, and before when it has no news; see [`super::pacing`].
    pub(super) read_at: Time,
    pub(super) quiet_until: Time,
    /// The shortest round trip to a far peer, zero where it is not known; none where the peer is near.
    pub(super) peer_rtt: Option<Duration>,
    /// A deadline asked for the state that is read next: the guest gets nothing else now that could carry an acknowledgement.
    pub(super) polled: bool,
    pub(super) heard_at: Time,
    pub(super) probes: u8,
    /// When the last keepalive probe was sent.
    pub(super) probed_at: Time,
    /// End of the handshake or of TIME-WAIT.
    pub(super) expires: Option<Time>,
    pub(super) end: Option<End>,
    /// Interval of the guest's keepalives in seconds, zero if it has sent none; see [`super::keepalive`].
    pub(super) keepalive: u32,
    /// The interval is to be set in the socket.
    pub(super) apply_keepalive: bool,
    /// The guest has probed and waits for an answer; the last probe had none.
    pub(super) probed: bool,
    pub(super) unanswered: bool,
}

impl Conn {
    fn new(config: Config, isn: u32, now: Time, state: State) -> Conn {
        let iss = Seq(isn);
        Conn {
            state,
            iss,
            snd_una: iss,
            snd_nxt: iss,
            snd_max: iss,
            snd_wnd: 0,
            snd_wnd_max: 0,
            snd_wl1: Seq(0),
            snd_wl2: Seq(0),
            snd_scale: 0,
            mss: config.mss.min(DEFAULT_MSS),
            cwnd: u32::MAX,
            ssthresh: u32::MAX,
            fin_at: None,
            dup_acks: 0,
            recover: None,
            unheard: None,
            blocked: false,
            retransmits: 0,
            irs: Seq(0),
            rcv_nxt: Seq(0),
            acked: Seq(0),
            ack_ready: Seq(0),
            edge: Seq(0),
            edge_ready: Seq(0),
            space_max: 0,
            peer_max: None,
            impatient: false,
            rcv_scale: 0,
            refused: false,
            fin_pending: false,
            need_syn: false,
            need_ack: false,
            repeat_ack: 0,
            need_probe: false,
            need_rst: false,
            broken: false,
            stray_rst: None,
            consume: 0,
            rewind: false,
            shutdown: false,
            abort: false,
            rtt: Rtt::default(),
            retries: 0,
            rto_at: None,
            poll_at: None,
            ack_at: None,
            poll_interval: POLL_MIN,
            vain_reads: 0,
            read_at: Time::ZERO,
            quiet_until: Time::ZERO,
            peer_rtt: None,
            polled: false,
            heard_at: now,
            probes: 0,
            probed_at: now,
            expires: Some(now + config.handshake),
            end: None,
            keepalive: 0,
            apply_keepalive: false,
            probed: false,
            unanswered: false,
            config,
        }
    }

    /// The guest sent a SYN; the pod's socket is connecting. `isn` is netd's initial sequence number.
    pub fn open_by_guest(config: Config, isn: u32, syn: &Segment, now: Time) -> Conn {
        let mut c = Conn::new(config, isn, now, State::Connecting);
        c.learn_syn(syn);
        c.rcv_scale = if syn.window_scale.is_some() { super::config::WINDOW_SCALE } else { 0 };
        // RFC 7323 2.2: the window of a SYN is never scaled.
        c.set_window(syn.seq, syn.ack, u32::from(syn.window));
        c
    }

    /// The pod accepted a connection; a SYN goes to the guest.
    pub fn open_by_pod(config: Config, isn: u32, now: Time) -> Conn {
        let mut c = Conn::new(config, isn, now, State::SynSent);
        c.need_syn = true;
        c.rcv_scale = super::config::WINDOW_SCALE;
        // Where the SYN cannot be written yet it is tried again at this time.
        c.rto_at = Some(now + c.rtt.timeout());
        c
    }

    /// The accepted socket's state, before the first [`Conn::poll`].
    pub fn on_accepted(&mut self, pod: &PodState) {
        self.on_pod_window(pod);
    }

    /// Takes the options and the initial sequence number of the guest's SYN.
    pub(super) fn learn_syn(&mut self, syn: &Segment) {
        self.irs = syn.seq;
        self.rcv_nxt = syn.seq.plus(1);
        self.acked = syn.seq;
        self.ack_ready = self.rcv_nxt;
        self.edge = self.rcv_nxt;
        self.edge_ready = self.rcv_nxt;
        // RFC 7323 2.3: a shift above 14 is used as 14.
        self.snd_scale = syn.window_scale.unwrap_or(0).min(14);
        // A guest that names an absurd MSS must not make netd send one byte a segment.
        self.mss = self.config.mss.min(syn.mss.unwrap_or(DEFAULT_MSS).max(64));
    }

    /// The pod's connect() succeeded: the guest's SYN is answered.
    pub fn on_connected(&mut self, pod: &PodState) {
        if self.state == State::Connecting {
            self.state = State::SynReceived;
            self.need_syn = true;
            self.on_pod_window(pod);
        }
    }

    /// The socket's present state: what may be acknowledged and how much the guest may send.
    pub fn on_pod(&mut self, pod: &PodState, now: Time) {
        if !self.synchronized() || self.need_rst || self.broken {
            return;
        }
        let before = self.ack_ready;
        let all = pod.near || self.guest_closed();
        // Counting starts behind the guest's SYN; a count beyond what was accepted cannot be.
        let reached = if all { self.rcv_nxt } else { self.irs.plus(1).plus(pod.acked).min(self.rcv_nxt) };
        self.ack_ready = self.ack_ready.max(reached);
        self.on_pod_window(pod);
        // RFC 9293 3.8.6.2.1 has an override timeout for the same reason: nothing says that more will come.
        self.impatient = self.poll_interval >= POLL_MAX && self.window_is_small();
        let stretched = self.ack_ready.since(self.acked) >= self.stretch();
        if self.window_worth_telling() || stretched || self.nothing_follows() {
            self.need_ack = true;
        } else if self.ack_ready > self.acked {
            self.ack_at.get_or_insert(now + ACK_DELAY);
        }
        if self.refused && pod.space >= self.worthwhile() {
            // Room again for what was refused: three duplicates make the guest send it (RFC 5681 3.2).
            self.refused = false;
            self.repeat_ack = super::input::DUP_ACKS;
        }
        let notified = pod.near && pod.notifies;
        self.plan_read(self.ack_ready > before, notified, now);
    }

    fn on_pod_window(&mut self, pod: &PodState) {
        self.peer_rtt = (!pod.near).then_some(pod.rtt);
        let space = pod.space.min(MAX_WINDOW);
        let mut edge = self.rcv_nxt.plus(space);
        self.space_max = self.space_max.max(space);
        if !pod.near && self.synchronized() {
            // One step of the header at least: a peer with less would never be heard of.
            let window = pod.peer_window.clamp(1 << super::config::WINDOW_SCALE, MAX_WINDOW);
            // What the peer acknowledged, as `on_pod` read it: never more than was accepted.
            edge = edge.min(self.ack_ready.plus(window));
            self.peer_max = Some(self.peer_max.map_or(window, |max| max.max(window)));
        }
        // What was told stands (RFC 9293 3.8.6); what was not told yet may shrink again.
        self.edge_ready = edge.max(self.edge).max(self.rcv_nxt);
    }

    /// The least by which the window grows, and with less of which a guest may wait for more: a segment, or half of
    /// what the socket can take (RFC 9293 3.8.6.2).
    pub(super) fn worthwhile(&self) -> u32 {
        u32::from(self.config.mss).min(self.space_max.min(self.peer_max.unwrap_or(u32::MAX)) / 2)
    }

    /// Right edge of the window that the next segment would tell.
    fn offered_edge(&self) -> Seq {
        let (ack, field) = self.offer();
        ack.plus(u32::from(field) << self.rcv_scale).max(self.edge)
    }

    /// How many bytes are acknowledged at once. An ACK costs the guest an interrupt, so a bulk transfer gets one for
    /// as much as a large frame holds, as a host with receive offload gives them. A young connection gets one for
    /// every two segments at most (RFC 9293 3.8.6.3), as its sender counts them to grow, and no program waits for more
    /// than a quarter of the window that the sender has.
    fn stretch(&self) -> u32 {
        let window = self.edge.since(self.acked);
        let age = self.ack_ready.since(self.irs);
        STRETCH.min(window / 4).min(age / 8).max(1)
    }

    /// Whether the guest may be waiting for the window to grow.
    pub(super) fn window_is_small(&self) -> bool {
        self.offered_edge().since(self.rcv_nxt) < self.worthwhile()
    }

    /// Whether a larger window is told without anything else to say. What counts is what the header can hold: an
    /// ACK that tells nothing new would be a duplicate (RFC 5681 section 2).
    fn window_worth_telling(&self) -> bool {
        let growth = self.offered_edge().since(self.edge);
        let told = self.edge.since(self.rcv_nxt);
        let freed = told < self.worthwhile() && told + growth >= self.worthwhile();
        freed
            || (self.impatient && growth > 0)
            || (growth >= 2 * u32::from(self.config.mss) && growth >= told / 2)
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// The tunables it was made with.
    #[inline]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The guest's initial sequence number.
    #[inline]
    pub fn guest_isn(&self) -> Seq {
        self.irs
    }

    /// Segments sent to the guest again.
    #[inline]
    pub fn retransmits(&self) -> u32 {
        self.retransmits
    }

    /// Nothing more will come of this connection.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Both directions have ended and the socket is of no more use.
    #[inline]
    pub fn is_done_with_socket(&self) -> bool {
        matches!(self.state, State::TimeWait | State::Closed)
    }

    /// Whether the connection is being opened: the pod's side or the guest's has not answered yet.
    #[inline]
    pub fn is_opening(&self) -> bool {
        matches!(self.state, State::Connecting | State::SynReceived | State::SynSent)
    }

    /// Whether the guest's state and netd's are synchronized (RFC 9293 3.5).
    pub(super) fn synchronized(&self) -> bool {
        !self.is_opening() && self.state != State::Closed
    }

    /// The guest's FIN has been passed on.
    pub fn guest_closed(&self) -> bool {
        matches!(self.state, State::CloseWait | State::Closing | State::LastAck | State::TimeWait)
    }

    pub(super) fn set_window(&mut self, seq: Seq, ack: Seq, window: u32) {
        self.snd_wnd = window;
        self.snd_wnd_max = self.snd_wnd_max.max(window);
        self.snd_wl1 = seq;
        self.snd_wl2 = ack;
    }

    /// The next thing to do with the pod's socket.
    #[inline]
    pub fn command(&mut self) -> Option<Command> {
        if std::mem::take(&mut self.abort) {
            return Some(Command::Abort);
        }
        let consume = std::mem::take(&mut self.consume);
        if consume > 0 {
            return Some(Command::Consume(consume));
        }
        if std::mem::take(&mut self.rewind) {
            return Some(Command::Rewind);
        }
        if let Some(seconds) = self.take_keepalive() {
            return Some(Command::Keepalive(seconds));
        }
        std::mem::take(&mut self.shutdown).then_some(Command::ShutdownWrite)
    }
}

/// The largest window that the header can say.
const MAX_WINDOW: u32 = 0xffff << super::config::WINDOW_SCALE;
