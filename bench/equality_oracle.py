"""The same prompts through `transformers.generate`: greedy, fp32, one at a time, its own KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from transformers import AutoModelForCausalLM, AutoTokenizer

from outrider.benchmark.workload import Prompt
from outrider.catalogue import resolve

ORACLE = "transformers"


@lru_cache(maxsize=1)
def _load(name: str) -> tuple[Any, Any]:
    folder = resolve(name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def _prompt_ids(tokenizer: Any, prompt: Prompt) -> torch.Tensor:
    messages = [{"role": "user", "content": prompt.text}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids


@torch.inference_mode()
def answer_missing(
    name: str, prompts: Sequence[Prompt], max_tokens: int
) -> Iterator[tuple[Prompt, list[int]]]:
    """Each prompt with its generated ids, the end-of-sequence token left out as our API does."""
    if not prompts:
        return
    model, tokenizer = _load(name)
    ends = model.generation_config.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends or ())
    for prompt in track(prompts, ORACLE, console=Console(stderr=True)):
        ids = _prompt_ids(tokenizer, prompt)
        # A checkpoint's own sampling defaults would draw warnings next to do_sample=False.
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            pad_token_id=tokenizer.pad_token_id or 0,
        )
        generated = output[0, ids.shape[1] :].tolist()
        yield prompt, generated[:-1] if generated and generated[-1] in ends else generated


@torch.inference_mode()
def margin_at(name: str, prompt: Prompt, generated: Sequence[int]) -> float:
    """Logit of the most probable next token less that of the second one, after these tokens."""
    model, tokenizer = _load(name)
    ids = torch.cat(
        [_prompt_ids(tokenizer, prompt), torch.tensor([list(generated)], dtype=torch.int64)], dim=1
    )
    best = model(ids).logits[0, -1].topk(2).values
    return float(best[0] - best[1])
