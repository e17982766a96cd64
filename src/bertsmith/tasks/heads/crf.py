"""A linear-chain conditional random field over packed sentences (Lafferty et al. 2001), and Viterbi decoding.

W words of all sentences end to end, B sentences, C labels, A sentences that go on at a step (shrinking).

Every recursion takes one step for all sentences at once. Sentences are sorted by length, the longest first,
so that those which still have a word at a step are the first A rows of the step before. Nothing is padded.

Transitions that IOB2 forbids have a score of minus infinity, in decoding and in training's sum over all
paths: the model is then a distribution over the paths it may answer with, and need not learn the rule.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertsmith.arrays import Ints
from bertsmith.data.batch import to_device
from bertsmith.errors import InputError, ModelError
from bertsmith.metrics.entities import legal_transitions


class TransitionScores(NamedTuple):
    """The scores of a sentence's first label, `start` (C,), of neighbouring labels, `pairs[before, after]`
    (C, C), and of its last label, `end` (C,). -inf forbids a transition.
    """

    start: Tensor
    pairs: Tensor
    end: Tensor


def legal_scores(labels: Sequence[str]) -> TransitionScores:
    """Scores of 0 for legal transitions and -inf for others: hard constraints for a tagger without a CRF."""
    start, pairs = (torch.from_numpy(legal) for legal in legal_transitions(labels))
    zero = torch.zeros(len(labels))
    return TransitionScores(zero.where(start, -torch.inf), zero.where(pairs, -torch.inf), zero)


class ConditionalRandomField(nn.Module):
    """A CRF: learned scores of neighbouring labels, on top of each word's scores by an encoder.

    They start at zero, when the tagger is a softmax over legal paths. At an encoder's learning rate they
    would stay there (1,000 steps of AdamW at 3e-5 move a weight by 0.03 at most): give them a higher one.
    """

    legal_start: Tensor
    legal_pairs: Tensor

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__()
        self.labels = tuple(labels)
        self.start = nn.Parameter(torch.zeros(len(labels)))
        self.transitions = nn.Parameter(torch.zeros(len(labels), len(labels)))
        self.end = nn.Parameter(torch.zeros(len(labels)))
        self._legal_on_host = start, pairs = legal_transitions(labels)
        # not saved, since they follow from the labels, which the checkpoint has
        self.register_buffer("legal_start", torch.from_numpy(start), persistent=False)
        self.register_buffer("legal_pairs", torch.from_numpy(pairs), persistent=False)

    def scores(self) -> TransitionScores:
        """The learned scores, with -inf for illegal transitions."""
        return TransitionScores(
            self.start.where(self.legal_start, -torch.inf),
            self.transitions.where(self.legal_pairs, -torch.inf),
            self.end,
        )

    def loss(self, emissions: Tensor, tags: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """The summed negative log-likelihood of the sentences' tags, differentiable once.

        emissions (W, C) and tags (W,) int64 of all words, sentences end to end; lengths in words, 0 allowed.
        Tags on the host are counted without waiting for a GPU. Raises InputError for tags that are no legal
        path, since their probability is 0. `to_iob2` makes them legal, also where a window cuts an entity in
        two.
        """
        _check_shapes(emissions, lengths, tags)
        # Adding a number to all scores of a word changes no probability. Of normalised scores, sums over long
        # sentences stay near the loss in size, so that float32 loses nothing when they are subtracted.
        emissions = emissions.to(torch.promote_types(emissions.dtype, self.start.dtype)).log_softmax(-1)
        steps = _Steps.of(lengths, emissions.device)
        log_partition: Tensor = _LogPartition.apply(  # type: ignore[no-untyped-call]
            emissions, *self.scores(), steps
        )
        return log_partition - self._score_paths(emissions, tags, lengths)

    def _score_paths(self, emissions: Tensor, tags: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """The summed score of these paths: the emissions of their labels, and each transition's score times
        its count, counted on the host.
        """
        path, count = tags.cpu().numpy(), len(self.labels)
        firsts, lasts, followers = _find_sentence_rows(lengths)
        starts, ends = (np.bincount(path[rows], minlength=count) for rows in (firsts, lasts))
        pairs = np.bincount(path[followers - 1] * count + path[followers], minlength=count * count)
        pairs = pairs.reshape(count, count)
        self._refuse_illegal(starts, pairs)
        emission_score = emissions.gather(1, to_device(path, emissions.device).unsqueeze(1)).sum()
        counts_and_scores = ((starts, self.start), (ends, self.end), (pairs, self.transitions))
        transition_scores = (
            (to_device(counts, emissions.device) * score).sum() for counts, score in counts_and_scores
        )
        return emission_score + sum(transition_scores)

    def _refuse_illegal(self, starts: Ints, pairs: Ints) -> None:
        legal_start, legal_pairs = self._legal_on_host
        illegal = np.argwhere(np.concatenate([(starts * ~legal_start)[None], pairs * ~legal_pairs]))
        if len(illegal):
            before, after = illegal[0].tolist()
            position = f"after {self.labels[before - 1]}" if before else "at the start of a sentence"
            raise InputError(
                f"expected tags in IOB2, where I- goes on with an entity of its label; found "
                f"{self.labels[after]} {position}. bertsmith.metrics.entities.to_iob2 makes tags legal."
            )

    def decode(self, emissions: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """The labels (W,) of each sentence's best path, int64 on the CPU, by `viterbi`."""
        return viterbi(emissions, lengths, self.scores())

    @torch.no_grad()
    def marginals(self, emissions: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """Each word's probability of each label given its whole sentence: (W, C) float64 on the CPU.

        Raises ModelError when an emission is not finite.
        """
        words = _move_to_host(emissions, lengths).log_softmax(-1)
        scores = TransitionScores(*(score.cpu().double() for score in self.scores()))
        forward, backward = _sum_both_ways(words, scores, _Steps.of(lengths, words.device))
        return (forward + backward - words).softmax(-1)


@torch.no_grad()
def viterbi(emissions: Tensor, lengths: tuple[int, ...], scores: TransitionScores) -> Tensor:
    """The path of the highest sum of scores in each sentence; no path takes a transition scored -inf.

    emissions (W, C), any scores or logits of words, sentences end to end; lengths in words, 0 allowed ->
    labels (W,) int64 on the CPU. Of paths that are equally good it takes one. With `legal_scores` it decodes
    a plain softmax tagger under the rules of IOB2. Raises ModelError when an emission is not finite.
    """
    words = _move_to_host(emissions, lengths)
    start, pairs, end = (score.cpu().double() for score in scores)
    steps = _Steps.of(lengths, words.device)
    words = words[steps.forward]
    # One tensor for all steps: small tensors of their own would take 500 bytes a word.
    totals = torch.empty_like(words)  # (W, C) the score of the best path to each label
    befores = torch.empty(words.shape, dtype=torch.int32)  # (W, C) the label before it on that path
    last = slice(0, 0)
    for step in steps.slices():
        word = words[step]
        if last.stop:
            # (A, C after, C before); `max`, which returns both, wakes all threads even for few numbers
            sums = totals[last][: len(word)].unsqueeze(1) + pairs.t()
            befores[step] = sums.argmax(-1)
            totals[step] = sums.amax(-1) + word
        else:
            totals[step] = start + word
        last = step
    paths = torch.empty(len(words), dtype=torch.int64)
    paths[steps.forward] = _trace_back(totals, befores, end, steps)
    return paths


def _trace_back(totals: Tensor, befores: Tensor, end: Tensor, steps: "_Steps") -> Tensor:
    """The labels (W,) of the best paths in the order of steps, from the last step to the first."""
    labels = torch.empty(len(totals), dtype=torch.int64)
    later = slice(0, 0)
    for step in steps.slices(backwards=True):
        step_labels, continuing = labels[step], later.stop - later.start  # sentences with a later word
        if continuing:
            step_labels[:continuing] = befores[later].gather(1, labels[later].unsqueeze(1)).squeeze(1)
        step_labels[continuing:] = (totals[step][continuing:] + end).argmax(-1)
        later = step
    return labels


class _LogPartition(torch.autograd.Function):
    """The log of the sum over all paths, summed over sentences.

    Its gradient is the probability of each label and of each transition, from the same recursions. Autograd
    would run back through every step, with a dozen small operations each.
    """

    @staticmethod
    def forward(
        ctx: Any, emissions: Tensor, start: Tensor, pairs: Tensor, end: Tensor, steps: "_Steps"
    ) -> Tensor:
        forward, backward = _sum_both_ways(emissions, TransitionScores(start, pairs, end), steps)
        ctx.save_for_backward(emissions, pairs, forward, backward)
        ctx.steps = steps
        return (forward[steps.lasts] + end).logsumexp(-1).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        emissions, pairs, forward, backward = ctx.saved_tensors
        steps: _Steps = ctx.steps
        word_gradient = (forward + backward - emissions).softmax(-1) * output_gradient  # (W, C)
        # (W - B, C, C); normalised word by word, because rounding adds up along a sentence
        joint = forward[steps.followers - 1].unsqueeze(2) + pairs + backward[steps.followers].unsqueeze(1)
        pair_gradient = joint.flatten(1).softmax(-1).sum(0).view_as(pairs) * output_gradient
        start_gradient, end_gradient = word_gradient[steps.firsts].sum(0), word_gradient[steps.lasts].sum(0)
        return word_gradient, start_gradient, pair_gradient, end_gradient, None


def _sum_both_ways(emissions: Tensor, scores: TransitionScores, steps: "_Steps") -> tuple[Tensor, Tensor]:
    """The forward and backward scores (W, C): the log-sums over all paths up to each word's label, and over
    all paths from it, both with the word's own emission.

    The backward recursion is the forward one on reversed sentences, so that one loop computes both.
    """
    words = torch.stack([emissions[steps.forward], emissions[steps.backward]])  # (2, W, C)
    pairs = torch.stack([scores.pairs.t(), scores.pairs]).unsqueeze(1)  # (2, 1, C to, C from)
    begin = torch.stack([scores.start, scores.end]).unsqueeze(1)  # (2, 1, C)
    sums = torch.empty_like(words)
    last = slice(0, 0)
    for step in steps.slices():
        word = words[:, step]
        if last.stop:
            # (2, A, C to, C from)
            before = sums[:, last][:, : word.shape[1]].unsqueeze(2) + pairs
            sums[:, step] = before.logsumexp(-1) + word
        else:
            sums[:, step] = begin + word
        last = step
    forward, backward = torch.empty_like(emissions), torch.empty_like(emissions)
    forward[steps.forward], backward[steps.backward] = sums[0], sums[1]
    return forward, backward


def _find_sentence_rows(lengths: tuple[int, ...]) -> tuple[Ints, Ints, Ints]:
    """The rows of the first words of sentences, of the last words, and of words with a word before them."""
    sizes = np.array([length for length in lengths if length], np.int64)
    ends = np.cumsum(sizes)
    return ends - sizes, ends - 1, np.delete(np.arange(sizes.sum()), ends - sizes)


@dataclass(frozen=True)
class _Steps:
    """The order of packed words when all sentences are read one word at a time.

    `counts` has A of each step. `forward` and `backward` (W,) are the rows in the order of steps, from the
    first and from the last word on, longest sentence first. `firsts` and `lasts` are the rows of first and
    last words, `followers` those of words with a word before them.
    """

    counts: list[int]
    forward: Tensor
    backward: Tensor
    firsts: Tensor
    lasts: Tensor
    followers: Tensor

    def slices(self, *, backwards: bool = False) -> Iterator[slice]:
        """The slice of each step in the order of steps, from the first step on, or from the last."""
        at = sum(self.counts) if backwards else 0
        for count in reversed(self.counts) if backwards else self.counts:
            start = at - count if backwards else at
            yield slice(start, start + count)
            at = start if backwards else start + count

    @staticmethod
    def of(lengths: tuple[int, ...], device: torch.device) -> "_Steps":
        sizes = np.array([length for length in lengths if length], np.int64)
        firsts, lasts, followers = _find_sentence_rows(lengths)
        order = np.argsort(-sizes, kind="stable")
        ranked = np.sort(sizes)
        # of sentences sorted by length, those longer than the step
        counts = len(sizes) - np.searchsorted(ranked, np.arange(ranked[-1] if len(ranked) else 0), "right")
        step = np.repeat(np.arange(len(counts)), counts)
        sentence = order[np.arange(len(step)) - np.repeat(np.cumsum(counts) - counts, counts)]

        def tensor(array: npt.NDArray[np.int64]) -> Tensor:
            return to_device(array, device)

        return _Steps(
            counts.tolist(),
            tensor(firsts[sentence] + step),
            tensor(lasts[sentence] - step),
            tensor(firsts),
            tensor(lasts),
            tensor(followers),
        )


def _move_to_host(emissions: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """The emissions in float64 on the CPU, where sums of finite float32 can't overflow and small steps are
    fast.
    """
    _check_shapes(emissions, lengths)
    words = emissions.detach().cpu()
    finite = words.float().isfinite().all(-1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise ModelError(
            f"expected finite scores for each word, found {words[row].tolist()} for word {row} of the batch: "
            "the model's weights are damaged, or its training diverged"
        )
    return words.double()


def _check_shapes(emissions: Tensor, lengths: tuple[int, ...], tags: Tensor | None = None) -> None:
    words = sum(lengths)
    if len(emissions) != words or (tags is not None and len(tags) != words):
        raise ValueError(
            f"lengths sum to {words} words, but there are emissions for {len(emissions)}"
            + (f" and {len(tags)} tags" if tags is not None else "")
        )
