"""Memory lent up to a bound, and packs of files sent from it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore

from job_wrapper.errors import StoreError
from job_wrapper.state_dirs import save
from job_wrapper.store.bucket import BucketStore
from job_wrapper.store.loans import Loans
from job_wrapper.store.read import read_item, read_part
from job_wrapper.store.write import MAX_FILES


def test_no_more_than_the_limit_is_out_until_something_comes_back() -> None:
    loans = Loans(100, 40)
    held = [loans.take(40), loans.take(40)]
    taken = threading.Event()
    third: list[memoryview] = []

    def take() -> None:
        third.append(loans.take(40))
        taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not taken.wait(0.3)
    piece = held[0][10:20]
    del held[0]
    assert not taken.wait(0.3)  # a part of it is still referred to
    del piece
    assert taken.wait(60)
    thread.join()


def test_waiting_ends_when_it_makes_no_sense_any_more() -> None:
    loans = Loans(10, 10)
    held = loans.take(10)

    def still() -> None:
        raise StoreError("failed elsewhere")

    with pytest.raises(StoreError, match="elsewhere"):
        loans.take(1, still)
    assert len(held) == 10


def test_one_loan_beyond_the_limit_is_possible() -> None:
    loans = Loans(10, 4)
    assert len(loans.take(50)) == 50


def _client(folder: Path) -> LocalStore:
    """As a bucket's: what it was given it has sent, and lets go of."""
    folder.mkdir()
    return LocalStore(folder)


@pytest.mark.parametrize("sizes", [[(16 << 20) + (1 << 20) + 7] * 6, [(1 << 20) + 1] * 100, [900_000] * 115])
def test_files_of_any_size_pass_through_bounded_memory(tmp_path: Path, sizes: list[int]) -> None:
    """Parts of an upload hold on to what they are made of until they are full: that must never be all there is."""
    assert sum(sizes) > MAX_FILES
    client, source = _client(tmp_path / "bucket"), tmp_path / "state"
    store = BucketStore("local://test", "", client, client)
    source.mkdir()
    block = os.urandom(max(sizes))
    for number, size in enumerate(sizes):
        (source / str(number)).write_bytes(number.to_bytes(4, "little") + block[4:size])
    part = read_part(store, save(store, "run/data/e1", [source]))
    files = {item.name: item for item in part.items}
    for number in (0, len(sizes) // 2, len(sizes) - 1):
        item = files[f"0/{number}"]
        assert read_item(store, item) == (source / str(number)).read_bytes()
    assert sum(meta["size"] for meta in obstore.list(client).collect()) >= sum(sizes)


def test_what_one_upload_copies_is_bounded_and_may_be_reused_at_once(tmp_path: Path) -> None:
    client = _client(tmp_path / "bucket")
    store = BucketStore("local://test", "", client, client)
    writer = store.open_write("x")
    reused, wanted = bytearray(5 << 20), bytearray()
    for number in range(20):
        reused[:] = os.urandom(1024) * (5 << 10)
        count = len(reused) - number * 1000
        wanted += reused[:count]
        writer.write(memoryview(reused)[:count])
    writer.close()
    assert store.get("x") == wanted
