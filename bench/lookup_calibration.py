"""How much a vote of a look-up is worth: written by the target itself, fitted, and replayed.

    python bench/lookup_calibration.py write /tmp/texts.json   # the target answers the prompts below
    python bench/lookup_calibration.py fit /tmp/texts.json     # weights, confidences, tokens per round

`fit` goes through each answer a token at a time, asks the index what followed before, and adjusts the weights
(`outrider.drafting.lookup.voting`) so that the confidences say how often the next token is right: least log
loss over the odd answers. Confidences and rounds that it prints are of the even ones, with the weights in
force.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.lookup import voting
from outrider.drafting.lookup.continuation import LONGEST_MATCH, Continuation
from outrider.drafting.lookup.own_text import OwnText
from outrider.drafting.lookup.shared_text import SharedText
from outrider.drafting.lookup.suffix import FLOOR, SHARED_GRAMS

PASSAGES = (
    "The harbour of Velmark was built in 1742 by order of Queen Isolde. Its two stone piers are each "
    "310 metres long. Until 1889 it was used by fishing boats only; then the railway came, and coal "
    "was shipped to the islands. Today the harbour is home to 86 sailing boats, a small museum and a "
    "school for boat builders.",
    "Bees tell each other where flowers are by dancing. In the waggle dance a bee runs straight "
    "ahead while it shakes its body, then returns in a half circle, once to the left and once to the "
    "right. The angle of the run shows the direction of the flowers relative to the sun, and its "
    "length shows how far away they are.",
    "def average(values):\n    total = 0\n    for value in values:\n        total = total + value\n  "
    "  return total / len(values)\n\ndef largest(values):\n    best = values[0]\n    for value in "
    "values:\n        if value > best:\n            best = value\n    return best",
    "Dear team, the meeting on Thursday is moved to Friday at 10 o'clock, because the large room is "
    "being painted. Please bring your reports on the water pumps. Anna will show the new plan for "
    "the garden, and Tomas will explain the costs. If you cannot come, write to Anna before "
    "Wednesday evening. Kind regards, Maria",
    "A volcano is an opening in the crust of a planet through which lava, ash and gases escape. Most "
    "volcanoes on Earth lie where plates of the crust move apart or towards each other. A volcano "
    "that erupts is called active; one that may erupt again is called dormant; one that will never "
    "erupt again is called extinct.",
    "Name: Green soup. Serves: four. You need 500 g of peas, one onion, two potatoes, one litre of "
    "water, salt and pepper. Chop the onion and the potatoes. Fry the onion in a little oil. Add the "
    "potatoes and the water and boil for 15 minutes. Add the peas and boil for 5 minutes more. Blend "
    "the soup and add salt and pepper.",
)
TASKS = (
    "Summarize this text in two sentences:\n\n{}",
    "Repeat this text, but correct all mistakes in it:\n\n{}",
    "Rewrite this so that a child understands it:\n\n{}",
    "Translate this text to French:\n\n{}",
    "List the most important facts of this text as bullet points:\n\n{}",
    "Ask three questions about this text and answer each:\n\n{}",
    "Turn this into a JSON object with fields of your choice:\n\n{}",
    "Add a comment or an explanation after each sentence or line:\n\n{}",
)
ALONE = (
    "Write a short story about a lighthouse keeper and a whale.",
    "Explain how a bicycle stays upright.",
    "Write a Python class for a bank account with deposit, withdraw and transfer.",
    "What are the steps to plant a tree?",
    "A train leaves at 9:40 and arrives at 13:05. How long does it take? Explain step by step.",
    "Write a poem about rain in four stanzas.",
    "Compare cats and dogs in a table with five rows.",
    "Write unit tests in Python for a function that reverses a string.",
    "Write an HTML page with a form of five fields.",
    "Tell me about the planets of the solar system, one by one.",
    "Write an email asking a landlord to repair the heating.",
    "What is the difference between weather and climate?",
)
SHAPE = TreeShape.parse("dynamic", 4)
DEPTH = 8

Texts = Sequence[tuple[list[int], list[int]]]
"""Prompts and answers."""
Moment = tuple[list[Continuation], int]
"""What was found, and the token that came."""


def write(path: Path, model: str, max_tokens: int, batch: int) -> None:
    """Greedy answers of the target: prompt and answer, as token ids."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from outrider import catalogue

    torch.set_num_threads(1)
    folder = catalogue.resolve(model)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    prompts = [task.format(passage) for passage in PASSAGES for task in TASKS] + list(ALONE)
    laid_out = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": one}], add_generation_prompt=True, tokenize=False
        )
        for one in prompts
    ]
    texts: list[tuple[list[int], list[int]]] = []
    for start in range(0, len(laid_out), batch):
        inputs = tokenizer(laid_out[start : start + batch], return_tensors="pt", padding=True)
        with torch.inference_mode():
            out = target.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        width = inputs["input_ids"].shape[1]
        for ids, mask, row in zip(inputs["input_ids"], inputs["attention_mask"], out, strict=True):
            answer = row[width:].tolist()
            end = answer.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in answer else len(answer)
            texts.append((ids[mask.bool()].tolist(), answer[:end]))
        path.write_text(json.dumps(texts))
        print(f"{len(texts)} of {len(laid_out)}", flush=True)


def moments(texts: Texts, grams: Sequence[int], served: SharedText | None = None) -> Iterator[Moment]:
    """What a look-up finds before each token of each answer, and the token.

    With `served`, earlier answers are looked at too, as if all were one tenant's.
    """
    for prompt, answer in texts:
        text = OwnText(grams)
        tokens = list(prompt)
        for token in answer:
            text.extend(tokens, len(tokens))
            found = text.find(tokens, 1)
            yield found if served is None else found + served.find("", tokens[-LONGEST_MATCH:], 1), token
            tokens.append(token)
        if served is not None and answer:
            served.add("", prompt, answer)


