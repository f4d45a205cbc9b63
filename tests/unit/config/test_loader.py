"""YAML and --set become one configuration, or one clear message."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.config import OutriderConfig, dump_config, load_config, without_secrets
from outrider.core.errors import ConfigError

LOCAL = Path(__file__).parents[3] / "deploy" / "local"


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def test_without_a_file_it_is_the_demo() -> None:
    config = load_config(None)
    assert config.model == "smollm2-135m-instruct"
    assert list(config.drafters) == ["eagle", "prompt_lookup"]
    assert (config.gateway.http_port, config.gateway.grpc_port) == (8000, 9000)


@pytest.mark.parametrize("path", sorted(LOCAL.glob("*.yaml")), ids=lambda path: path.name)
def test_every_local_deployment_loads(path: Path) -> None:
    assert load_config(path).drafters


def test_an_empty_file_is_the_schemas_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "")) == OutriderConfig()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("verifier.dtype=float32", lambda c: c.verifier.dtype == "float32"),
        ("drafters.eagle.dtype=float32", lambda c: c.drafters["eagle"].dtype == "float32"),
        ("verifier.batch_invariance=off", lambda c: c.verifier.batch_invariance == "off"),
        ("verifier.patience_ms=1e2", lambda c: c.verifier.patience_ms == 100.0),
        ("gateway.verifiers=[a:1, b:2]", lambda c: c.gateway.verifiers == ("a:1", "b:2")),
        ("verifier.metrics_port=9101", lambda c: c.verifier.metrics_port == 9101),
        ("drafters.more={method: prompt_lookup}", lambda c: c.drafters["more"].method == "prompt_lookup"),
        ("drafters.prompt_lookup=null", lambda c: list(c.drafters) == ["eagle"]),
        ("drafters={}", lambda c: c.drafters == {}),
        ("verifier.drafter=fused", lambda c: c.verifier.drafter == "fused"),
        (
            "verifier.drafter=prompt_lookup+eagle",
            lambda c: c.verifier.drafter == "prompt_lookup+eagle",
        ),
        ("store.url=redis://h:1/0?x=y", lambda c: c.store.url == "redis://h:1/0?x=y"),
        ("telemetry={log_level: debug}", lambda c: c.telemetry.log_level == "debug"),
    ],
)
def test_overrides(override: str, expected: object) -> None:
    assert callable(expected)
    assert expected(load_config(None, [override]))


def test_later_overrides_win_and_sections_need_not_stand_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "model: here")
    config = load_config(path, ["verifier.port=1", "verifier.port=2", "verifier.draft_length=7"])
    assert (config.model, config.verifier.port, config.verifier.draft_length) == ("here", 2, 7)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("verifier.dtyp=float32", ["verifier.dtyp", "did you mean 'dtype'"]),
        ("verifier.dtype=float31", ["verifier.dtype", "'float31'", "'bfloat16', 'float32' or 'float16'"]),
        ("verifier.port=70000", ["verifier.port", "70000", "65535"]),
        ("verifier.block_size=17", ["verifier", "divide 256", "17"]),
        ("verifier.drafter=zz", ["'zz'", "eagle", "prompt_lookup", "fused"]),
        ("verifier.drafter=eagle+zz", ["'eagle+zz'", "prompt_lookup", "fused"]),
        ("drafters.fused={method: prompt_lookup}", ["drafter", "'fused'", "something else"]),
        ("drafters.off={method: prompt_lookup}", ["drafter", "'off'"]),
        ("drafters.a+b={method: prompt_lookup}", ["drafter", "'a+b'"]),
        ("drafters.eagel.dtype=float32", ["drafters.eagel", "did you mean 'eagle'"]),
        ("drafters.eagle.foo=1", ["drafters.eagle", "'foo'", "run_ahead"]),
        ("gateway={portt: 3}", ["gateway.portt", "http_port"]),
        ("foo=1", ["'foo'", "verifier"]),
        ("verifier.port.x=3", ["verifier.port", "9100"]),
        ("model.x=3", ["model"]),
        ("verifier", ["path.to.value=VALUE", "'verifier'"]),
        ("verifier..port=1", ["path.to.value=VALUE"]),
        ("verifier.port=[", ["verifier.port", "YAML"]),
        ("security.public_tls={server_name: a.example}", ["public_tls", "server_name", "plaintext"]),
        ("security.internal_tls.server_name=a.example", ["internal_tls", "server_name", "plaintext"]),
    ],
)
def test_wrong_overrides_say_what_is_wrong_and_what_is_allowed(override: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("verifier: {dtyp: float32}", ["verifier.dtyp", "did you mean 'dtype'"]),
        ("verifier: {port: x}\ngateway: {http_port: -1}", ["verifier.port", "gateway.http_port"]),
        ("model: a\nmodel: b", ["'model'", "twice", "line 2"]),
        ("- a", ["mapping"]),
        ("a: [", ["not valid YAML"]),
        ("!!python/object/apply:os.system [ls]", ["not valid YAML"]),
    ],
)
def test_wrong_files_name_the_file_and_the_place(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    for part in [str(path), *parts]:
        assert part in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load_config(tmp_path / "absent.yaml")


@example(dtype="float32", invariance="off", port=None, patience=1.0, name="0e0")
@given(
    dtype=st.sampled_from(["bfloat16", "float32"]),
    invariance=st.sampled_from(["exact", "warn", "off"]),
    port=st.none() | st.integers(0, 65535),
    patience=st.floats(1e-3, 1e9),
    name=st.text(min_size=1).filter(lambda text: text.isprintable() and "+" not in text),
)
def test_dump_and_load_agree(
    tmp_path_factory: pytest.TempPathFactory,
    dtype: str,
    invariance: str,
    port: int | None,
    patience: float,
    name: str,
) -> None:
    verifier = {"dtype": dtype, "batch_invariance": invariance, "metrics_port": port, "patience_ms": patience}
    config = OutriderConfig.model_validate(
        {"verifier": verifier, "served_name": name, "drafters": {name: {"method": "prompt_lookup"}}}
    )
    assert load_config(write(tmp_path_factory.mktemp("config"), dump_config(config))) == config


@given(st.text())
def test_any_override_text_gives_a_configuration_or_a_config_error(text: str) -> None:
    try:
        load_config(None, [text, f"verifier.dtype={text}", f"served_name={text}"])
    except ConfigError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:secret@host:1/0", "redis://:***@host:1/0"),
        ("rediss+cluster://user:se:cr/e@t@a:1,b:2", "rediss+cluster://user:***@a:1,b:2"),
        (
            "redis+sentinel://u:secret@a:1/s/0?sentinel_username=v&sentinel_password=secret&db=1",
            "redis+sentinel://u:***@a:1/s/0?sentinel_username=v&sentinel_password=***&db=1",
        ),
        ("unix://u:secret@/run/redis?password=secret", "unix://u:***@/run/redis?password=***"),
        ("redis://u@h/0?password_file=/run/pw&db=1", "redis://u@h/0?password_file=/run/pw&db=1"),
    ],
)
def test_passwords_of_urls_are_masked_and_nothing_else(url: str, shown: str) -> None:
    told = {"store": {"url": url}, "registry": {"url": url}, "telemetry": {"otlp_endpoint": url}}
    config = OutriderConfig.model_validate(told)
    masked = without_secrets(config)
    assert {masked.store.url, masked.registry.url, masked.telemetry.otlp_endpoint} == {shown}
    assert config.store.url == url
    assert "secret" not in dump_config(masked)


@pytest.mark.parametrize(
    "text",
    [
        "store: redis://:secret@host:1/0",
        "store: {url: [redis://:secret@host:1/0]}",
        "store: {url: redis://:secret@host:1/0",
        "store: {url: redis://:secret@host:1/0}}",
    ],
)
def test_errors_of_a_file_repeat_no_password(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load_config(None, [text.replace("store: ", "store=")])
    assert "secret" not in str(caught.value)
