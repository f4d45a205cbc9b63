"""Where the /metrics pages of the deployment are, as Prometheus' HTTP service discovery wants to hear it."""

from __future__ import annotations

from typing_extensions import TypedDict

from outrider.discovery import Instance, Registry, is_unspecified


class TargetGroup(TypedDict):
    """One page."""

    targets: list[str]  # host:port
    labels: dict[str, str]  # role; name, of drafters


class Targets:
    """The pages of everybody in the registry, and this gateway's own."""

    def __init__(self, registry: Registry) -> None:
        """`registry`: not closed here."""
        self._registry = registry
        self._own: tuple[Instance, ...] = ()

    def add_own(self, gateway: Instance) -> None:
        """Tell of this gateway: a fixed list does not know it."""
        self._own = (gateway,)

    async def groups(self) -> list[TargetGroup]:
        """One for each page that others can reach. While the registry is away: of its last list."""
        listed = (*self._own, *await self._registry.list())
        pages = {instance.metrics: instance for instance in listed if _has_page(instance)}
        found = sorted(pages.values(), key=lambda one: (one.role.value, one.name, one.metrics))
        return [_group(instance) for instance in found]


def _has_page(instance: Instance) -> bool:
    return bool(instance.metrics) and not is_unspecified(instance.metrics)


def _group(instance: Instance) -> TargetGroup:
    labels = {"role": instance.role.value}
    if instance.name:
        labels["name"] = instance.name
    return {"targets": [instance.metrics], "labels": labels}
