"""Sources on S3, read from a local server through one that drops every third connection; needs s3fs and moto[server]."""
import http.client
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")
pytest.importorskip("boto3")

import boto3
from moto.server import ThreadedMotoServer
from pipec.kernels import fetch, remote
from pipec.kernels.cached import Cache
from pipec.kernels.sources import SourceError, open_source
from test_remote import COLUMNS, local, same, tar_bytes


class Dropping(BaseHTTPRequestHandler):
    """Hands requests on, all but every third one for an object."""

    protocol_version = "HTTP/1.1"
    to, every, count = ("", 0), 3, 0

    def log_message(self, *args):
        pass

    def do_GET(self):
        if "Range" in self.headers:
            type(self).count += 1
            if self.every and self.count % self.every == 0:
                self.connection.close()
                self.close_connection = True
                return
        inner = http.client.HTTPConnection(*self.to)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        inner.request(self.command, self.path, body, dict(self.headers))
        reply = inner.getresponse()
        data = reply.read()
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", reply.getheader("Content-Length") if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_HEAD = do_PUT = do_GET


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    Dropping.to, Dropping.count = server.get_host_and_port(), 0
    front = ThreadingHTTPServer(("127.0.0.1", 0), Dropping)
    threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    for name, value in (("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_DEFAULT_REGION", "us-east-1"),
                        ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{front.server_address[1]}")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote, "_shared", [])
    monkeypatch.setattr(remote, "Cache", partial(Cache, str(tmp_path / "kept")))
    fetch._filesystem.cache_clear()
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    yield client
    front.shutdown()
    front.server_close()
    server.stop()


def test_shards_in_a_bucket_whose_server_drops_connections(tmp_path, bucket):
    shards = [tar_bytes(150, seed=s) for s in range(2)]
    for n, data in enumerate(shards):
        bucket.put_object(Bucket="bucket", Key=f"d/x-{n}.tar", Body=data)
    near = open_source("tar", [local(tmp_path, f"x-{n}.tar", data) for n, data in enumerate(shards)], {}, COLUMNS)
    far = open_source("tar", ["s3://bucket/d/x-*.tar"], {}, COLUMNS)
    same(far, near, np.random.default_rng(0).permutation(300))
    assert Dropping.count >= 6, "some requests were dropped"


def test_an_object_that_changes_and_ones_that_are_not_there(bucket):
    bucket.put_object(Bucket="bucket", Key="x.tar", Body=tar_bytes(200))
    far = open_source("tar", ["s3://bucket/x.tar"], {}, COLUMNS)
    bucket.put_object(Bucket="bucket", Key="x.tar", Body=tar_bytes(200, seed=4))
    remote.shared().recent.clear()
    remote.shared().cache.limit = 0
    remote.shared().cache._evict(0)
    with pytest.raises(SourceError, match="has changed while it was read"):
        far.read(100)
    for path in ("s3://bucket/none.tar", "s3://nowhere/x.tar"):
        with pytest.raises(SourceError, match=f"there is no file `{path}`"):
            open_source("tar", [path], {}, COLUMNS)
