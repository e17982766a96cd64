"""The CRF against all paths written out, one by one; and what no input may make it decode."""

from functools import cache
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bertsmith.errors import InputError, ModelError
from bertsmith.metrics.entities import to_iob2
from bertsmith.tasks.heads.crf import ConditionalRandomField, TransitionScores, legal_scores, viterbi

IOB2 = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
PARTS_OF_SPEECH = ("NN", "VB", "DT")
LABELS = st.sampled_from([IOB2, PARTS_OF_SPEECH])
LENGTHS = st.lists(st.integers(0, 4), max_size=5).map(tuple)
# The largest float32 of both signs, to whose sum float32 has no answer, between everyday values.
EXTREMES = torch.tensor([-3.4e38, -1e30, -2.0, 0.0, 0.5, 1.0, 1e30, 3.4e38])


def random_field(labels: tuple[str, ...], draw: torch.Generator) -> ConditionalRandomField:
    crf = ConditionalRandomField(labels).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return crf


def legal(path: tuple[int, ...], labels: tuple[str, ...]) -> bool:
    """By the words of the rule, apart from the code under test; parts of speech have no I-."""
    before = ["O", *(labels[place] for place in path)]
    return all(
        not after.startswith("I-") or first in (after, f"B-{after[2:]}") for first, after in pairwise(before)
    )


@cache
def legal_paths(labels: tuple[str, ...], words: int) -> Tensor:
    """(P, T) all paths of T words that the rule allows."""
    paths = product(range(len(labels)), repeat=words)
    return torch.tensor([path for path in paths if legal(path, labels)])


def scored_paths(crf: ConditionalRandomField, emissions: Tensor) -> tuple[Tensor, Tensor]:
    """All legal paths (P, T) of one sentence of T > 0 words, and the score of each (P,)."""
    paths = legal_paths(crf.labels, len(emissions))
    of_words = emissions[range(len(emissions)), paths].sum(1)
    of_pairs = crf.transitions[paths[:, :-1], paths[:, 1:]].sum(1)
    return paths, (crf.start[paths[:, 0]] + of_words + of_pairs + crf.end[paths[:, -1]]).detach()


@settings(max_examples=25, deadline=None)
@given(LABELS, LENGTHS, st.integers(0, 2**31))
def test_likelihood_best_path_and_marginals_are_those_of_all_paths_written_out(
    labels: tuple[str, ...], lengths: tuple[int, ...], seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    crf = random_field(labels, draw)
    emissions = 2 * torch.randn(sum(lengths), len(labels), generator=draw, dtype=torch.float64)
    decoded = crf.decode(emissions, lengths).split(lengths)
    marginals = crf.marginals(emissions, lengths).split(lengths)
    tags, expected = [torch.empty(0, dtype=torch.int64)], 0.0
    for words, best, marginal in zip(emissions.split(lengths), decoded, marginals, strict=True):
        if len(words):
            paths, scores = scored_paths(crf, words)
            gold = int(torch.randint(len(paths), (1,), generator=draw))
            tags.append(paths[gold])
            expected += float(scores.logsumexp(0) - scores[gold])
            assert best.tolist() == paths[scores.argmax()].tolist()
            probabilities = scores.softmax(0)
            for label in range(len(labels)):
                of_label = ((paths == label) * probabilities.unsqueeze(1)).sum(0)
                torch.testing.assert_close(marginal[:, label], of_label, rtol=0, atol=1e-9)
    loss = crf.loss(emissions, torch.cat(tags), lengths)
    assert loss.item() == pytest.approx(expected, abs=1e-9)


class ThirdOfLoss(nn.Module):
    """An upstream gradient other than 1, as the division by a count gives."""

    def __init__(self, crf: ConditionalRandomField) -> None:
        super().__init__()
        self.crf = crf

    def forward(self, emissions: Tensor, tags: Tensor, lengths: tuple[int, ...]) -> Tensor:
        return self.crf.loss(emissions, tags, lengths) / 3


@pytest.mark.parametrize("labels", [IOB2, PARTS_OF_SPEECH])
def test_gradients_are_those_of_finite_differences(labels: tuple[str, ...]) -> None:
    draw = torch.Generator().manual_seed(3)
    module = ThirdOfLoss(random_field(labels, draw))
    lengths = (1, 3, 0, 2)
    emissions = torch.randn(6, len(labels), generator=draw, dtype=torch.float64)
    tags = module.crf.decode(torch.randn(emissions.shape, generator=draw), lengths)
    weights = dict(module.named_parameters())

    def loss(emissions: Tensor, *values: Tensor) -> Tensor:
        given_weights = dict(zip(weights, values, strict=True))
        return torch.func.functional_call(module, given_weights, (emissions, tags, lengths))

    assert torch.autograd.gradcheck(loss, (emissions.requires_grad_(), *weights.values()))


def test_illegal_transitions_are_not_trained() -> None:
    draw = torch.Generator().manual_seed(4)
    crf = random_field(IOB2, draw)
    emissions = torch.randn(6, 5, generator=draw, dtype=torch.float64)
    crf.loss(emissions, crf.decode(emissions, (4, 2)), (4, 2)).backward()
    assert crf.transitions.grad is not None
    assert crf.transitions.grad[0, 2] == 0.0  # O I-PER
    assert crf.transitions.grad[1, 2] != 0.0  # B-PER I-PER


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.integers(0, 2**31))
def test_no_input_makes_it_decode_an_illegal_transition(lengths: tuple[int, ...], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return EXTREMES[torch.randint(len(EXTREMES), shape, generator=generator)]

    crf = ConditionalRandomField(IOB2)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.copy_(draw(*parameter.shape))
    emissions = draw(sum(lengths), 5)
    for paths in (crf.decode(emissions, lengths), viterbi(emissions, lengths, legal_scores(IOB2))):
        assert all(legal(tuple(path.tolist()), IOB2) for path in paths.split(lengths))
    probabilities = crf.marginals(emissions, lengths).sum(1)
    torch.testing.assert_close(probabilities, torch.ones_like(probabilities))


def test_viterbi_of_a_softmax_tagger_is_argmax_where_the_rule_allows_it() -> None:
    draw = torch.Generator().manual_seed(5)
    logits = torch.randn(40, 3, generator=draw)
    found = viterbi(logits, (30, 0, 10), legal_scores(PARTS_OF_SPEECH))
    assert found.tolist() == logits.argmax(1).tolist()
    # I-PER is the best label of both words; a B-PER must come first
    logits = torch.tensor([[0.0, 1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0, 0.0]])
    assert viterbi(logits, (2,), legal_scores(IOB2)).tolist() == [1, 2]


def test_scores_of_any_kind_can_forbid() -> None:
    """The function knows no scheme: here NN may not end, and nothing may follow itself."""
    pairs = torch.zeros(2, 2).fill_diagonal_(-torch.inf)
    scores = TransitionScores(torch.zeros(2), pairs, torch.tensor([-torch.inf, 0.0]))
    assert viterbi(torch.tensor([[0.0, 9.0], [9.0, 0.0], [9.0, 0.0]]), (3,), scores).tolist() == [1, 0, 1]


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 1e300])
def test_emissions_that_are_not_finite_are_refused(value: float) -> None:
    crf = ConditionalRandomField(IOB2)
    emissions = torch.zeros(3, 5, dtype=torch.float64)
    emissions[1, 4] = value
    for answer in (crf.decode, crf.marginals):
        with pytest.raises(ModelError, match=r"finite scores for each word, found .* for word 1"):
            answer(emissions, (2, 1))


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
def test_no_words_lose_nothing(lengths: tuple[int, ...]) -> None:
    crf = ConditionalRandomField(IOB2)
    emissions = torch.zeros(0, 5, requires_grad=True)
    loss = crf.loss(emissions, torch.zeros(0, dtype=torch.int64), lengths)
    loss.backward()
    assert loss.item() == 0.0
    assert all(not parameter.grad.any() for parameter in crf.parameters() if parameter.grad is not None)
    assert crf.decode(emissions, lengths).shape == (0,)
    assert crf.marginals(emissions, lengths).shape == (0, 5)


