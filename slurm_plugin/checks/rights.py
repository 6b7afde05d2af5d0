"""Who may do what with which file: by owner, group and mode, as the kernel decides it. Pure."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.checks.finding import Finding, fault, unknown
from slurm_plugin.checks.power import PROGRAMS


@dataclass(frozen=True, slots=True)
class User:
    """An account with its groups."""

    name: str
    uid: int
    gids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Facts:
    """What stat(2) told of a path; ``mode`` is st_mode. ``fault``: why it told nothing, "" where it did; ``absent``: nothing is there."""

    path: Path
    mode: int = 0
    uid: int = 0
    gid: int = 0
    fault: str = ""
    absent: bool = False

    @property
    def permissions(self) -> str:
        """Such as 0755."""
        return f"{stat.S_IMODE(self.mode):04o}"


READ, WRITE, EXECUTE = 4, 2, 1


def allowed(facts: Facts, user: User, wanted: int) -> bool:
    """Whether the mode lets the user do all of ``wanted``. Access lists and read-only mounts are not looked at."""
    if user.uid == 0:
        return wanted & EXECUTE == 0 or stat.S_ISDIR(facts.mode) or facts.mode & 0o111 != 0
    shift = 6 if facts.uid == user.uid else 3 if facts.gid in user.gids else 0
    return (facts.mode >> shift) & wanted == wanted


def barred(parents: Sequence[Facts], user: User) -> Path | None:
    """The first of the folders above a path that the user can't pass through."""
    return next((one.path for one in parents if not one.fault and not allowed(one, user, EXECUTE)), None)


def open_to_others(facts: Facts) -> bool:
    """Group or others may write."""
    return facts.mode & 0o022 != 0 and not stat.S_ISLNK(facts.mode)


def program(
    key: str, facts: Facts, parents: Sequence[Facts], user: User, interpreter: Facts | None
) -> Iterator[Finding]:
    """One of slurm.conf's programs. ``interpreter``: what its first line names, None where it names nothing."""
    path = facts.path
    if facts.absent:
        yield fault(
            key, f"{path} is not there", f"install spotburst on this machine, or {key}=PATH of its {PROGRAMS[key][0]}"
        )
        return
    if facts.fault:
        yield unknown(key, f"{path}: {facts.fault}", "run this as root or SlurmUser")
        return
    if where := barred(parents, user):
        yield fault(
            key,
            f"{path}: {user.name} (SlurmUser) can't pass through {where}",
            f"chmod o+x {where}, or install spotburst elsewhere",
        )
    elif not allowed(facts, user, READ | EXECUTE):
        yield fault(
            key,
            f"{path} can't be run by {user.name} (SlurmUser): mode {facts.permissions}; Slurm turns power saving off for it",
            f"chmod 0755 {path}",
        )
    if open_to_others(facts):
        yield fault(
            key,
            f"{path} may be written to by others (mode {facts.permissions}): Slurm turns power saving off for it, and they could act as {user.name}",
            f"chmod 0755 {path}",
        )
    if interpreter is not None and (
        interpreter.absent or (not interpreter.fault and not allowed(interpreter, user, EXECUTE))
    ):
        state = "is not there" if interpreter.absent else f"can't be run by {user.name} (SlurmUser)"
        yield fault(
            key,
            f"{path}: its Python, {interpreter.path}, {state}",
            "install spotburst again (its environment was moved or removed)",
        )


