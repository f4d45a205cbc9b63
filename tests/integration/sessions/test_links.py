"""Ways to one server: TLS, mutual TLS, an ACL user, a socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from redis.asyncio import Redis

from outrider.core.errors import StoreUnavailableError
from outrider.sessions.redis import RedisStore
from tests.integration.sessions.records import RECORD, commit, record
from tests.servers import RedisServer, redis_server


@asynccontextmanager
async def terminated(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """A port that takes TLS and relays to a server that speaks none."""
    pumps: set[asyncio.Task[None]] = set()

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        except (OSError, ssl.SSLError):
            pass
        finally:
            target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        for task in (pump(reader, up_writer), pump(up_reader, writer)):
            pumps.add(asyncio.create_task(task))

    relay = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield relay.sockets[0].getsockname()[1]
    finally:
        relay.close()
        await asyncio.wait_for(asyncio.gather(*pumps), 30)


class Authority:
    """Certificates of a test, as files."""

    def __init__(self, folder: Path) -> None:
        ca = trustme.CA()
        self.ca, self.certificate, self.key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
        ca.cert_pem.write_to_path(self.ca)
        issued = ca.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(self.key)
        for part in issued.cert_chain_pems:
            part.write_to_path(self.certificate, append=True)
        self.server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        issued.configure_cert(self.server)
        ca.configure_trust(self.server)


async def test_tls_with_an_authority_of_our_own(shared_server: RedisServer, tmp_path: Path) -> None:
    known = Authority(tmp_path)
    async with terminated(shared_server.port, known.server) as port:
        store = RedisStore(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={known.ca}", timeout_s=10.0)
        await store.delete("s-1")
        await store.create(RECORD)
        assert await store.append([commit(0, 5)]) == [None]
        assert await store.load("s-1") == record(tokens=(5,))
        await store.close()
        for url in (f"rediss://127.0.0.1:{port}/0", f"redis://127.0.0.1:{port}/0"):
            store = RedisStore(url, timeout_s=2.0)
            with pytest.raises(StoreUnavailableError, match=f"127.0.0.1:{port}"):
                await store.ping()
            await store.close()


async def test_mutual_tls(shared_server: RedisServer, tmp_path: Path) -> None:
    known = Authority(tmp_path)
    known.server.verify_mode = ssl.CERT_REQUIRED
    async with terminated(shared_server.port, known.server) as port:
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={known.ca}"
        store = RedisStore(f"{url}&ssl_certfile={known.certificate}&ssl_keyfile={known.key}", timeout_s=10.0)
        await store.ping()
        await store.close()
        store = RedisStore(url, timeout_s=10.0)
        with pytest.raises(StoreUnavailableError):
            await store.ping()
        await store.close()


async def test_a_certificate_for_another_name_is_refused(shared_server: RedisServer, tmp_path: Path) -> None:
    known = Authority(tmp_path)
    async with terminated(shared_server.port, known.server) as port:
        url = f"rediss://localhost:{port}/0?ssl_ca_certs={known.ca}"
        store = RedisStore(url, timeout_s=10.0)
        with pytest.raises(StoreUnavailableError, match="certificate is not valid for"):
            await store.ping()
        await store.close()
        store = RedisStore(f"{url}&ssl_check_hostname=false", timeout_s=10.0)
        await store.ping()
        await store.close()


async def test_an_acl_user_needs_no_more_than_the_documented_rights() -> None:
    rights = "+@read +@write +@scripting +@connection ~outrider:*"
    users = f"--user outrider on >hun%ter/2 {rights} --user default off"
    with redis_server(*users.split()) as server:
        store = RedisStore(f"redis://outrider:hun%25ter%2F2@127.0.0.1:{server.port}/0", timeout_s=10.0)
        await store.ping()
        await store.create(RECORD)
        assert await store.append([commit(0, 5)]) == [None]
        await store.restore(record(epoch=2))
        assert (await store.claim("s-1")).tokens == (5,)
        await store.delete("s-1")
        await store.close()


async def test_a_login_that_is_refused_is_told_without_the_password() -> None:
    users = "--user reader on >hunter2 +@read +@connection ~* --requirepass x"
    with redis_server(*users.split()) as server:
        for login, text in (
            ("", "wants a user and a password"),
            ("reader:hunter3@", "refuses the user or the password"),
            ("reader:hunter2@", "does not permit this user"),
        ):
            store = RedisStore(f"redis://{login}127.0.0.1:{server.port}/0", timeout_s=10.0)
            with pytest.raises(StoreUnavailableError, match=text) as caught:
                await store.create(RECORD)
            assert "hunter" not in str(caught.value)
            await store.close()


async def test_a_password_file_that_changes_is_used_by_new_connections(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    with redis_server(password="hunter2") as server:
        url = f"redis://127.0.0.1:{server.port}/0?password_file={file}"
        store = RedisStore(url, timeout_s=10.0)
        await store.create(RECORD)
        admin = Redis.from_url(server.url, protocol=2)
        await admin.config_set("requirepass", "hunter3")
        await admin.client_kill_filter(skipme=True)
        await admin.aclose()
        file.write_text("hunter3\n")
        assert await store.load("s-1") == RECORD
        file.write_text("hunter4\n")
        wrong = RedisStore(url, timeout_s=10.0)
        with pytest.raises(StoreUnavailableError, match="refuses the user or the password") as caught:
            await wrong.ping()
        assert "hunter" not in str(caught.value)
        await wrong.close()
        await store.close()


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with redis_server("--unixsocket", str(path)):
        store = RedisStore(f"unix://{path}?db=3", timeout_s=10.0)
        await store.create(RECORD)
        assert await store.load("s-1") == RECORD
        await store.close()
