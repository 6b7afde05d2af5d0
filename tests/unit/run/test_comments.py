"""Our part of a job's comment, and since when its store is away in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job_wrapper.comments import OURS, away_since, comment, left_nodes, with_away, with_left, without_marks
from job_wrapper.run import outages

WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="|\n"), max_size=30).map(
    str.strip
)
OWN = WORDS.filter(lambda text: not text.startswith(OURS.strip()) and OURS not in text)
TEXT = WORDS.filter(lambda text: "store away since" not in text and "left " not in text)
WHEN = st.integers(0, 4_000_000_000).map(float)


@given(OWN, TEXT.filter(bool), TEXT.filter(bool), WHEN)
def test_since_when_stays_while_the_words_change_and_the_users_own_stays_for_ever(
    own: str, first: str, second: str, when: float
) -> None:
    away = with_away(comment(own, first), when, second)
    assert away_since(away) == when
    told = comment(away, first)
    assert away_since(told) == when
    assert first in told
    assert away_since(with_away(told, when + 60, second)) == when + 60
    assert told.count("store away since") == 1
    back = without_marks(told)
    assert (back, away_since(back)) == (own, None)


NODES = st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), min_size=1, max_size=5, unique=True).map(sorted)


@given(OWN, TEXT, NODES, NODES, WHEN, WHEN)
def test_the_nodes_that_were_left_stay_beside_it_until_the_next_attempt(
    own: str, text: str, first: list[str], second: list[str], when: float, since: float
) -> None:
    standing = with_left(comment(own, text), first, when - 5 if when else when)
    standing = with_left(standing, second, when)
    assert left_nodes(standing) == (frozenset(second), when)
    assert left_nodes(comment(standing, "another word")) == (frozenset(second), when)
    both = with_away(standing, since, text)
    assert (left_nodes(both), away_since(both)) == ((frozenset(second), when), since)
    assert both.count("left ") == 1
    assert without_marks(both) == own


def test_a_mark_of_a_thousand_nodes_leaves_room_for_the_rest_of_the_comment() -> None:
    told = left_nodes(with_left("mine", [f"spot-{n}" for n in range(1000)], 0.0))
    assert told is not None
    assert told[0] <= {f"spot-{n}" for n in range(1000)}
    assert 50 < len(told[0]) < 100


@pytest.mark.parametrize(
    "standing", ["left n1 at 2026-11-30T03:05:00Z", "spotburst: x; left n1 at 2026-99-30T03:05:00Z"]
)
def test_what_is_no_mark_of_ours_names_no_node(standing: str) -> None:
    assert left_nodes(standing) is None


@pytest.mark.parametrize(
    ("standing", "since"),
    [
        ("", None),
        ("mine", None),
        ("spotburst: reclaimed", None),
        ("store away since 2026-11-30T03:05:00Z", None),
        ("spotburst: x; store away since 2026-11-30T03:05:00Z", 1796007900.0),
        ("mine | spotburst: store away since 2026-11-30T03:05:00Z", 1796007900.0),
        ("spotburst: store away since 2026-99-30T03:05:00Z", None),
    ],
)
def test_since_when_is_only_read_from_our_part(standing: str, since: float | None) -> None:
    assert away_since(standing) == since


class Job:
    """A job's comment and what was done to it."""

    job_id = "12"

    def __init__(self, standing: str | None) -> None:
        self.standing = standing
        self.held: list[bool] = []

    def comment(self) -> str | None:
        return self.standing

    def set_comment(self, comment: str) -> None:
        self.standing = comment

    def requeue(self, *, hold: bool = False) -> str:
        self.held.append(hold)
        return ""


def test_a_job_is_held_once_its_store_has_been_away_for_a_day() -> None:
    job, now, said = Job("mine"), 1_800_000_000.0, ""
    attempts = 0
    while not said:
        refused, said = outages.requeue(job, False, now, now + 1800)
        assert not refused
        now, attempts = now + 1800 + 122, attempts + 1
    assert attempts == 46, "one attempt every 32 minutes for a day"
    assert job.held == [False] * 45 + [True]
    assert "scontrol release 12" in said
    assert job.standing is not None and job.standing.startswith(
        "mine | spotburst: StoreAway: held after 24 h, nothing is lost"
    )


def test_a_store_that_was_there_in_between_begins_the_day_anew() -> None:
    job, now = Job(""), 1_800_000_000.0
    outages.requeue(job, False, now, now + 1800)
    outages.clear(job)
    assert job.standing == ""
    job.standing = "mine | spotburst: CostLimit: 25 is all but spent"
    outages.clear(job)
    assert job.standing == "mine", "why an earlier attempt was held is over, too"
    job.standing = ""
    outages.requeue(job, False, now + 86400, now + 86400 + 1800)
    outages.requeue(job, True, now, now + 2 * 86400)
    assert job.held == [False] * 3
    assert away_since(job.standing or "") == now + 2 * 86400, "this attempt has had it"


def test_a_slurm_that_does_not_answer_keeps_no_job_from_coming_back() -> None:
    job = Job(None)
    assert outages.requeue(job, False, 0.0, 100.0) == ("", "")
    assert (job.standing, job.held) == (None, [False])
