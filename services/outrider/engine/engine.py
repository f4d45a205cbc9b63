"""The engine: a model, its KV pool, and packed steps over many sequences."""

from __future__ import annotations

import logging
from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import cast

import torch

from outrider.config.schema import EngineConfig
from outrider.core.errors import InternalError
from outrider.core.fingerprint import tokenizer_fingerprint
from outrider.core.models import ModelInfo
from outrider.core.trees import TokenTree
from outrider.engine.api import PoolUsage, SequenceHandle, StepItem, StepOutput
from outrider.engine.calibration import Least, calibrate
from outrider.engine.features import FeatureStore
from outrider.engine.hugepages import back_with_huge_pages
from outrider.engine.loading import context_length, eos_token_ids, load_config, load_runner, pool_slots
from outrider.engine.parallel.leader import Leader
from outrider.engine.plan import PackedPart, make_plan, node_slots
from outrider.engine.pool import BlockPool
from outrider.engine.probe import is_batch_invariant
from outrider.engine.rows import bucket
from outrider.engine.runner import Runner
from outrider.engine.sequence import Sequence

_log = logging.getLogger(__name__)

_MICRO_BATCH = 8  # tokens of a forward in the slow mode; then all products have the same shape


class Engine:
    """One model with its KV pool (implements EngineApi). One thread owns it."""

    def __init__(
        self,
        runner: Runner,
        info: ModelInfo,
        eos: frozenset[int],
        config: EngineConfig,
        leader: Leader | None = None,
    ) -> None:
        self._runner = runner
        self._leader = leader
        self._info = info
        self._eos = eos
        self._device = torch.device(config.device)
        self._config = config
        self._pool = self._make_pool(config.prefix_cache)
        self._features = FeatureStore(len(runner.store.layers[0]), info.hidden_size, config.device)
        self._batch_invariance = "inexact"
        self._micro_batch = 0  # in the slow mode: most tokens of a forward
        self._least = Least(rows=bucket(1), queries=1)

    @classmethod
    def load(
        cls,
        folder: Path,
        config: EngineConfig,
        *,
        name: str = "",
        lean: bool = True,
        head_rows: torch.Tensor | None = None,
        leader: Leader | None = None,
    ) -> Engine:
        """Load a local checkpoint folder (config.json, *.safetensors, tokenizer.json).

        Args:
            folder: the checkpoint.
            config: type, device, threads, pool.
            name: model name in `info`; empty: the folder's name.
            lean: take the lean forward where the model has one (off: the transformers model itself).
            head_rows: int64 [N] restricts the output head to these vocabulary ids, in this order;
                logits then have N columns.
            leader: of the other ranks that share the model (see `parallel.opening`).

        Raises:
            ConfigError: the folder is no usable checkpoint.
            UnsupportedModelError: the architecture is not supported.
        """
        if config.threads:
            torch.set_num_threads(config.threads)
        model_config = load_config(folder)
        dtype = cast(torch.dtype, getattr(torch, config.dtype))
        with torch.inference_mode():
            runner = load_runner(
                folder,
                model_config,
                dtype=dtype,
                device=config.device,
                slots=pool_slots(config),
                lean=lean,
                head_rows=head_rows,
                group=leader.group if leader else None,
            )
            back_with_huge_pages()  # before anything is timed or calibrated
            info = ModelInfo(
                model_name=name or folder.name,
                tokenizer_fingerprint=tokenizer_fingerprint(folder),
                vocab_size=model_config.vocab_size,
                context_length=context_length(model_config),
                dtype=config.dtype,
                hidden_size=model_config.hidden_size,
                num_layers=model_config.num_hidden_layers,
            )
            shared = leader.lead(runner) if leader else runner
            engine = cls(shared, info, eos_token_ids(folder, model_config), config, leader)
            if config.batch_invariance != "off":
                measure = leader.calibrate if leader else calibrate
                engine._least = measure(runner, dtype, config.device)
                engine._settle_invariance()
        return engine

    @property
    def info(self) -> ModelInfo:
        """Name, tokenizer, sizes."""
        return self._info

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a text."""
        return self._eos

    @property
    def batch_invariance(self) -> str:
        """What the start-up probe found: "exact", "exact_slow" or "inexact"."""
        return self._batch_invariance

    @property
    def pool(self) -> PoolUsage:
        """Blocks in use."""
        return PoolUsage(self._pool.total, self._pool.used, self._pool.cached)

    @property
    def features(self) -> frozenset[str]:
        """Names that `keep_features` may be given."""
        return self._runner.features

    def open(self, token_ids: SequenceOf[int], *, reuse: int | None = None, salt: str = "") -> Sequence:
        """Start a sequence that will hold `token_ids`; KV of a shared prefix, up to `reuse`, is reused."""
        return Sequence(self._pool, token_ids, reuse=reuse, salt=salt)

    def reserve(self, sequence: SequenceHandle, count: int) -> bool:
        """Make room for `count` more tokens past kv_len. False, and nothing changed, if the pool is full."""
        copy = self._own(sequence).grow(count)
        if copy is None:
            return False
        source, target = copy
        if source != target:
            offsets = torch.arange(self._pool.block_size, device=self._device)
            size = self._pool.block_size
            with torch.inference_mode():
                self._move(source * size + offsets, target * size + offsets)
        return True

    def step(self, items: SequenceOf[StepItem]) -> StepOutput:
        """One packed forward over all items. Room must have been reserved.

        Raises:
            InternalError: an item that the caller should not have made (no room, no such token, ...).
        """
        self._check(items)
        with torch.inference_mode():
            parts = [PackedPart(self._own(i.sequence), i.tree, range(i.ran, len(i.tree))) for i in items]
            wanted, rows = _wanted_rows(items)
            run = self._forward_slowly if self._micro_batch else self._forward
            output = run(parts, wanted)
        for part in parts:
            part.sequence.pending = part.tree
        # Made outside of inference mode: callers may change logits in place.
        logits = torch.empty(len(wanted), output.shape[1], dtype=torch.float32)
        logits.copy_(output)
        return StepOutput(logits, rows)

    def keep_features(self, names: Collection[str]) -> None:
        """Keep these hidden states beside the KV from now on, and no others: see EngineApi."""
        unknown = sorted(set(names) - self.features)
        if unknown:
            raise InternalError(f"features {unknown} are not offered")
        with torch.inference_mode():
            if self._features.keep(names):
                self.clear_prefix_cache()

    def features_of(
        self, sequence: SequenceHandle, name: str, start: int, stop: int, nodes: SequenceOf[int] = ()
    ) -> torch.Tensor:
        """A kept feature of tokens of a sequence: see EngineApi.

        Raises:
            InternalError: a feature that is not kept, or positions that were not run.
        """
        own = self._own(sequence)
        if name not in self._features.names:
            raise InternalError(f"feature {name} is not kept")
        held = own.kv_len
        if not 0 <= start <= stop <= held + len(nodes):
            raise InternalError(
                f"tokens {start} to {stop} have no features, only the first {held + len(nodes)}"
            )
        slots = own.slots[start : min(stop, held)]
        if stop > held:
            if own.pending is None or not 0 <= min(nodes) <= max(nodes) < len(own.pending):
                raise InternalError(f"nodes {list(nodes)} are not of the last step")
            path = torch.tensor(nodes[max(start - held, 0) : stop - held])
            slots = torch.cat((slots, node_slots(own, own.pending)[path]))
        with torch.inference_mode():
            return self._features.read(name, slots)

    def commit(self, sequence: SequenceHandle, nodes: SequenceOf[int]) -> None:
        """Keep the KV of these nodes of the sequence's last step: a path from a top node down.

        Raises:
            InternalError: the nodes are no such path, or there was no step.
        """
        own = self._own(sequence)
        tree = own.pending
        if not nodes:
            own.pending = None
            return
        if tree is None:
            raise InternalError("commit without a step before it")
        if not 0 <= nodes[-1] < len(tree) or list(nodes) != tree.path_to(nodes[-1]):
            raise InternalError(f"nodes {list(nodes)} are no path of the tree from a top node down")
        moved = [(node, depth) for depth, node in enumerate(nodes) if node != depth]
        if moved:
            slots = node_slots(own, tree)
            source = slots[torch.tensor([node for node, _ in moved])]
            target = slots[torch.tensor([depth for _, depth in moved])]
            with torch.inference_mode():
                self._move(source, target)
        own.append([tree.token_ids[node] for node in nodes])
        own.pending = None

    def rollback(self, sequence: SequenceHandle, kv_len: int) -> None:
        """Forget committed tokens past `kv_len`."""
        self._own(sequence).truncate(kv_len)

    def release(self, sequence: SequenceHandle) -> None:
        """Give all blocks back. Idempotent."""
        if isinstance(sequence, Sequence):
            sequence.close()

    def dead(self) -> str:
        """Why it cannot run any more, in words; empty: it can. Any thread may ask."""
        return self._leader.dead() if self._leader else ""

    def close(self) -> None:
        """End the other ranks of a model that several share. The thread that owned it must be done."""
        if self._leader:
            self._leader.close()

    def clear_prefix_cache(self) -> None:
        """Forget cached prefixes that no sequence holds, and share none of the others any more."""
        self._pool.clear_cache()

    def _move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._runner.store.move(source, target)
        self._features.move(source, target)

    def _forward(self, parts: list[PackedPart], wanted: list[int]) -> torch.Tensor:
        """Logits of the packed rows `wanted`."""
        plan = make_plan(parts, least_rows=self._least.rows, least_queries=self._least.queries)
        padding = (bucket(len(wanted)) - len(wanted)) if wanted else 0
        rows = torch.tensor(wanted + [0] * padding, dtype=torch.int64)
        output = self._runner.forward(plan, rows, features=self._features.names)
        self._features.write(plan.slots, output.features)
        return output.logits[: len(wanted)]

    def _forward_slowly(self, parts: list[PackedPart], wanted: list[int]) -> torch.Tensor:
        """The same in micro-batches of one sequence each, so that every product has 8 rows."""
        logits: list[torch.Tensor] = []
        first = 0
        for part in parts:
            for start in range(part.nodes.start, part.nodes.stop, self._micro_batch):
                nodes = range(start, min(start + self._micro_batch, part.nodes.stop))
                rows = [row - first for row in wanted if first <= row < first + len(nodes)]
                logits.append(self._forward([PackedPart(part.sequence, part.tree, nodes)], rows))
                first += len(nodes)
        return torch.cat(logits)

    def _settle_invariance(self) -> None:
        """Probe; take the slower exact ways if that is what it needs and what is configured."""
        attempts = (0, _MICRO_BATCH, 1) if self._config.batch_invariance == "exact" else (0,)
        for micro_batch in attempts:
            self._micro_batch = micro_batch
            self._pool = self._make_pool(prefix_cache=False)
            if is_batch_invariant(self, self._stored, chunk=self._config.prefill_chunk):
                self._batch_invariance = "exact_slow" if micro_batch else "exact"
                break
        else:
            self._micro_batch = 0
        self._pool = self._make_pool(self._config.prefix_cache)
        if self._batch_invariance == "exact":
            _log.info("%s: a token's logits do not depend on the batch (probed)", self._info.model_name)
        elif self._batch_invariance == "exact_slow":
            _log.warning(
                "%s: kernels depend on the batch; %d token(s) a forward keep outputs exact, but are slow",
                self._info.model_name,
                self._micro_batch,
            )
        else:
            _log.warning(
                "%s: a token's logits depend on the batch; outputs with and without speculation may differ",
                self._info.model_name,
            )

    def _make_pool(self, prefix_cache: bool) -> BlockPool:
        size = self._config.block_size
        return BlockPool(self._config.pool_tokens // size, size, prefix_cache=prefix_cache)

    def _stored(self, sequence: SequenceHandle) -> torch.Tensor:
        slots = self._own(sequence).slots[: sequence.kv_len]
        return self._runner.store.read(slots)

    def _own(self, sequence: SequenceHandle) -> Sequence:
        if not isinstance(sequence, Sequence) or sequence.closed:
            raise InternalError("the sequence is closed or belongs to another engine")
        return sequence

    def _check(self, items: SequenceOf[StepItem]) -> None:
        seen: set[int] = set()
        for item in items:
            sequence = self._own(item.sequence)
            if id(sequence) in seen:
                raise InternalError("a sequence stands twice in one step")
            seen.add(id(sequence))
            if not 0 <= item.ran < len(item.tree):
                raise InternalError("a step item has no tokens to run")
            if item.ran and not _goes_on(sequence.pending, item.tree, item.ran):
                raise InternalError(f"the last step did not leave these {item.ran} nodes in place")
            if sequence.kv_len + len(item.tree) > sequence.capacity:
                raise InternalError(
                    f"{len(item.tree)} tokens after {sequence.kv_len} do not fit "
                    f"the {sequence.capacity} reserved: call reserve first"
                )
            self._check_tokens(sequence.kv_len, item.tree)

    def _check_tokens(self, kv_len: int, tree: TokenTree) -> None:
        if min(tree.token_ids) < 0 or max(tree.token_ids) >= self._info.vocab_size:
            raise InternalError(f"a token id is not in 0 to {self._info.vocab_size - 1}")
        if kv_len + max(tree.depths()) >= self._info.context_length:
            raise InternalError(f"a position is past the context length {self._info.context_length}")


def _goes_on(pending: TokenTree | None, tree: TokenTree, ran: int) -> bool:
    """Whether the first `ran` nodes of `tree` are those of the step before."""
    if pending is None or len(pending) < ran:
        return False
    same_ids = pending.token_ids[:ran] == tree.token_ids[:ran]
    return same_ids and pending.parents[:ran] == tree.parents[:ran]


def _wanted_rows(items: SequenceOf[StepItem]) -> tuple[list[int], list[slice]]:
    wanted: list[int] = []
    slices: list[slice] = []
    first = 0
    for item in items:
        count = len(item.tree) - item.ran
        start = {"all": 0, "last": count - 1, "none": count}[item.logits]
        slices.append(slice(len(wanted), len(wanted) + count - start))
        wanted += range(first + start, first + count)
        first += count
    return wanted, slices
