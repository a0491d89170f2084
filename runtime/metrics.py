"""A server's figures as Prometheus text, on a port of 127.0.0.1. Needs the package prometheus-client."""
from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .errors import DataError

if TYPE_CHECKING:
    from .server import Server

OF_SERVER = {
    "rows": ("records written into the ring", "counter"),
    "read": ("bytes read from files", "counter"),
    "bytes": ("bytes written into the ring", "counter"),
    "fill": ("records in the ring that somebody still needs", "gauge"),
    "capacity": ("records that the ring has room for", "gauge"),
    "waited": ("seconds for which the producer waited for consumers", "counter"),
    "epoch": ("epoch that is being written", "gauge"),
    "position": ("position within it", "gauge"),
    "rejected": ("peers that were refused", "counter"),
}
OF_MEMBER = {
    "taken": ("records read", "counter"),
    "lost": ("records passed unread", "counter"),
    "lag": ("records behind the head", "gauge"),
    "waited": ("seconds for which it waited for records", "counter"),
    "blocked": ("seconds for which the producer waited for it", "counter"),
}


class Collector:
    """Asks a server when it is asked."""

    def __init__(self, server: Server):
        self.server = server

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        report = self.server.report()
        for name, (text, kind) in OF_SERVER.items():
            value = getattr(report, name)
            if value is None:                             # the system doesn't tell
                continue
            family = kinds[kind](f"pipec_{name}", text, labels=["server"])
            family.add_metric([report.name], value)
            yield family
        bad = CounterMetricFamily("pipec_bad", "bad records left out", labels=["server"])
        bad.add_metric([report.name], sum(report.counts.bad_counts.values()))
        yield bad
        for name, (text, kind) in OF_MEMBER.items():
            family = kinds[kind](f"pipec_consumer_{name}", text, labels=["server", "consumer", "label", "pid"])
            for m in report.members:
                family.add_metric([report.name, str(m.number), m.label, str(m.pid)], getattr(m, name))
            yield family


def expose(server: Server, port: int) -> int:
    """Answer at http://127.0.0.1:PORT/metrics from a thread; 0 takes a free port. Returns the port. Raises DataError."""
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
    except ImportError as error:
        raise DataError("E0836", "`--metrics` needs the package prometheus-client",
                        notes=("install it: pip install 'pipec[metrics]'",)) from error
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    registry = CollectorRegistry()
    registry.register(Collector(server))
    try:
        made = make_server("127.0.0.1", port, make_wsgi_app(registry), handler_class=Silent)
    except (OSError, OverflowError) as error:
        raise DataError("E0836", f"port {port} of 127.0.0.1 can't be used: {getattr(error, 'strerror', 'there is no such port')}",
                        notes=("`--metrics 0` takes a free one",)) from error
    threading.Thread(target=made.serve_forever, name="pipec-metrics", daemon=True).start()
    return int(made.server_port)
