"""From a URL to a client of Redis (or Valkey): one server, Sentinel or Cluster, with TLS or without.

- `redis://[USER:PASSWORD@]HOST:PORT/DB`, and `unix://[USER:PASSWORD@]/PATH?db=DB`
- `redis+sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/SERVICE/DB`: the hosts are the sentinels, the login
  is that of the servers behind them; sentinels that want one too get `?sentinel_username=&sentinel_password=`
- `redis+cluster://[USER:PASSWORD@]HOST:PORT,HOST:PORT`: some of its nodes; they tell the others

`rediss` in place of `redis` is TLS on every connection; certificates are named by `?ssl_ca_certs=FILE`,
`ssl_certfile=`, `ssl_keyfile=`. Anything but letters and digits in a password is percent-encoded.

With `?password_file=FILE` the password is that file's content, read again when it changes: so a URL, and
what holds it, need be no secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast
from urllib.parse import SplitResult, unquote, urlsplit

from redis.asyncio import (
    BlockingConnectionPool,
    Redis,
    RedisCluster,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import Connection, RedisSSLContext, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from outrider.core.errors import ConfigError
from outrider.redis_link.login import FileLogin

Client = Redis | RedisCluster

MAX_CONNECTIONS = 32
"""Connections to one server."""
_FORMS = (
    "redis://HOST:PORT/DB, unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB or "
    "redis+cluster://HOST:PORT,HOST:PORT (rediss: with TLS)"
)
_SCHEMES = ("redis", "unix", "redis+sentinel", "redis+cluster", "rediss", "rediss+sentinel", "rediss+cluster")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS_OPTIONS = {*_FILES, "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers"}
_OPTIONS = {"client_name", "db", "health_check_interval", "password_file", "socket_keepalive"}
_SENTINEL_OPTIONS = {"sentinel_username", "sentinel_password"}


@dataclass(frozen=True, slots=True)
class Place:
    """What a URL says."""

    kind: str  # redis, unix, sentinel or cluster
    tls: bool
    hosts: tuple[tuple[str, int], ...]  # none: a unix socket
    path: str  # of the unix socket
    service: str  # Sentinel's name of the server
    db: int
    options: dict[str, Any] = field(repr=False)  # login included; redis-py's names, and password_file

    @property
    def address(self) -> str:
        """For logs and messages: without login and options."""
        if self.kind == "unix":
            return f"unix://{self.path}"
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind == "redis" else f"+{self.kind}")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        if self.kind == "cluster":
            return f"{scheme}://{hosts}"
        return f"{scheme}://{hosts}/{self.service}{'/' if self.service else ''}{self.db}"


def connect(
    url: str, *, timeout_s: float, max_connections: int = MAX_CONNECTIONS, setting: str = "store.url"
) -> Client:
    """A client that connects at its first call. It never retries: its caller knows what may be repeated.

    Args:
        url: one of the forms above.
        timeout_s: longest wait of one call. A single read waits for a part of it where there are
            several hosts, so that one that is frozen leaves time to ask the next.
        max_connections: more calls at the same time wait for one. A Cluster's nodes have at least 32 each:
            there, more calls than that fail.
        setting: what the URL is called in the configuration, for messages.

    Raises:
        ConfigError: `url` is none of the forms, an option is unknown, or a file that it names is not there.
            The text never repeats the URL: it may hold a password.
    """
    place = read(url, setting=setting)
    common: dict[str, Any] = {
        **_with_login(place.options, setting),
        "protocol": 2,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "max_connections": max_connections,
        "driver_info": None,
    }
    if place.kind == "cluster":
        return _cluster(place, common, timeout_s)
    common |= {"db": place.db, "retry": Retry(NoBackoff(), 0)}
    if place.kind == "sentinel":
        return _behind_sentinels(place, common, timeout_s)
    return Redis.from_pool(BlockingConnectionPool(timeout=timeout_s, **_end(place), **common))


def address_of(url: str, *, setting: str = "store.url") -> str:
    """`url` without login and options, for logs and messages. Raises ConfigError as `connect` does."""
    return read(url, setting=setting).address


def read(url: str, *, setting: str = "store.url") -> Place:
    """What `url` says. Raises ConfigError as `connect` does."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES:
            raise ValueError
        name, _, kind = parts.scheme.partition("+")
        kind = kind or ("unix" if name == "unix" else "redis")
        login, _, hosts = parts.netloc.rpartition("@")
        options = cast(dict[str, Any], parse_url(f"redis://localhost?{parts.query}"))
        options.pop("host")
        service, db = _path(kind, parts)
        place = Place(
            kind=kind,
            tls=name == "rediss",
            hosts=() if kind == "unix" else _hosts(hosts, 26379 if kind == "sentinel" else 6379),
            path=unquote(parts.path) if kind == "unix" else "",
            service=service,
            db=options.pop("db", db),
            options=options | _login(login),
        )
    except ValueError:
        raise ConfigError(
            f"{setting} must be {_FORMS}; percent-encode what is special in a password"
        ) from None
    _check(place, setting)
    return place


