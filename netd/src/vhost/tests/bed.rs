//! A server that runs, its sink, and a frontend with the driver's rings.

use super::*;
use crate::stop::Stopper;

/// Holds the running rings, so that a test is the worker.
pub(super) struct Double {
    pub(super) events: Mutex<Sender<Event>>,
    pub(super) rings: Mutex<HashMap<usize, Ring>>,
}

impl Double {
    pub(super) fn tell(&self, event: Event) {
        let _ = self.events.lock().unwrap().send(event);
    }

    /// Completes everything that is there, writing `answer` into writable buffers; returns what was readable.
    pub(super) fn work(&self, index: usize, answer: &[u8]) -> Vec<Vec<u8>> {
        let mut rings = self.rings.lock().unwrap();
        let ring = rings.get_mut(&index).expect("ring does not run");
        let mut seen = Vec::new();
        loop {
            let (mut readable, mut writable) = (Iovs::new(), Iovs::new());
            let Some(popped) = ring.pop(&mut readable, &mut writable).unwrap() else { break };
            let mut bytes = vec![0; popped.readable as usize];
            readable.read(0, 0, &mut bytes);
            seen.push(bytes);
            let n = writable.write(0, 0, answer);
            ring.mark_written(&writable, 0, n);
            ring.push_used(popped.head, n as u32);
        }
        if ring.publish() {
            ring.signal();
        }
        seen
    }
}

impl RingSink for Double {
    fn start(&self, index: usize, ring: Ring) {
        self.tell(Event::Start(index, ring.next_avail()));
        assert!(self.rings.lock().unwrap().insert(index, ring).is_none(), "started twice");
    }

    fn stop(&self, index: usize) -> Option<Ring> {
        self.tell(Event::Stop(index));
        self.rings.lock().unwrap().remove(&index)
    }

    fn set_features(&self, acked: u64) {
        self.tell(Event::Features(acked));
    }

    fn set_connected(&self, connected: bool) {
        self.tell(Event::Connected(connected));
    }

    fn save(&self, mut to: File) -> Result<(), StateError> {
        self.tell(Event::Save);
        Ok(to.write_all(b"a state of some length")?)
    }

    fn load(&self, mut from: File) -> Result<(), StateError> {
        let mut state = String::new();
        from.read_to_string(&mut state)?;
        self.tell(Event::Load(state.clone()));
        if state == "nonsense" { Err(StateError::Twice) } else { Ok(()) }
    }

    fn resume(&self) {
        self.tell(Event::Resume);
    }
}

/// A running `serve`, stopped when dropped.
pub(super) struct Netd {
    pub(super) path: PathBuf,
    pub(super) sink: Arc<Double>,
    pub(super) events: Receiver<Event>,
    pub(super) stop: Stopper,
    pub(super) thread: Option<JoinHandle<Result<(), ServeError>>>,
    pub(super) _directory: tempfile::TempDir,
}

impl Netd {
    pub(super) fn new() -> Netd {
        Netd::with(SocketMode::Server)
    }

    pub(super) fn with(mode: SocketMode) -> Netd {
        Netd::with_pairs(mode, 1)
    }

    pub(super) fn with_pairs(mode: SocketMode, queue_pairs: usize) -> Netd {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net.sock");
        let (sender, events) = channel();
        let sink = Arc::new(Double { events: Mutex::new(sender), rings: Mutex::default() });
        let stop = Stopper::new().unwrap();
        let config = ServerConfig { socket: path.clone(), mode, queue_pairs };
        let (sink2, stop2) = (Arc::clone(&sink), stop.clone());
        let thread = std::thread::spawn(move || {
            serve(config, sink2, Arc::new(Counters::default()), stop2, Mover::default(), None)
        });
        Netd { path, sink, events, stop, thread: Some(thread), _directory: directory }
    }

    pub(super) fn connect(&self) -> UnixStream {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match UnixStream::connect(&self.path) {
                Ok(stream) => return stream,
                Err(e) if Instant::now() > deadline => panic!("{e}"),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// The next events must be these.
    pub(super) fn expect(&self, expected: &[Event]) {
        for event in expected {
            assert_eq!(&self.events.recv_timeout(TIMEOUT).expect("no event came"), event);
        }
    }

    pub(super) fn expect_nothing_more(&self) {
        assert!(self.events.try_recv().is_err());
    }
}

impl Drop for Netd {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
            assert!(!self.path.exists(), "the socket file was left");
        }
    }
}

