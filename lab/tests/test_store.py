"""What was added comes back bit for bit, whatever happens to the folder, the disk or the process in between."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unstale
from unstale_lab import batch_file, provenance
from unstale_lab.errors import StoreError
from unstale_lab.experiment import Run
from unstale_lab.records import Record
from unstale_lab.store import Store

HERE = {"machine": "an abacus", "device": "beads", "torch_version": "2", "commit": "abc"}


def record(seed=0, **settings):
    """A record that is different for every seed."""
    draw = np.random.default_rng(seed)
    return Record(
        run=Run(seed=seed, **settings),
        at=np.array([0, 10, 100]),
        curves={"evaluation": draw.normal(size=3), "training": draw.normal(size=3)},
        diverged_at=None,
        parameters=609,
        numbers_kept=1218,
        backward_passes=1,
        seconds=0.5 + seed,
    )


def assert_same(a: Record, b: Record):
    assert a.run == b.run
    np.testing.assert_array_equal(a.at, b.at, strict=True)
    assert set(a.curves) == set(b.curves)
    for name, curve in a.curves.items():
        np.testing.assert_array_equal(b.curves[name], curve, strict=True)
    for name in ("diverged_at", "parameters", "numbers_kept", "backward_passes", "seconds"):
        assert getattr(a, name) == getattr(b, name)


def never(message):
    raise AssertionError(message)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store", warn=never)


@pytest.fixture
def warned(store):
    messages: list[str] = []
    store.warn = messages.append
    return messages


def span(path: Path, column: str) -> range:
    """Where in a file a column's values are."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunks = {(chunk := group.column(i)).path_in_schema.split(".")[0]: chunk for i in range(group.num_columns)}
    chunk = chunks[column]
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    return range(begin, begin + chunk.total_compressed_size)


