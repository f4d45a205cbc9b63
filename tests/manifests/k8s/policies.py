"""What network policies let through, worked out as Kubernetes does for pods of one namespace."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from tests.manifests.k8s.rendering import Object, selects


@dataclass(frozen=True)
class Peer:
    """One end of a connection: a pod with its namespace's labels, or an address outside."""

    labels: dict[str, str] | None = None
    namespace: dict[str, str] | None = None  # None: the one of the policies
    address: str = ""


def allowed(policies: list[Object], source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether pods of the namespace at either end may have this connection."""
    return _way(policies, "Egress", source, target, port, protocol) and _way(
        policies, "Ingress", target, source, port, protocol
    )


def _way(policies: list[Object], kind: str, own: Peer, other: Peer, port: int, protocol: str) -> bool:
    if own.labels is None or own.namespace is not None:
        return True  # not ours to police
    mine = [
        policy["spec"]
        for policy in policies
        if kind in policy["spec"]["policyTypes"] and selects(policy["spec"]["podSelector"], own.labels)
    ]
    if not mine:
        return True
    side = "to" if kind == "Egress" else "from"
    rules = [rule for spec in mine for rule in spec.get(kind.lower()) or ()]
    return any(
        (not rule.get("ports") or any(_port(entry, port, protocol) for entry in rule["ports"]))
        and (not rule.get(side) or any(_peer(peer, other) for peer in rule[side]))
        for rule in rules
    )


def _port(entry: Object, port: int, protocol: str) -> bool:
    if entry.get("protocol", "TCP") != protocol:
        return False
    first = entry["port"]
    return bool(first <= port <= entry.get("endPort", first))


def _peer(peer: Object, other: Peer) -> bool:
    if block := peer.get("ipBlock"):
        if not other.address:
            return False
        address = ipaddress.ip_address(other.address)
        inside = [ipaddress.ip_network(block["cidr"]), *map(ipaddress.ip_network, block.get("except", ()))]
        return address in inside[0] and not any(address in network for network in inside[1:])
    if other.labels is None:
        return False
    if "namespaceSelector" not in peer:
        return other.namespace is None and selects(peer["podSelector"], other.labels)
    home = other.namespace if other.namespace is not None else {"kubernetes.io/metadata.name": "prod"}
    return selects(peer["namespaceSelector"], home) and selects(peer.get("podSelector", {}), other.labels)
