"""A drafter with an EAGLE head over gRPC, fed with the hidden states of a real (tiny) target."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from outrider.config.schema import DrafterConfig
from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.ranking import ranked_picks
from outrider.core.rounds import Proposal, StaleReason
from outrider.core.trees import TokenTree
from outrider.drafting.factory import build_method
from outrider.wire.convert.drafter import drafter_info_from_proto, drafter_info_request
from outrider.wire.messages import AdvanceDraft, FeatureBlock, OpenDraft, Stale
from tests.eagle_reference import ReferenceHead
from tests.integration.drafting.conftest import RunningDrafter
from tests.tiny_eagle import Kind, make_tiny_eagle, tiny_config, tiny_state
from tests.tiny_models import make_tiny

Start = Callable[..., Awaitable[RunningDrafter]]

LAYERS, HIDDEN, VOCAB = 8, 64, 512
PARAMS = SamplingParams(temperature=0.8, seed=3)
TEXT = tuple(torch.randint(3, VOCAB, (70,), generator=torch.Generator().manual_seed(1)).tolist())
NAMES = {"eagle": ("last_hidden",), "eagle3": ("hidden_2", "hidden_4", "hidden_5")}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("target"), layers=LAYERS, vocab_size=VOCAB)


@dataclass
class Head:
    """A head with what its target would send, and what it should propose."""

    kind: Kind
    folder: Path
    target: Path

    def __post_init__(self) -> None:
        model = transformers.AutoModelForCausalLM.from_pretrained(self.target, dtype=torch.float32)
        with torch.no_grad():
            out = model(torch.tensor([TEXT]), output_hidden_states=True)
        # transformers norms the last one.
        states = {f"hidden_{n}": out.hidden_states[n][0] for n in range(LAYERS)}
        states["last_hidden"] = out.hidden_states[-1][0]
        self.states = {name: states[name].bfloat16() for name in NAMES[self.kind]}
        config = tiny_config(self.kind, vocab_size=VOCAB, columns=300)
        tensors = load_file(self.target / "model.safetensors")
        self.reference = ReferenceHead(
            config, tiny_state(config), tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
        )

    def blocks(self, start: int, stop: int) -> tuple[FeatureBlock, ...]:
        return tuple(
            FeatureBlock(
                name, start, stop - start, HIDDEN, rows[start:stop].view(torch.int16).numpy().tobytes()
            )
            for name, rows in self.states.items()
        )

    def check(self, tree: TokenTree, length: int, widths: Sequence[int]) -> None:
        features = torch.cat([rows[: length - 1] for rows in self.states.values()], 1).float()
        for node, own in tree.children().items():
            path = [tree.token_ids[above] for above in tree.path_to(node)]
            logits = self.reference.after(features, TEXT[1:length], path)
            ids, _ = ranked_picks(
                logits[None], [(PARAMS, length + len(path))], widths[len(path)], self.reference.target_ids()
            )
            assert list(own) == ids[0].tolist()


@pytest.fixture(scope="module", params=["eagle", "eagle3"])
def head(request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory) -> Head:
    folder = make_tiny_eagle(request.param, tmp_path_factory.mktemp("head"), columns=300)
    return Head(request.param, folder, target)


async def test_proposals_over_grpc(head: Head, start: Start) -> None:
    """Opened without features, which come in chunks; then commits of several lengths."""
    drafter = await start(
        target=str(head.target), method="eagle", model=str(head.folder), dtype="float32", tree="2,1,1"
    )
    async with drafter.link() as link:
        info = drafter_info_from_proto(await link.client.GetInfo(drafter_info_request()))
        assert set(info.features) == set(NAMES[head.kind])
        assert (info.model.hidden_size, info.model.num_layers) == (HIDDEN, LAYERS)
        await link.send(OpenDraft("s", 1, TEXT[:50], PARAMS, 0, prompt_len=50))
        await link.send(AdvanceDraft("s", 1, 50, (), 0, 0, features=head.blocks(0, 20)))
        await link.send(AdvanceDraft("s", 1, 50, (), 0, 0, features=head.blocks(20, 49)))
        length = 50
        for more in (0, 1, 4, 3):
            stop = length + more
            features = head.blocks(length - 1, stop - 1) if more else ()
            command = AdvanceDraft("s", 1, length, TEXT[length:stop], 0, 3, features=features, draft_nodes=6)
            proposal = await link.ask(command)
            assert isinstance(proposal, Proposal)
            assert proposal.base_len == stop
            assert len(proposal.tree) == len(proposal.tree.confidences) == 6
            head.check(proposal.tree, stop, (2, 1, 1))
            length = stop


async def test_bad_features_cost_one_session(head: Head, start: Start) -> None:
    drafter = await start(target=str(head.target), method="eagle", model=str(head.folder), dtype="float32")
    async with drafter.link() as link:
        await link.send(OpenDraft("bad", 1, TEXT[:9], PARAMS, 0, features=head.blocks(0, 4), prompt_len=9))
        stale = await link.ask(AdvanceDraft("bad", 1, 9, (), 0, 2, features=head.blocks(5, 8)))
        assert isinstance(stale, Stale)
        assert (stale.session_id, stale.reason) == ("bad", StaleReason.INVALID)
        good = await link.ask(
            OpenDraft("good", 1, TEXT[:9], PARAMS, 2, features=head.blocks(0, 8), prompt_len=9)
        )
        assert isinstance(good, Proposal)
        head.check(good.tree, 9, (1, 1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden": 32}, "hidden states of 32 elements, the target's have 64"),
        ({"vocab_size": 600}, "600 ids, the target's 512"),
    ],
)
def test_a_head_of_another_target_is_refused(
    target: Path, tmp_path: Path, fields: dict[str, int], message: str
) -> None:
    folder = make_tiny_eagle("eagle3", tmp_path / "other", columns=200, **fields)
    with pytest.raises(ConfigError, match=rf"head other does not fit target .*{message}"):
        build_method(DrafterConfig(method="eagle", model=str(folder)), str(target))


def test_a_checkpoint_that_lacks_a_tensor_is_refused(target: Path, tmp_path: Path) -> None:
    folder = make_tiny_eagle("eagle3", tmp_path / "head", columns=200)
    tensors = load_file(folder / "model.safetensors")
    del tensors["midlayer.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"midlayer\.mlp\.up_proj\.weight"):
        build_method(DrafterConfig(method="eagle", model=str(folder)), str(target))


def test_a_target_without_known_embeddings_is_refused(target: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(target, bare)
    tensors = load_file(bare / "model.safetensors")
    tensors["words"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, bare / "model.safetensors")
    folder = make_tiny_eagle("eagle3", tmp_path / "head", columns=200)
    with pytest.raises(ConfigError, match="bare holds no token embeddings"):
        build_method(DrafterConfig(method="eagle", model=str(folder)), str(bare))


def test_several_states_may_have_an_entry_of_their_own(target: Path, tmp_path: Path) -> None:
    folder = make_tiny_eagle("eagle", tmp_path / "head", eagle_aux_hidden_state_layer_ids=[2, 4, 6, 8])
    tensors = load_file(folder / "model.safetensors")
    tensors["entry.weight"] = torch.ones(HIDDEN, 4 * HIDDEN)
    save_file(tensors, folder / "model.safetensors")
    method = build_method(DrafterConfig(method="eagle", model=str(folder)), str(target))
    assert method.features == {"hidden_2", "hidden_4", "hidden_6", "hidden_8"}
