"""The proxy of the fault tests breaks links as it says; if it did not, they would prove nothing."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.proxy import Proxy
from tests.stack import wait_until


class _Echo(socketserver.BaseRequestHandler):
    """Sends everything back; says goodbye when the client's half ends."""

    def handle(self) -> None:
        while data := self.request.recv(4096):
            self.request.sendall(data)
        self.request.sendall(b"bye")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A reset is what some tests are about."""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with _Server(("127.0.0.1", 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        host, port = server.server_address[:2]
        with Proxy(f"{host!s}:{port}", record=True) as running:
            yield running
        server.shutdown()


def client(proxy: Proxy, timeout_s: float = 10) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=timeout_s)


def ask(one: socket.socket, data: bytes) -> bytes:
    one.sendall(data)
    answer = b""
    while len(answer) < len(data):
        piece = one.recv(4096)
        if not piece:
            break
        answer += piece
    return answer


def test_forwards_both_ways_and_the_end(proxy: Proxy) -> None:
    with closing(client(proxy)) as one:
        assert ask(one, b"x" * 300_000) == b"x" * 300_000
        one.shutdown(socket.SHUT_WR)
        assert one.recv(16) == b"bye"
        assert one.recv(16) == b""
    wait_until(lambda: proxy.connections == 0, "the connection is over")


def test_cut_resets_what_is_open_and_takes_new_connections(proxy: Proxy) -> None:
    with closing(client(proxy)) as one:
        assert ask(one, b"a") == b"a"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            one.recv(1)
    with closing(client(proxy)) as other:
        assert ask(other, b"b") == b"b"


def test_refused_connections_are_reset_until_it_accepts_again(proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionError), closing(client(proxy)) as one:
        ask(one, b"a")
    proxy.accept()
    with closing(client(proxy)) as other:
        assert ask(other, b"b") == b"b"


def test_frozen_links_forward_nothing_and_lose_nothing(proxy: Proxy) -> None:
    with closing(client(proxy, timeout_s=0.3)) as one:
        assert ask(one, b"a") == b"a"
        proxy.freeze()
        one.sendall(b"later")
        with pytest.raises(TimeoutError):
            one.recv(16)
        proxy.thaw()
        one.settimeout(10)
        assert one.recv(16) == b"later"


def test_half_closed_links_still_answer(proxy: Proxy) -> None:
    with closing(client(proxy)) as one:
        assert ask(one, b"a") == b"a"
        proxy.half_close()
        assert one.recv(16) == b"bye"


def test_delay_holds_each_chunk_back_in_each_direction(proxy: Proxy) -> None:
    proxy.delay_s = 0.1
    with closing(client(proxy)) as one:
        start = time.monotonic()
        assert ask(one, b"a") == b"a"
        assert time.monotonic() - start >= 0.2


def test_throttled_links_take_their_time(proxy: Proxy) -> None:
    proxy.bytes_per_s = 10_000
    with closing(client(proxy)) as one:
        start = time.monotonic()
        assert ask(one, b"a" * 1000) == b"a" * 1000
        assert time.monotonic() - start >= 0.2


def test_replay_sends_the_bytes_of_a_connection_again(proxy: Proxy) -> None:
    with closing(client(proxy)) as one:
        assert ask(one, b"once") == b"once"
    assert proxy.replay(0) == b"once"
