"""Claims by class and by field hold together; one threshold for several constraints holds for all of them."""

import numpy as np
import pytest
from simulated import each_size, generator, within

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.learn_then_test import (
    CallGroup,
    Constraint,
    GroupShare,
    certify,
    certify_by_graph,
    certify_each,
    certify_together,
    graph_test,
    split_by,
)
from bertsmith.metrics.guarantees.sample_size import forecast_starts, plan_graph

THRESHOLDS = np.append(np.linspace(0.95, 0.05, 19), -np.inf)
EPSILON = DELTA = 0.05


@each_size
def test_of_ten_groups_at_the_border_seldom_any_is_certified(runs: int) -> None:
    draws, wrong = generator(11), 0
    for _ in range(runs):
        groups = {
            str(number): CallGroup(draws.random(400), draws.random(400) < EPSILON, THRESHOLDS, EPSILON)
            for number in range(10)
        }
        wrong += any(certify_each(groups, DELTA).values())
    assert within(wrong, runs, DELTA)


@each_size
def test_without_a_share_of_delta_for_each_group_some_is_certified_too_often(runs: int) -> None:
    draws, wrong = generator(11), 0
    for _ in range(runs):
        wrong += any(
            certify(draws.random(400), draws.random(400) < EPSILON, [0.0], EPSILON, DELTA) for _ in range(10)
        )
    assert not within(wrong, runs, DELTA)


@each_size
def test_one_threshold_for_a_good_and_a_borderline_field_is_seldom_certified(runs: int) -> None:
    draws, wrong = generator(12), 0
    every = np.ones(800, np.bool_)
    for _ in range(runs):
        fields = {
            "good": Constraint(draws.random(800) < 0.01, every, EPSILON),
            "borderline": Constraint(draws.random(800) < EPSILON, every, EPSILON),
        }
        wrong += certify_together(draws.random(800), fields, THRESHOLDS, DELTA) is not None
    assert within(wrong, runs, DELTA)


def test_each_class_gets_its_own_threshold() -> None:
    draws = generator(13)
    predicted = draws.choice(["easy", "hard", "hopeless"], 6000)
    confidence = draws.random(6000)
    scale = np.select([predicted == "easy", predicted == "hard"], [0.01, 0.5], 1.0)
    differs = draws.random(6000) < np.where(predicted == "hopeless", 0.5, scale * (1 - confidence) ** 3)
    scores, losses = split_by(predicted, confidence), split_by(predicted, differs)
    claims = certify_each(
        {name: CallGroup(scores[name], losses[name], THRESHOLDS, EPSILON) for name in scores}, DELTA
    )
    assert list(claims) == ["easy", "hard", "hopeless"]
    assert claims["easy"] is not None and claims["easy"].threshold == -np.inf
    assert claims["hard"] is not None and 0.25 < claims["hard"].threshold < 0.6
    assert claims["hopeless"] is None
    assert claims["hard"].delta == pytest.approx(DELTA / 3)


def test_a_group_without_calls_has_no_claim_and_still_takes_its_share() -> None:
    fine = CallGroup(np.linspace(0, 1, 500), np.zeros(500), THRESHOLDS, EPSILON)
    claims = certify_each({"fine": fine, "unseen": CallGroup([], [], THRESHOLDS, EPSILON)}, DELTA)
    assert claims["unseen"] is None
    assert claims["fine"] is not None and claims["fine"].delta == DELTA / 2


def test_a_joint_certificate_says_each_risk() -> None:
    """Classes by the teacher's answer: only the calls of a class count for its constraint."""
    confidence = np.repeat([0.9, 0.1], [1000, 200])
    is_spam = np.arange(1200) % 2 == 0
    differs = np.concatenate([np.arange(1000) % 100 == 0, np.ones(200)])  # 10 of 500 spam, 0 of 500 others
    constraints = {"spam": Constraint(differs, is_spam, 0.05), "other": Constraint(differs, ~is_spam, 0.02)}
    claim = certify_together(confidence, constraints, [0.95, 0.5, 0.0], DELTA)
    assert claim is not None
    assert (claim.threshold, claim.answered, claim.calls) == (0.5, 1000, 1200)
    assert claim.risks == {"spam": 0.02, "other": 0.0}
    assert claim.epsilons == {"spam": 0.05, "other": 0.02}
    stricter = {**constraints, "spam": Constraint(differs, is_spam, 0.02)}
    assert certify_together(confidence, stricter, [0.95, 0.5, 0.0], DELTA) is None


