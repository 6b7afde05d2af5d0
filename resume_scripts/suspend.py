"""SuspendProgram: Slurm does not need these nodes any more."""

from resume_scripts.record import run


def main() -> int:
    """Record that the nodes of ``argv[1]`` are to be given back."""
    return run("suspend")
