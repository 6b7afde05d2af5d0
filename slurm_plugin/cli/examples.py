"""Examples of every command, as its help and its man page show them. Each is a line that can be typed; a test has the parser read them all."""

from __future__ import annotations

Example = tuple[str, str]
"""What is typed, and what for."""

EXAMPLES: dict[str, tuple[Example, ...]] = {
    "": (
        ("srun spotburst run -- python train.py", "in a job script: run a program that survives reclaims"),
        ("spotburst describe 123", "what happened to job 123, and what comes next"),
        ("spotburst checkpoints 123", "what it can go on from"),
    ),
    "run": (
        ("srun spotburst run -- python train.py", "a program that saves with Checkpointer"),
        ("srun spotburst run --state-dir /scratch/state -- ./simulate", "one that keeps its state in files"),
        (
            "srun spotburst run --interval 30m --keep 5 -- python train.py",
            "a checkpoint every 30 minutes, five are kept",
        ),
        ("spotburst run --run big --uri s3://bucket/runs -- ./simulate", "outside Slurm, under a name of its own"),
    ),
    "progress": (("spotburst progress 40 100", "40 of 100 are done"),),
    "describe": (
        ("spotburst describe 123", "state, history, and what comes next"),
        ("spotburst describe 123_4 --json", "of the fourth task of an array, for a program to read"),
        (
            "spotburst describe big --uri s3://bucket/runs",
            "a run with a name, in a store that burst.yaml does not name",
        ),
    ),
    "attempts": (
        ("spotburst attempts 123", "each attempt, why it ended, and how long each way took"),
        ("spotburst attempts 123 --name eval", "of the second of two wrapped programs"),
    ),
    "report": (
        ("spotburst report 123", "what it did with its time and money, across its attempts"),
        ("spotburst report 123 --html report.html", "one page with time line and curves, to open, print or mail"),
    ),
    "checkpoints": (
        ("spotburst checkpoints 123", "what was committed, and what of it is kept"),
        ("spotburst checkpoints 123 --verify", "read every byte of it"),
        ("spotburst checkpoints delete 123", "give its space back"),
    ),
    "checkpoints show": (("spotburst checkpoints show 123 --json", "the same as `spotburst checkpoints 123 --json`"),),
    "checkpoints delete": (
        ("spotburst checkpoints delete 123", "asks first"),
        ("spotburst checkpoints delete 123 --yes", "in a script"),
    ),
    "checkpoints prune": (
        ("spotburst checkpoints prune --older-than 30d --dry-run", "show what would be deleted"),
        ("spotburst checkpoints prune --older-than 30d --yes", "delete it"),
    ),
    "checkpoint": (
        ("spotburst checkpoint 123", "wait for the commit, and show it"),
        ("spotburst checkpoint 123 --timeout 1h", "of a program whose steps are long"),
    ),
    "suspend": (
        ("spotburst suspend 123", "commit, hold, and free the nodes"),
        ("spotburst suspend 123_4 --no-wait", "ask one task of an array, and do not wait"),
    ),
    "resume": (("spotburst resume 123", "let it go on from its newest checkpoint"),),
    "cancel": (
        ("spotburst cancel 123 --keep-checkpoint", "commit first, then end it"),
        ("spotburst cancel 123", "as scancel does; says how a new job goes on"),
    ),
    "shell": (
        ("spotburst shell 123", "a shell on its first node"),
        ("spotburst shell 123 --node spot-2 -- nvidia-smi", "one command on another of its nodes"),
    ),
    "nodes": (
        ("spotburst nodes", "nodes, their jobs and machines"),
        ("spotburst nodes --json", "for a program to read"),
    ),
    "offerings": (
        ("spotburst offerings", "what can be bought, in which order, and what cools down for how long"),
        ("spotburst offerings clear all", "let everything be asked again at once"),
    ),
    "offerings clear": (
        ("spotburst offerings clear aws/eu-central-1/eu-central-1a/p5.48xlarge/spot", "one, as `offerings` shows it"),
        ("spotburst offerings clear all", "all of them"),
    ),
    "cost": (
        ("spotburst cost 123", "each attempt and the whole run, beside on-demand"),
        ("spotburst cost 123 --json", "for a program to read"),
    ),
    "plan": (
        ("spotburst plan --hours 10 --gpus 8 --price 2.60 --reclaimed-at 7.5", "by figures of your own"),
        ("spotburst plan --hours 40 --nodeset spot --save-time 20s", "by what burst.yaml and the manager know"),
    ),
    "check": (("spotburst check", "on the controller"), ("spotburst check --json", "for a program to read")),
    "store": (("spotburst store check", "the store that burst.yaml names"),),
    "store check": (
        ("spotburst store check", "the store that burst.yaml names"),
        ("spotburst store check s3://bucket/runs", "another one"),
        ("spotburst store check s3://runs --endpoint-url https://minio.example:9000", "on a server of your own"),
    ),
    "render": (("spotburst render slurm", "what belongs into slurm.conf"),),
    "manager": (("spotburst manager --config /etc/slurm/burst.yaml", "as its service starts it"),),
    "local": (
        ("spotburst local up /tmp/my-cluster", "a cluster on this machine"),
        ("spotburst local reclaim spot-1", "play the cloud: take a node back"),
        ("spotburst local down /tmp/my-cluster", "stop it"),
    ),
    "local up": (
        ("spotburst local up /tmp/my-cluster --nodes 2", "with two spot nodes"),
        ("spotburst local up --settings burst.yaml", "by settings of your own"),
    ),
    "local down": (("spotburst local down --all", "all that are left on this machine"),),
    "local status": (("spotburst local status --json", "for a program to read"),),
    "local reclaim": (("spotburst local reclaim spot-1 --notice 30s", "with 30 s of warning"),),
    "local withdraw": (("spotburst local withdraw spot-1", "the node stays after all"),),
    "local vanish": (("spotburst local vanish spot-1", "no warning at all"),),
    "local cut": (("spotburst local cut spot-1", "its job goes on, and nobody hears of it"),),
    "local heal": (("spotburst local heal spot-1", "undo `cut`"),),
    "local capacity": (
        ("spotburst local capacity small 0", "no machine of that type can be had"),
        ("spotburst local capacity small none", "as many as are asked for"),
    ),
    "man": (("spotburst man /usr/local/share/man/man1", "write the man pages"),),
    "completion": (
        ("spotburst completion bash >/etc/bash_completion.d/spotburst", "for everybody who uses bash"),
        ("spotburst completion zsh >/usr/share/zsh/site-functions/_spotburst", "zsh"),
        ("spotburst completion fish >~/.config/fish/completions/spotburst.fish", "fish"),
    ),
}
"""By the words after ``spotburst``; "" is ``spotburst`` itself."""


def epilog(command: str) -> str | None:
    """Below a command's help. The first line keeps the lines after it from being filled. None where there is no example."""
    shown = EXAMPLES.get(command)
    if not shown:
        return None
    return "\n".join(["\b", "Examples:", *(line for typed, why in shown for line in (f"  {typed}", f"      {why}"))])
