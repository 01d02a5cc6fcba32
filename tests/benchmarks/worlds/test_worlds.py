"""Generated worlds: the same every time, splits apart, oracles exact, boxes true."""

import io
import itertools
import json
import runpy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from worlds import (
    MOST,
    NOISY,
    Detector,
    Scene,
    World,
    make_scenes,
    oracles,
    views,
    word_groups,
    write_noisy_pairs,
)
from worlds.detector import crop
from worlds.images import box_of, draw, shape_mask
from worlds.oracles import is_true, oracle, truth
from worlds.scenes import RELATIONS, SHAPES, Placed, combination_of, holds, make_scene
from worlds.writing import SOURCE, captions, make_sample, with_moved_captions, wordings, write_world

from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.outputs import State
from vlmill.runtime.files.reading import iter_batches, read_table
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.tables import IMAGES, PAIRS

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
WORLD = World()
NAMED = World(num_shapes=3, num_textures=2, name_textures=True)
SMALL = World(num_colours=3, num_shapes=2, num_textures=1, num_things=(2,), held_out_share=0.4)


def combinations(scenes: list[Scene]) -> set[object]:
    return {combination_of(scene.things, s) for scene in scenes for s in scene.statements}


def test_scenes_are_the_same_whatever_else_is_made() -> None:
    assert make_scenes(WORLD, "test", 4)[3] == make_scene(WORLD, "test", 3)
    assert make_scene(replace(WORLD, seed=1), "test", 3) != make_scene(WORLD, "test", 3)


@pytest.mark.parametrize("world", [WORLD, NAMED, SMALL])
def test_splits_share_no_combination(world: World) -> None:
    train = combinations(make_scenes(world, "train", 80))
    test = combinations(make_scenes(world, "test", 30))
    assert train and test and not train & test


def test_a_relation_and_its_inverse_are_one_combination() -> None:
    scene = make_scene(SMALL, "train", 0)
    (statement,) = scene.statements
    inverses = {"left of": "right of", "above": "below", "inside": "around"}
    inverses |= {b: a for a, b in inverses.items()}
    turned = replace(
        statement,
        subject=statement.object,
        object=statement.subject,
        relation=inverses[statement.relation],
    )
    assert combination_of(scene.things, turned) == combination_of(scene.things, statement)


@given(st.integers(0, 10_000), st.sampled_from(["train", "test"]))
@settings(max_examples=30, deadline=None)
def test_what_a_caption_states_holds_in_its_image(index: int, split: str) -> None:
    world = [WORLD, NAMED][index % 2]
    scene = make_scene(world, split, index)  # type: ignore[arg-type]
    assert is_true(scene, scene)
    for s in scene.statements:
        assert s.relation in scene.caption
        assert not holds(s.relation, scene.places[s.object], scene.places[s.subject])
    kinds = [thing.kind for thing in scene.things]
    assert len(set(kinds)) == len(kinds) == len(scene.statements) + 1
    assert all(thing.name(world) in scene.caption for thing in scene.things)
    words = set(scene.caption.split())
    assert all(words & group for group in word_groups(world).values())


def test_at_most_one_relation_holds_by_hand() -> None:
    one, right, below = Placed(10, 10, 4, 0), Placed(30, 14, 4, 0), Placed(12, 40, 4, 0)
    around = Placed(11, 10, 12, 0)
    found = {
        name: [r for r in RELATIONS if holds(r, one, other)]
        for name, other in {"right": right, "below": below, "around": around}.items()
    }
    assert found == {"right": ["left of"], "below": ["above"], "around": ["inside"]}
    assert not any(holds(r, one, Placed(17, 10, 4, 0)) for r in RELATIONS)  # overlap


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_boxes_hold_the_shapes_pixels_and_nothing_less(index: int) -> None:
    scene = make_scene(WORLD, "train", index)
    pixels, boxes = draw(WORLD, scene, np.random.default_rng(0))
    assert pixels.shape == (128, 128, 3) and pixels.dtype == np.uint8
    for thing, place, box in zip(scene.things, scene.places, boxes, strict=True):
        rows, columns = np.nonzero(shape_mask(thing.shape, place, 128))
        edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert box.tolist() == edges
        assert box.min() >= 0 and box.max() <= 128


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_stay_in_their_radius(shape: str) -> None:
    x1, y1, x2, y2 = box_of(shape_mask(shape, Placed(64, 60, 20, 0.2), 128))
    assert min(x1 - 40, y1 - 36, 88 - x2, 84 - y2) > 0
    assert min(x2 - x1, y2 - y1) > 20


