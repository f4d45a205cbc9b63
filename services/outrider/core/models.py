"""What services say of the models they hold, and which of them may work together."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.core.errors import ModelMismatchError

PROTOCOL_VERSION = 1
"""Version of the gRPC protocol in protos/outrider/v1."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as its service describes it; the proto message of the same name explains each field.

    A head that works on a target's hidden states gives that target's sizes.
    """

    model_name: str
    tokenizer_fingerprint: str = ""
    vocab_size: int = 0
    context_length: int = 0
    dtype: str = ""
    hidden_size: int = 0
    num_layers: int = 0

    @property
    def identity(self) -> str:
        """What must be the same for another replica to go on with a session, in one line."""
        return f"{self.model_name} ({self.dtype}, tokenizer {self.tokenizer_fingerprint})"


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """A drafter as it describes itself."""

    model: ModelInfo
    method: str
    features: tuple[str, ...]
    max_draft_tokens: int
    max_sessions: int
    instance_id: str
    last_feature_only: bool = False
    protocol_version: int = PROTOCOL_VERSION


def check_protocol(theirs: int, who: str) -> None:
    """Refuse a peer that speaks another version of the protocol.

    Raises:
        ModelMismatchError: names both versions.
    """
    if theirs != PROTOCOL_VERSION:
        raise ModelMismatchError(
            f"{who} speaks protocol version {theirs}, this service speaks {PROTOCOL_VERSION}"
        )


def check_pairing(target: ModelInfo, drafter: DrafterInfo, offered_features: frozenset[str]) -> None:
    """Refuse a drafter whose proposals could not be verified.

    A vocabulary that is padded (another `vocab_size` over the same tokenizer) is accepted: ids
    past either model's head are simply never proposed or never accepted.

    Raises:
        ModelMismatchError: what differs, and both values.
    """
    who = f"drafter {drafter.method!r} ({drafter.model.model_name})"
    check_protocol(drafter.protocol_version, who)
    theirs = drafter.model.tokenizer_fingerprint
    if theirs and theirs != target.tokenizer_fingerprint:
        raise ModelMismatchError(
            f"{who} has another tokenizer ({theirs[:12]}...) than target {target.model_name} "
            f"({target.tokenizer_fingerprint[:12]}...): draft and target must share one"
        )
    missing = sorted(set(drafter.features) - offered_features)
    if missing:
        raise ModelMismatchError(
            f"{who} needs features {missing}, the verifier offers {sorted(offered_features)}"
        )
    if drafter.features and drafter.model.hidden_size != target.hidden_size:
        raise ModelMismatchError(
            f"{who} takes hidden states of {drafter.model.hidden_size} elements, "
            f"target {target.model_name} has {target.hidden_size}"
        )
    layers = drafter.model.num_layers
    if drafter.features and layers and layers != target.num_layers:
        raise ModelMismatchError(
            f"{who} drafts for a target of {layers} layers, {target.model_name} has {target.num_layers}"
        )
