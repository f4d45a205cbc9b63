"""Which /metrics pages Prometheus is told of."""

from __future__ import annotations

from outrider.config.schema import OutriderConfig
from outrider.discovery import Instance, Role, StaticRegistry, open_registry
from outrider.gateway.targets import Targets


def verifier(address: str, page: str) -> Instance:
    return Instance(Role.VERIFIER, address, metrics=page)


async def test_each_page_once_by_role_and_name() -> None:
    registry = StaticRegistry(
        [
            verifier("10.0.0.2:9100", "10.0.0.2:9101"),
            verifier("10.0.0.1:9100", "10.0.0.1:9101"),
            Instance(Role.DRAFTER, "10.0.0.3:9200", "twin", metrics="10.0.0.3:9201"),
            Instance(Role.GATEWAY, "10.0.0.4:9000", metrics="10.0.0.4:8000"),
        ]
    )
    targets = Targets(registry)
    targets.add_own(Instance(Role.GATEWAY, "10.0.0.4:9000", metrics="10.0.0.4:8000"))
    assert await targets.groups() == [
        {"targets": ["10.0.0.3:9201"], "labels": {"role": "drafter", "name": "twin"}},
        {"targets": ["10.0.0.4:8000"], "labels": {"role": "gateway"}},
        {"targets": ["10.0.0.1:9101"], "labels": {"role": "verifier"}},
        {"targets": ["10.0.0.2:9101"], "labels": {"role": "verifier"}},
    ]


async def test_no_page_and_pages_that_nobody_can_reach_are_left_out() -> None:
    targets = Targets(StaticRegistry([verifier("10.0.0.1:9100", ""), verifier("[::]:9100", "[::]:9101")]))
    targets.add_own(Instance(Role.GATEWAY, "0.0.0.0:9000", metrics="0.0.0.0:8000"))
    assert await targets.groups() == []


async def pages(config: OutriderConfig) -> dict[str, str]:
    groups = await Targets(open_registry(config, Role.VERIFIER, Role.DRAFTER)).groups()
    return {group["targets"][0]: "/".join(group["labels"].values()) for group in groups}


async def test_of_a_fixed_list_what_the_configuration_says() -> None:
    own = OutriderConfig.model_validate(
        {
            "verifier": {"host": "10.0.0.1", "metrics_port": 9101},
            "drafters": {
                "listed": {"addresses": ["one:9200", "two:9200", "[::1]:9300"], "metrics_port": 9201},
                "mute": {"host": "10.0.0.2", "port": 9300},
            },
        }
    )
    assert await pages(own) == {
        "10.0.0.1:9101": "verifier",
        "one:9201": "drafter/listed",
        "two:9201": "drafter/listed",
        "[::1]:9201": "drafter/listed",
    }
    several = {"verifiers": ["v1:9100", "v2:9100"]}
    verifiers = OutriderConfig.model_validate({"gateway": several, "verifier": {"metrics_port": 9101}})
    assert await pages(verifiers) == {"v1:9101": "verifier", "v2:9101": "verifier"}
