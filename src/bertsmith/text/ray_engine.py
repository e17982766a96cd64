"""Tasks over the machines of a Ray cluster, by Ray Data: `workers.ordered` for more than one machine.

The same function gets the same tasks, and its results come in the same order, so that whatever is made of
them does not depend on the engine. A task whose worker or machine is lost is done again elsewhere.
"""

import logging
import os
import pickle
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

from bertsmith.errors import BertsmithError, InputError, ResourceError, require

if TYPE_CHECKING:
    import pyarrow as pa

Engine = Literal["local", "ray"]
Result = TypeVar("Result")

# Ray Data wants all of its input at once. In rounds, what waits in memory doesn't grow with the job, and
# workers idle for no more than the last task of many.
TASKS_OF_A_ROUND = 16  # for each CPU of the cluster
SECONDS_TO_ANSWER = 10.0
ATTEMPTS = 4  # at a task: Ray Data would try one that runs out of memory for ever


class _Outcome(NamedTuple):
    """A result, or what the user has to mend: Ray would bury that in a worker's traceback."""

    result: Any
    error: BertsmithError | None = None


def ordered_by_ray(function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
    """function(*task) for each task, in their order, each on one CPU of a Ray cluster.

    The cluster is the one that this process is connected to, else that of RAY_ADDRESS, else the one that this
    machine belongs to, else this machine alone. All that `function` holds is sent along, so workers need
    this package and no files but those that `function` opens.
    Raises MissingExtra without ray, InputError when the cluster can't be reached, ResourceError when a task
    loses its worker again and again, and the errors of `function` that are the user's to mend.
    """
    ray = require_ray()
    with _connected(ray), _quiet():
        call = partial(_call, ray.put(function), _tally(ray))
        waiting = enumerate(tasks)
        while True:
            size = TASKS_OF_A_ROUND * max(1, int(ray.cluster_resources().get("CPU", 1)))
            blocks = [ray.put(_packed(numbered)) for numbered in islice(waiting, size)]
            if not blocks:
                return
            for outcome in _round(ray, blocks, call):
                if outcome.error is not None:
                    raise outcome.error
                yield outcome.result


def require_engine(name: str) -> None:
    """Raises InputError for what is no engine, MissingExtra for one that isn't installed."""
    if name not in get_args(Engine):
        raise InputError(f"engine must be {' or '.join(get_args(Engine))}, found {name!r}.")
    if name == "ray":
        require_ray()


def require_ray() -> Any:
    """The module. Raises MissingExtra when it isn't installed."""
    require("ray.data", "ray", "--engine ray")
    import ray

    return ray


def _round(ray: Any, blocks: list[Any], call: Callable[["pa.Table"], "pa.Table"]) -> Iterator[_Outcome]:
    """One run of Ray Data; a block holds one task, and so becomes one task of Ray's."""
    data = ray.data.from_arrow_refs(blocks).map_batches(
        call, batch_size=None, batch_format="pyarrow", num_cpus=1
    )
    data.context.enable_progress_bars = False
    data.context.execution_options.preserve_order = True
    for table in data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield _unpacked(table)


def _call(sent: Any, tally: Any, table: "pa.Table") -> "pa.Table":
    """What a worker does."""
    import ray

    number, task = _unpacked(table)
    if ray.get(tally.begin.remote(number)) > ATTEMPTS:
        return _packed(_Outcome(None, _given_up(number)))
    try:
        return _packed(_Outcome(ray.get(sent)(*task)))
    except BertsmithError as error:
        return _packed(_Outcome(None, error))


class _Tally:
    """How often each task was begun, known outside of the workers that may be lost over it."""

    def __init__(self) -> None:
        self.begun = Counter[int]()

    def begin(self, number: int) -> int:
        """Of a task that is begun: for which time."""
        self.begun[number] += 1
        return self.begun[number]


def _tally(ray: Any) -> Any:
    """One for all workers; should its own machine be lost, it counts from 1 again elsewhere."""
    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Tally).remote()


def _given_up(number: int) -> ResourceError:
    return ResourceError(
        f"Task {number} lost its worker {ATTEMPTS} times, mostly because memory ran out. Give the cluster's "
        "machines more memory, or fewer CPUs each (`ray start --num-cpus`), and run this again."
    )


def _packed(value: Any) -> "pa.Table":
    """A table of one row: Ray Data moves tables, and tasks are whatever can be pickled."""
    import pyarrow as pa

    return pa.table({"pickled": pa.array([pickle.dumps(value)], pa.large_binary())})


def _unpacked(table: "pa.Table") -> Any:
    return pickle.loads(table.column("pickled")[0].as_buffer())


@contextmanager
def _connected(ray: Any) -> Iterator[None]:
    """Who is connected already stays so."""
    if ray.is_initialized():
        yield
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # a cluster that is started here would report home
    try:
        _require_answer(os.environ.get("RAY_ADDRESS", ""))
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises plain ones too, as when a node takes too long to start
        raise InputError(
            f"No Ray cluster could be joined ({_first_line(error)}). Start one with `ray start --head`, "
            "name it by the variable RAY_ADDRESS, or unset that to use this machine alone."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Raises OSError when nothing listens at host:port; Ray itself would try for more than five minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "//" not in host:
        socket.create_connection((host, int(port)), SECONDS_TO_ANSWER).close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray Data tells every step on standard error; errors stay."""
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
