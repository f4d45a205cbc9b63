"""ModelInfo."""

from __future__ import annotations

from outrider.core.models import ModelInfo
from outrider.wire.convert import fields
from outrider.wire.v1 import common_pb2 as pb


def model_info_to_proto(info: ModelInfo) -> pb.ModelInfo:
    return pb.ModelInfo(
        model_name=info.model_name,
        tokenizer_fingerprint=info.tokenizer_fingerprint,
        vocab_size=info.vocab_size,
        context_length=info.context_length,
        dtype=info.dtype,
        hidden_size=info.hidden_size,
        num_layers=info.num_layers,
    )


def model_info_from_proto(message: pb.ModelInfo) -> ModelInfo:
    """Raises ProtocolError: a text is too long."""
    with fields.from_peer("model"):
        return ModelInfo(
            model_name=fields.text("model_name", message.model_name),
            tokenizer_fingerprint=fields.text("tokenizer_fingerprint", message.tokenizer_fingerprint),
            vocab_size=message.vocab_size,
            context_length=message.context_length,
            dtype=fields.text("dtype", message.dtype, longest=32),
            hidden_size=message.hidden_size,
            num_layers=message.num_layers,
        )
