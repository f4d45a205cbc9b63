"""The processed distribution and the pick once more, in plain Python: one row, lists, sorting, math.exp."""

from __future__ import annotations

import math

import torch

from outrider.core.noise import exponentials, streams
from outrider.core.params import SamplingParams


def probs(logits: list[float], params: SamplingParams) -> list[float]:
    ranked = sorted(
        (index for index, logit in enumerate(logits) if logit > -math.inf),
        key=lambda index: (-logits[index], index),
    )
    best = logits[ranked[0]]
    if params.temperature == 0.0:
        return [1.0 if index == ranked[0] else 0.0 for index in range(len(logits))]
    weight = {index: math.exp((logits[index] - best) / params.temperature) for index in ranked}
    ranked = [index for index in ranked if weight[index] >= params.min_p]
    if params.top_k:
        ranked = ranked[: params.top_k]
    if params.top_p < 1.0:
        total = math.fsum(weight[index] for index in ranked)
        kept, mass = [], 0.0
        for index in ranked:
            if mass >= params.top_p * total:
                break
            kept.append(index)
            mass += weight[index]
        ranked = kept
    if params.typical_p < 1.0:
        ranked = typical(ranked, weight, params.typical_p)
    total = math.fsum(weight[index] for index in ranked)
    chosen = set(ranked)
    return [weight[index] / total if index in chosen else 0.0 for index in range(len(logits))]


def typical(ranked: list[int], weight: dict[int, float], typical_p: float) -> list[int]:
    """Those nearest to the entropy; the definition, with logarithms."""
    total = math.fsum(weight[index] for index in ranked)
    prob = {index: weight[index] / total for index in ranked}
    surprise = {index: -math.log(prob[index]) if prob[index] else 800.0 for index in ranked}
    entropy = math.fsum(prob[index] * surprise[index] for index in ranked)
    kept, mass = [], 0.0
    for index in sorted(ranked, key=lambda index: round(abs(surprise[index] - entropy), 9)):
        if mass >= typical_p:
            break
        kept.append(index)
        mass += prob[index]
    return kept


def pick(probabilities: list[float], seed: int, position: int) -> int:
    noise = exponentials(streams([(seed, position)]), torch.arange(len(probabilities))).tolist()
    return min(
        (index for index, prob in enumerate(probabilities) if prob > 0.0),
        key=lambda index: (noise[index] / probabilities[index], index),
    )
