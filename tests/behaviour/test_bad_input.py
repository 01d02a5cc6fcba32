"""Every variant refuses what it cannot read: a ValueError names the argument and the numbers."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from jaxtyping import config as shapes
from torch import Tensor, nn

from vlmill.models import MODELS, PRESETS, VARIANTS, PixelInputs, VLInputs, load_reference, preset
from vlmill.models.beit.dvae import DalleConfig, DalleTokenizer
from vlmill.models.published import FAMILIES, export_reference
from vlmill.train.objectives.contrast import contrast_and_matching

PAIRS, TOKENS, REGIONS, WIDTH, SIDE = 3, 5, 4, 16, 32
WORDS, POSITIONS = 50, 12
TEXT = {"vocab_size": WORDS, "width": 16, "num_heads": 2, "intermediate_width": 16}
READERS: dict[str, dict[str, Any]] = {
    "imagebert": {"num_layers": 1, "max_text_tokens": POSITIONS, "visual_position_id": 0},
    "interbert": {"num_interaction_layers": 1, "visual_num_heads": 2, "max_text_tokens": 12},
    "vilbert": {
        "visual_width": 16,
        "visual_num_heads": 2,
        "co_width": 16,
        "co_num_heads": 2,
        "max_text_tokens": POSITIONS,
    },
    "vilbert-single-stream": {"num_layers": 1, "max_text_tokens": POSITIONS},
    "vl-bert": {"num_layers": 1},
}
PRESET_OF = {"vilbert-single-stream": "vilbert-single-stream"}
NAN = float("nan")


@pytest.fixture(autouse=True)
def outside_of_tests() -> Iterator[None]:
    """Shapes unchecked, as users run it: the tests' own checks would come before ours."""
    shapes.update("jaxtyping_disable", True)
    yield
    shapes.update("jaxtyping_disable", False)


def reader(variant: str) -> Any:
    """A tiny model that reads regions."""
    positions = POSITIONS + 2 if variant == "vl-bert" else POSITIONS
    sizes = TEXT | {"num_positions": positions, "region_width": WIDTH} | READERS[variant]
    name = PRESET_OF.get(variant, f"{variant}-small")
    return VARIANTS[variant].model(preset(name, **sizes)).eval()


def pairs(num_tokens: int = TOKENS, num_regions: int = REGIONS, **changes: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    parts: dict[str, Any] = {
        "tokens": torch.randint(0, WORDS, (PAIRS, num_tokens), generator=generator),
        "token_mask": torch.ones(PAIRS, num_tokens, dtype=torch.bool),
        "region_features": torch.rand(PAIRS, num_regions, WIDTH, generator=generator),
        "region_locations": torch.rand(PAIRS, num_regions, 5, generator=generator),
        "region_mask": torch.ones(PAIRS, num_regions, dtype=torch.bool),
    }
    return parts | changes


def with_row(tensor: Tensor, value: Any, row: int = 1) -> Tensor:
    """The same with one row that holds ``value``."""
    changed = tensor.clone()
    changed[row] = value
    return changed


GOOD = pairs()
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no tensor": ({"tokens": [[1]]}, "tokens is a list, expected a tensor"),
    "nothing": ({"region_features": None}, "region_features is a NoneType"),
    "no pairs": (
        {name: tensor[:0] for name, tensor in GOOD.items()},
        "tokens has shape (0, 5), expected at least one pair",
    ),
    "tokens of another shape": (
        {"tokens": GOOD["tokens"][:2]},
        "tokens has shape (2, 5), expected",
    ),
    "a mask of another shape": (
        {"region_mask": GOOD["region_mask"][:, :2]},
        "region_mask has shape (3, 2), expected (3, 4)",
    ),
    "four numbers of a box": (
        {"region_locations": GOOD["region_locations"][..., :4]},
        "region_locations has shape (3, 4, 4), expected (3, 4, 5)",
    ),
    "another feature width": (
        {"region_features": torch.rand(PAIRS, REGIONS, WIDTH + 1)},
        f"region_features are {WIDTH + 1} wide, the model takes {WIDTH}",
    ),
    "features that are no fractions": (
        {"region_features": torch.ones(PAIRS, REGIONS, WIDTH, dtype=torch.int64)},
        "region_features is torch.int64, expected floating point",
    ),
    "features of another type": (
        {"region_features": GOOD["region_features"].double()},
        "region_features is torch.float64, the model's weights are torch.float32; convert either",
    ),
    "NaN in features": (
        {"region_features": with_row(GOOD["region_features"], NAN)},
        "region_features: 1 of 3 pairs hold NaN or infinite values (first: row 1)",
    ),
    "infinity in features": (
        {"region_features": with_row(GOOD["region_features"], torch.inf)},
        "region_features: 1 of 3 pairs hold NaN",
    ),
    "NaN in locations": (
        {"region_locations": with_row(GOOD["region_locations"], NAN)},
        "region_locations: 1 of 3 pairs hold NaN",
    ),
    "a word beyond the vocabulary": (
        {"tokens": with_row(GOOD["tokens"] * 0, WORDS)},
        f"tokens has ids from 0 to {WORDS} (first wrong one in row 1), expected 0 to {WORDS - 1}",
    ),
    "a negative word": ({"tokens": GOOD["tokens"] * 0 - 1}, "tokens has ids from -1 to -1"),
    "a region that is not there": (
        {"text_regions": GOOD["tokens"] * 0 + REGIONS},
        f"text_regions has ids from {REGIONS} to {REGIONS} (first wrong one in row 0)",
    ),
}


