"""What the manager says in jobs' comments: after all else, within a bound, and beside what the user has written meanwhile."""

from __future__ import annotations

import pytest

from slurm_plugin.errors import SlurmRefused, SlurmUnavailable
from slurm_plugin.manager.comments import FEW, LONGEST, Comments
from slurm_plugin.slurm.records import Job
from tests.unit.manager.checks import Make, running, until


class Slow:
    """A Slurm of so many jobs, whose every update takes half a second."""

    def __init__(self, jobs: int) -> None:
        self.said = {n: f"user {n}" for n in range(jobs)}
        self.now = 0.0
        self.asked: list[str] = []
        self.refuses: dict[str, Exception] = {}

    def job(self, number: int) -> Job:
        return Job(
            number, str(number), frozenset({"PENDING"}), "None", "spot", "u", 1000, comment=self.said.get(number, "")
        )

    def jobs(self) -> tuple[Job, ...]:
        self.asked.append("all")
        return tuple(map(self.job, self.said))

    def comment(self, name: str) -> str | None:
        self.asked.append(name)
        return self.said.get(int(name))

    def set_comment(self, name: str, text: str) -> None:
        if name in self.refuses:
            raise self.refuses[name]
        self.now += 0.5
        self.said[int(name)] = text


def of(slow: Slow) -> Comments:
    return Comments(slow, lambda: slow.now)  # type: ignore[arg-type]


@pytest.mark.parametrize("many", [1, FEW + 1])
def test_what_its_user_writes_while_the_pass_goes_on_stays(many: int) -> None:
    slow = Slow(many)
    comments = of(slow)
    for number in range(many):
        comments.tell(slow.job(number), "lost")
        comments.tell(slow.job(number), "lost; another is prepared")
    slow.said[0] = "urgent"
    comments.write()
    assert slow.said[0] == "urgent | spotburst: lost; another is prepared"
    assert slow.asked == (["0"] if many == 1 else ["all"]), "thousands of jobs are not asked for one by one"


def test_a_mass_loss_holds_no_pass_up_and_all_are_told_in_the_end() -> None:
    slow = Slow(40)
    comments = of(slow)
    for number in range(40):
        comments.tell(slow.job(number), f"n{number} was lost")
    began = slow.now
    comments.write()
    assert slow.now - began <= LONGEST + 0.5
    slow.said[39] = "mine"
    for _ in range(10):
        comments.write()
    assert [slow.said[n] for n in (0, 38, 39)] == [
        "user 0 | spotburst: n0 was lost",
        "user 38 | spotburst: n38 was lost",
        "mine | spotburst: n39 was lost",
    ]


def test_one_that_is_refused_or_gone_keeps_none_from_being_told_and_an_outage_keeps_all_for_later() -> None:
    slow = Slow(4)
    comments = of(slow)
    for number in range(4):
        comments.tell(slow.job(number), "lost")
    del slow.said[0]
    slow.refuses = {"1": SlurmRefused("Job update not available right now"), "2": SlurmUnavailable("no answer")}
    with pytest.raises(SlurmUnavailable):
        comments.write()
    slow.refuses.clear()
    comments.write()
    assert slow.said == {1: "user 1", 2: "user 2 | spotburst: lost", 3: "user 3 | spotburst: lost"}


def test_what_frees_a_job_comes_before_any_word_of_it(make: Make) -> None:
    m = make()
    jobs = [m.world.slurm.submit(900, comment="mine") for _ in range(2)]
    until(m, lambda: all(running(m, job)() for job in jobs))
    for machine in m.world.cloud.living():
        m.world.cloud.vanish(machine)
    before: list[int] = []
    set_comment = m.world.slurm.set_comment

    def said(job_id: str, comment: str) -> None:
        before.append(sum(state in ("down", "power_up") for _, _, state in m.world.slurm.log))
        set_comment(job_id, comment)

    m.world.slurm.set_comment = said  # type: ignore[method-assign]
    m.step()
    assert before and before[0] == before[-1], "all acts of the pass come first"
    until(m, lambda: all(running(m, job)() for job in jobs))
    assert all(m.world.slurm.job[job].record.comment.startswith("mine | spotburst: ") for job in jobs)