def test_a_constraint_of_which_no_call_is_counted_is_not_proven() -> None:
    nothing = Constraint(np.zeros(500), np.zeros(500, np.bool_), EPSILON)
    assert certify_together(np.ones(500), {"unseen": nothing}, [0.5], DELTA) is None


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="no groups"):
        certify_each({}, DELTA)
    with pytest.raises(InputError, match="no constraints"):
        certify_together([0.5], {}, [0.5], DELTA)
    with pytest.raises(InputError, match=r"counted of b for each of 2 calls, found \(3,\)"):
        certify_together([0.5, 0.6], {"b": Constraint([0, 1], [True] * 3, 0.1)}, [0.5], DELTA)
    with pytest.raises(InputError, match="epsilon of b must lie"):
        certify_together([0.5], {"b": Constraint([0], [True], 1.5)}, [0.5], DELTA)
    with pytest.raises(InputError, match="a group for each value"):
        split_by(["a"], [1.0, 2.0])


def random_graph(draws: np.random.Generator, sizes: dict[str, int]) -> dict[str, GroupShare]:
    """Shares, starts and passed parts that all come to 1."""
    names = list(sizes)
    shares = draws.dirichlet(np.ones(len(names)))
    graph = {}
    for place, name in enumerate(names):
        later = names[place + 1 :]
        parts = draws.dirichlet(np.ones(len(later))) if later else []
        starts = draws.dirichlet(np.full(sizes[name], 0.3))
        graph[name] = GroupShare(
            float(shares[place]), starts, dict(zip(later, map(float, parts), strict=True))
        )
    return graph


def by_algorithm_1(
    p_values: dict[str, np.ndarray], graph: dict[str, GroupShare], delta: float
) -> dict[str, np.ndarray]:
    """Bretz et al. 2009, Algorithm 1, on the matrix of all edges, which are changed as they do."""
    keys = [(name, at) for name in p_values for at in range(len(p_values[name]))]
    place = {key: number for number, key in enumerate(keys)}
    weights, edges = np.zeros(len(place)), np.zeros((len(place), len(place)))
    for (name, at), node in place.items():
        weights[node] = graph[name].share * np.asarray(graph[name].starts)[at]
        if (name, at + 1) in place:
            edges[node, place[name, at + 1]] = 1
        else:
            for other, part in graph[name].passes.items():
                for to, start in enumerate(np.asarray(graph[other].starts)):
                    edges[node, place[other, to]] = part * start
    values = np.concatenate(list(p_values.values()))
    open_nodes = set(range(len(place)))
    while refutable := [
        node for node in open_nodes if weights[node] > 0 and values[node] <= delta * weights[node]
    ]:
        gone = refutable[-1]
        open_nodes.remove(gone)
        before = edges.copy()
        for node in open_nodes:
            weights[node] += weights[gone] * before[gone, node]
            back = before[node, gone] * before[gone, node]
            for other in open_nodes - {node}:
                through = before[node, other] + before[node, gone] * before[gone, other]
                edges[node, other] = through / (1 - back) if back < 1 else 0
        weights[gone] = 0
    return {
        name: np.array([place[name, at] not in open_nodes for at in range(len(p_values[name]))])
        for name in p_values
    }


def test_shares_go_the_ways_of_the_published_algorithm() -> None:
    draws, refuted = generator(14), 0
    for _ in range(100):
        sizes = {name: int(draws.integers(1, 6)) for name in "abc"}
        graph = random_graph(draws, sizes)
        p_values = {name: 0.2 * draws.random(size) ** 3 for name, size in sizes.items()}
        ours, theirs = graph_test(p_values, graph, 0.2), by_algorithm_1(p_values, graph, 0.2)
        for name in sizes:
            assert np.array_equal(ours[name], theirs[name])
            refuted += int(ours[name].sum())
    assert refuted > 100


