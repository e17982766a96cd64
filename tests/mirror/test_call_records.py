"""What a store keeps of learning, in SQLite and in PostgreSQL: merged versions, and which calls were used."""

import threading
from collections.abc import Iterator

import pytest
from mirrored_calls import calls_of

from bertsmith.errors import InputError
from bertsmith.mirror.learning.understand import LearningRecords
from bertsmith.mirror.store import Store


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    opened = Store(address)
    yield opened
    opened.close()


def test_merged_versions_are_one_group_however_they_were_merged(store: Store) -> None:
    prompts = ["one", "two", "three", "four", "five"]
    calls = [calls_of(2, seed=n, first=10 * n, prompt=prompt) for n, prompt in enumerate(prompts)]
    store.add([call for some in calls for call in some])
    versions, site = [some[0].version for some in calls], calls[0][0].site
    records = LearningRecords(store)
    assert [len(group) for group in records.groups()] == [1] * 5
    records.merge(site, versions[:2])
    records.merge(site, versions[2:4])
    assert [len(group) for group in records.groups()] == [2, 2, 1]
    group = records.merge(site, [versions[3], versions[0]])
    assert [each.version for each in group] == versions[:4]
    assert LearningRecords(store).group(site, versions[2]) == group
    assert [each.version for each in records.group(site)] == versions[4:]
    with pytest.raises(InputError, match="There is no version 'x'"):
        records.group(site, "x")


def test_what_another_training_proves_by_is_given_back_and_nothing_recorded(store: Store) -> None:
    calls = calls_of(1200)
    store.add(calls)
    records = LearningRecords(store)
    ids = [call.id for call in calls]
    assert records.record_uses("first", {"train": ids[:100], "calibration": ids[500:]}) == set()
    assert records.record_uses("first", {"calibration": ids[500:]}) == set()  # it goes on
    assert records.record_uses("second", {"train": ids[:5], "calibration": ids[:600]}) == set(ids[500:600])
    assert records.read_uses("second") == {}
    assert records.record_uses("second", {"train": ids[500:], "calibration": ids[:500]}) == set()


def test_of_two_trainings_at_a_time_one_proves_by_a_call(store: Store) -> None:
    calls = calls_of(600)
    store.add(calls)
    ids, taken = [call.id for call in calls], list[set[str]]()
    records = [LearningRecords(store) for _ in range(6)]
    ready = threading.Barrier(len(records))

    def record(number: int) -> None:
        ready.wait()
        taken.append(records[number].record_uses(f"training {number}", {"calibration": ids}))

    threads = [threading.Thread(target=record, args=(number,)) for number in range(len(records))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(map(len, taken)) == [0, *[600] * 5]


def test_uses_are_kept_once_and_go_with_their_calls(store: Store) -> None:
    calls = calls_of(1200, subject="anna")
    store.add(calls)
    records = LearningRecords(store)
    ids = [call.id for call in calls]
    for _ in range(2):
        records.record_uses("first", {"train": ids[:700], "dev": ids[700:800], "calibration": ids[800:]})
    records.record_uses("second", {"train": ids[800:]})
    assert records.calibration_calls() == set(ids[800:]) and records.used_calls() == set(ids)
    assert records.read_uses("second") == dict.fromkeys(ids[800:], "train")
    store.forget("anna")
    records.record_uses("third", {})
    assert records.used_calls() == set()
