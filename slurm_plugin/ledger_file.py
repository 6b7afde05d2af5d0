"""The ledger's file: opening it, transactions, and the events in it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import structlog

from slurm_plugin.errors import ConfigError
from slurm_plugin.ledger_records import SCHEMA, VERSION, Event

log = structlog.get_logger(__name__)
_KINDS = {"TEXT": "'text'", "INTEGER": "'integer', 'real'", "REAL": "'integer', 'real'"}
"""By a column's type, what typeof() says of its values."""
_OR_NULL = (", 'null'", "")
"""The same, by whether it is NOT NULL."""
Mine = TypeVar("Mine", bound="LedgerFile")


class LedgerFile:
    """Every method is one transaction unless within ``batch``; all may raise ``sqlite3.Error``.

    Times are Unix seconds by ``clock``. Safe to use from several threads.
    """

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float] = time.time) -> None:
        self.doubtful = False
        """Something has failed since the file was last looked through: see ``damage``."""
        self._path = next(Path(row[2]) for row in connection.execute("PRAGMA database_list") if row[1] == "main")
        self._identity: tuple[int, int] | None = None
        with contextlib.suppress(OSError):
            self._identity = _identity(self._path)
        self._db = connection
        connection.text_factory = _text
        self._clock = clock
        self._lock = threading.RLock()
        self._depth = 0

    @classmethod
    def open(cls: type[Mine], path: Path, clock: Callable[[], float] = time.time) -> Mine:
        """For the manager. Makes the file (mode 0600); moves a damaged one aside and says so.

        Raises ``ConfigError`` when the file can't be used at all, or was written by a newer version.
        """
        try:
            try:
                return cls(_connect(path), clock)
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite's message may quote what is no text
                if isinstance(error, sqlite3.OperationalError):
                    raise
                aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
                log.error("the ledger is damaged: moved aside, machines are found again by their tags", path=str(aside))
                for suffix in ("", "-wal", "-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
                ledger = cls(_connect(path), clock)
                ledger.event("ledger", f"the ledger was damaged and begun anew; the old one is {aside}")
                return ledger
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{path}: can't be opened: {error}; it must belong to the manager's user") from error

    @classmethod
    def open_readonly(cls: type[Mine], path: Path) -> Mine:
        """For looking only. Raises ``ConfigError`` when there is none or it can't be read."""
        if not path.is_file():
            raise ConfigError(f"{path}: there is no ledger; the manager makes it when it first runs")
        try:
            db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
            _check_version(db, path)
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: can't be read: {error}") from error
        return cls(db)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def damage(self) -> str:
        """Path and fault for which ``open`` would move the file aside; "" where that is nothing, or can't be told now. Reads all of the file.

        By a connection of its own: the one that is in use still knows pages as they were before.
        """
        self.doubtful = False
        path = self._path
        try:
            with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10.0)) as db:
                db.text_factory = _text
                _check_version(db, path)
                _check(db)
        except (ConfigError, sqlite3.OperationalError):
            return ""
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            return f"{path}: {error}"
        return ""

    def taken_away(self) -> str:
        """The file's path, if another file or none has that name by now: what is written here nobody will ever read.

        "" where that is not so, or can't be told: a shared file system may not answer for a while.
        """
        try:
            there = _identity(self._path)
        except (FileNotFoundError, NotADirectoryError):
            there = None
        except OSError:
            return ""
        return "" if self._identity in (None, there) else str(self._path)

    @contextlib.contextmanager
    def _doubting(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError):
            self.doubtful = True
            raise

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Several writes as one transaction: all or none."""
        with self._lock, self._doubting():
            if self._depth:
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1
                return
            self._db.execute("BEGIN IMMEDIATE")
            self._depth = 1
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            else:
                self._db.execute("COMMIT")
            finally:
                self._depth = 0

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        with self._lock, self._doubting():
            return self._db.execute(sql, values).fetchall()

    def _do(self, sql: str, *values: Any) -> int:
        with self.batch():
            return self._db.execute(sql, values).rowcount

    # --- events -------------------------------------------------------------------------------------------------------

    def event(self, kind: str, text: str, *, node: str = "", job: int = 0, **detail: Any) -> None:
        """What happened, for people."""
        self._do(
            "INSERT INTO events (time, kind, job, node, text, detail) VALUES (?,?,?,?,?,?)",
            *(self._clock(), kind, job, node, text, json.dumps(detail, sort_keys=True)),
        )

    def events(self, *, job: int | None = None, node: str | None = None, limit: int = 1000) -> list[Event]:
        """The newest ``limit`` events, oldest first, of one job or one node where given."""
        where, values = ["1"], []
        for column, value in (("job", job), ("node", node)):
            if value is not None:
                where.append(f"{column}=?")
                values.append(value)
        rows = self._rows(
            f"SELECT time, kind, job, node, text, detail FROM events WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?",  # noqa: S608
            *values,
            limit,
        )
        return [Event(r[0], r[1], r[2], r[3], r[4], _detail(r[5])) for r in reversed(rows)]

    def newest_event(self) -> int:
        """Number of the newest event; 0 before the first."""
        return int(self._rows("SELECT COALESCE(MAX(id), 0) FROM events")[0][0])

    def events_after(self, number: int, limit: int = 5000) -> list[tuple[int, Event]]:
        """Events with a higher number, oldest first, each with its own."""
        rows = self._rows(
            "SELECT id, time, kind, job, node, text, detail FROM events WHERE id>? ORDER BY id LIMIT ?", number, limit
        )
        return [(r[0], Event(r[1], r[2], r[3], r[4], r[5], _detail(r[6]))) for r in rows]


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _text(stored: bytes) -> str:
    """SQLite checks its pages, not what stands in them: one flipped bit in a text must not keep all else from being read."""
    return stored.decode(errors="replace")


def _detail(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _connect(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600, exist_ok=True)
    path.chmod(0o600)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
    db.text_factory = _text
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        _check_version(db, path)
        db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version={VERSION}; COMMIT;")
        _check(db)
    except BaseException:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection) -> None:
    """Raises ``DatabaseError`` for a file that is damaged."""
    if db.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
        raise sqlite3.DatabaseError("integrity_check found damage")
    if not _expected() <= _columns(db):
        raise sqlite3.DatabaseError("its tables lack columns that were made")
    _check_kinds(db)


def _columns(db: sqlite3.Connection) -> set[tuple[str, str]]:
    """Tables and their columns: a flipped bit may give one another name."""
    return set(
        db.execute("SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type='table'")
    )


@cache
def _expected() -> set[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return _columns(db)


def _check_kinds(db: sqlite3.Connection) -> None:
    """Raises ``DatabaseError`` for a value that SQLite would not have put there: one flipped bit makes a text or a NULL of a number.

    ``integrity_check`` takes it for sound (3.40), and what reads it would fail at each pass. By the file's own columns, so that no value is
    doubted that was written, whichever version made the file.
    """
    for table in sorted({table for table, _ in _expected()}):
        columns = db.execute('SELECT name, type, "notnull" FROM pragma_table_info(?)', (table,))
        odd = [
            f"typeof({name}) NOT IN ({_KINDS[kind]}{_OR_NULL[needed]})"
            for name, kind, needed in columns
            if kind in _KINDS
        ]
        if db.execute(f"SELECT 1 FROM {table} WHERE {' OR '.join(odd) or 0} LIMIT 1").fetchone():  # noqa: S608
            raise sqlite3.DatabaseError(f"{table} has a value of another kind than was written")


def _check_version(db: sqlite3.Connection, path: Path) -> None:
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise ConfigError(
            f"{path}: was written by a newer spotburst (ledger format {version}; this one knows {VERSION})"
        )
