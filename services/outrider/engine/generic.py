"""Any verified Hugging Face decoder over the paged pool, without touching its code.

The model is called with one packed row of tokens [1, T]. Its attention layers hand their new keys and
values to a cache that only passes them on, and then call the attention function registered here, which
writes them to the pool and reads all from there. Some models pass it no keyword arguments of their caller,
so what it needs is found in a context variable.
"""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import transformers
from transformers.cache_utils import Cache
from transformers.pytorch_utils import Conv1D

from outrider.engine.attention import AttentionKind, attend
from outrider.engine.elementwise import apply_elementwise, replace_activations
from outrider.engine.experts import EXPERTS_NAME
from outrider.engine.kv_store import KvStore, LayerShape
from outrider.engine.plan import StepPlan
from outrider.engine.rows import Projection
from outrider.engine.runner import RunnerOutput
from outrider.engine.taps import Taps

ATTENTION_NAME = "outrider_paged"


@dataclass(slots=True)
class _Running:
    """A forward in progress. Without a plan only the layers' shapes are noted."""

    plan: StepPlan | None
    store: KvStore | None
    shapes: dict[int, LayerShape] = field(default_factory=dict)
    kinds: dict[int, AttentionKind] = field(default_factory=dict)


_running: ContextVar[_Running] = ContextVar("outrider_running")


class _PassingCache(Cache):  # type: ignore[misc]
    """Holds nothing: new keys and values go on to the attention function, which knows the pool."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What comes in. Multi-head latent attention hands over latents here and expands them afterwards."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are always given explicitly."""
        return 0


def _paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """An `AttentionInterface` function: query [1, heads, T, key_dim] to [1, T, heads, value_dim].

    Key and value are those of the packed rows: they are written to the pool, then all are read from there.
    """
    running = _running.get()
    layer = cast(int, module.layer_idx)
    kind = AttentionKind(
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=sliding_window or 0,
        softcap=softcap or 0.0,
        sinks=s_aux,
    )
    if running.plan is None or running.store is None:
        running.shapes[layer] = LayerShape(query.shape[1], key.shape[1], key.shape[3], value.shape[3])
        running.kinds[layer] = kind
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    count = running.plan.count
    rows = (key[0, :, :count].transpose(0, 1).flatten(1), value[0, :, :count].transpose(0, 1).flatten(1))
    running.store.write(layer, running.plan.slots, torch.cat(rows, 1))
    output = attend(running.plan, running.store, layer, query[0].transpose(0, 1).contiguous(), kind)
    return output[None], None


transformers.AttentionInterface.register(ATTENTION_NAME, _paged_attention)


class GenericRunner:
    """Runs a transformers causal LM (implements Runner).

    Args:
        model: in eval mode, with the right type and device; its linear layers are replaced.
        slots: token slots of the pool.
        head_rows: int64 [N] vocabulary ids that the output head is restricted to; None: all.
    """

    def __init__(self, model: Any, slots: int, head_rows: torch.Tensor | None = None) -> None:
        self._model = model
        model.set_attn_implementation(ATTENTION_NAME)
        model.config._experts_implementation = EXPERTS_NAME  # noqa: SLF001 - set_experts_implementation knows its own names only
        self._device = str(model.device)
        if head_rows is not None:
            _restrict_head(model, head_rows)
        self._projections = _replace_linear_layers(model)
        replace_activations(model)
        self._softcap = _take_softcap(model.config)
        self._head = model.get_output_embeddings()
        self._taps = Taps(model)
        self._cache = _PassingCache()
        shapes, self._kinds = self._note_layers()
        self._store = KvStore(shapes, slots, model.dtype, self._device)

    @property
    def store(self) -> KvStore:
        """The pool's tensors."""
        return self._store

    @property
    def attention_kinds(self) -> list[AttentionKind]:
        """How each layer attends."""
        return self._kinds

    @property
    def projections(self) -> list[Projection]:
        """All linear layers."""
        return self._projections

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self._head.out_features  # type: ignore[no-any-return]

    @property
    def features(self) -> frozenset[str]:
        """See Runner.features."""
        return self._taps.offered

    def forward(self, plan: StepPlan, rows: torch.Tensor, *, features: Collection[str] = ()) -> RunnerOutput:
        """See Runner.forward."""
        token = _running.set(_Running(plan, self._store))
        self._taps.set(features)
        try:
            output = self._model(
                input_ids=plan.token_ids[None],
                position_ids=plan.positions[None],
                cache=self._cache,
                use_cache=True,
                logits_to_keep=rows if len(rows) else torch.zeros(1, dtype=torch.int64),
            )
        finally:
            _running.reset(token)
        logits = output.logits[0]
        if self._softcap:
            logits = apply_elementwise(torch.tanh, logits / self._softcap) * self._softcap
        return RunnerOutput(logits[: len(rows)], self._taps.take())

    def _note_layers(self) -> tuple[list[LayerShape], list[AttentionKind]]:
        running = _Running(None, None)
        token = _running.set(running)
        ids = torch.zeros(1, 8, dtype=torch.int64, device=self._device)
        positions = torch.arange(8, device=self._device)[None]
        try:
            self._model(
                input_ids=ids, position_ids=positions, cache=self._cache, use_cache=True, logits_to_keep=1
            )
        finally:
            _running.reset(token)
        layers = range(len(running.shapes))
        return [running.shapes[layer] for layer in layers], [running.kinds[layer] for layer in layers]


def _take_softcap(config: Any) -> float:
    """The cap of the final logits (Gemma 2), which is then applied here; 0: none."""
    cap = getattr(config, "final_logit_softcapping", None)
    if cap is None:
        return 0.0
    config.final_logit_softcapping = None
    return float(cap)


def _replace_linear_layers(model: Any) -> list[Projection]:
    """Put a Projection in the place of every linear layer."""
    replaced = []
    for name, module in list(model.named_modules()):
        if isinstance(module, Conv1D):
            weight = module.weight.t().contiguous()
        elif type(module) is torch.nn.Linear:
            weight = module.weight
        else:
            continue
        projection = Projection(weight, module.bias, name)
        model.set_submodule(name, projection)
        replaced.append(projection)
    return replaced


def _restrict_head(model: Any, head_rows: torch.Tensor) -> None:
    head = model.get_output_embeddings()
    restricted = torch.nn.Linear(head.in_features, len(head_rows), bias=head.bias is not None)
    restricted.weight = torch.nn.Parameter(head.weight[head_rows].clone(), requires_grad=False)
    if head.bias is not None:
        restricted.bias = torch.nn.Parameter(head.bias[head_rows].clone(), requires_grad=False)
    model.set_output_embeddings(restricted)