@pytest.mark.parametrize("variant", READERS)
@pytest.mark.parametrize("case", WRONG)
def test_pairs_that_no_variant_can_read(variant: str, case: str) -> None:
    changes, message = WRONG[case]
    model = reader(variant)
    with pytest.raises(ValueError, match=re.escape(message)):
        model(VLInputs(**pairs(**changes)))


@pytest.mark.parametrize("variant", READERS)
def test_autocast_takes_features_of_another_type(variant: str) -> None:
    inputs = VLInputs(**pairs(region_features=GOOD["region_features"].bfloat16()))
    with torch.autocast("cpu", torch.bfloat16):
        assert reader(variant)(inputs).pooled.isfinite().all()


@pytest.mark.parametrize("variant", READERS)
def test_texts_that_are_empty_or_too_long(variant: str) -> None:
    model, empty = reader(variant), with_row(GOOD["token_mask"], False)
    if variant == "interbert":  # for which an image may stand alone
        model(VLInputs(**pairs(num_tokens=0)))
    else:
        with pytest.raises(ValueError, match=r"tokens has (shape \(3, 0\)|0 positions)"):
            model(VLInputs(**pairs(num_tokens=0)))
        with pytest.raises(ValueError, match=r"token_mask: 1 of 3 pairs have no token \(first: ro"):
            model(VLInputs(**pairs(token_mask=empty)))
    with pytest.raises(
        ValueError, match=rf"tokens has {POSITIONS + 1} positions, .*[ =]{POSITIONS}"
    ):
        model(VLInputs(**pairs(num_tokens=POSITIONS + 1)))


@pytest.mark.parametrize("variant", READERS)
def test_regions_where_the_variant_needs_one(variant: str) -> None:
    model, empty = reader(variant), with_row(GOOD["region_mask"], False)
    if variant == "vilbert":
        with pytest.raises(ValueError, match=r"region_features has shape \(3, 0, 16\): the vari"):
            model(VLInputs(**pairs(num_regions=0)))
        with pytest.raises(ValueError, match="region_mask: 1 of 3 pairs have no region"):
            model(VLInputs(**pairs(region_mask=empty)))
    else:
        for inputs in (pairs(num_regions=0), pairs(region_mask=empty)):
            assert model(VLInputs(**inputs)).pooled.isfinite().all()
    with pytest.raises(ValueError, match="region_mask: 1 of 3 pairs have no region"):
        VLInputs(**pairs(region_mask=empty)).validate()


@pytest.mark.parametrize("variant", [name for name in READERS if name != "imagebert"])
def test_segments_beyond_the_table(variant: str) -> None:
    with pytest.raises(ValueError, match=r"segments has ids from 3 to 3 .*num_segments=[23]"):
        reader(variant)(VLInputs(**pairs(segments=GOOD["tokens"] * 0 + 3)))


def texts(model: Any) -> Callable[..., Any]:
    def read(**changes: Any) -> Any:
        return model(
            *({"tokens": GOOD["tokens"], "token_mask": GOOD["token_mask"]} | changes).values()
        )

    return read


def images(model: Any) -> Callable[..., Any]:
    parts = {
        "tokens": GOOD["tokens"],
        "token_mask": GOOD["token_mask"],
        "pixels": torch.rand(PAIRS, 3, SIDE, SIDE),
    }

    def read(**changes: Any) -> Any:
        return model(PixelInputs(**(parts | changes)))

    return read


def bert() -> Any:
    return (
        VARIANTS["bert"]
        .model(preset("bert-small", num_layers=1, num_positions=POSITIONS, **TEXT))
        .eval()
    )


def vlmo(**changes: Any) -> Any:
    sizes = {"num_layers": 2, "first_vl_layer": 1, "image_size": SIDE, "max_text_tokens": POSITIONS}
    return VARIANTS["vlmo"].model(preset("vlmo-small", **(TEXT | sizes | changes))).eval()