def test_features_depend_on_nothing_outside_the_box() -> None:
    detector, rng = Detector(), np.random.default_rng(0)
    pixels = rng.integers(256, size=(64, 64, 3), dtype=np.uint8)
    box = np.array([[10, 12, 30, 40]], np.float32)
    other = rng.integers(256, size=(64, 64, 3), dtype=np.uint8)
    other[12:40, 10:30] = pixels[12:40, 10:30]
    features = detector.features(pixels, box)
    assert features.shape == (1, 256) and features.dtype == np.float32
    np.testing.assert_array_equal(features, detector.features(other, box))
    other[20, 20] = 255 - other[20, 20]
    assert np.abs(features - detector.features(other, box)).max() > 1e-4


def test_a_crop_of_the_grids_size_is_itself() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(40, 40, 3), dtype=np.uint8)
    box = np.array([3, 5, 27, 29], np.float32)
    np.testing.assert_array_equal(crop(pixels, box), pixels[5:29, 3:27])


def test_features_tell_colours_apart() -> None:
    """The nearest mean of 60 images' tight boxes names the colour of most things of 20 others."""
    detector = Detector(noise=0)
    found: list[tuple[str, np.ndarray]] = []
    for index in range(80):
        scene = make_scene(WORLD, "train", index)
        pixels, boxes = draw(WORLD, scene, np.random.default_rng(index))
        colours = [thing.colour for thing in scene.things]
        found += zip(colours, detector.features(pixels, boxes), strict=True)
    known, asked = found[:180], found[180:]
    means = {c: np.mean([f for colour, f in known if colour == c], axis=0) for c, _ in known}
    nearest = [
        min(means, key=lambda c: float(((f - means[c]) ** 2).sum())) == colour
        for colour, f in asked
    ]
    assert len(asked) > 40 and np.mean(nearest) > 0.6


def test_regions_are_ranked_and_err_as_told() -> None:
    right = wrong = 0
    detector = Detector(class_error=0.3, extra_boxes=2)
    for index in range(40):
        scene = make_scene(WORLD, "train", index)
        row = make_sample(WORLD, detector, "train", index, scene).regions
        assert len(row.boxes) == 3 * len(scene.things)
        assert row.class_scores is not None and (np.diff(row.class_scores) <= 0).all()
        assert row.class_probs is not None and row.class_ids is not None
        np.testing.assert_allclose(row.class_probs.sum(1), 1, atol=1e-5)
        assert (row.class_probs >= 0).all()
        np.testing.assert_array_equal(row.class_probs[:, 1:].argmax(1), row.class_ids)
        true = {t.kind for t in scene.things}
        named = [WORLD.kinds[k] in true for k in row.class_ids]
        right, wrong = right + sum(named), wrong + len(named) - sum(named)
    assert 0.2 < wrong / (right + wrong) < 0.4


@pytest.mark.parametrize("name", views(NAMED))
@pytest.mark.parametrize("world", [SMALL, NAMED])
def test_oracles_against_counting(world: World, name: str) -> None:
    scenes, view = make_scenes(world, "test", 40), views(NAMED)[name]
    found = oracle(scenes, view)
    seen = Counter(repr(view(scene)) for scene in scenes)
    alone = sum(count == 1 for count in seen.values()) / len(scenes)
    for direction in ("image_retrieval", "text_retrieval"):
        assert found[f"{direction}/r1"] == pytest.approx(alone)
        assert found[f"{direction}/r1_expected"] == pytest.approx(len(seen) / len(scenes))


def test_the_oracles_stand_where_they_should() -> None:
    """A model beats colours alone, with room up to the bag of things: 500 pairs of the default."""
    found = oracles(WORLD, make_scenes(WORLD, "test", 500))
    assert found["colours"]["image_retrieval/r1"] == pytest.approx(0.30, abs=0.03)
    assert found["things"]["image_retrieval/r1"] == pytest.approx(0.95, abs=0.03)
    assert found["everything"]["image_retrieval/r1"] >= 0.95
    assert list(views(WORLD)) == ["colours", "shapes", "things", "relations"]