@pytest.mark.parametrize(
    ("tags", "lengths", "message"),
    [
        ("O B-PER I-PER O I-LOC", (3, 2), "found I-LOC after O"),
        ("O B-PER I-LOC", (3,), "found I-LOC after B-PER"),
        ("O B-PER I-PER", (2, 1), "found I-PER at the start of a sentence"),
    ],
)
def test_tags_that_are_no_iob2_are_refused_and_mended(
    tags: str, lengths: tuple[int, ...], message: str
) -> None:
    crf = ConditionalRandomField(IOB2)
    emissions = torch.zeros(sum(lengths), 5)
    ids = torch.tensor([IOB2.index(tag) for tag in tags.split()])
    with pytest.raises(InputError, match=message):
        crf.loss(emissions, ids, lengths)
    mended = [
        IOB2.index(tag) for part in ids.split(lengths) for tag in to_iob2([IOB2[place] for place in part])
    ]
    assert crf.loss(emissions, torch.tensor(mended), lengths).isfinite()


def test_float32_keeps_four_digits_over_the_longest_input_of_bert() -> None:
    draw = torch.Generator().manual_seed(6)
    exact = random_field(IOB2, draw)
    rounded = ConditionalRandomField(IOB2)
    rounded.load_state_dict(exact.state_dict())
    emissions = (torch.randn(512, 5, generator=draw) * 8 + 50).requires_grad_()
    tags = exact.decode(emissions, (512,))
    found, expected = rounded.loss(emissions, tags, (512,)), exact.loss(emissions.double(), tags, (512,))
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    gradient, wanted = (torch.autograd.grad(loss, emissions)[0] for loss in (found, expected))
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-4)


def test_half_precision_emissions_are_summed_in_float32() -> None:
    crf = ConditionalRandomField(PARTS_OF_SPEECH)
    emissions = torch.zeros(300, 3, dtype=torch.bfloat16, requires_grad=True)
    loss = crf.loss(emissions, torch.zeros(300, dtype=torch.int64), (300,))
    assert loss.item() == pytest.approx(300 * float(torch.tensor(3.0).log()), rel=1e-5)
    loss.backward()
    assert emissions.grad is not None
    assert emissions.grad.dtype == torch.bfloat16


def test_a_checkpoint_holds_the_three_scores_and_nothing_else() -> None:
    assert list(ConditionalRandomField(IOB2).state_dict()) == ["start", "transitions", "end"]


def test_lengths_that_do_not_fit_are_refused() -> None:
    crf = ConditionalRandomField(IOB2)
    with pytest.raises(ValueError, match="lengths sum to 3 words, but there are emissions for 4"):
        crf.decode(torch.zeros(4, 5), (2, 1))
    with pytest.raises(ValueError, match=r"lengths sum to 4 words, but .* for 4 and 3 tags"):
        crf.loss(torch.zeros(4, 5), torch.zeros(3, dtype=torch.int64), (2, 2))