/// The driver's rings, and a frontend to hand them over.
pub(super) struct Guest {
    pub(super) mem: GuestMemoryMmap,
    pub(super) frontend: Frontend,
    pub(super) kick: Vec<EventFd>,
    pub(super) call: Vec<EventFd>,
    pub(super) err: Vec<EventFd>,
    pub(super) idx: [u16; 2],
}

pub(super) fn memory(ranges: &[(u64, usize)]) -> GuestMemoryMmap {
    let ranges = ranges.iter().map(|&(at, len)| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len as u64).unwrap();
        (GuestAddress(at), len, Some(FileOffset::new(file, 0)))
    });
    GuestMemoryMmap::from_ranges_with_files(ranges.collect::<Vec<_>>()).unwrap()
}

pub(super) fn regions(mem: &GuestMemoryMmap) -> Vec<VhostUserMemoryRegionInfo> {
    mem.iter().map(|r| VhostUserMemoryRegionInfo::from_guest_region(r).unwrap()).collect()
}

impl Guest {
    /// A frontend that has negotiated everything but has not set up its rings.
    pub(super) fn new(stream: UnixStream) -> Guest {
        let mut frontend = Frontend::from_stream(stream, 2);
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        assert_eq!(features, feature::OFFERED);
        let protocol = frontend.get_protocol_features().unwrap();
        assert!(
            protocol.contains(VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::LOG_SHMFD)
        );
        frontend.set_protocol_features(protocol).unwrap();
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        let mem = memory(&[(BASE, LEN)]);
        frontend.set_mem_table(&regions(&mem)).unwrap();
        let events = || (0..2).map(|_| EventFd::new(EFD_NONBLOCK).unwrap()).collect::<Vec<_>>();
        Guest { mem, frontend, kick: events(), call: events(), err: events(), idx: [0; 2] }
    }

    pub(super) fn features(&self) -> u64 {
        feature::OFFERED & !feature::LOG_ALL
    }

    pub(super) fn area(index: usize) -> u64 {
        BASE + 0x1_0000 * index as u64
    }

    pub(super) fn host(&self, guest: u64) -> u64 {
        self.mem.get_host_address(GuestAddress(guest)).unwrap() as u64
    }

    pub(super) fn config(&self, index: usize) -> VringConfigData {
        let area = Guest::area(index);
        VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: self.host(area),
            avail_ring_addr: self.host(area + 0x1000),
            used_ring_addr: self.host(area + 0x2000),
            log_addr: None,
        }
    }

    pub(super) fn set_ring(&mut self, index: usize, base: u16) {
        let f = &mut self.frontend;
        f.set_vring_num(index, SIZE).unwrap();
        f.set_vring_base(index, base).unwrap();
        let config = self.config(index);
        self.frontend.set_vring_addr(index, &config).unwrap();
        self.frontend.set_vring_err(index, &self.err[index]).unwrap();
        self.frontend.set_vring_call(index, &self.call[index]).unwrap();
        self.frontend.set_vring_kick(index, &self.kick[index]).unwrap();
    }

    pub(super) fn start(&mut self) {
        self.frontend.set_features(self.features()).unwrap();
        for index in 0..2 {
            self.set_ring(index, 0);
            self.frontend.set_vring_enable(index, true).unwrap();
        }
    }

    /// Offers `text` (or, without it, an empty buffer of 64 bytes at the same place).
    pub(super) fn offer(&mut self, index: usize, text: Option<&[u8]>) {
        let (area, slot) = (Guest::area(index), self.idx[index] % SIZE);
        let buffer = area + 0x4000 + 0x100 * u64::from(slot);
        let (len, flags) = text.map_or((64, 2u16), |t| (t.len() as u32, 0));
        if let Some(text) = text {
            self.mem.write_slice(text, GuestAddress(buffer)).unwrap();
        }
        let desc = area + 16 * u64::from(slot);
        self.mem.write_obj(buffer, GuestAddress(desc)).unwrap();
        self.mem.write_obj(len, GuestAddress(desc + 8)).unwrap();
        self.mem.write_obj(flags, GuestAddress(desc + 12)).unwrap();
        self.mem.write_obj(slot, GuestAddress(area + 0x1004 + 2 * u64::from(slot))).unwrap();
        self.idx[index] = self.idx[index].wrapping_add(1);
        self.mem.write_obj(self.idx[index], GuestAddress(area + 0x1002)).unwrap();
    }

    pub(super) fn used_idx(&self, index: usize) -> u16 {
        self.mem.read_obj(GuestAddress(Guest::area(index) + 0x2002)).unwrap()
    }
}