def flip(path: Path, place: int):
    """Turns over one bit."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def rewrite(path: Path, change):
    """Writes a changed table with a valid digest."""
    path.write_bytes(batch_file.encode_table(change(pq.read_table(path))))


def rewrite_as_format_1(path: Path, change=lambda table: table):
    """Writes a file as earlier versions did: without a digest."""
    table = change(pq.read_table(path))
    pq.write_table(table.replace_schema_metadata({"unstale.store": "1"}), path, write_page_checksum=True)


# What goes in comes out.


def test_records_come_back_bit_for_bit(store):
    plain = record(1, alpha=1 / 3)
    rich = replace(
        record(2, method="layers", corrected_layers=(0, 2), measure=("drift",), damped=False),
        curves={"evaluation": np.array([1.0, np.inf, np.nan]), "drift": np.array([0.0, 1e-300, -0.0])},
        diverged_at=57,
    )
    others = [record(seed) for seed in range(10, 15)]
    store.add([plain, rich, *others], HERE)
    asked = [rich.run, *(other.run for other in others), plain.run]
    loaded = Store(store.path).load([*asked, Run(seed=99)])
    assert list(loaded) == asked
    assert_same(loaded[plain.run], plain)
    assert_same(loaded[rich.run], rich)


def test_a_store_that_is_not_there_is_empty(store):
    assert store.ids() == set()
    assert store.load([Run()]) == {}
    assert store.check() == 0
    assert not store.path.exists()


def test_ids_are_those_of_the_runs(store):
    store.add([record(0), record(1)], HERE)
    store.add([record(2)], HERE)
    assert store.ids() == {Run(seed=s).id for s in range(3)}
    assert store.check() == 3


def test_other_tools_read_the_folder_in_one_line(store, warned):
    pandas = pytest.importorskip("pandas")
    store.add([record(0), record(1)], HERE)
    measured = replace(record(2), curves={"drift": np.array([1.0, 2.0, 3.0])})
    store.add([measured], HERE)
    (store.path / ".batch-0.parquet.1-f.tmp").write_bytes(b"half a fi")
    (store.path / "batch-000000000000.parquet").write_bytes(b"no parquet")
    store.ids()  # sets the damaged one aside
    assert len({tuple(pq.read_schema(path).names) for path in store.path.glob("*.parquet")}) == 1
    table = pandas.read_parquet(store.path).set_index("id")
    assert set(table.index) == store.ids()
    assert set(table.machine) == {"an abacus"}
    assert list(table.loc[measured.run.id].drift) == [1.0, 2.0, 3.0]
    assert pandas.isna(table.loc[Run(seed=1).id].drift)
    assert table.loc[Run(seed=1).id].alpha == 0.1


def test_a_curve_cannot_take_the_name_of_a_setting(store):
    with pytest.raises(ValueError, match="alpha"):
        store.add([replace(record(), curves={"alpha": np.zeros(3)})], HERE)


# Nothing is written twice.


def test_what_is_there_is_never_written_again(store):
    first = store.add([record(0), record(1)], HERE)
    before = first.read_bytes()
    again = [replace(record(1), parameters=1), replace(record(0), parameters=2)]
    assert store.add(again, HERE) == first
    assert first.read_bytes() == before
    assert os.listdir(store.path) == [first.name]


def test_a_run_in_two_files_is_that_of_the_first_by_name(store, warned):
    paths = {}
    for parameters, others in [(1, [1]), (2, [2, 3]), (3, [4])]:
        batch = [replace(record(0), parameters=parameters), *map(record, others)]
        paths[store.add(batch, HERE).name] = parameters
    assert len(paths) == 3
    assert store.load([Run()])[Run()].parameters == paths[min(paths)]
    first, *others = sorted(paths)
    assert len(warned) == 2  # once for each of the other files
    for message, other in zip(warned, others, strict=True):
        assert other in message and f"those of {first} are used" in message and "\n" not in message
    warned.clear()
    assert Store(store.path, warned.append).check() == 5 and len(warned) == 2
    assert store.provenance([Run()]).runs == 1


def test_the_same_records_make_the_same_content(tmp_path):
    tables = []
    for name in "ab":
        path = Store(tmp_path / name).add([record(0), record(1)], HERE)
        tables.append((path.name, pq.read_table(path).drop_columns(["finished"])))
    assert tables[0] == tables[1]


# Looking up.


# Export.


def test_export_copies_runs_and_their_provenance(store, tmp_path):
    wanted, other = [record(0), record(1, alpha=0.5)], record(2)
    store.add([wanted[0], other], HERE)
    store.add([wanted[1]], HERE | {"device": "fingers"})
    published = Store(tmp_path / "published", warn=never)
    path = store.export([r.run for r in wanted], published, "fig3")
    assert [path] == [*published.path.glob("batch-fig3-*.parquet")] and published.ids() == {r.run.id for r in wanted}
    for original in wanted:
        copy, before = published.find(original.run.id), store.find(original.run.id)
        assert copy.provenance == before.provenance
        assert copy.record.run == original.run and copy.record.seconds == original.seconds
        for name, curve in original.curves.items():
            np.testing.assert_array_equal(copy.record.curves[name], curve.astype(np.float32), strict=True)


def test_export_keeps_the_infinite_errors_of_diverged_runs(store, tmp_path):
    diverged = replace(record(), curves={"evaluation": np.array([1.0, np.inf, np.inf])}, diverged_at=7)
    store.add([diverged])
    published = Store(tmp_path / "published", warn=never)
    store.export([diverged.run], published, "fig3")
    [copy] = published.load([diverged.run]).values()
    assert copy.diverged_at == 7 and np.isinf(copy.curves["evaluation"]).tolist() == [False, True, True]


def test_export_writes_each_run_once(store, tmp_path):
    records = [record(seed) for seed in range(3)]
    store.add(records)
    published = Store(tmp_path / "published", warn=never)
    runs = [r.run for r in records]
    first = store.export(runs[:2], published, "fig3")
    content = first.read_bytes()
    second = store.export(runs, published, "fig16")
    assert pq.read_table(second)["id"].to_pylist() == [runs[2].id]
    assert store.export(runs, published, "fig3") is None and store.export(runs[:1], published, "fig18") is None
    assert first.read_bytes() == content


def test_export_keeps_the_files_of_the_other_store(store, tmp_path):
    records = [record(seed) for seed in range(3)]
    store.add(records[:2])
    published = Store(tmp_path / "published", warn=never)
    first = store.export([records[0].run], published, "fig3")
    content = first.read_bytes()
    second = store.export([records[0].run, records[1].run], published, "fig3")
    other = Store(tmp_path / "other", warn=never)
    other.add(records[2:])
    third = other.export([records[2].run], published, "fig3")
    assert len({first, second, third}) == 3 and first.read_bytes() == content
    assert len(published.load([r.run for r in records])) == 3


def test_export_keeps_files_with_outdated_results(store, tmp_path, monkeypatch):
    records = [record(0), record(1, method="diagonal")]
    store.add(records)
    store.add([record(2)])
    published = Store(tmp_path / "published", warn=list)
    outdated = store.export([r.run for r in records], published, "fig3")
    content = outdated.read_bytes()
    monkeypatch.setattr("unstale_lab.batch_file.results_version", lambda run: 1 + (run.method == "diagonal"))
    assert not Store(published.path, warn=list).ids()
    store.export([Run(seed=2)], published, "fig3")
    assert outdated.read_bytes() == content


def test_export_keeps_double_precision(store, tmp_path):
    exact = replace(record(precision="float64"), curves={"evaluation": np.array([1.0, 1 + 1e-12, 1e-300])})
    store.add([exact])
    published = Store(tmp_path / "published", warn=never)
    store.export([exact.run], published, "claim24")
    [copy] = published.load([exact.run]).values()
    np.testing.assert_array_equal(copy.curves["evaluation"], exact.curves["evaluation"], strict=True)


def test_export_of_missing_runs_writes_nothing(store, tmp_path):
    store.add([record(0)])
    published = Store(tmp_path / "published", warn=never)
    with pytest.raises(StoreError, match=r"1 of 2 runs are not in .*store, for example"):
        store.export([Run(seed=0), Run(seed=1)], published, "fig3")
    assert not published.path.exists()


def test_export_refuses_other_results_for_a_run(store, tmp_path):
    store.add([record(0)])
    published = Store(tmp_path / "published", warn=never)
    published.add([replace(record(0), curves={"evaluation": np.array([1.0, 2.0, 3.0])})])
    with pytest.raises(StoreError, match="hold different results for run"):
        store.export([Run(seed=0)], published, "fig3")


def test_export_does_not_mistake_another_file_for_its_own(store, tmp_path):
    store.add([record(0)])
    published = Store(tmp_path / "published", warn=never)
    path = store.export([Run(seed=0)], published, "fig3")
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="exists and lacks 1 of these runs"):
        store.export([Run(seed=0)], published, "fig3")


def test_find_by_the_beginning_of_an_id(store):
    kept = record(3, corrected_layers=(1,))
    store.add([kept, record(4)], HERE)
    found = store.find(kept.run.id[:6])
    assert_same(found.record, kept)
    assert found.provenance["device"] == "beads"
    assert found.provenance["unstale_version"] == ""  # was not said
    assert found.provenance["finished"].endswith("+00:00")


def test_find_says_what_is_wrong(store):
    store.add([record(seed) for seed in range(3)], HERE)
    with pytest.raises(StoreError, match=r"no run .* 'xyz'"):
        store.find("xyz")
    with pytest.raises(StoreError, match=f"3 runs .*{min(store.ids())}"):
        store.find("")


def test_provenance_of_some_runs(store):
    store.add([record(0), record(1)], HERE)
    store.add([record(2)], {**HERE, "device": "a slide rule"})
    store.add([record(3)], {**HERE, "machine": "not asked for"})
    origin = store.provenance([Run(seed=seed) for seed in (0, 2, 50)])
    assert origin.runs == 2
    assert origin.seconds == 0.5 + 2.5
    assert origin.values["machine"] == ("an abacus",)
    assert origin.values["device"] == ("a slide rule", "beads")
    assert origin.values["python_version"] == ()


# Damage.


def replaced(table, name, values):
    """The table with other values in one column."""
    index = table.schema.get_field_index(name)
    return table.set_column(index, table.schema.field(name), pa.array(values, table.schema.field(name).type))


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "begun": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "not parquet": lambda path: path.write_bytes(b"PAR1 is how it begins" * 50),
    "a flipped bit in a curve": lambda path: flip(path, span(path, "evaluation")[-1]),
    "a column is missing": lambda path: rewrite(path, lambda table: table.drop_columns(["seconds"])),
    "not of this store": lambda path: rewrite(path, lambda table: table.replace_schema_metadata()),
    "a flipped bit in the footer": lambda path: flip(path, len(path.read_bytes()) - 300),
    "a missing digest": lambda path: pq.write_table(pq.read_table(path), path),
    "an id of other settings": lambda path: rewrite(path, lambda table: replaced(table, "alpha", [0.3, 0.3])),
    "an id of other settings, format 1": lambda path: rewrite_as_format_1(
        path, lambda table: replaced(table, "seed", [7, 8])
    ),
    "a short curve": lambda path: rewrite(path, lambda table: replaced(table, "training", [[1.0, 2.0], [1.0]])),
    "a short curve, format 1": lambda path: rewrite_as_format_1(
        path, lambda table: replaced(table, "training", [[1.0, 2.0, 3.0], [1.0]])
    ),
    "a null in a curve": lambda path: rewrite_as_format_1(
        path, lambda table: replaced(table, "training", [[1.0, 2.0, 3.0], [1.0, None, 3.0]])
    ),
    "no curve": lambda path: rewrite_as_format_1(
        path, lambda table: replaced(replaced(table, "training", [None, None]), "evaluation", [[1.0, 2.0, 3.0], None])
    ),
    "no measurements": lambda path: rewrite_as_format_1(path, lambda table: replaced(table, "at", [[], []])),
    "a null result": lambda path: rewrite_as_format_1(path, lambda table: replaced(table, "parameters", [1, None])),
    "a run twice": lambda path: rewrite_as_format_1(path, lambda table: pa.concat_tables([table, table])),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_set_aside_named_and_made_again(store, warned, damage):
    path = store.add([record(0), record(1)], HERE)
    store.add([record(2)], HERE)
    DAMAGES[damage](path)
    content = path.read_bytes()
    assert store.check() == 1
    aside = path.with_name(f"_{path.name}.damaged")
    assert len(warned) == 1 and path.name in warned[0] and aside.name in warned[0] and "\n" not in warned[0]
    assert aside.read_bytes() == content
    assert store.ids() == {Run(seed=2).id}
    assert store.add([record(0), record(1)], HERE) == path
    assert_same(store.load([Run(seed=1)])[Run(seed=1)], record(1))
    assert len(warned) == 1


def test_ids_are_those_of_intact_files(store, warned):
    path = store.add([record(0)], HERE)
    flip(path, span(path, "evaluation")[-1])
    assert store.ids() == set()
    assert store.load([Run()]) == {}
    assert len(warned) == 1 and path.name in warned[0]


def test_no_byte_of_a_file_can_change(store):
    content = store.add([record(0)], HERE).read_bytes()
    batch_file.decode(content)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        with pytest.raises(batch_file.DamagedFileError):
            batch_file.decode(bytes(changed))


def test_no_flipped_bit_changes_a_curve_of_a_file_without_digest(store, warned):
    path = store.add([record(0)], HERE)
    rewrite_as_format_1(path)
    content = path.read_bytes()
    places = span(path, "evaluation")
    for place in places:
        path.write_bytes(content)
        flip(path, place)
        for loaded in Store(store.path, warned.append).load([Run()]).values():  # some bits mean nothing
            assert_same(loaded, record(0))
    assert len(warned) > len(places) / 2


def test_damaged_files_of_one_name_are_all_kept(store, warned):
    for content in (b"one", b"two", b"three"):
        store.add([record(0)], HERE).write_bytes(content)
        store.check()
    kept = {path.name.partition("damaged")[2]: path.read_bytes() for path in store.path.iterdir()}
    assert kept == {"": b"one", "-2": b"two", "-3": b"three"}
    assert len(warned) == 3


def test_warns_by_python_s_own_warnings_by_default(store):
    store.add([record(0)], HERE).write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged"):
        Store(store.path).check()


def meanwhile(monkeypatch, what):
    """Another process does something just when this one has seen that a file is damaged."""

    def decode(content):
        monkeypatch.undo()
        what()
        raise batch_file.DamagedFileError("as seen before")

    monkeypatch.setattr(batch_file, "decode", decode)


def test_a_sound_file_put_in_place_of_a_damaged_one_stays(store, monkeypatch):
    path = store.add([record(0)], HERE)
    sound = path.read_bytes()

    def fix():
        path.unlink()
        path.write_bytes(sound)

    meanwhile(monkeypatch, fix)
    store.check()  # warns of nothing
    assert os.listdir(store.path) == [path.name]
    assert store.check() == 1


def test_a_file_that_another_process_has_set_aside_is_absent(store, monkeypatch):
    path = store.add([record(0)], HERE)
    meanwhile(monkeypatch, lambda: path.rename(path.with_name("elsewhere")))
    assert store.check() == 0
    assert os.listdir(store.path) == ["elsewhere"]


@pytest.mark.parametrize("step", ["touch", "replace"])
def test_a_damaged_file_that_cannot_be_moved_is_reported_and_absent(store, warned, monkeypatch, step):
    path = store.add([record(0)], HERE)
    path.write_bytes(b"")
    fail(monkeypatch, Path, step, errno.EROFS)
    assert store.load([Run()]) == {}
    assert "Read-only file system" in warned[0] and path.name in warned[0]
    assert os.listdir(store.path) == [path.name]


def test_leftovers_are_ignored_and_old_ones_removed(store):
    store.path.mkdir()
    young, old = (store.path / f".batch-{name}.parquet.1-f.tmp" for name in ("young", "old"))
    for path in (young, old):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 25 * 3600,) * 2)
    assert store.ids() == set()
    added = store.add([record(0)], HERE)
    assert set(store.path.iterdir()) == {young, added}


# Versions.


def test_a_file_of_another_version_is_left_alone(store):
    path = store.add([record(0)], HERE)
    rewrite(path, lambda table: table.replace_schema_metadata({"unstale.store": "7"}))
    for read in (store.ids, store.check, lambda: store.load([Run()]), lambda: store.find("a")):
        with pytest.raises(StoreError, match=f"{path.name} .*version 7.*version 2") as error:
            read()
        assert "\n" not in str(error.value)
    assert path.exists()


def test_a_setting_of_a_later_version_is_an_error(store):
    path = store.add([record(0)], HERE)
    later = pa.field("moon_phase", pa.float64(), metadata={"unstale.part": "run"})
    rewrite(path, lambda table: table.append_column(later, pa.array([0.5])))
    with pytest.raises(StoreError, match=f"{path.name} .*moon_phase"):
        store.ids()


def test_files_of_an_earlier_format_are_read(store):
    path = store.add([record(0), record(1, alpha=0.5)], HERE)
    rewrite_as_format_1(path)
    assert store.check() == 2
    assert_same(store.find(Run(seed=1, alpha=0.5).id).record, record(1, alpha=0.5))


def test_equal_results_in_two_files_are_no_conflict(store):
    store.add([record(0), record(1)], HERE)
    store.add([replace(record(0), seconds=99.0), record(2)], HERE)
    assert store.check() == 3  # warns of nothing


def test_equal_results_in_two_precisions_are_no_conflict(store, tmp_path):
    own = replace(record(), curves={"evaluation": np.array([1 / 3, 2 / 3, np.inf])})
    store.add([own])
    published = Store(tmp_path / "published", warn=never)
    content = store.export([own.run], published, "fig3").read_bytes()
    (store.path / "batch-copy.parquet").write_bytes(content)
    assert Store(store.path, warn=never).check() == 1


def test_changed_results_of_an_earlier_version_count_as_not_run(store, warned, monkeypatch):
    """Other runs of an earlier version are read as before."""
    changed, unchanged = record(0, method="oracle"), record(1)
    with monkeypatch.context() as earlier:
        earlier.setattr(batch_file, "results_version", lambda run: 1)
        earlier.setattr("unstale_lab.store.results_version", lambda run: 1)
        old = store.add([changed], HERE)
        store.add([unchanged], HERE)
        assert store.check() == 2
    store = Store(store.path, warned.append)
    assert store.check() == 1 and store.ids() == {unchanged.run.id}
    assert len(warned) == 1 and old.name in warned[0] and "version 1" in warned[0]
    new = store.add([replace(changed, parameters=7)], HERE)
    assert store.load([changed.run])[changed.run].parameters == 7 and old.exists()
    monkeypatch.setattr(batch_file, "RESULTS_VERSION", 1)
    with pytest.raises(StoreError, match=f"{new.name} .*version 2.*version 1"):
        Store(store.path, warned.append).check()


def test_settings_that_an_older_file_lacks_are_defaults(store):
    path = store.add([record(0, alpha=0.5)], HERE)
    rewrite(path, lambda table: table.drop_columns(["precision", "corrected_layers"]))
    assert_same(store.find("").record, record(0, alpha=0.5))


# Disks.


def fail(monkeypatch, owner, name, code):
    def call(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("owner, name", [(Path, "mkdir"), (Path, "open"), (os, "fsync"), (os, "link")])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_cannot_be_written_is_one_line_and_no_harm(store, monkeypatch, owner, name, code):
    kept = store.add([record(0)], HERE)
    fail(monkeypatch, owner, name, code)
    with pytest.raises(StoreError) as error:
        store.add([record(1)], HERE)
    monkeypatch.undo()
    assert str(error.value) == f"cannot write to the store {store.path}: {os.strerror(code)}"
    assert os.listdir(store.path) == [kept.name]
    assert store.check() == 1


@pytest.mark.parametrize("step", ["mkdir", "open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_cannot_be_written_is_known_before_anything_is_computed(store, monkeypatch, step, code):
    kept = store.add([record(0)], HERE)
    fail(monkeypatch, Path, step, code)
    with pytest.raises(StoreError) as error:
        store.require_writable()
    monkeypatch.undo()
    assert str(error.value) == f"cannot write to the store {store.path}: {os.strerror(code)}"
    assert os.listdir(store.path) == [kept.name]


def test_a_folder_that_can_be_written_is_left_as_it_is(store):
    store.require_writable()
    assert os.listdir(store.path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("place", [".", "store"])
def test_a_read_only_folder_is_known_at_once(store, place):
    folder = store.path.parent / place
    folder.mkdir(exist_ok=True)
    folder.chmod(0o500)
    try:
        with pytest.raises(StoreError, match=r"cannot write to the store .*: Permission denied"):
            store.require_writable()
    finally:
        folder.chmod(0o700)


def test_a_store_below_a_file_is_known_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write to the store .*: Not a directory"):
        Store(tmp_path / "file" / "store").require_writable()


@contextlib.contextmanager
def no_file_beyond(size):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_write_that_stops_half_way_leaves_nothing(store):
    with no_file_beyond(1000), pytest.raises(StoreError, match=r"cannot write .*: File too large"):
        store.add([record(0)], HERE)
    assert os.listdir(store.path) == []


def test_a_disk_on_which_files_stay_empty_is_known_at_once(store):
    with no_file_beyond(0), pytest.raises(StoreError, match=r"cannot write .*: File too large"):
        store.require_writable()
    assert os.listdir(store.path) == []


def test_disks_without_hard_links(store, monkeypatch):
    fail(monkeypatch, os, "link", errno.EPERM)
    path = store.add([record(0)], HERE)
    store.add([replace(record(0), parameters=1)], HERE)
    assert os.listdir(store.path) == [path.name]
    assert_same(store.load([Run()])[Run()], record(0))


def test_a_store_is_a_folder(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(StoreError, match="is a file"):
        Store(path)


class BadSector(io.FileIO):
    def readinto(self, buffer):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def readall(self):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("step", ["open", "read"])
def test_a_file_that_cannot_be_read_is_not_damaged(store, monkeypatch, step):
    path = store.add([record(0)], HERE)
    if step == "open":
        fail(monkeypatch, Path, "open", errno.EIO)
    else:
        monkeypatch.setattr(Path, "open", lambda path, mode: io.BufferedReader(BadSector(path)))
    with pytest.raises(StoreError, match=f"cannot read .*{path.name}: Input/output error"):
        store.ids()
    assert path.exists()


# Processes.


def start(*arguments):
    """Another process, which adds the batches of ``writer`` below."""
    search = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    command = [sys.executable, "-c", "import test_store as t, sys; t.writer(*sys.argv[1:])", *map(str, arguments)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": search})


def writer(path, first, last):
    store = Store(path, warn=never)
    for batch in range(int(first), int(last)):
        store.add([record(2 * batch), record(2 * batch + 1)], HERE)


def test_a_file_that_does_not_fit_into_memory_is_not_damaged(store, monkeypatch):
    path = store.add([record()])

    def fail(*args, **options):
        raise MemoryError

    monkeypatch.setattr(pq.ParquetFile, "read", fail)
    with pytest.raises(StoreError, match="not enough memory to read"):
        Store(store.path, warn=never).ids()
    assert path.exists()


def test_processes_share_a_store(store):
    other = start(store.path, 0, 60)
    while not store.path.exists():
        assert other.poll() in (None, 0)
        time.sleep(0.01)
    for batch in range(89, 29, -1):  # half of them are the other's too
        writer(store.path, batch, batch + 1)
        store.ids()  # never sees half a file
    assert other.wait() == 0
    assert len(os.listdir(store.path)) == 90
    loaded = store.load([Run(seed=seed) for seed in range(180)])
    for seed in range(180):
        assert_same(loaded[Run(seed=seed)], record(seed))


def test_a_killed_process_leaves_whole_files(store):
    process = start(store.path, 0, 10**9)
    try:
        while not store.ids():
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    whole = store.check()
    assert whole == 2 * len(list(store.path.glob("batch-*.parquet")))
    assert len(store.load([Run(seed=seed) for seed in range(whole)])) == whole


# Where it was made.


def test_provenance_says_versions_and_machine_and_nothing_private():
    found = provenance.provenance("cpu")
    assert set(found) | {"finished"} == set(batch_file.PROVENANCE)
    assert found["device"] == "cpu"
    assert found["unstale_version"] == unstale.__version__
    assert found["torch_version"].split(".")[0].isdigit()
    assert found["machine"].endswith(("core", "cores"))
    private = [os.uname().nodename, str(Path.home()), str(Path(unstale.__file__).parent)]
    assert not [value for value in found.values() for word in private if word in value]


def test_processors_in_words():
    text = "processor : 0\nmodel name : AMD  EPYC 9654\nphysical id : {}\n\n"
    assert provenance._processors(text.format(0) * 2 + text.format(1) * 2) == ("AMD EPYC 9654", 2)
    assert provenance._processors("processor : 0\nBogoMIPS : 50\n") == ("", 1)


def git(folder, *arguments):
    name = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *name, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_commit_of_a_checkout(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:  # set by git for its hooks
        monkeypatch.delenv(name)

    def commit():
        provenance.commit.cache_clear()
        return provenance.commit((package, laboratory))

    package, laboratory = tmp_path / "src", tmp_path / "lab"
    for folder in (package, laboratory):
        folder.mkdir()
        (folder / "__init__.py").write_text("")
    assert commit() == ""  # no checkout
    git(tmp_path, "init", "-q")
    (tmp_path / "README").write_text("")
    git(tmp_path, "add", "README")
    git(tmp_path, "commit", "-qm", "of something else")
    assert commit() == ""  # not part of it
    git(tmp_path, "add", "src")
    git(tmp_path, "commit", "-qm", "with the package")
    assert commit() == ""  # one of the two is not part of it
    git(tmp_path, "add", "lab")
    git(tmp_path, "commit", "-qm", "with both")
    head = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert commit() == head
    (tmp_path / "README").write_text("results, perhaps")
    assert commit() == head
    for folder in (package, laboratory):
        (folder / "__init__.py").write_text("pass")
        assert commit() == head + "+changes"
        (folder / "__init__.py").write_text("")
    assert commit() == head
    provenance.commit.cache_clear()
