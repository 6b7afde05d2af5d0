from __future__ import annotations

import pytest

from job_wrapper.errors import UsageError
from job_wrapper.store import paths


def test_layout() -> None:
    run = paths.run_path("cl", "12_3")
    assert run == "cl/12_3/main"
    assert paths.log_key(run, 7) == "cl/12_3/main/log/00000007.json"
    assert paths.seq_of(paths.log_key(run, 7)) == 7
    assert paths.data_prefix(run, 3) == "cl/12_3/main/data/e00000003"
    assert paths.epoch_of(run, paths.data_prefix(run, 3) + "/x.pack") == 3
    assert paths.pointer_of_run(run, "12_3") == "cl/jobs/12_3/main"
    assert paths.pointer_of_run("cl/llama/main", "12") == "cl/jobs/12/llama+main"


@pytest.mark.parametrize(
    "key", ["log/1.json", "x/00000001.json~ab", "x/000000001.json", "x/.nfs0001", "x/00000001.json.tmp"]
)
def test_foreign_objects_are_no_entries(key: str) -> None:
    assert paths.seq_of(key) is None


@pytest.mark.parametrize(
    "key", ["c/other/main/data/e00000001/x", "c/1/main/data/e1/x", "c/1/main/log/e00000001", "c/1/main/data/x"]
)
def test_foreign_objects_have_no_epoch(key: str) -> None:
    assert paths.epoch_of("c/1/main", key) is None


@pytest.mark.parametrize("name", ["", "..", ".x", "a/b", "a b", "a~", "ä", "a\n", "x" * 129, "-x"])
def test_names_that_would_leave_their_place_are_refused(name: str) -> None:
    for make in (
        lambda: paths.run_path(name, "1"),
        lambda: paths.run_path("c", name),
        lambda: paths.run_path("c", "1", name),
    ):
        with pytest.raises(UsageError, match="use 1 to 128"):
            make()


def test_the_name_of_the_pointers_is_taken() -> None:
    with pytest.raises(UsageError, match="jobs"):
        paths.run_path("c", "jobs")