def _path(kind: str, parts: SplitResult) -> tuple[str, int]:
    """Service and number of the database. Raises ValueError: the path is of another form."""
    if kind == "unix":
        if not parts.path.startswith("/"):
            raise ValueError
        return "", 0
    steps = [unquote(step) for step in parts.path.strip("/").split("/")] if parts.path.strip("/") else []
    service = steps.pop(0) if kind == "sentinel" and steps else ""
    db = steps.pop(0) if steps else "0"
    if steps or not db.isdecimal() or (kind == "sentinel" and not service):
        raise ValueError
    return service, int(db)


def _hosts(text: str, default_port: int) -> tuple[tuple[str, int], ...]:
    """Raises ValueError: not HOST:PORT,HOST:PORT."""
    found = []
    for item in text.split(","):
        one = urlsplit(f"//{item}")
        if not one.hostname or one.path or one.query or one.username is not None:
            raise ValueError
        found.append((one.hostname, default_port if one.port is None else one.port))
    return tuple(found)


def _login(text: str) -> dict[str, str]:
    username, _, password = text.partition(":")
    login = {"username": unquote(username), "password": unquote(password)}
    return {name: value for name, value in login.items() if value}


def _with_login(options: dict[str, Any], setting: str) -> dict[str, Any]:
    """`options` with the file of a password as redis-py takes it. Raises ConfigError: it cannot be read."""
    if "password_file" not in options:
        return options
    rest = {name: value for name, value in options.items() if name not in ("password_file", "username")}
    login = FileLogin(options.get("username"), Path(options["password_file"]), setting)
    return rest | {"credential_provider": login}


def _check(place: Place, setting: str) -> None:
    """Whatever else could only be found out at the first call."""

    def wrong(text: str) -> NoReturn:
        raise ConfigError(f"{setting}: {text}")

    known = _OPTIONS | {"username", "password"}
    known |= _TLS_OPTIONS if place.tls else set()
    known |= _SENTINEL_OPTIONS if place.kind == "sentinel" else set()
    for name in sorted(set(place.options) - known):
        wrong(f"option {name!r} needs rediss" if name in _TLS_OPTIONS else f"unknown option {name!r}")
    if "password_file" in place.options and "password" in place.options:
        wrong("a password and a password_file exclude each other")
    if place.kind == "redis" and len(place.hosts) > 1:
        wrong("several hosts need redis+sentinel or redis+cluster")
    if place.kind == "cluster" and place.db:
        wrong("a Cluster has no database but 0")
    for name in _FILES:
        if name in place.options and not Path(place.options[name]).is_file():
            wrong(f"{name}: no such file: {place.options[name]}")
    if place.tls:
        try:
            RedisSSLContext(**_context(place.options)).get()
        except (RedisError, OSError, ValueError) as error:
            wrong(f"TLS: {error}")


def _context(options: dict[str, Any]) -> dict[str, Any]:
    chosen = {name: value for name, value in options.items() if name in _TLS_OPTIONS}
    defaults = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    return {name.removeprefix("ssl_"): value for name, value in (defaults | chosen).items()}


def _end(place: Place) -> dict[str, Any]:
    """The one server's end, as a connection pool takes it."""
    if place.kind == "unix":
        return {"connection_class": UnixDomainSocketConnection, "path": place.path}
    (host, port), *_ = place.hosts
    return {"connection_class": SSLConnection if place.tls else Connection, "host": host, "port": port}


class _SentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the master of the moment; closes those to the sentinels with itself."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


def _behind_sentinels(place: Place, common: dict[str, Any], timeout_s: float) -> Redis:
    tls = {"ssl": place.tls, **{name: value for name, value in common.items() if name in _TLS_OPTIONS}}
    each = timeout_s / (len(place.hosts) + 1)  # one call can ask all of them, and then the master
    asking: dict[str, Any] = {
        "username": common.pop("sentinel_username", None),
        "password": common.pop("sentinel_password", None),
        "protocol": 2,
        "socket_timeout": each,
        "socket_connect_timeout": each,
        "retry": common["retry"],
        "driver_info": None,
        **tls,
    }
    sentinels = Sentinel(list(place.hosts), sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
    client: Redis = sentinels.master_for(
        place.service, connection_pool_class=_SentinelPool, **common | tls, timeout=timeout_s
    )
    return client


def _cluster(place: Place, common: dict[str, Any], timeout_s: float) -> RedisCluster:
    common["max_connections"] = max(common["max_connections"], MAX_CONNECTIONS)
    each = timeout_s / 3  # one call can ask a frozen node for the map, then another one, then write
    return RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in place.hosts],
        require_full_coverage=False,  # sessions of other slots go on
        retry=Retry(NoBackoff(), 0),
        ssl=place.tls,
        **common | {"socket_timeout": each, "socket_connect_timeout": each},
    )
