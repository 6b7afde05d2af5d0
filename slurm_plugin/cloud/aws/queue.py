"""The SQS queue that EventBridge puts events about EC2 instances into (templates/aws-events.yaml.j2)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from job_wrapper.counted import counted
from slurm_plugin.cloud import launch_ids
from slurm_plugin.cloud.aws import events
from slurm_plugin.cloud.aws.client import make_client, make_session, send
from slurm_plugin.cloud.aws.errors import ApiError
from slurm_plugin.cloud.mailbox import Message
from slurm_plugin.config import AwsProvider
from slurm_plugin.errors import CloudUnavailable

LONGEST_WAIT = 20.0
"""Seconds that SQS holds a request which finds the queue empty."""
AT_ONCE = 10
"""Messages that one call takes or deletes; SQS's limit."""
TIMEOUT = 30.0
"""Seconds for one answer, the wait included."""


class Queue:
    """Implements ``Mailbox``. Safe in several threads."""

    def __init__(self, config: AwsProvider, url: str, clock: Callable[[], float] = time.time) -> None:
        self.url = url
        self._config, self._clock = config, clock
        self._lock = threading.Lock()
        self._client: Any = None

    def receive(self, wait: float) -> list[Message]:
        """See ``Mailbox.receive``; at most ten, and no longer than SQS waits."""
        answer = self._call(
            "receive_message", MaxNumberOfMessages=AT_ONCE, WaitTimeSeconds=int(min(max(wait, 0.0), LONGEST_WAIT))
        )
        now = self._clock()
        return [events.read(str(m["ReceiptHandle"]), str(m.get("Body", "")), now) for m in answer.get("Messages") or ()]

    def delete(self, messages: Sequence[Message]) -> None:
        """See ``Mailbox.delete``. One that can't be deleted does not keep the others."""
        faults = []
        for piece in launch_ids.chunks(list(messages), AT_ONCE):
            entries = [{"Id": str(i), "ReceiptHandle": m.receipt} for i, m in enumerate(piece)]
            try:
                failed = self._call("delete_message_batch", Entries=entries).get("Failed") or ()
            except CloudUnavailable as error:
                faults.append(str(error))
            else:
                faults += [f"{f.get('Code')}: {f.get('Message', '')}" for f in failed]
        if faults:
            raise CloudUnavailable(f"{self.url}: {counted(len(faults), 'deletion')} failed; {faults[0]}")

    def _call(self, operation: str, **members: Any) -> dict[str, Any]:
        try:
            return send(self._opened, operation, {"QueueUrl": self.url, **members})
        except ApiError as error:
            raise CloudUnavailable(f"{self.url}: {error}") from error

    def _opened(self) -> Any:
        with self._lock:
            if self._client is None:
                # The URL's own host: a queue may be reached by an endpoint of the site's network.
                host = urlsplit(self.url)
                self._client = make_client(make_session(self._config), "sqs", f"{host.scheme}://{host.netloc}", TIMEOUT)
            return self._client
