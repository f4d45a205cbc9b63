"""URLs of the store: what they mean, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme
from redis.asyncio import Redis, RedisCluster, SSLConnection
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection

from outrider.core.errors import ConfigError
from outrider.redis_link.connect import Client, address_of, connect, read


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("redis://user:hunter2@h:7000/3", "redis://h:7000/3"),
        ("redis://:hunter2@[::1]:7000", "redis://[::1]:7000/0"),
        ("rediss://h:1/2?ssl_cert_reqs=none", "rediss://h:1/2"),
        ("redis://h?db=4", "redis://h:6379/4"),
        ("unix:///run/redis.sock?db=3", "unix:///run/redis.sock"),
        ("unix://user:hunter2@/run/redis.sock", "unix:///run/redis.sock"),
        ("redis+sentinel://a,b:1/main", "redis+sentinel://a:26379,b:1/main/0"),
        ("redis+sentinel://user:hunter2@a:1,b:2/main/5", "redis+sentinel://a:1,b:2/main/5"),
        ("rediss+cluster://:hunter2@a,b:2,[::1]:3", "rediss+cluster://a:6379,b:2,[::1]:3"),
        ("redis+cluster://a/0", "redis+cluster://a:6379"),
    ],
)
def test_the_address_is_the_url_without_login_and_options(url: str, address: str) -> None:
    assert address_of(url) == address
    assert address_of(address) == address


def test_logins_are_percent_decoded() -> None:
    place = read("redis://us%40er:p%2Fa%3As%23s%2C@h")
    assert (place.options["username"], place.options["password"]) == ("us@er", "p/a:s#s,")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://user:hunter2@h", "must be redis://HOST:PORT/DB"),
        ("hunter2", "must be"),
        ("", "must be"),
        ("redis://", "must be"),
        ("redis://:hunter2@", "must be"),
        ("redis://:hunter2@h:port", "must be"),
        ("redis://:hunter2@h:99999", "must be"),
        ("redis://:hunter/2@h:1/0", "percent-encode"),
        ("redis://:1/hunter2@h/0", "percent-encode"),
        ("redis://:hunter#2@h:1/0", "percent-encode"),
        ("redis://:hunter2@h/zero", "must be"),
        ("redis://:hunter2@h/0/1", "must be"),
        ("redis://:hunter2@h?db=x", "must be"),
        ("unix://:hunter2@", "must be"),
        ("redis+sentinel://:hunter2@a,b", "must be"),
        ("redis+sentinel://:hunter2@a,,b/main", "must be"),
        ("redis+sentinel://:hunter2@a/main/x", "must be"),
        ("unix+sentinel://:hunter2@a/main", "must be"),
        ("redis://:hunter2@a,b/0", "several hosts need"),
        ("redis+cluster://:hunter2@a/1", "no database but 0"),
        ("redis://:hunter2@h?ssl_ca_certs=x", "'ssl_ca_certs' needs rediss"),
        ("rediss://:hunter2@h?ssl_ca_certs=/no/such", "no such file: /no/such"),
        ("rediss://:hunter2@h?ssl_cert_reqs=perhaps", "TLS: "),
        ("redis://:hunter2@h?decode_responses=true", "unknown option 'decode_responses'"),
        ("redis://:hunter2@h?sentinel_password=hunter2", "unknown option 'sentinel_password'"),
        ("redis://:hunter2@h?pasword=hunter2", "unknown option 'pasword'"),
        ("redis://h?password_file=/no/such", "password_file: cannot read /no/such"),
        ("redis://h?password_file=/dev/null", "password_file: /dev/null is empty"),
        ("redis://:hunter2@h?password_file=/dev/null", "a password and a password_file exclude each other"),
    ],
)
def test_a_wrong_url_is_refused_and_not_repeated(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        connect(url, timeout_s=1.0, setting="registry.url")
    assert str(caught.value).startswith("registry.url")
    assert "hunter" not in str(caught.value)


def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "ca.pem"
    wrong.write_text("hello")
    with pytest.raises(ConfigError, match="TLS: "):
        connect(f"rediss://h?ssl_ca_certs={wrong}", timeout_s=1.0)


def kwargs_of(client: Client) -> dict[str, Any]:
    assert isinstance(client, Redis)
    return client.connection_pool.connection_kwargs


async def test_what_the_url_says_reaches_the_connections(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(ca)
    client = connect(f"rediss://u:p@h:1/2?ssl_ca_certs={ca}", timeout_s=3.0)
    assert isinstance(client, Redis)
    assert client.connection_pool.connection_class is SSLConnection
    expected = {"host": "h", "port": 1, "db": 2, "username": "u", "password": "p", "ssl_ca_certs": str(ca)}
    assert expected.items() <= kwargs_of(client).items()
    assert kwargs_of(client)["socket_timeout"] == 3.0
    assert client.connection_pool.make_connection().ssl_context.check_hostname is True


async def test_sentinels_have_a_login_of_their_own_and_share_the_time(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(ca)
    client = connect(
        f"rediss+sentinel://u:p@a,b:2,c/main/4?sentinel_password=s&ssl_ca_certs={ca}", timeout_s=4.0
    )
    assert {"db": 4, "username": "u", "password": "p"}.items() <= kwargs_of(client).items()
    assert "sentinel_password" not in kwargs_of(client)
    pool = client.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.connection_class is SentinelManagedSSLConnection
    assert pool.service_name == "main"
    asking = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(kwargs["host"], kwargs["port"]) for kwargs in asking] == [("a", 26379), ("b", 2), ("c", 26379)]
    for kwargs in asking:
        assert (kwargs.get("username"), kwargs["password"]) == (None, "s")
        assert kwargs["ssl_ca_certs"] == str(ca)
        assert kwargs["socket_timeout"] == 1.0


async def test_a_cluster_is_found_by_any_of_its_nodes() -> None:
    client = connect("redis+cluster://u:p@10.0.0.1:1,10.0.0.2:2", timeout_s=3.0)
    assert isinstance(client, RedisCluster)
    assert sorted(node.name for node in client.startup_nodes) == ["10.0.0.1:1", "10.0.0.2:2"]
    assert client.connection_kwargs["password"] == "p"
    assert client.connection_kwargs["socket_timeout"] == 1.0


@pytest.mark.parametrize("scheme", ["redis://{}h", "redis+sentinel://{}a,b/main", "redis+cluster://{}a,b"])
async def test_a_password_from_a_file_is_asked_for_at_each_connection(tmp_path: Path, scheme: str) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    client = connect(f"{scheme.format('u@')}?password_file={file}", timeout_s=1.0)
    kwargs = client.connection_kwargs if isinstance(client, RedisCluster) else kwargs_of(client)
    assert not any(kwargs.get(name) for name in ("username", "password", "password_file"))
    assert kwargs["credential_provider"].get_credentials() == ("u", "hunter2")
    file.write_text("hunter3!")
    assert kwargs["credential_provider"].get_credentials() == ("u", "hunter3!")
    file.write_text("")
    assert kwargs["credential_provider"].get_credentials() == ("u", "hunter3!")
