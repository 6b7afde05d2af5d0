"""The one place that imports boto3: clients for one region, errors as ``ApiError``, and calls to EC2 at the rate that it allows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from slurm_plugin.cloud.aws.errors import NO_ANSWER, THROTTLES, ApiError
from slurm_plugin.cloud.backoff import Backoff, Paused
from slurm_plugin.cloud.refusals import shorten
from slurm_plugin.config import AwsProvider

READ_TIMEOUT = 8.0
WRITE_TIMEOUT = 60.0
"""Seconds for one answer. CreateFleet of some hundred machines takes many; a listing is wanted within a pass."""
READ_PATIENCE = 6.0
WRITE_PATIENCE = 8.0
"""Seconds that a call may spend waiting for the shared pause (manager/lane.py waits 10 s and 15 s)."""
_MISTAKES = ("Credential", "Profile", "Region", "Config", "ParamValidation", "UnknownService", "Token", "SSO")


class Ec2:
    """Calls by boto3's names: ``read("describe_instances", Filters=…)``. Safe in several threads; made lazily."""

    def __init__(self, config: AwsProvider) -> None:
        self.config = config
        # EC2 counts reads and writes in buckets of their own, so a launch that is put off holds up no listing.
        self._reads, self._writes = Backoff(), Backoff()
        self._lock = threading.Lock()
        self._clients: dict[float, Any] = {}
        self._session: Any = None

    def read(self, operation: str, **members: Any) -> dict[str, Any]:
        """A call that changes nothing. Raises ``ApiError``."""
        return self._paced(self._reads, READ_TIMEOUT, READ_PATIENCE, operation, members)

    def write(self, operation: str, **members: Any) -> dict[str, Any]:
        """A call that changes something: it may have taken effect though no answer came. Raises ``ApiError``."""
        return self._paced(self._writes, WRITE_TIMEOUT, WRITE_PATIENCE, operation, members)

    def pages(self, operation: str, key: str, **members: Any) -> Iterator[dict[str, Any]]:
        """All items of all pages. Raises ``ApiError`` in the middle of it: use nothing of what came before."""
        token: dict[str, str] = {}
        while True:
            answer = self.read(operation, **members, **token)
            yield from answer.get(key) or ()
            if not answer.get("NextToken"):
                return
            token = {"NextToken": answer["NextToken"]}

    def _paced(
        self, pace: Backoff, timeout: float, patience: float, operation: str, members: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            return pace.call(lambda: self.send(timeout, operation, members), _is_throttle, patience)
        except Paused as error:
            raise ApiError("RequestLimitExceeded", str(error)) from None

    def send(self, timeout: float, operation: str, members: dict[str, Any]) -> dict[str, Any]:
        """One call, once."""
        return send(lambda: self._client(timeout), operation, members)

    def _client(self, timeout: float) -> Any:
        with self._lock:
            if timeout not in self._clients:
                self._session = self._session or make_session(self.config)
                self._clients[timeout] = make_client(self._session, "ec2", self.config.endpoint_url, timeout)
            return self._clients[timeout]


class Service:
    """Another service of AWS's, of which a few things are asked. An endpoint that is not AWS's own is taken to speak for all of them."""

    def __init__(self, config: AwsProvider, name: str) -> None:
        self._config, self._name = config, name
        self._client: Any = None

    def call(self, operation: str, **members: Any) -> dict[str, Any]:
        """One call, once. Raises ``ApiError``."""
        return send(self._opened, operation, members)

    def _opened(self) -> Any:
        if self._client is None:
            url = self._config.endpoint_url
            if url and (urlsplit(url).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws")):
                url = None
            self._client = make_client(make_session(self._config), self._name, url, READ_TIMEOUT)
        return self._client


def send(client: Callable[[], Any], operation: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """One call of a client of boto3, once. Raises ``ApiError``."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        answer: dict[str, Any] = getattr(client(), operation)(**members)
        return answer
    except ClientError as error:
        told = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        raise ApiError(str(told.get("Code") or status), str(told.get("Message") or error), status) from error
    except BotoCoreError as error:
        name = type(error).__name__
        mistake = any(word in name for word in _MISTAKES)
        raise ApiError(name if mistake else NO_ANSWER, f"{operation}: {error}") from error
    except (ResponseParserError, ValueError, RecursionError) as error:
        raise ApiError(NO_ANSWER, f"{operation}: its answer can't be read: {shorten(str(error))}") from error


def make_session(config: AwsProvider) -> Any:
    """boto3's session with the provider's credentials and region. Its clients share what they know of a service: 30 MB for EC2."""
    import boto3

    return boto3.session.Session(profile_name=config.profile, region_name=config.region)


def make_client(session: Any, service: str, endpoint_url: str | None, timeout: float) -> Any:
    """A client of a service, with the session's credentials and region. ``timeout``: seconds for one answer."""
    from botocore.config import Config

    settings = Config(
        # Our own pause is shared by all callers; botocore's retries would be each caller's own.
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=3.0,
        read_timeout=timeout,
        max_pool_connections=16,
        user_agent_extra="spotburst",
    )
    return session.client(service, endpoint_url=endpoint_url, config=settings)


def _is_throttle(error: Exception) -> bool:
    return isinstance(error, ApiError) and error.code in THROTTLES
