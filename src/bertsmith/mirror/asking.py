"""Many questions to an LLM within a budget, each answer stored as a call as soon as it is there.

What is stored is not asked again, so that work that was ended goes on where it was. A question that got no
answer to learn from comes last the next time, behind those that were never asked.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from bertsmith.errors import InputError
from bertsmith.mirror.call import Answered, Asked, Call, NotMirrored
from bertsmith.mirror.call_records import CallRecords
from bertsmith.mirror.formats.wire_format import Tokens
from bertsmith.mirror.store import Store
from bertsmith.mirror.upstream import UnusableAnswer, Upstream
from bertsmith.progress import Progress

AsCall = Callable[[Asked, Answered, float, float], Call]  # asked, answered, began, seconds


@dataclass(frozen=True)
class Budget:
    """At most so many calls, and so much money by the prices of a million tokens; None: no limit."""

    calls: int | None = None
    money: float | None = None
    input_price: float = 0.0
    output_price: float = 0.0

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and not limit >= 0:
                raise InputError(f"A budget's {name.replace('_', ' ')} must be 0 or more, found {limit:,}.")
        if self.money is not None and self.input_price + self.output_price <= 0:
            raise InputError(
                "A budget of money needs the prices of a million tokens: --input-price and --output-price."
            )

    def price(self, tokens: Tokens) -> float:
        """Of one call."""
        read, wrote = (each or 0 for each in tokens)
        return (read * self.input_price + wrote * self.output_price) / 1e6


@dataclass
class Asking:
    """What came of it: `asked` calls were answered and stored, `known` had been before, `left` the budget
    didn't reach. `passed` counts answers that nothing can be learned from, by their reason.
    """

    asked: int = 0
    known: int = 0
    left: int = 0
    money: float = 0.0
    passed: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Answer:
    """`failure` where the LLM refused the request, or was away. `tokens` are paid for, whatever was said."""

    asked: Asked
    answered: Answered | None
    why: str
    began: float
    seconds: float
    tokens: Tokens = (None, None)
    failure: InputError | None = None


def ask_all(
    questions: Sequence[Asked],
    upstream: Upstream,
    store: Store,
    as_call: AsCall,
    budget: Budget,
    at_once: int = 4,
    progress: Progress | None = None,
) -> Asking:
    """In their order, `at_once` at a time, those last that got no answer when they were asked before. Raises
    InputError where the LLM refuses; what was answered, or was being asked then, is stored.
    """
    if at_once < 1:
        raise InputError(f"at_once must be 1 or more, found {at_once:,}: nothing would be asked.")
    found, records = Asking(), CallRecords(store)
    unanswered = records.unanswered()
    questions = sorted(questions, key=lambda each: _fingerprint(store, each) in unanswered)
    total = len(questions) if budget.calls is None else min(len(questions), budget.calls)
    waiting = iter(questions[:total])
    with ThreadPoolExecutor(at_once) as pool:
        running: set[Future[_Answer]] = set()
        try:
            while True:
                running |= {
                    pool.submit(_ask, upstream, each) for each in _next(waiting, at_once - len(running))
                }
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                _take(done, records, as_call, budget, found)
                if progress is not None:
                    progress(found.asked + found.passed.total(), total, "calls")
                if budget.money is not None and found.money >= budget.money:
                    waiting = iter(())
        finally:
            for each in running:
                each.cancel()
            with suppress(InputError):  # as the one before
                _take(wait(running).done, records, as_call, budget, found)
    found.left = len(questions) - found.asked - found.passed.total()
    return found


def _next(waiting: Iterable[Asked], count: int) -> Iterator[Asked]:
    return islice(waiting, max(count, 0))


def _ask(upstream: Upstream, asked: Asked) -> _Answer:
    began, clock = time.time(), time.monotonic()
    try:
        answered = upstream.ask(asked)
    except UnusableAnswer as found:
        return _Answer(asked, None, found.reason, began, time.monotonic() - clock, found.tokens)
    except NotMirrored as found:
        return _Answer(asked, None, found.reason, began, time.monotonic() - clock)
    except InputError as failure:
        return _Answer(asked, None, "", began, time.monotonic() - clock, failure=failure)
    tokens = answered.input_tokens, answered.output_tokens
    return _Answer(asked, answered, "", began, time.monotonic() - clock, tokens)


def _fingerprint(store: Store, asked: Asked) -> str:
    """What stands for a question, without its texts."""
    messages = [[each.role, *each.parts] for each in asked.messages]
    question = [asked.protocol, asked.model, messages, asked.schema_name, asked.schema, asked.parameters]
    return store.fingerprint(json.dumps(question, sort_keys=True))


def _take(
    done: Iterable["Future[_Answer]"], records: CallRecords, as_call: AsCall, budget: Budget, found: Asking
) -> None:
    """Stores what was answered, and which questions weren't. Raises the first error."""
    calls, unanswered, failures = list[Call](), list[Asked](), list[BaseException]()
    for future in done:
        if future.cancelled():
            continue
        if (failure := future.exception()) is not None:
            failures.append(failure)
            continue
        each = future.result()
        found.money += budget.price(each.tokens)
        if each.answered is None:
            unanswered.append(each.asked)
            if each.failure is not None:
                failures.append(each.failure)
            else:
                found.passed[each.why] += 1
            continue
        calls.append(as_call(each.asked, each.answered, each.began, each.seconds))
    found.asked += records.store.add(calls) if calls else 0
    records.keep_unanswered(_fingerprint(records.store, each) for each in unanswered)
    if failures:
        raise failures[0]
