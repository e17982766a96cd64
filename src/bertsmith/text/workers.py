"""Maps a function over tasks in many processes, of this machine or of a Ray cluster, with the results in
order.

The results come in the order of the tasks, so that nothing depends on the number of workers. Local workers
hold a bounded number of tasks at a time, and never outlive their parent. On a cluster, with Ray Data, a task
whose worker or machine is lost is repeated elsewhere.
"""

import logging
import multiprocessing
import os
import pickle
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

from bertsmith.errors import BertsmithError, InputError, ResourceError, require

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa

Engine = Literal["local", "ray"]
Result = TypeVar("Result")

IN_FLIGHT = 2  # tasks per local worker: one running, one waiting
# Ray Data needs all of its input at once. In rounds, the tasks in memory don't grow with the job, and workers
# are idle only for the last of many tasks.
TASKS_OF_A_ROUND = 16  # per CPU of the cluster
SECONDS_TO_ANSWER = 10.0
ATTEMPTS = 4  # at a task: Ray Data would repeat one that runs out of memory for ever


def usable_cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_order(
    function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[Result]:
    """Yields function(*task) for each task, in their order, over `workers` processes; one worker is this
    process.

    Tasks are drawn as results are consumed, so that at most 2 x workers + 1 are in memory. Processes are
    spawned, not forked: a fork copies locks that threads of torch or tokenizers may hold. Raises
    ResourceError if a worker dies.
    """
    if workers == 1:
        for task in tasks:
            yield function(*task)
        return
    from concurrent.futures import ProcessPoolExecutor  # here, because commands import Engine as they start
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_follow_parent) as pool:
        pending: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                pending.append(pool.submit(function, *task))
                if len(pending) >= IN_FLIGHT * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise ResourceError(
                "A worker process ended early, probably because memory ran out. Try fewer workers "
                "(--workers 1). In a script of your own, call this below `if __name__ == '__main__':`."
            ) from error
        finally:
            for future in pending:
                future.cancel()


def _follow_parent() -> None:
    """Leaves Ctrl-C and the end of the terminal to the parent process, and ends this worker if the parent
    dies.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def exit_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def require_engine(name: str) -> None:
    """Raises InputError for an unknown engine, and MissingExtra for one that isn't installed."""
    if name not in get_args(Engine):
        raise InputError(f"engine must be {' or '.join(get_args(Engine))}, found {name!r}.")
    if name == "ray":
        require_ray()


def require_ray() -> Any:
    """The module `ray`. Raises MissingExtra if it isn't installed."""
    require("ray.data", "ray", "--engine ray")
    import ray

    return ray


def map_in_order_by_ray(
    function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]
) -> Iterator[Result]:
    """Yields function(*task) for each task, in their order, each on one CPU of a Ray cluster.

    The cluster is the one that this process is connected to, else that of RAY_ADDRESS, else the one that this
    machine belongs to, else this machine alone. `function` is pickled with all that it refers to, so workers
    need only this package and the files that `function` opens. Raises MissingExtra without ray, InputError if
    the cluster can't be reached, ResourceError if a task loses its worker again and again, and any
    BertsmithError of `function`.
    """
    ray = require_ray()
    with _connect_to_ray(ray), _silence_ray_data():
        # One counter for all workers; if its machine is lost, it starts again elsewhere, from 0.
        attempts = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_AttemptCounter).remote()
        call = partial(_run_task, ray.put(function), attempts)
        numbered_tasks = enumerate(tasks)
        while True:
            size = TASKS_OF_A_ROUND * max(1, int(ray.cluster_resources().get("CPU", 1)))
            blocks = [ray.put(_pack(numbered_task)) for numbered_task in islice(numbered_tasks, size)]
            if not blocks:
                return
            for outcome in _run_round(ray, blocks, call):
                if outcome.error is not None:
                    raise outcome.error
                yield outcome.result


@contextmanager
def _connect_to_ray(ray: Any) -> Iterator[None]:
    """Connects to a cluster for the block; a connection that exists already is used and stays."""
    if ray.is_initialized():
        yield
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # a cluster that is started here would send usage statistics
    try:
        host, _, port = os.environ.get("RAY_ADDRESS", "").rpartition(":")
        if port.isdigit() and "//" not in host:  # Ray itself would try for more than five minutes
            socket.create_connection((host, int(port)), SECONDS_TO_ANSWER).close()
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises plain ones too, as when a node takes too long to start
        first_line = str(error).strip().partition("\n")[0].rstrip(".")
        raise InputError(
            f"No Ray cluster could be joined ({first_line}). Start one with `ray start --head`, "
            "name it by the variable RAY_ADDRESS, or unset that to use this machine alone."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _silence_ray_data() -> Iterator[None]:
    """Silences Ray Data's reports of every step on standard error, except errors."""
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _TaskOutcome(NamedTuple):
    """The result of a task, or an error for the user, which Ray would bury in a worker's traceback."""

    result: Any
    error: BertsmithError | None = None


def _run_round(
    ray: Any, blocks: list[Any], call: Callable[["pa.Table"], "pa.Table"]
) -> Iterator[_TaskOutcome]:
    """Yields the outcomes of one run of Ray Data over blocks of one task each, so that each is one task of
    Ray's.
    """
    data = ray.data.from_arrow_refs(blocks).map_batches(
        call, batch_size=None, batch_format="pyarrow", num_cpus=1
    )
    data.context.enable_progress_bars = False
    data.context.execution_options.preserve_order = True
    for table in data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield _unpack(table)


def _run_task(function_ref: Any, attempts: Any, table: "pa.Table") -> "pa.Table":
    """Runs one task in a worker; `table` is the packed number and arguments of the task."""
    import ray

    number, task = _unpack(table)
    if ray.get(attempts.begin.remote(number)) > ATTEMPTS:
        error = ResourceError(
            f"Task {number} lost its worker {ATTEMPTS} times, mostly because memory ran out. Give the "
            "cluster's machines more memory, or fewer CPUs each (`ray start --num-cpus`), and run this again."
        )
        return _pack(_TaskOutcome(None, error))
    try:
        return _pack(_TaskOutcome(_function_behind(function_ref)(*task)))
    except BertsmithError as user_error:
        return _pack(_TaskOutcome(None, user_error))


@lru_cache(maxsize=1)
def _function_behind(function_ref: Any) -> Callable[..., Any]:
    """The function of the job, unpickled once in a worker: it may hold a model, which a task needn't copy."""
    import ray

    function: Callable[..., Any] = ray.get(function_ref)
    return function


class _AttemptCounter:
    """Counts how often each task was begun, in an actor of its own: workers may be lost."""

    def __init__(self) -> None:
        self.counts = Counter[int]()

    def begin(self, number: int) -> int:
        """Counts the beginning of a task; returns its attempts so far, with this one."""
        self.counts[number] += 1
        return self.counts[number]


def _pack(value: Any) -> "pa.Table":
    """A value, pickled into a table of one row, since Ray Data moves tables."""
    import pyarrow as pa

    return pa.table({"pickled": pa.array([pickle.dumps(value)], pa.large_binary())})


def _unpack(table: "pa.Table") -> Any:
    return pickle.loads(table.column("pickled")[0].as_buffer())
