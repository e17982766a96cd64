"""Tasks over many processes, their results in order: workers of this machine, or of a Ray cluster's machines.

The same function gets the same tasks, and its results come in the same order, so that whatever is made of
them does not depend on the workers. Those of this machine bound what is in flight, and never outlive their
parent. On a cluster, by Ray Data, a task whose worker or machine is lost is done again elsewhere.
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
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

from bertsmith.errors import BertsmithError, InputError, ResourceError, require

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa

Engine = Literal["local", "ray"]
Result = TypeVar("Result")

IN_FLIGHT = 2  # tasks a worker of this machine: one at work, one waiting
# Ray Data wants all of its input at once. In rounds, what waits in memory doesn't grow with the job, and
# workers idle for no more than the last task of many.
TASKS_OF_A_ROUND = 16  # for each CPU of the cluster
SECONDS_TO_ANSWER = 10.0
ATTEMPTS = 4  # at a task: Ray Data would try one that runs out of memory for ever


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_order(
    function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[Result]:
    """function(*task) for each task, in their order, over `workers` processes; one worker is this process.

    Tasks are drawn as results are taken, so at most 2 x workers + 1 are in memory. Processes are spawned, not
    forked: a fork copies locks that threads of torch or tokenizers may hold.
    """
    if workers == 1:
        for task in tasks:
            yield function(*task)
        return
    from concurrent.futures import ProcessPoolExecutor  # here, for commands name an Engine as they start
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_follow_parent) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(function, *task))
                if len(waiting) >= IN_FLIGHT * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise ResourceError(
                "A worker process ended early, probably because memory ran out. Try fewer workers "
                "(--workers 1). In a script of your own, call this below `if __name__ == '__main__':`."
            ) from error
        finally:
            for future in waiting:
                future.cancel()


def _follow_parent() -> None:
    """Leaves Ctrl-C and a terminal that closes to the parent, and ends this worker should that be killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def end_with_it() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()


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


def map_in_order_by_ray(
    function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]
) -> Iterator[Result]:
    """function(*task) for each task, in their order, each on one CPU of a Ray cluster.

    The cluster is the one that this process is connected to, else that of RAY_ADDRESS, else the one that this
    machine belongs to, else this machine alone. All that `function` holds is sent along, so workers need
    this package and no files but those that `function` opens.
    Raises MissingExtra without ray, InputError when the cluster can't be reached, ResourceError when a task
    loses its worker again and again, and the errors of `function` that are the user's to mend.
    """
    ray = require_ray()
    with _connect_to_ray(ray), _silence_ray_data():
        # One count for all workers; should its own machine be lost, it begins at 1 again elsewhere.
        attempts = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_AttemptCounter).remote()
        call = partial(_run_task, ray.put(function), attempts)
        waiting = enumerate(tasks)
        while True:
            size = TASKS_OF_A_ROUND * max(1, int(ray.cluster_resources().get("CPU", 1)))
            blocks = [ray.put(_pack(numbered)) for numbered in islice(waiting, size)]
            if not blocks:
                return
            for outcome in _run_round(ray, blocks, call):
                if outcome.error is not None:
                    raise outcome.error
                yield outcome.result


@contextmanager
def _connect_to_ray(ray: Any) -> Iterator[None]:
    """Who is connected already stays so."""
    if ray.is_initialized():
        yield
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # a cluster that is started here would report home
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
    """Ray Data tells every step on standard error; errors stay."""
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _TaskOutcome(NamedTuple):
    """A result, or what the user has to mend: Ray would bury that in a worker's traceback."""

    result: Any
    error: BertsmithError | None = None


def _run_round(
    ray: Any, blocks: list[Any], call: Callable[["pa.Table"], "pa.Table"]
) -> Iterator[_TaskOutcome]:
    """One run of Ray Data; a block holds one task, and so becomes one task of Ray's."""
    data = ray.data.from_arrow_refs(blocks).map_batches(
        call, batch_size=None, batch_format="pyarrow", num_cpus=1
    )
    data.context.enable_progress_bars = False
    data.context.execution_options.preserve_order = True
    for table in data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield _unpack(table)


def _run_task(sent: Any, attempts: Any, table: "pa.Table") -> "pa.Table":
    """What a worker does."""
    import ray

    number, task = _unpack(table)
    if ray.get(attempts.begin.remote(number)) > ATTEMPTS:
        error = ResourceError(
            f"Task {number} lost its worker {ATTEMPTS} times, mostly because memory ran out. Give the "
            "cluster's machines more memory, or fewer CPUs each (`ray start --num-cpus`), and run this again."
        )
        return _pack(_TaskOutcome(None, error))
    try:
        return _pack(_TaskOutcome(ray.get(sent)(*task)))
    except BertsmithError as for_the_user:
        return _pack(_TaskOutcome(None, for_the_user))


class _AttemptCounter:
    """How often each task was begun, known outside of the workers that may be lost over it."""

    def __init__(self) -> None:
        self.begun = Counter[int]()

    def begin(self, number: int) -> int:
        """Of a task that is begun: for which time."""
        self.begun[number] += 1
        return self.begun[number]


def _pack(value: Any) -> "pa.Table":
    """A table of one row: Ray Data moves tables, and tasks are whatever can be pickled."""
    import pyarrow as pa

    return pa.table({"pickled": pa.array([pickle.dumps(value)], pa.large_binary())})


def _unpack(table: "pa.Table") -> Any:
    return pickle.loads(table.column("pickled")[0].as_buffer())
