"""Holds connections that say nothing, until standard input ends.

Arguments: what is opened: COUNT ADDRESS PORT, again and again; and `udp COUNT ADDRESS PORT` for datagrams, each from a port of its own.
Printed once all is open: for each of them how many are held.
"""
import resource, socket, sys

limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
held, counts, words = [], [], sys.argv[1:]
while words:
    if words[0] == "udp":
        _, count, address, port, *words = words
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        for _ in range(int(count)):
            with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
                datagrams.sendto(b"?", (address, int(port)))
        counts.append(int(count))
        continue
    count, address, port, *words = words
    opened = 0
    for _ in range(int(count)):
        try:
            held.append(socket.create_connection((address, int(port)), 2))
            opened += 1
        except OSError:
            # Refused, or full: what is to be seen is how others fare.
            if opened == 0 or len(held) >= limit - 16:
                break
    counts.append(opened)
print(" ".join(map(str, counts)), flush=True)
sys.stdin.read()
