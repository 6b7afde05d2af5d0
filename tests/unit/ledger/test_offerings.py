"""What the ledger remembers of offerings: blocks and their end, experience, prices, and how long a job waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.cloud.provider import RefusalKind
from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import WAIT_FORGOTTEN, WAITING, OpenNotice
from slurm_plugin.placement import Experience

HOUR = 3600.0


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path / "ledger.db", clock)
    yield opened
    opened.close()


def refuse(ledger: Ledger, offering: str, kind: RefusalKind, *, permanent: bool = False) -> None:
    intent = ledger.open_intent("n1", "spot", "p", offering)
    ledger.refused(intent.launch_id, kind, "Code", "words", permanent=permanent)


def test_a_block_lasts_over_restarts_until_the_settings_change(ledger: Ledger, tmp_path: Path, clock: Clock) -> None:
    ledger.settings_are({"o": "one", "other": "one"})
    refuse(ledger, "o", RefusalKind.MISTAKE, permanent=True)
    refuse(ledger, "other", RefusalKind.NO_CAPACITY)
    cooling = ledger.offerings()["other"]
    clock.now += 10
    again = Ledger.open(tmp_path / "ledger.db", clock)
    assert again.settings_are({"o": "one", "other": "one"}) == ()
    assert again.offerings()["o"].permanent
    assert again.offerings()["other"] == cooling
    assert again.settings_are({"o": "two", "other": "two"}) == ("o",)
    assert again.offerings()["o"].ready_at() == 0.0
    assert again.offerings()["other"] == cooling, "want of capacity has nothing to do with settings"
    again.close()


def test_an_administrator_clears_what_stands_against_an_offering(ledger: Ledger) -> None:
    refuse(ledger, "o", RefusalKind.QUOTA, permanent=True)
    assert ledger.clear_offering("o")
    assert ledger.offerings()["o"].ready_at() == 0.0
    assert not ledger.clear_offering("o")
    assert not ledger.clear_offering("unknown")


def test_experience_counts_hours_launches_reclaims_losses_and_refusals(ledger: Ledger, clock: Clock) -> None:
    reclaimed, lost, ended = (ledger.open_intent(n, "spot", "p", "o") for n in ("n1", "n2", "n3"))
    for intent in (reclaimed, lost, ended):
        ledger.launched(intent.launch_id, f"i-{intent.node}")
    clock.now += 2 * HOUR
    ledger.record_notice(OpenNotice("x", "n1", reclaimed.launch_id, "o", None, "cloud", clock.now))
    ledger.retire(ended.launch_id, "Slurm powered its node down")
    for intent in (reclaimed, lost, ended):
        ledger.close_intent(intent.launch_id, "its machine is gone")
    refuse(ledger, "o", RefusalKind.NO_CAPACITY)
    clock.now += HOUR
    seen = ledger.experience()["o"]
    assert seen == Experience(hours=6.0, launches=3, reclaims=2, refusals=1)
    clock.now += 25 * HOUR
    assert ledger.experience()["o"].refusals == 0
    clock.now += 7 * 24 * HOUR
    assert ledger.experience() == {}


def test_live_prices_as_they_were(ledger: Ledger, clock: Clock) -> None:
    began = clock.now
    for price in (1.0, 1.0, 3.0):
        ledger.note_prices({"o": price})
        clock.now += HOUR
    assert ledger.live_prices() == {"o": 3.0}
    assert ledger.live_prices(began + HOUR) == {"o": 1.0}
    assert ledger.live_prices(began - HOUR) == {"o": 1.0}


def test_a_wait_goes_on_while_it_is_tried_and_begins_anew_after_a_pause(ledger: Ledger, clock: Clock) -> None:
    began = clock.now
    for _ in range(5):
        ledger.wait_begins(7)
        clock.now += WAIT_FORGOTTEN / 2
    assert ledger.counters()["job:7", WAITING].last == began
    clock.now += WAIT_FORGOTTEN
    ledger.wait_begins(7)
    assert ledger.counters()["job:7", WAITING].last == clock.now
    ledger.wait_ends(7)
    assert ledger.counters() == {}
