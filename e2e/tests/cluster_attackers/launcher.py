"""A process in a launcher's pod that stands in the launcher's place before virt-handler, or speaks to virt-handler for it.

  launcher.py serve UID OWN       listens where the launcher does, and answers as the file `mode` beside it says: giant (reports of four
                                  megabytes of the machine OWN), other (a report of the machine UID), stall (nothing)
  launcher.py report WHAT UID     reports to virt-handler by its own socket: WHAT is giant, other, or hold (connections that say nothing)

HTTP/2 and gRPC, no more of them than that takes.
"""
import json, os, socket, struct, sys, threading, time

SOCKETS, NOTIFY = "/var/run/kubevirt/sockets", "/var/run/kubevirt/domain-notify-pipe.sock"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def varint(n):
    text = b""
    while n > 127:
        text, n = text + bytes([n & 127 | 128]), n >> 7
    return text + bytes([n])


def field(number, text):
    return varint(number << 3 | 2) + varint(len(text)) + text


def grpc(message):
    return b"\0" + struct.pack(">I", len(message)) + message


def header(*pairs):
    # Literals without Huffman's code, each shorter than 127 bytes.
    return b"".join(b"\0" + bytes([len(n)]) + n + bytes([len(v)]) + v for n, v in pairs)


def report(mode, uid):
    if mode == "giant":
        # As large as a message may be, in members that cost most.
        empty = ",".join(["{}"] * 650_000)
        return '{"name": "a", "uid": "%s", "interfaces": [%s], "block": [%s]}' % (uid, empty, empty)
    return json.dumps({"name": "honest", "uid": uid, "status": "Shutoff", "reason": "Crashed", "generation": 1 << 40})


class Connection:
    def __init__(self, stream, client):
        self.stream, self.window, self.windows, self.lock = stream, 65535, {}, threading.Condition()
        self.first = 65535
        if client:
            stream.sendall(PREFACE)
        self.send(SETTINGS, 0, 0, b"")

    def send(self, kind, flags, stream, payload):
        with self.lock:
            self.stream.sendall(struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload)

    def take(self, size):
        text = b""
        while len(text) < size:
            part = self.stream.recv(size - len(text))
            if not part:
                raise EOFError
            text += part
        return text

    def frames(self):
        while True:
            head = self.take(9)
            payload = self.take(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF
            with self.lock:
                if kind == SETTINGS and not flags & 1:
                    for n in range(0, len(payload), 6):
                        key, value = struct.unpack(">HI", payload[n:n + 6])
                        if key == 4:
                            self.first = value
                elif kind == WINDOW:
                    more = int.from_bytes(payload, "big")
                    if stream == 0:
                        self.window += more
                    else:
                        self.windows[stream] = self.windows.get(stream, self.first) + more
                self.lock.notify_all()
            if kind == SETTINGS and not flags & 1:
                self.send(SETTINGS, 1, 0, b"")
            elif kind == PING and not flags & 1:
                self.send(PING, 1, 0, payload)
            yield kind, flags, stream, payload

    def body(self, stream, text, last):
        while text:
            with self.lock:
                room = lambda: min(self.window, self.windows.get(stream, self.first), 16384, len(text))
                while room() <= 0:
                    self.lock.wait()
                size = room()
                self.window -= size
                self.windows[stream] = self.windows.get(stream, self.first) - size
            part, text = text[:size], text[size:]
            self.send(DATA, 1 if last and not text else 0, stream, part)


def answer(connection, stream, message):
    connection.send(HEADERS, 4, stream, header((b":status", b"200"), (b"content-type", b"application/grpc")))
    connection.body(stream, grpc(message), False)
    connection.send(HEADERS, 5, stream, header((b"grpc-status", b"0")))


def serve_one(stream, messages):
    try:
        if stream.recv(len(PREFACE), socket.MSG_WAITALL) != PREFACE:
            return
        connection = Connection(stream, False)
        for kind, flags, number, payload in connection.frames():
            if kind != HEADERS:
                continue
            mode = open(SOCKETS + "/mode").read().strip()
            print("asked", mode, flush=True)
            if mode in messages:
                threading.Thread(target=answer, args=(connection, number, messages[mode]), daemon=True).start()
    except (EOFError, OSError):
        pass


def serve(uid, own):
    messages = {mode: field(1, b"\x08\x01") + field(2, report(mode, of).encode()) for mode, of in (("giant", own), ("other", uid))}
    os.rename(SOCKETS + "/launcher-sock", SOCKETS + "/launcher-sock.own")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(SOCKETS + "/launcher-sock")
    listener.listen(64)
    print("listening", flush=True)
    while True:
        threading.Thread(target=serve_one, args=(listener.accept()[0], messages), daemon=True).start()


def notify(what, uid):
    if what == "hold":
        held = []
        for _ in range(200):
            stream = socket.socket(socket.AF_UNIX)
            stream.connect(NOTIFY)
            held.append(stream)
        # virt-handler closes what is beyond its bound when it comes to it; 30 s are enough for that.
        for _ in range(300):
            closed = sum(1 for stream in held if is_closed(stream))
            if closed >= 192:
                break
            time.sleep(0.1)
        print("closed", closed)
        return
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(NOTIFY)
    connection = Connection(stream, True)
    event = field(1, report(what, uid).encode()) + field(3, b"MODIFIED")
    head = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/kubevirt.notify.v1.Notify/HandleDomainEvent"),
            (b":authority", b"handler"), (b"content-type", b"application/grpc"), (b"te", b"trailers"))
    connection.send(HEADERS, 4, 1, header(*head))
    threading.Thread(target=connection.body, args=(1, grpc(event), True), daemon=True).start()
    try:
        for kind, flags, number, payload in connection.frames():
            if number == 1 and (kind in (DATA, RESET) or kind == HEADERS and flags & 1):
                print("answered", kind, payload.hex() if kind == RESET else payload.decode(errors="replace"))
                return
    except (EOFError, OSError) as error:
        print("ended", repr(error))


def is_closed(stream):
    # A server of HTTP/2 speaks first; what it said before it closed is of no interest.
    stream.setblocking(False)
    try:
        while text := stream.recv(4096):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


{"serve": serve, "report": notify}[sys.argv[1]](*sys.argv[2:])
