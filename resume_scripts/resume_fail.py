"""ResumeFailProgram: these nodes did not register within ResumeTimeout; their machines must end."""

from resume_scripts.record import run


def main() -> int:
    """Record that the nodes of ``argv[1]`` failed to come."""
    return run("resume_fail")
