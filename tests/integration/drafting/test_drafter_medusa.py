"""A drafter with Medusa heads over gRPC, fed with the hidden states of a real (tiny) target."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from outrider.config.schema import DrafterConfig
from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.ranking import ranked_picks
from outrider.core.rounds import Proposal
from outrider.drafting.factory import build_method
from outrider.wire.convert.drafter import drafter_info_from_proto, drafter_info_request
from outrider.wire.messages import AdvanceDraft, FeatureBlock, OpenDraft
from tests.integration.drafting.conftest import RunningDrafter
from tests.tiny_medusa import ReferenceHeads, State, make_tiny_medusa, medusa_config, write_medusa
from tests.tiny_models import make_tiny

Start = Callable[..., Awaitable[RunningDrafter]]

HEADS, HIDDEN, VOCAB = 3, 64, 512
PARAMS = SamplingParams(temperature=0.8, seed=3)
TEXT = tuple(torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist())
IDS = torch.arange(1, VOCAB, 2)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("target"), vocab_size=VOCAB)


@pytest.fixture(scope="module")
def states(target: Path) -> torch.Tensor:
    """bf16 [tokens, hidden_size] after the final norm, as transformers has them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([TEXT]), output_hidden_states=True).hidden_states[-1][0]
    return found.bfloat16()


def bare(reference: ReferenceHeads) -> State:
    """Heads without output heads."""
    return {name: own for name, own in reference.state_dict().items() if "linear" in name}


@pytest.mark.parametrize("published", ["fasterdecoding", "of the target"])
async def test_proposals_over_grpc(
    target: Path, states: torch.Tensor, tmp_path: Path, start: Start, published: str
) -> None:
    """Output heads of their own, or the target's over a draft vocabulary; commits of several lengths."""
    reference, ids = ReferenceHeads.random(HEADS), torch.arange(VOCAB)
    folder = make_tiny_medusa(tmp_path / "heads", heads=HEADS)
    if published == "of the target":
        write_medusa(folder, medusa_config(HEADS), bare(reference))
        save_file({"draft_vocabulary": IDS}, folder / "draft_vocabulary.safetensors")
        ids = IDS
        for head in reference:
            head[-1].weight.data = load_file(target / "model.safetensors")["lm_head.weight"][ids]

    def block(length: int) -> tuple[FeatureBlock, ...]:
        row = states[length - 2].view(torch.int16).numpy().tobytes()
        return (FeatureBlock("last_hidden", length - 2, 1, HIDDEN, row),)

    drafter = await start(
        target=str(target), method="medusa", model=str(folder), dtype="float32", tree="2,2,1"
    )
    async with drafter.link() as link:
        info = drafter_info_from_proto(await link.client.GetInfo(drafter_info_request()))
        assert (info.features, info.last_feature_only) == (("last_hidden",), True)
        assert (info.model.hidden_size, info.model.vocab_size) == (HIDDEN, VOCAB)
        await link.send(OpenDraft("s", 1, TEXT[:20], PARAMS, 0, prompt_len=20))
        length = 20
        for more in (1, 4, 3):
            stop = length + more
            proposal = await link.ask(
                AdvanceDraft("s", 1, length, TEXT[length:stop], 0, 3, features=block(stop), draft_nodes=10)
            )
            assert isinstance(proposal, Proposal)
            assert (proposal.base_len, len(proposal.tree)) == (stop, 10)
            said = reference.say(states[stop - 2].float())
            for node, own in proposal.tree.children().items():
                depth = len(proposal.tree.path_to(node))
                picks, _ = ranked_picks(said[depth][None], [(PARAMS, stop + depth)], (2, 2, 1)[depth], ids)
                assert list(own) == picks[0].tolist()
            length = stop


def test_a_model_is_needed(target: Path) -> None:
    with pytest.raises(ConfigError, match="method medusa needs a model"):
        build_method(DrafterConfig(method="medusa"), str(target))


@pytest.mark.parametrize(
    ("sizes", "fields", "message"),
    [
        ({"hidden": 32}, {}, "hidden states of 32 elements, the target's have 64"),
        ({}, {"vocab_size": 600}, "vocabulary has 600 ids, the target's 512"),
        ({"columns": 500}, {}, "output heads have 500 rows, there are 512 ids"),
    ],
)
def test_heads_of_another_target_are_refused(
    target: Path, tmp_path: Path, sizes: dict[str, int], fields: dict[str, int], message: str
) -> None:
    state = ReferenceHeads.random(HEADS, **sizes).state_dict()
    folder = write_medusa(tmp_path / "other", medusa_config(HEADS, **fields), state)
    with pytest.raises(ConfigError, match=rf"head other does not fit target .*{message}"):
        build_method(DrafterConfig(method="medusa", model=str(folder)), str(target))


def test_draft_ids_past_the_targets_are_refused(target: Path, tmp_path: Path) -> None:
    folder = write_medusa(tmp_path / "other", medusa_config(HEADS), bare(ReferenceHeads.random(HEADS)))
    save_file({"draft_vocabulary": torch.tensor([5, 512])}, folder / "draft_vocabulary.safetensors")
    with pytest.raises(ConfigError, match="draft ids go up to 512, there are 512 ids"):
        build_method(DrafterConfig(method="medusa", model=str(folder)), str(target))