def state_folder(facts: Facts, inside: Mapping[str, Facts], user: User) -> Iterator[Finding]:
    """state_dir and what is in it (``requests``, ``ledger.db``, ``manager.lock``, …), which SlurmUser's programs and the manager share."""
    path = facts.path
    own = f"chown -R {user.name} {path}"
    if facts.absent:
        yield fault(
            "state_dir",
            f"{path} is not there: the power programs can't leave their requests",
            "start the manager, whose service makes it, owned by SlurmUser, mode 0700 (spotburst render manager-service)",
        )
        return
    if facts.fault:
        yield unknown("state_dir", f"{path}: {facts.fault}", "run this as root or SlurmUser")
        return
    if not stat.S_ISDIR(facts.mode):
        yield fault("state_dir", f"{path} is no folder", "move it away, then start the manager")
        return
    if open_to_others(facts):
        yield fault(
            "state_dir",
            f"{path}: others may write to it (mode {facts.permissions}): they could ask for machines",
            f"chmod 0700 {path}",
        )
    if not allowed(facts, user, READ | WRITE | EXECUTE):
        yield fault(
            "state_dir",
            f"{path}: {user.name} (SlurmUser), as whom Slurm runs the power programs, can't write there",
            f"{own}; chmod 0700 {path}",
        )
    for one in inside.values():
        if one.absent or one.fault or (stat.S_ISSOCK(one.mode) and user.uid == 0):
            continue
        wanted = READ | WRITE | (EXECUTE if stat.S_ISDIR(one.mode) else 0)
        if not allowed(one, user, wanted):
            yield fault(
                "state_dir",
                f"{one.path}: {user.name} (SlurmUser) can't read and write it; was the manager started as another user?",
                own,
            )
        elif open_to_others(one):
            yield fault(
                "state_dir", f"{one.path}: others may write to it (mode {one.permissions})", f"chmod go-w {one.path}"
            )


def settings_file(
    facts: Facts, parents: Sequence[Facts], user: User, found_by_programs: Path | None
) -> Iterator[Finding]:
    """burst.yaml. ``found_by_programs``: the one that the power programs read, which know SLURM_CONF and nothing else."""
    if facts.fault or facts.absent:
        return
    if not allowed(facts, user, READ) or barred(parents, user):
        yield fault(
            "burst.yaml",
            f"{facts.path}: {user.name} (SlurmUser) can't read it, and the power programs look there for state_dir",
            f"chmod 0644 {facts.path}",
        )
    if open_to_others(facts):
        yield fault(
            "burst.yaml",
            f"{facts.path} may be written to by others (mode {facts.permissions}), who could buy machines",
            f"chmod 0644 {facts.path}",
        )
    if found_by_programs is None or found_by_programs.absolute() != facts.path.absolute():
        yield fault(
            "burst.yaml",
            f"the power programs read {found_by_programs or 'none'}, not {facts.path}: Slurm gives them SLURM_CONF alone, beside which they look",
            "put burst.yaml, or a link to it, beside slurm.conf",
        )


def saves_state(facts: Facts, user: User) -> Iterator[Finding]:
    """StateSaveLocation."""
    if facts.absent:
        yield fault(
            "StateSaveLocation", f"{facts.path} is not there", f"mkdir -p {facts.path}; chown {user.name} {facts.path}"
        )
    elif not facts.fault and not allowed(facts, user, READ | WRITE | EXECUTE):
        yield fault(
            "StateSaveLocation",
            f"{facts.path}: {user.name} (SlurmUser) can't write there: slurmctld forgets all jobs when it ends, and ids begin again",
            f"chown {user.name} {facts.path}",
        )


def shared_store(root: Facts, common: Sequence[Facts], user: User) -> Iterator[Finding]:
    """A folder of checkpoints that everybody may write to. ``common``: the folders in it that runs of all users have in common.

    Whose such a folder is may rename what others have in it (unlink(2), "sticky"): the first user's, where nobody made it before.
    """
    if root.fault or root.absent or not root.mode & stat.S_IWOTH:
        return
    if not root.mode & stat.S_ISVTX:
        yield fault(
            "checkpoint store",
            f"{root.path}: every user may remove others' runs (mode {root.permissions})",
            f"chmod 1777 {root.path}",
        )
    for one in common:
        if not (one.absent or one.fault or one.uid in (0, user.uid, root.uid)):
            yield fault(
                "checkpoint store",
                f"{one.path} belongs to user {one.uid}, who could move others' runs away",
                f"chown {user.name} {one.path}",
            )
