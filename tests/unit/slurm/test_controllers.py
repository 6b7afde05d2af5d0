"""Which controller acts, by what ``scontrol ping`` prints (as seen of 22.05.8) and whether a question is answered."""

from __future__ import annotations

import pytest

from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.slurm.controllers import Controller, Watch, acting, parse_ping, same_host

STARS = "*****************************************\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n*****************************************\n"


def ping(a: str, b: str = "") -> str:
    return (
        f"Slurmctld(primary) at ctl-a is {a}\n"
        + (f"Slurmctld(backup) at ctl-b is {b}\n" if b else "")
        + STARS * (a != b)
    )


def test_what_scontrol_ping_prints_is_read() -> None:
    assert parse_ping(ping("UP")) == (Controller("ctl-a", True),)
    assert parse_ping(ping("DOWN", "UP")) == (Controller("ctl-a", False), Controller("ctl-b", True))
    assert parse_ping("scontrol ping: Slurmctld(primary) at a is DOWN; Slurmctld(backup1) at b is DOWN; ***") == (
        Controller("a", False),
        Controller("b", False),
    )
    assert parse_ping("slurm_load_ctl_conf error: Unable to contact slurm controller") == ()


def test_a_backup_that_answers_nothing_yet_does_not_act() -> None:
    both, one = parse_ping(ping("UP", "UP")), parse_ping(ping("DOWN", "UP"))
    assert acting(both, True) == "ctl-a"
    assert acting(one, True) == "ctl-b"
    assert acting(one, False) == ""
    assert acting(parse_ping(ping("DOWN", "DOWN")), False) == ""


def test_names_are_compared_as_slurm_compares_them() -> None:
    assert same_host("CTL-a.example.org", "ctl-a")
    assert not same_host("ctl-a", "ctl-b")
    assert not same_host("", "ctl-b")


class Slurm:
    """Prints and answers as the test says."""

    def __init__(self, text: str, *, answers: bool = True) -> None:
        self.text, self.answers, self.asked = text, answers, 0

    def controllers(self) -> tuple[Controller, ...]:
        if not self.text:
            raise SlurmUnavailable("away")
        return parse_ping(self.text)

    def version(self) -> tuple[int, int, int]:
        self.asked += 1
        if not self.answers:
            raise SlurmUnavailable("away")
        return 22, 5, 8


def look(watch: Watch, times: int) -> tuple[bool, bool]:
    for _ in range(times):
        watch.look()
    return watch.here, watch.elsewhere


@pytest.mark.parametrize("host", ["ctl-a", "ctl-a.example.org", "somewhere"])
def test_a_single_controllers_manager_asks_nothing_more(host: str) -> None:
    slurm = Slurm(ping("UP"))
    assert look(Watch(slurm, host), 3) == (True, False)
    assert look(Watch(Slurm(""), host), 3) == (True, False), "what can't be known hinders nobody: there is the lock"
    assert slurm.asked == 0


def test_the_manager_follows_the_controller_that_acts_and_only_after_two_looks_that_agree() -> None:
    slurm = Slurm(ping("UP", "UP"))
    a, b, beside = Watch(slurm, "ctl-a"), Watch(slurm, "ctl-b"), Watch(slurm, "ctl-c")
    assert look(a, 1) == (False, False), "nothing is known after one look"
    assert look(a, 1) == (True, False)
    assert look(b, 2) == (False, True)
    assert look(beside, 2) == (True, False), "no controller's machine goes by its lock alone"
    slurm.text, slurm.answers = ping("DOWN", "UP"), False
    assert look(a, 5) == (True, False), "the backup does not act yet: whoever acts goes on"
    assert look(b, 5) == (False, True)
    slurm.answers = True
    assert look(a, 1) == (True, False)
    assert look(a, 1) == (False, True)
    assert look(b, 2) == (True, False)
    slurm.text = ""
    assert look(b, 5) == (True, False), "Slurm is away: what was known stays"
