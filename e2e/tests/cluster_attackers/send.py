"""Sends requests by TLS, without looking at the other side's certificate, and prints a line for each answer.

Standard input: JSON lists [what, address, port, method, path, headers, body], one a line; a body that is a number stands for a review
of so many maps of one member, nested 110 deep. All are sent at once. Printed: [what, code, start of the answer, seconds], and code 0
for a connection that broke.
"""
import http.client, json, ssl, sys, threading, time

DEPTH = 110
tls = ssl._create_unverified_context()
printed = threading.Lock()


def review(maps):
    tower = '{"":' * DEPTH + "0" + "}" * DEPTH
    kind = {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachineInstance"}
    request = {"uid": "u", "kind": kind, "operation": "CREATE", "namespace": "default", "name": "n", "userInfo": {},
               "resource": {"group": "kubevirt.io", "version": "v1", "resource": "virtualmachineinstances"}, "object": "OBJECT"}
    text = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    return text.replace('"OBJECT"', '{"metadata": {"name": "n"}, "x": [' + ",".join([tower] * (maps // DEPTH)) + "]}")


def send(what, address, port, method, path, headers, body):
    if isinstance(body, int):
        body = review(body)
    elif not isinstance(body, (str, type(None))):
        body = json.dumps(body)
    begin = time.monotonic()
    try:
        connection = http.client.HTTPSConnection(address, port, timeout=60, context=tls)
        connection.connect()
        try:
            connection.request(method, path, body, {"content-type": "application/json", **headers})
        except OSError:
            pass  # The server may answer, and close, before all of a body is sent: the answer is there to be read.
        answer = connection.getresponse()
        code, text = answer.status, answer.read(1 << 20).decode(errors="replace")
    except Exception as error:
        code, text = 0, repr(error)
    with printed:
        print(json.dumps([what, code, text[:4096], time.monotonic() - begin]), flush=True)


threads = [threading.Thread(target=send, args=json.loads(line)) for line in sys.stdin if line.strip()]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