def test_no_order_of_ties_beats_what_is_expected_of_them() -> None:
    """All orders of a tiny world: the mean of R@1 is the expectation, the least is pessimistic."""
    scenes = make_scenes(SMALL, "test", 5)
    colours = views(SMALL)["colours"]
    seen = [colours(scene) for scene in scenes]
    hits = []
    for order in itertools.permutations(range(5)):
        first = [next(j for j in order if seen[j] == one) for one in seen]
        hits.append(sum(j == i for i, j in enumerate(first)) / 5)
    expected = oracle(scenes, colours)["image_retrieval/r1_expected"]
    assert expected == pytest.approx(np.mean(hits))


def test_the_truth_sees_more_than_the_things() -> None:
    scenes = make_scenes(SMALL, "test", 60)
    everything, found = truth(SMALL, scenes), oracles(SMALL, scenes)
    things = views(SMALL)["things"]
    assert found["everything"] == everything
    assert everything["image_retrieval/r1"] >= found["things"]["image_retrieval/r1"]
    expected = sum(
        sum(things(a) == things(b) and is_true(b, a) for a in scenes) == 1 for b in scenes
    )
    assert everything["image_retrieval/r1"] == pytest.approx(expected / 60)


@pytest.mark.parametrize(
    "change",
    [
        {"num_colours": 0},
        {"num_shapes": 99},
        {"num_things": (5,)},
        {"num_things": ()},
        {"held_out_share": 1.0},
        {"side": 8},
        {"num_colours": 1, "num_shapes": 3},
    ],
)
def test_worlds_that_cannot_be_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        replace(WORLD, **change)  # type: ignore[arg-type]


