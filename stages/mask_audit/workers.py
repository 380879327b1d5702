"""Rows are prepared on all cores: what comes out, and in which order, is what one process makes.

Workers are forked, so that each has the tokenizer as it was loaded (to load it anew takes seconds),
and end with this process, however it ends: nobody else holds the other end of their connections.
"""

import gc
import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..chat.conversation import Conversation
from ..chat.labels import Labelled
from ..config.errors import UserError
from .findings import Audit, Finding
from .prepare import CHUNK_ROWS, Drop, Prepared, Preparer

MAX_WORKERS = 16
"""One process takes in what some fifteen workers prepare."""
CHUNKS_AHEAD = 2
"""Chunks a worker that are under way or wait for their turn."""

Prepare = Callable[[Iterable[Conversation], Audit], Iterator[Prepared]]


def usable_cores() -> int:
    """Cores that this process may use; 1 where the system does not tell, as macOS."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


@contextmanager
def preparing(preparer: Preparer, rows: int) -> Iterator[Prepare]:
    """`preparer.prepare`, in a worker for each core where there are chunks of rows for several.

    rows: how many there will be. Enter it before other threads are started: processes are forked.
    """
    count = min(usable_cores(), rows // CHUNK_ROWS, MAX_WORKERS)
    if count < 2:
        yield preparer.prepare
        return
    workers: list[_Worker] = []
    try:
        while len(workers) < count:
            workers.append(_Worker(preparer, [worker.connection for worker in workers]))
        yield lambda conversations, audit: _prepare(workers, conversations, audit)
    finally:
        for worker in workers:
            worker.end()


def _prepare(
    workers: Sequence["_Worker"], conversations: Iterable[Conversation], audit: Audit
) -> Iterator[Prepared]:
    """As Preparer.prepare; who is done gets the next chunk, what is early waits for its turn."""
    stream = iter(conversations)
    chunks = iter(lambda: list(islice(stream, CHUNK_ROWS)), [])
    idle, order = deque(workers), deque[list[Conversation]]()
    busy: dict[Connection, tuple[_Worker, int]] = {}
    early: dict[int, _Packed | Exception] = {}
    given = turn = 0
    while True:
        while idle and len(order) < CHUNKS_AHEAD * len(workers) and (chunk := next(chunks, None)):
            worker = idle.popleft()
            worker.give(chunk)
            order.append(chunk)
            busy[worker.connection] = worker, given
            given += 1
        if turn in early:
            answer = early.pop(turn)
            if isinstance(answer, Exception):
                raise answer
            turn += 1
            audit.include(answer.audit)
            yield from answer.unpack(order.popleft())
        elif not busy:
            return
        for connection in wait(list(busy), 0 if turn in early else None) if busy else ():
            assert isinstance(connection, Connection)
            worker, number = busy.pop(connection)
            early[number] = worker.take()
            idle.append(worker)


class _Worker:
    """A process that prepares one chunk after another. others: connections that are not its own."""

    def __init__(self, preparer: Preparer, others: Sequence[Connection]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, its_end = context.Pipe()
        foreign = [*others, self.connection]
        self._process = context.Process(
            target=_work, args=(preparer, its_end, foreign), daemon=True
        )
        self._process.start()
        its_end.close()

    def give(self, chunk: list[Conversation]) -> None:
        try:
            self.connection.send(chunk)
        except OSError:
            raise self._ended() from None

    def take(self) -> "_Packed | Exception":
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        assert isinstance(answer, _Packed | Exception)
        return answer

    def _ended(self) -> UserError:
        self._process.join()
        code = self._process.exitcode or 0
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return UserError(
            f"a process that prepared rows was ended {how} (SIGKILL often means that memory ran "
            "out); run the stage again"
        )

    def end(self) -> None:
        self.connection.close()
        self._process.terminate()
        self._process.join()


def _work(preparer: Preparer, connection: Connection, foreign: Sequence[Connection]) -> None:
    """What a worker does until its connection closes."""
    for other in foreign:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a Ctrl-C is told of by the stage alone
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a core has one worker, and no thread is forked
    gc.freeze()  # what the stage holds stays in pages that are shared
    gc.disable()
    try:
        while True:
            connection.send(_answer(preparer, connection.recv()))
            gc.collect()  # between chunks, there is nothing to look through
    except (EOFError, OSError):
        return


def _answer(preparer: Preparer, conversations: list[Conversation]) -> "_Packed | Exception":
    audit = Audit()
    try:
        return _pack(list(preparer.prepare(conversations, audit)), audit)
    except UserError as error:
        return error
    except Exception:
        return RuntimeError(f"in a process that prepares rows:\n{traceback.format_exc()}")


@dataclass(frozen=True)
class _Packed:
    """A chunk on its way: without conversations and texts, and the arrays of all rows end to end.

    labelled: whether each row has a Labelled; lengths: int64 [labelled rows, 4], the lengths of
    its arrays; arrays: those of Labelled, joined.
    """

    rest: list[tuple[int, Drop | None, str, bool, list[Finding]]]
    labelled: list[bool]
    lengths: NDArray[np.int64]
    arrays: list[NDArray[Any]]
    audit: Audit

    def unpack(self, chunk: Sequence[Conversation]) -> Iterator[Prepared]:
        ends = self.lengths.cumsum(axis=0)
        bounds = iter(zip((ends - self.lengths).tolist(), ends.tolist(), strict=True))
        for conversation, has_row, rest in zip(chunk, self.labelled, self.rest, strict=True):
            row = None
            if has_row:
                edges = zip(self.arrays, *next(bounds), strict=True)
                row = Labelled(*(array[start:end] for array, start, end in edges))
            tokens, dropped, detail, truncated, findings = rest
            yield Prepared(
                conversation,
                tokens=tokens,
                row=row,
                dropped=dropped,
                detail=detail,
                truncated=truncated,
                findings=findings,
            )


def _pack(rows: Sequence[Prepared], audit: Audit) -> _Packed:
    labelled: list[tuple[NDArray[Any], ...]] = [
        (row.row.input_ids, row.row.labels, row.row.roles, row.row.straddling)
        for row in rows
        if row.row is not None
    ]
    return _Packed(
        [(row.tokens, row.dropped, row.detail, row.truncated, row.findings) for row in rows],
        [row.row is not None for row in rows],
        np.array([list(map(len, arrays)) for arrays in labelled], np.int64).reshape(-1, 4),
        [np.concatenate(column) for column in zip(*labelled, strict=True)],
        audit,
    )
