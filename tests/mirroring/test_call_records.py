"""What a store keeps of learning, in SQLite and in PostgreSQL: merged versions, and which calls were used."""

from collections.abc import Iterator

import pytest
from mirrored_calls import calls_of

from bertsmith.errors import InputError
from bertsmith.mirroring.call_records import CallRecords
from bertsmith.serving.mirror.store import Store


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
    records = CallRecords(store)
    assert [len(group) for group in records.groups()] == [1] * 5
    records.merge(site, versions[:2])
    records.merge(site, versions[2:4])
    assert [len(group) for group in records.groups()] == [2, 2, 1]
    group = records.merge(site, [versions[3], versions[0]])
    assert [each.version for each in group] == versions[:4]
    assert CallRecords(store).group(site, versions[2]) == group
    assert [each.version for each in records.group(site)] == versions[4:]
    with pytest.raises(InputError, match="There is no version 'x'"):
        records.group(site, "x")


def test_uses_are_kept_once_and_go_with_their_calls(store: Store) -> None:
    calls = calls_of(1200, subject="anna")
    store.add(calls)
    records = CallRecords(store)
    ids = [call.id for call in calls]
    for _ in range(2):
        records.record("first", {"train": ids[:700], "dev": ids[700:800], "calibration": ids[800:]})
    records.record("second", {"train": ids[800:]})
    assert records.calibrated() == set(ids[800:]) and records.used() == set(ids)
    assert records.uses_of("second") == dict.fromkeys(ids[800:], "train")
    store.forget("anna")
    records.record("third", {})
    assert records.used() == set()