def test_a_world_without_a_held_out_combination_says_so() -> None:
    world = World(num_colours=2, num_shapes=2, num_things=(2,), held_out_share=1e-9)
    with pytest.raises(ValueError, match="no scene of 2 things for test"):
        make_scene(world, "test", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("world") / "w"
    write_world(path, WORLD, pairs=12, held_out=5, known={"more": 1})
    return path


def test_a_world_is_one_folder_for_every_table(folder: Path) -> None:
    assert verify_folder(folder) == []
    pairs, regions = read_table(folder, PAIRS).to_pylist(), RegionReader(folder)
    assert Counter(pair["split"] for pair in pairs) == {"train": 12, "test": 5}
    assert [pair["image_id"] for pair in pairs] == regions.image_ids
    assert regions.feature_dim == 256
    assert regions.detector_fingerprint == Detector().fingerprint(WORLD)
    image = read_table(folder, IMAGES).to_pylist()[0]
    assert Image.open(io.BytesIO(image["bytes"])).size == (128, 128)
    lines = [json.loads(line) for line in (folder / "boxes.jsonl").open()]
    assert [line["image_id"] for line in lines] == regions.image_ids
    assert lines[3]["boxes"] == regions[lines[3]["image_id"]].boxes.tolist()
    about = json.loads((folder / "world.json").read_text())
    assert (
        about["more"] == 1
        and about["words"]["relation"][0] == "above"
        and "texture" not in about["words"]
    )


def test_worlds_are_the_same_bytes_and_never_mixed(folder: Path, tmp_path: Path) -> None:
    write_world(tmp_path / "w", WORLD, pairs=12, held_out=5, known={"more": 1})
    for path in folder.iterdir():
        assert (tmp_path / "w" / path.name).read_bytes() == path.read_bytes(), path.name
    with pytest.raises(InputError, match="other settings"):
        write_world(folder, WORLD, pairs=13, held_out=5)


def test_the_fingerprint_tells_what_numbers_mean() -> None:
    same = Detector(noise=0, class_error=0, extra_boxes=0)
    assert same.fingerprint(WORLD) == Detector().fingerprint(WORLD)
    others = [Detector(seed=1).fingerprint(WORLD), Detector().fingerprint(SMALL)]
    assert Detector().fingerprint(WORLD) not in others


def test_the_command_writes_prints_and_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(ROOT / "benchmarks" / "world.py"))["main"]
    flags = ["--output", str(tmp_path), "--pairs", "3", "--held-out"]
    assert main([*flags, "4"]) == 0
    printed = capsys.readouterr().out
    lines = [json.loads(line) for line in printed.splitlines()]
    assert lines[-1]["name"] == "world/everything/text_retrieval/r1"
    assert all(0 <= line["value"] <= line["expected"] <= 1 for line in lines)
    page = (tmp_path / "contact.html").read_text()
    assert page.count("data:image/png") == 7 and "world/test/000003" in page
    assert main([*flags, "4"]) == 0
    assert capsys.readouterr().out == printed
    assert main([*flags, "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@given(count=st.integers(0, 40), share=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 9))
def test_captions_are_moved_and_none_is_lost(count: int, share: float, seed: int) -> None:
    rows = [{"pair_id": f"p{i}", "image_id": f"i{i}", "text": f"t{i}"} for i in range(count)]
    moved = with_moved_captions(rows, share, seed)
    assert [row["image_id"] for row in moved] == [row["image_id"] for row in rows]
    assert sorted(row["text"] for row in moved) == sorted(row["text"] for row in rows)
    changed = [m for m, row in zip(moved, rows, strict=True) if m["text"] != row["text"]]
    wanted = round(share * count)
    assert len(changed) == (wanted if wanted > 1 else 0)
    assert all(row["pair_id"] == compute_pair_id(row["image_id"], row["text"]) for row in changed)
    assert with_moved_captions(rows, share, seed) == moved


def test_held_out_pairs_and_the_first_ones_stay(tmp_path: Path) -> None:
    write_world(tmp_path / "world", World(), pairs=12, held_out=3)
    before = read_table(tmp_path / "world", PAIRS).to_pylist()
    assert write_noisy_pairs(tmp_path / "noisy", tmp_path / "world", first=4, share=1.0) is (
        State.NEW
    )
    after = read_table(tmp_path / "noisy", PAIRS).to_pylist()
    assert verify_folder(tmp_path / "noisy") == []
    assert after[:4] == before[:4] and after[12:] == before[12:]
    assert [row["source"] for row in after] == [SOURCE] * 4 + [NOISY] * 8 + [SOURCE] * 3
    assert all(a["text"] != b["text"] for a, b in zip(after[4:12], before[4:12], strict=True))
    again = write_noisy_pairs(tmp_path / "noisy", tmp_path / "world", first=4, share=1.0)
    assert again is State.FINISHED


def test_every_wording_states_as_many_relations_and_all_hold() -> None:
    for scene in make_scenes(World(), "train", 40):
        for statements in wordings(scene.statements):
            assert len(statements) == len(scene.statements)
            for s in statements:
                assert holds(s.relation, scene.places[s.subject], scene.places[s.object])


def test_captions_differ_and_begin_with_the_scenes_own() -> None:
    world = World()
    for scene in make_scenes(world, "train", 40):
        texts = captions(world, scene, MOST, np.random.default_rng(0))
        assert texts[0] == scene.caption and len(set(texts)) == MOST
        assert {word for word in texts[0].split() if word in world.colours} == {
            word for word in texts[-1].split() if word in world.colours
        }
        assert captions(world, scene, 1, np.random.default_rng(0)) == [scene.caption]
    with pytest.raises(ValueError, match=f"captions=9: expected 1 to {MOST}"):
        captions(world, scene, MOST + 1, np.random.default_rng(0))


def test_a_world_with_several_captions_of_a_image(tmp_path: Path) -> None:
    """Of ten pairs to train on by threes there are three images; held-out ones have one."""
    write_world(tmp_path, World(), pairs=10, held_out=2, each=3)
    pairs = [row for b in iter_batches(tmp_path, PAIRS) for row in b.to_pylist()]
    images = [row["image_id"] for b in iter_batches(tmp_path, IMAGES) for row in b.to_pylist()]
    assert len(images) == 5 and len({row["pair_id"] for row in pairs}) == 11
    by_split = {
        split: [row["image_id"] for row in pairs if row["split"] == split]
        for split in ("train", "test")
    }
    assert [by_split["train"].count(name) for name in images[:3]] == [3, 3, 3]
    assert by_split["test"] == images[3:]
