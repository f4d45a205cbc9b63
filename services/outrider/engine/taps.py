"""Hidden states of a transformers model, taken as they pass between its layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from outrider.core.features import LAST_HIDDEN, layers_of, offered


class Taps:
    """Hooks on the layers whose states are wanted, and on no others."""

    def __init__(self, model: Any) -> None:
        """`model`: a causal LM of transformers."""
        self._decoder = model.get_decoder()
        self._layers = _find_layers(self._decoder, model.config.num_hidden_layers)
        self._wanted: frozenset[str] = frozenset()
        self._handles: list[RemovableHandle] = []
        self._taken: dict[str, torch.Tensor] = {}

    @property
    def offered(self) -> frozenset[str]:
        """What can be taken: `LAST_HIDDEN` alone if the model's layers are no plain list."""
        return offered(len(self._layers)) if self._layers else frozenset({LAST_HIDDEN})

    def set(self, names: Collection[str]) -> None:
        """Take these, any of `offered`, in the forwards to come."""
        if self._wanted == frozenset(names):
            return
        for handle in self._handles:
            handle.remove()
        self._wanted = frozenset(names)
        self._handles = [self._tap(name) for name in self._wanted]

    def take(self) -> Mapping[str, torch.Tensor]:
        """What the last forward passed: [T, hidden_size] each."""
        taken, self._taken = self._taken, {}
        return taken

    def _tap(self, name: str) -> RemovableHandle:
        layers = layers_of(name)
        if layers is None:
            return self._decoder.register_forward_hook(self._after(name))  # type: ignore[no-any-return]
        if layers < len(self._layers):
            return self._layers[layers].register_forward_pre_hook(self._before(name), with_kwargs=True)
        return self._layers[-1].register_forward_hook(self._after(name))

    def _before(self, name: str) -> Callable[..., None]:
        def keep(module: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            # Cloned: a layer may go on to work in place.
            self._taken[name] = (inputs[0] if inputs else named["hidden_states"])[0].clone()

        return keep

    def _after(self, name: str) -> Callable[..., None]:
        def keep(module: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            self._taken[name] = (output if isinstance(output, torch.Tensor) else output[0])[0]

        return keep


def _find_layers(decoder: torch.nn.Module, count: int) -> list[torch.nn.Module]:
    lists = [child for child in decoder.children() if isinstance(child, torch.nn.ModuleList)]
    return next((list(child) for child in lists if len(child) == count), [])
