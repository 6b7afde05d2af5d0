"""ResumeProgram: Slurm wants these nodes."""

from resume_scripts.record import run


def main() -> int:
    """Record that the nodes of ``argv[1]`` are wanted."""
    return run("resume")
