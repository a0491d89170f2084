"""A small HTTP server for tests: files in memory, ranges, and whatever may go wrong with them."""
import hashlib
import threading
import urllib.parse
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Store:
    """`files` by path. `trouble(path, number)` names what happens to the n-th request for a range; None: nothing."""

    def __init__(self):
        self.files, self.trouble, self.ranges, self.tags = {}, lambda path, number: None, True, True
        self.asked, self.sent, self.heads = Counter(), Counter(), Counter()
        self.lock = threading.Lock()

    def url(self, path):
        return f"{self.base}/{path}"


def _handler(store):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_HEAD(self):
            path, data = self._found()
            if data is not None:
                store.heads[path] += 1
                self._head(200, len(data) + (1000 if store.trouble(path, 0) == "longer" else 0), data)

        def do_GET(self):
            path, data = self._found()
            if data is None:
                return
            asked = self.headers.get("Range")
            with store.lock:
                store.asked[path] += 1
                number = store.asked[path]
            trouble = store.trouble(path, number)
            if trouble == "drop":
                self.connection.close()
                self.close_connection = True
                return
            if isinstance(trouble, int):
                self._head(trouble, 0, b"")
                return
            if asked is None or not store.ranges:
                self._head(200, len(data), data)
                self.wfile.write(data)
                store.sent[path] += len(data)
                return
            start, end = asked.removeprefix("bytes=").split("-")
            start, end = int(start), min(int(end) + 1, len(data))
            if start >= len(data):
                self._head(416, 0, data)
                return
            part = data[start:end]
            self._head(206, len(part), data, f"bytes {start}-{end - 1}/{len(data)}")
            if trouble == "short":
                self.wfile.write(part[: len(part) // 2])
                self.connection.close()
                self.close_connection = True
                return
            self.wfile.write(part)
            store.sent[path] += len(part)

        def _found(self):
            path = urllib.parse.unquote(self.path.partition("?")[0].lstrip("/"))
            if path.endswith("/") or not path:
                names = sorted(n for n in store.files if n.startswith(path))
                page = "".join(f'<a href="/{n}">{n}</a>\n' for n in names).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(page)))
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(page)
                return path, None
            data = store.files.get(path)
            if data is None:
                self._head(404, 0, b"")
            return path, data

        def _head(self, status, length, data, place=None):
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            if store.tags:
                self.send_header("ETag", '"' + hashlib.md5(data).hexdigest() + '"')
            self.send_header("Accept-Ranges", "bytes" if store.ranges else "none")
            if place:
                self.send_header("Content-Range", place)
            self.end_headers()

    return Handler


@contextmanager
def serving():
    """A `Store` that answers at its `base`."""
    store = Store()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(store))
    server.daemon_threads = True
    store.base = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