def fitted(samples: Sequence[Moment], steps: int) -> tuple[list[float], float]:
    """Weights at the knots, and the share of shared votes, with the least log loss, by gradient descent."""
    import torch

    lengths = [length for length, _ in voting.KNOTS]
    # How much each knot counts for a match of each length.
    spread = torch.zeros(lengths[-1] + 1, len(lengths))
    for length in range(1, lengths[-1] + 1):
        place = max(index for index, low in enumerate(lengths) if low <= length)
        if place == len(lengths) - 1:
            spread[length, place] = 1.0
            continue
        low, high = lengths[place], lengths[place + 1]
        spread[length, place + 1] = (length - low) / (high - low)
        spread[length, place] = 1.0 - spread[length, place + 1]
    found = [(voters, token) for voters, token in samples if voters]
    everything = torch.zeros(2, len(found), lengths[-1] + 1)  # own and shared; moments; lengths
    right = torch.zeros_like(everything)
    for row, (voters, token) in enumerate(found):
        for voter in voters:
            everything[int(voter.shared), row, voter.length] += 1
            right[int(voter.shared), row, voter.length] += voter.token_ids[0] == token
    hits = (right.sum((0, 2)) > 0).float()
    logs = torch.tensor([math.log(weight) for _, weight in voting.KNOTS], requires_grad=True)
    share = torch.tensor(math.log(voting.SHARED_WEIGHT), requires_grad=True)
    optimizer = torch.optim.Adam([logs, share], lr=0.05)
    for _ in range(steps):
        weights = spread @ logs.exp()
        scale = torch.stack([torch.ones(()), share.exp()])[:, None]
        total = (everything @ weights * scale).sum(0) + 1.0
        hit = (right @ weights * scale).sum(0) / total
        # A token that nobody votes for: all that is against.
        loss = -(hits * hit.clamp_min(1e-9).log() + (1 - hits) * (1.0 / total).log()).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [round(float(weight), 2) for weight in logs.detach().exp()], round(float(share.detach().exp()), 2)


def report(samples: Sequence[Moment]) -> None:
    """How often the token with the most votes is right, by its confidence."""
    buckets: dict[int, list[tuple[float, bool]]] = {}
    for voters, token in samples:
        if not voters:
            continue
        tree = voting.grow(voters, SHAPE, depth=1, nodes=1)
        confidence = tree.confidences[0]
        buckets.setdefault(int(confidence * 10), []).append((confidence, tree.token_ids[0] == token))
    for _, entries in sorted(buckets.items()):
        said = sum(confidence for confidence, _ in entries) / len(entries)
        hit = sum(right for _, right in entries) / len(entries)
        print(f"  confidence {said:.2f}: right {hit:.2f} of {len(entries)}")


def tokens_per_round(
    texts: Texts, grams: Sequence[int], shape: TreeShape, nodes: int, floor: float, served: SharedText | None
) -> tuple[float, float]:
    """Tokens of the answers, and draft tokens, divided by the rounds that they take, drafts of this shape."""
    rounds = made = drafted = 0
    for prompt, answer in texts:
        text, done = OwnText(grams), 0
        while done < len(answer):
            tokens = prompt + answer[:done]
            text.extend(tokens, len(tokens))
            found = text.find(tokens, DEPTH)
            if served is not None:
                found += served.find("", tokens[-LONGEST_MATCH:], DEPTH)
            tree = voting.grow(found, shape, depth=DEPTH, nodes=nodes, floor=floor)
            drafted += len(tree)
            children, node = tree.children(), -1
            for token in answer[done:]:
                done += 1
                made += 1
                node = children.get(node, {}).get(token, -2)
                if node == -2:
                    break
            rounds += 1
        if served is not None and answer:
            served.add("", prompt, answer)
    return made / rounds, drafted / rounds


def fit(path: Path, grams: Sequence[int], steps: int, share: bool) -> None:
    """Print weights, and how the present ones do on answers that they were not fitted on."""

    def served() -> SharedText | None:
        return SharedText(SHARED_GRAMS, 2**18) if share else None

    texts: Texts = [(prompt, answer) for prompt, answer in json.loads(path.read_text())]
    print(f"{len(texts)} texts, {sum(len(answer) for _, answer in texts)} tokens, n-grams {tuple(grams)}")
    weights, shared = fitted(list(moments(texts[1::2], grams, served())), steps)
    print("knots", *zip((length for length, _ in voting.KNOTS), weights, strict=True))
    print("weight of shared text", shared)
    report(list(moments(texts[::2], grams, served())))
    for name, shape, nodes, floor in (
        ("chain of 4", TreeShape(), 4, 0.0),
        ("chain of 8", TreeShape(), 8, 0.0),
        ("tree of 8", SHAPE, 8, 0.0),
        ("tree of 16", SHAPE, 16, 0.0),
        (f"tree of 16, floor {FLOOR}", SHAPE, 16, FLOOR),
    ):
        made, drafted = tokens_per_round(texts[::2], grams, shape, nodes, floor, served())
        print(f"  {name}: {made:.3f} tokens per round of {drafted:.2f} draft tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("write", "fit"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--grams", default="1,2,3,4", help="lengths of n-grams that are indexed")
    parser.add_argument("--share", action="store_true", help="look at earlier answers too")
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    if arguments.command == "write":
        write(arguments.path, arguments.model, arguments.max_tokens, arguments.batch)
    else:
        fit(
            arguments.path, [int(one) for one in arguments.grams.split(",")], arguments.steps, arguments.share
        )


if __name__ == "__main__":
    main()