def beit(**changes: Any) -> Any:
    sizes = {"width": 16, "num_heads": 2, "intermediate_width": 16, "num_layers": 1}
    changes = {"image_size": SIDE, "num_visual_tokens": 7} | changes
    return VARIANTS["beit"].model(preset("beit-base", **sizes, **changes)).eval()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": GOOD["tokens"][:, :0], "token_mask": GOOD["token_mask"][:, :0]}, "(3, 0)"),
        ({"tokens": GOOD["tokens"][0]}, "tokens has shape (5,), expected [texts, tokens]"),
        ({"tokens": GOOD["tokens"].int()}, "tokens is torch.int32, expected torch.int64"),
        ({"tokens": GOOD["tokens"] + WORDS}, "expected 0 to 49 (vocab_size=50)"),
        ({"token_mask": GOOD["token_mask"][:, :3]}, "token_mask has shape (3, 3), tokens (3, 5)"),
        (
            {"token_mask": GOOD["token_mask"].float()},
            "token_mask is torch.float32, expected torch.bo",
        ),
        (
            {"token_mask": with_row(GOOD["token_mask"], False)},
            "token_mask: 1 of 3 texts have no token (first: row 1); remove such texts",
        ),
        ({"segments": GOOD["tokens"][:, :3] * 0}, "segments has shape (3, 3), tokens (3, 5)"),
        ({"segments": GOOD["tokens"] * 0 + 2}, "segments has ids from 2 to 2"),
        (
            {
                "tokens": torch.zeros(PAIRS, 13, dtype=torch.int64),
                "token_mask": torch.ones(PAIRS, 13, dtype=torch.bool),
            },
            "tokens has 13 positions, the position table 12",
        ),
    ],
)
def test_texts_that_bert_cannot_read(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        texts(bert())(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokens": GOOD["tokens"][:, :0], "token_mask": GOOD["token_mask"][:, :0]},
            "tokens has 0",
        ),
        ({"tokens": GOOD["tokens"] + WORDS}, "expected 0 to 49 (vocab_size=50)"),
        (
            {
                "tokens": torch.zeros(PAIRS, 13, dtype=torch.int64),
                "token_mask": torch.ones(PAIRS, 13, dtype=torch.bool),
            },
            "tokens has 13 positions, expected 1 to max_text_tokens=12",
        ),
        ({"token_mask": with_row(GOOD["token_mask"], False)}, "1 of 3 pairs have no token"),
        (
            {
                "tokens": GOOD["tokens"][:0],
                "token_mask": GOOD["token_mask"][:0],
                "pixels": torch.zeros(0, 3, SIDE, SIDE),
            },
            "tokens has shape (0, 5), expected at least one pair",
        ),
        (
            {"pixels": torch.zeros(PAIRS, 1, SIDE, SIDE)},
            "pixels has shape (3, 1, 32, 32), expected",
        ),
        ({"pixels": torch.zeros(PAIRS, 3, 48, 48)}, "expected [images, 3, image_size=32, 32]"),
        ({"pixels": torch.zeros(2, 3, SIDE, SIDE)}, "with pixels (2, 3, 32, 32)"),
        (
            {"pixels": torch.zeros(PAIRS, 3, SIDE, SIDE, dtype=torch.float16)},
            "pixels is torch.float16, the model's weights are torch.float32",
        ),
        (
            {"pixels": with_row(torch.zeros(PAIRS, 3, SIDE, SIDE), NAN)},
            "pixels: 1 of 3 images hold NaN or infinite values (first: row 1)",
        ),
    ],
)
def test_pairs_that_vlmo_cannot_read(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        images(vlmo())(**changes)


def test_what_a_vlmo_step_cannot_be_made_of() -> None:
    model, inputs = vlmo(), images(lambda inputs: inputs)()
    with pytest.raises(ValueError, match=r"masked_tokens has shape \(3, 2\), tokens \(3, 5\)"):
        contrast_and_matching(model, inputs, inputs.tokens[:, :2])
    with pytest.raises(ValueError, match=r"token_mask has shape \(3, 2\), tokens \(3, 5\)"):
        model.text_vectors(inputs.tokens, inputs.token_mask[:, :2])
    with pytest.raises(ValueError, match="contrast=False: this VLMo has no such head"):
        vlmo(contrast=False).text_vectors(inputs.tokens, inputs.token_mask)
    with pytest.raises(ValueError, match="match=False: this VLMo"):
        vlmo(match=False).match_logit(torch.zeros(1, 16))
    with pytest.raises(ValueError, match="mlm=False: this VLMo"):
        vlmo(mlm=False).mlm_logits(torch.zeros(1, 16))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 3, 48, 48),), "pixels has shape (2, 3, 48, 48), expected"),
        (
            (torch.zeros(2, 3, SIDE, SIDE, dtype=torch.uint8),),
            "pixels is torch.uint8, expected float",
        ),
        ((torch.full((2, 3, SIDE, SIDE), NAN),), "pixels: 2 of 2 images hold NaN"),
        (
            (torch.zeros(2, 3, SIDE, SIDE), torch.ones(2, 3, dtype=torch.bool)),
            "masked has shape (2, 3), expected (2, 4)",
        ),
        (
            (torch.zeros(2, 3, SIDE, SIDE), torch.ones(2, 4)),
            "masked is torch.float32, expected torch",
        ),
    ],
)
def test_images_that_beit_cannot_read(arguments: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        beit()(*arguments)


def test_heads_that_a_beit_lacks() -> None:
    with pytest.raises(ValueError, match="num_classes=0: this BEiT has no classifier"):
        beit().class_logits(torch.zeros(1, 3, SIDE, SIDE))
    with pytest.raises(ValueError, match="num_visual_tokens=0: this BEiT has no head"):
        beit(num_visual_tokens=0).visual_logits(torch.zeros(1, 16))


def test_unknown_names_are_told_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no preset 'vilbert-bse'; did you mean 'vilbert-base'\?"):
        preset("vilbert-bse")
    with pytest.raises(ValueError, match=r"no preset 'zzz'; there are beit-base, beit-base-paper"):
        preset("zzz")
    with pytest.raises(ValueError, match=r"no family 'vilber'; did you mean 'vilbert'\?"):
        load_reference("vilber", {}, {})
    with pytest.raises(ValueError, match=r"no family 'inter-bert'; did you mean 'interbert'\?"):
        export_reference("inter-bert", nn.Identity())


@pytest.mark.parametrize("name", PRESETS)
def test_fields_that_a_preset_cannot_have(name: str) -> None:
    with pytest.raises(ValueError, match=r"has no field 'num_layerz'; (did you|there are)"):
        preset(name, num_layerz=3)
    if "end-to-end" not in name:
        with pytest.raises(ValueError, match="width='768': expected a whole number"):
            preset(name, width="768")
        with pytest.raises(ValueError, match="width=15 is not a multiple of num_heads=4"):
            preset(name, width=15, num_heads=4)


@pytest.mark.parametrize("family", FAMILIES)
def test_configurations_of_another_family(family: str) -> None:
    other = preset("vlmo-small") if family != "vlmo" else preset("bert-small")
    state = {"a.weight": torch.zeros(1)}
    with pytest.raises(ValueError, match=rf"config is a {type(other).__name__}; family {family} e"):
        load_reference(family, state, other)
    with pytest.raises(ValueError, match=r"config is a |no tokenizer of images"):
        load_reference(family, state, None)
    with pytest.raises(FileNotFoundError, match=r"config=nowhere\.json: no such file"):
        load_reference(family, state, "nowhere.json")


def families() -> dict[str, tuple[str, Any]]:
    """A tiny model of each family, and a field that changes its tensors' shapes."""
    models = {name: reader(name) for name in READERS if name != "imagebert"}
    return {
        **{
            ("vilbert" if "single" in name else name) + name: (name, m)
            for name, m in models.items()
        },
        "bert": ("bert", bert()),
        "vlmo": ("vlmo", vlmo()),
        "beit": ("beit", beit()),
    }


@pytest.mark.parametrize("name", families())
def test_a_checkpoint_of_other_sizes(name: str) -> None:
    variant, model = families()[name]
    family = "vilbert" if variant.startswith("vilbert") else variant
    state = export_reference(family, model)
    changed = type(model.config)(**(vars(model.config) | {"intermediate_width": 24}))
    with pytest.raises(ValueError, match=r"tensors of the checkpoint have other shapes") as raised:
        load_reference(family, state, changed)
    assert "is [24, 16] here, [16, 16] in the checkpoint" in str(raised.value)
    with pytest.raises(ValueError, match=f"the checkpoint has no tensor of {family}"):
        load_reference(family, {"a.weight": torch.zeros(1)}, model.config)


def test_a_tokenizer_of_other_sizes() -> None:
    state = export_reference("dvae", DalleTokenizer(DalleConfig(num_tokens=6, width=8)))
    with pytest.raises(ValueError, match=r"last\.weight is \[7, 64, 1, 1\] here, \[6, 64, 1, 1\]"):
        load_reference("dvae", state, DalleConfig(num_tokens=7, width=8))


def test_every_variant_is_here() -> None:
    """The end-to-end model's own inputs have their tests beside it."""
    here = {*READERS, "bert", "beit", "vlmo", "vl-bert-end-to-end"}
    assert here == set(VARIANTS) and set(VARIANTS) < set(MODELS)
