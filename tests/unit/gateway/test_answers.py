"""Choices as they grow: rounds, statistics, the best ones."""

import math

from outrider.core.params import TokenLogprobs
from outrider.core.sessions import DrafterStats, FinishReason, SpeculationStats, Usage
from outrider.gateway.openai.answers import Answer, Answers, total_speculation, total_usage
from outrider.gateway.openai.counts import choice_stats_body
from outrider.wire.messages import GenerationDelta, GenerationFinished


def answer(index=0, prompt=0, drafted=(), logprobs=(), stats=None):
    usage = Usage(5, len(drafted), 2)
    return Answer(
        index,
        prompt,
        "tiny",
        0,
        (1,) * 5,
        drafted=[bool(mark) for mark in drafted],
        logprobs=[TokenLogprobs(0, logprob, 1) for logprob in logprobs],
        finished=GenerationFinished(FinishReason.LENGTH, usage, stats or SpeculationStats()),
    )


def test_rounds_are_told_apart_by_the_token_that_ends_each():
    assert answer(drafted=(1, 1, 0, 0, 1, 0, 0)).accepted_by_round() == {2: 1, 1: 1, 0: 2}
    assert answer(drafted=(0, 1, 1)).accepted_by_round() == {0: 1, 2: 1}
    assert answer().accepted_by_round() == {}


def test_a_round_held_back_and_given_out_in_parts_is_still_one_round():
    one = answer()
    for ids, accepted in [((1,), 1), ((2, 3), 1), ((4,), 0)]:
        one.add(GenerationDelta("", ids, accepted, 0))
    assert one.accepted_by_round() == {2: 1, 0: 1}


def test_the_histogram_leaves_out_rounds_that_had_no_proposal():
    stats = SpeculationStats(rounds=4, drafts=3, draft_tokens=9, accepted_tokens=3, drafter="x")
    body = choice_stats_body(answer(drafted=(1, 1, 0, 0, 1, 0, 0), stats=stats), 4)
    assert body["acceptance_histogram"] == {"0": 1, "1": 1, "2": 1}
    assert (body["mean_acceptance_length"], body["draft_acceptance_rate"]) == (2.0, 3 / 9)
    assert choice_stats_body(answer(), 4) is None


def test_counts_of_several_answers_add_up_by_drafter():
    def drafted(*drafters):
        stats = SpeculationStats(rounds=4, draft_tokens=9, drafter="fused", drafters=list(drafters))
        return answer(drafted=(1, 0), stats=stats)

    one = drafted(DrafterStats("x", 1, 2, 3, 4, 5), DrafterStats("y", 6))
    total = total_speculation([one, drafted(DrafterStats("y", 1, 1, 1, 1, 1))])
    assert (total.rounds, total.draft_tokens, total.drafter) == (8, 18, "fused")
    assert total.drafters == [DrafterStats("x", 1, 2, 3, 4, 5), DrafterStats("y", 7, 1, 1, 1, 1)]
    assert one.speculation.drafters[1] == DrafterStats("y", 6)


def test_a_prompt_of_several_answers_counts_once():
    shared = [answer(0, 0, (0, 0)), answer(1, 0, (0,)), answer(2, 1, (0,))]
    assert total_usage(shared) == Usage(10, 4, 4)


def test_the_best_are_chosen_by_the_mean_and_ties_keep_their_order():
    means = [(-3.0,), (-1.0, -2.0), (-1.5,), (), (-1.0, -1.0), (-9.0,)]
    answers = Answers(3)
    answers._by_index = {
        index: answer(index, index // 3, logprobs=values) for index, values in enumerate(means)
    }
    before = answers.all
    chosen = answers.best(2)
    assert [before.index(one) for one in chosen] == [1, 2, 4, 5]
    assert [one.index for one in chosen] == [0, 1, 2, 3]
    assert before[3].mean_logprob == -math.inf
