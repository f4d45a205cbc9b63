"""A draft model edits its logits by the session's own parameters, over committed and drafted tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outrider.core.errors import InternalError
from outrider.core.params import LogitEdits, SamplingParams
from outrider.core.sampling import coupled_picks
from outrider.drafting.picking import edits as draft_edits
from outrider.wire.messages import AdvanceDraft, OpenDraft
from tests.integration.drafting.oracle import Oracle
from tests.integration.drafting.test_draft_model import PROMPT, VOCAB, Driver, load, tokens_of
from tests.tiny_models import make_tiny
from tests.unit.core.reference_edits import edited

PROMPT_LEN = 25
TOKENS = PROMPT[:30]  # so five are generated
EDITS = (
    LogitEdits(repetition_penalty=1.8),
    LogitEdits(frequency_penalty=1.9, presence_penalty=0.7),
    LogitEdits(logit_bias=((8, 30.0), (11, 29.0)), bad_words=((8, 8), (11, 8))),
    LogitEdits(min_tokens=8, end_token_ids=(8,), logit_bias=((8, 90.0),)),
    LogitEdits(allowed_token_ids=tuple(range(5, 25))),
)
PARAMS = [SamplingParams(temperature, seed=5, edits=own) for own in EDITS for temperature in (0.0, 1.0)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("draft"), vocab_size=VOCAB, max_position=160)


class EditingOracle(Oracle):
    """Edits by the plain implementation."""

    def _compute(self, tokens: tuple[int, ...], params: SamplingParams) -> int:
        with torch.no_grad():
            logits = self.model(torch.tensor([tokens])).logits[0, -1].float().tolist()
        row = torch.tensor([edited(logits, params.edits, tokens[:PROMPT_LEN], tokens[PROMPT_LEN:])])
        if self.vocabulary is not None:
            row = row[:, self.vocabulary]
        return int(coupled_picks(row, [(params, len(tokens))], self.vocabulary)[0])


def reduced(folder: Path, into: Path) -> tuple[Path, torch.Tensor]:
    into.mkdir()
    for path in folder.iterdir():
        (into / path.name).write_bytes(path.read_bytes())
    ids = torch.arange(2, VOCAB, 3, dtype=torch.int32)
    save_file({"draft_vocabulary": ids}, into / "draft_vocabulary.safetensors")
    return into, ids.long()


@pytest.mark.parametrize("reduce", [False, True])
@pytest.mark.parametrize("run_ahead", [0, 5])
def test_proposals_are_edited(folder: Path, tmp_path: Path, reduce: bool, run_ahead: int) -> None:
    """All sessions at once, over commits that agree with what was drafted and that do not."""
    own, ids = reduced(folder, tmp_path / "reduced") if reduce else (folder, None)
    oracle = EditingOracle(folder, ids)
    driver = Driver(load(own), run_ahead=run_ahead, max_sessions=16)
    held = {f"s{index}": (TOKENS, params) for index, params in enumerate(PARAMS)}
    for name, (tokens, params) in held.items():
        driver.put(OpenDraft(name, 1, tokens, params, 5, prompt_len=PROMPT_LEN))
    for committed in range(4):
        for event in driver.rest():
            tokens, params = held[event.session_id]
            assert tokens_of(event) == oracle.propose(tokens, params, 5)
        for name, (tokens, params) in held.items():
            fresh = oracle.propose(tokens, params, committed)
            fresh = (*fresh, 8) if committed % 2 else (*fresh, *oracle.propose(tokens + fresh, params, 1))
            driver.put(AdvanceDraft(name, 1, len(tokens), fresh, committed, 5))
            held[name] = (tokens + fresh, params)
    driver.rest()
    driver.close()


def test_a_vocabulary_without_any_allowed_id(folder: Path, tmp_path: Path) -> None:
    own, _ = reduced(folder, tmp_path / "reduced")
    driver = Driver(load(own))
    none = SamplingParams(seed=1, edits=LogitEdits(allowed_token_ids=(3, 4)))
    driver.put(OpenDraft("none", 1, TOKENS, none, 3, prompt_len=PROMPT_LEN))
    driver.put(OpenDraft("other", 1, TOKENS, SamplingParams(seed=1), 3, prompt_len=PROMPT_LEN))
    drafts = {event.session_id: tokens_of(event) for event in driver.rest()}
    assert {name: len(draft) for name, draft in drafts.items()} == {"none": 3, "other": 3}
    driver.close()


def test_edits_that_fail_cost_acceptance_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise InternalError("for this test")

    monkeypatch.setattr(draft_edits, "edit_logits", broken)
    driver = Driver(load(folder))
    plain = SamplingParams(seed=5)
    draft = tokens_of(driver.ask(OpenDraft("a", 1, TOKENS, PARAMS[1], 4, prompt_len=PROMPT_LEN)))
    assert draft == Oracle(folder).propose(TOKENS, plain, 4)
    driver.close()
