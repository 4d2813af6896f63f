"""Statistics of keyed tables over HTTP, for Prometheus, while a program trains."""

from __future__ import annotations

import http.server
import threading

import tensorflow as tf

from group_embedding.variables.table_statistics import statistics


class StatisticsServer:
    """Answers `GET /metrics` with the statistics of the process's keyed tables, until `close`.
    Tables of graphs, such as an Estimator's, are not among them: `EmbeddingVariableStatisticsHook`
    reads these.

    A thread of its own reads them when it is asked. Over several ranks each has a server of its
    own, with the metrics of its tables, which have the rank as a label.

    Args:
        port: 0: one that is free.
        host: the address to listen at; "0.0.0.0": all of the machine's.

    Attributes:
        port: the port that it listens at.

    Raises:
        OSError: the port is taken.
        RuntimeError: TensorFlow 2's behavior is off.

    Example:

    >>> import urllib.request
    >>> users = ge.keyed_table("scraped_users", dim=2)
    >>> with ge.StatisticsServer() as server:
    ...     url = f"http://127.0.0.1:{server.port}/metrics"
    ...     text = urllib.request.urlopen(url).read().decode()
    >>> 'group_embedding_table_keys{table="scraped_users",rank="0"} 0' in text
    True
    """

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        if not tf.compat.v1.executing_eagerly_outside_functions():
            raise RuntimeError("StatisticsServer: expected TensorFlow 2's behavior, which is off")
        self._server = http.server.ThreadingHTTPServer((host, port), _Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="statistics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> StatisticsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = 10  # seconds that a client may be silent

    def do_GET(self):
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "expected /metrics")
            return
        try:
            content = statistics().prometheus().encode()
        except Exception as error:  # such as of a disk that fails: the scraper learns of it
            self.send_error(500, explain=f"{type(error).__name__}: {error}")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_):
        """Writes no line for each scrape."""
