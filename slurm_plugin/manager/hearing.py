"""Messages of clouds about their machines, each mailbox in a thread of its own: a queue that is away holds up no pass.

A message is deleted only once what it says is on disk (``told``). From then on it is not the message that a node is drained by: each pass sees
the machine as being taken back until that is done or over, so a drain that fails is tried again (cases 17), and a message that comes twice, or
after a restart, changes nothing (cases 18).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from job_wrapper.notice.types import Notice
from slurm_plugin.cloud.mailbox import Mailbox, Message, SendsMessages
from slurm_plugin.cloud.provider import Instance, InstanceState
from slurm_plugin.errors import CloudUnavailable
from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import IntentState
from slurm_plugin.manager.lane import Lane
from slurm_plugin.manager.say import Once, log
from slurm_plugin.manager.told import ToldBook

WAIT = 20.0
"""Seconds that a mailbox is asked to wait for a message."""
PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a mailbox is asked again after a fault, the last for as long as it goes on."""


@dataclass(frozen=True, slots=True)
class _Ear:
    name: str
    mailbox: Mailbox
    book: ToldBook


class Hearing:
    """``start`` and ``stop`` as the manager's other threads. ``wake`` is called when a pass has something new to see."""

    def __init__(
        self,
        lanes: Mapping[str, Lane],
        ledger: Ledger,
        state_dir: Path,
        once: Once,
        wake: Callable[[], None] = lambda: None,
        *,
        pauses: Sequence[float] = PAUSES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``pauses``: see ``PAUSES``. Nothing is sent before ``start``."""
        self._ledger, self._once, self._wake, self._pauses = ledger, once, wake, pauses
        self._ears = {
            name: _Ear(name, mailbox, ToldBook(state_dir / "told", name, clock))
            for name, lane in lanes.items()
            if isinstance(lane.provider, SendsMessages) and (mailbox := lane.provider.mailbox()) is not None
        }
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(ear,), name=f"messages-{ear.name}", daemon=True)
            for ear in self._ears.values()
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the current message. One that comes in while the mailbox waits is left there, and comes again."""
        self._stopped.set()

    def taken_away(self, provider: str) -> Mapping[str, Notice]:
        """By instance id, what the provider's messages say of machines that are being taken back."""
        ear = self._ears.get(provider)
        return ear.book.taken_away() if ear is not None else {}

    def changed(self, provider: str) -> bool:
        """Whether a machine has ended since this was last asked, so that an older listing is not the truth any more."""
        with self._lock:
            found = provider in self._changed
            self._changed.discard(provider)
            return found

    def look(self, provider: str, wait: float = 0.0) -> int:
        """Take the next messages of a provider that has a mailbox; how many. Raises ``CloudUnavailable``, and ``sqlite3.Error``."""
        ear = self._ears[provider]
        messages = ear.mailbox.receive(wait)
        if messages and not self._stopped.is_set():
            self._take(ear, messages)
        return len(messages)

    # Inside.

    def _run(self, ear: _Ear) -> None:
        what = f"messages of {ear.name}"
        failures = 0
        while not self._stopped.is_set():
            try:
                self.look(ear.name, WAIT)
                failures = 0
                self._once.well(what)
            except Exception as error:
                if self._stopped.is_set():
                    return  # the ledger may be closed by now
                said = str(error) if isinstance(error, CloudUnavailable) else repr(error)
                self._once.fault(what, f"can't be had, so nodes and the cloud's listing alone tell of reclaims: {said}")
                self._stopped.wait(self._pauses[min(failures, len(self._pauses) - 1)])
                failures += 1

    def _take(self, ear: _Ear, messages: Sequence[Message]) -> None:
        """Record what they say, then delete them; where either fails they come again. The unreadable last: they hold up no other."""
        provider = ear.name
        ours = {i.instance_id: i for i in self._ledger.intents() if i.provider == provider and i.instance_id}
        told_now = (notice for message in messages for notice in message.notices)
        # An interruption counts before the ledger knows the machine; what only warns is of no use then.
        new = [n for n in ear.book.new(told_now) if n.takes_away or n.instance_id in ours]
        for told in new:
            if not told.takes_away:
                machine = ours[told.instance_id]
                text = f"{told.notice.kind}, told by {provider}: {told.notice.text}"
                log.info("a machine may go", node=machine.node, instance=told.instance_id, why=text)
                self._ledger.event(
                    "notice", text, node=machine.node, deadline=told.notice.deadline, notice_id=told.notice.source_id
                )
        if new:
            ear.book.add(new)
        # What we end ourselves changes too, and is no news.
        ended = {i for message in messages for i in message.ended if i in ours and ours[i].state is IntentState.LIVE}
        if ended:
            with self._lock:
                self._changed.add(provider)
        if ended or any(told.takes_away for told in new):
            self._wake()
        unreadable = [m for m in messages if m.unreadable]
        if len(unreadable) < len(messages):
            ear.mailbox.delete([m for m in messages if not m.unreadable])
        if unreadable:
            path = ear.book.put_aside(unreadable)
            why = unreadable[0].unreadable
            log.warning("messages that can't be read are put aside", provider=provider, path=str(path), why=why)
            ear.mailbox.delete(unreadable)


def with_notices(machines: Sequence[Instance], told: Mapping[str, Notice]) -> tuple[Instance, ...]:
    """The listing's machines, those that messages call taken back as such. What the listing itself says of a reclaim goes first."""
    if not told:
        return tuple(machines)
    return tuple(_with_notice(m, told.get(m.instance_id)) for m in machines)


def _with_notice(machine: Instance, notice: Notice | None) -> Instance:
    if notice is None or machine.state not in (InstanceState.PENDING, InstanceState.RUNNING):
        return machine
    return replace(machine, state=InstanceState.RECLAIMING, deadline=notice.deadline, notice_id=notice.source_id)