@pytest.mark.parametrize("runs", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_candidates_and_groups_at_the_border_seldom_any_is_certified_by_the_graph(runs: int) -> None:
    """The risk of one threshold of each is exactly epsilon, and smaller before it: claims up to there are
    true and pass their shares on, later ones are wrong.
    """
    draws, wrong, right = generator(15), 0, 0
    thresholds = np.array([0.9, 0.7, 0.5, 0.3, 0.0])
    for _ in range(runs):
        groups = {}
        confidence = draws.random(1500)  # of the same calls for all candidates
        for number, border in enumerate([0.9, 0.5, 0.5, 0.0]):
            # Up to the border 1 % differ; beyond it so many that in all it is 5 % at the next threshold.
            after = thresholds[thresholds < border].max() if border else 0.0
            rate = np.where(confidence >= border, 0.01, 1.0)
            if border > after:
                rate[confidence < border] = (EPSILON * (1 - after) - 0.01 * (1 - border)) / (border - after)
            groups[str(number)] = CallGroup(confidence, draws.random(1500) < rate, thresholds, EPSILON)
        claims = certify_by_graph(groups, random_graph(draws, dict.fromkeys(groups, 5)), DELTA)
        limits = dict(zip(groups, [0.9, 0.5, 0.5, 0.0], strict=True))
        certified = {name: claim.threshold for name, claim in claims.items() if claim is not None}
        wrong += any(threshold < limits[name] for name, threshold in certified.items())
        right += len(certified)
    assert within(wrong, runs, DELTA)
    assert right > runs


def test_a_share_is_passed_on_where_all_is_proven_and_stays_where_it_is_not() -> None:
    fine = CallGroup(np.linspace(0, 1, 100), np.zeros(100), [0.0], EPSILON)
    bad = CallGroup(np.linspace(0, 1, 100), np.ones(100), [0.0], EPSILON)
    graph = {"first": GroupShare(1.0, [1.0], {"second": 1.0}), "second": GroupShare(0.0, [1.0])}
    claims = certify_by_graph({"first": fine, "second": fine}, graph, DELTA)
    assert claims["first"] is not None and claims["second"] is not None
    assert claims["second"].delta == DELTA
    assert not any(certify_by_graph({"first": bad, "second": fine}, graph, DELTA).values())


def test_starts_are_where_development_calls_say_that_they_hold() -> None:
    draws = generator(16)
    confidence = draws.random(600)
    differs = draws.random(600) < np.where(confidence > 0.4, 0.02, 0.3)
    forecast = forecast_starts(CallGroup(confidence, differs, THRESHOLDS, EPSILON), 1800, DELTA)
    strictest = THRESHOLDS[np.flatnonzero(forecast.starts)[0]]
    assert 0.4 <= strictest < 0.8 and forecast.starts.sum() == pytest.approx(1)
    assert 0.5 < forecast.coverage < 0.75 and forecast.unproven < 0.1
    hopeless = forecast_starts(CallGroup(confidence, np.ones(600), THRESHOLDS, EPSILON), 1800, DELTA)
    assert (hopeless.coverage, hopeless.unproven) == (0.0, 1.0)


def test_delta_is_for_those_groups_that_help() -> None:
    """Of 40 classes two are frequent and easy: they share delta, and pass it on when they are proven."""
    draws = generator(17)
    classes = np.where(draws.random(3000) < 0.5, draws.integers(0, 2, 3000), draws.integers(2, 40, 3000))
    confidence, differs = draws.random(3000), draws.random(3000) < np.where(classes < 2, 0.01, 0.3)
    scores, losses = split_by(classes, confidence), split_by(classes, differs)
    groups = {name: CallGroup(scores[name], losses[name], THRESHOLDS, EPSILON) for name in scores}
    graph = plan_graph(groups, 600, DELTA)
    assert sorted(list(graph)[:2]) == ["0", "1"]
    assert sum(planned.share for planned in graph.values()) == pytest.approx(1)
    assert graph["0"].share + graph["1"].share == pytest.approx(1)


def test_a_graph_that_does_not_fit_is_refused() -> None:
    fine = CallGroup(np.linspace(0, 1, 100), np.zeros(100), [0.5, 0.0], EPSILON)
    two = {"a": fine, "b": fine}
    half = GroupShare(0.5, [1.0, 0.0])
    for graph, message in (
        ({"a": half}, "a share for each of the groups"),
        (
            {"a": half, "b": GroupShare(0.6, [1.0, 0.0])},
            "shares of delta must be 0 or more and come to at most 1",
        ),
        ({"a": half, "b": GroupShare(0.5, [1.0])}, "a start for each of 2 thresholds of b"),
        ({"a": half, "b": GroupShare(0.5, [0.7, 0.7])}, "starts of b must be"),
        ({"a": half, "b": GroupShare(0.5, [1.0, 0.0], {"a": 1.0})}, "groups that come later only, not to a"),
    ):
        with pytest.raises(InputError, match=message):
            certify_by_graph(two, graph, DELTA)
    with pytest.raises(InputError, match="no groups"):
        certify_by_graph({}, {}, DELTA)
    with pytest.raises(InputError, match="no groups to plan"):
        plan_graph({}, 100, DELTA)
