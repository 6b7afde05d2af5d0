"""What a cloud sends by itself about machines: messages from a queue, where one is configured, as values. Nothing is sent here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from job_wrapper.notice.types import TAKES_AWAY, Notice


@dataclass(frozen=True, slots=True)
class MachineNotice:
    """A notice about one machine. Its ``source_id`` is the same however often, and in however many messages, it comes."""

    instance_id: str
    notice: Notice

    @property
    def takes_away(self) -> bool:
        """Whether the machine ends; other notices only warn."""
        return self.notice.kind in TAKES_AWAY


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``receipt`` is what deletes it, ``body`` its text.

    ``ended``: ids of machines that are said to end or to have ended, which the listing has yet to show. ``unreadable``: why nothing could be
    made of it, "" where something could. A message about other things than machines has none of these.
    """

    receipt: str
    body: str
    notices: tuple[MachineNotice, ...] = ()
    ended: tuple[str, ...] = ()
    unreadable: str = ""


class Mailbox(Protocol):
    """A queue of messages that stay until they are deleted, come at least once, and in any order."""

    def receive(self, wait: float) -> list[Message]:
        """The next few messages; waits up to ``wait`` seconds for the first. Raises ``CloudUnavailable``.

        They come again after a while unless they are deleted.
        """
        ...

    def delete(self, messages: Sequence[Message]) -> None:
        """What they said is recorded. Raises ``CloudUnavailable`` where some could not be: they come again."""
        ...


@runtime_checkable
class SendsMessages(Protocol):
    """A provider whose cloud may be told to send messages about its machines."""

    def mailbox(self) -> Mailbox | None:
        """Where they come in; None where none is configured. Nothing is sent."""
        ...
