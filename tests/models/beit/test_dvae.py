"""Image tokenizers: shapes, files that would run code, and wrong sizes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from vlmill.models.beit.dvae import DalleConfig, DalleTokenizer, Dvae, DvaeConfig, map_pixels
from vlmill.models.published import export_reference, load_reference, read_reference

DALLE = DalleConfig(num_tokens=12, width=8)
DVAE = DvaeConfig(num_tokens=12, width=8, codebook_width=6)


@pytest.mark.parametrize("model", [DalleTokenizer(DALLE), Dvae(DVAE)], ids=["dall-e", "own"])
def test_a_token_for_eight_by_eight_pixels(model: Any) -> None:
    pixels = torch.rand(2, 3, 32, 24)
    with torch.no_grad():
        logits = model(pixels)
    assert logits.shape == (2, 12, 4, 3)
    tokens = model.tokens(pixels)
    assert torch.equal(tokens, logits.argmax(dim=1))
    with pytest.raises(ValueError, match=r"\(2, 3, 32, 20\), expected .* in multiples of 8"):
        model(torch.rand(2, 3, 32, 20))


def test_the_published_encoder_has_its_size() -> None:
    # 53.8 million weights: the file that DALL-E's repository names holds 215 MB.
    with torch.device("meta"):
        model = DalleTokenizer(DalleConfig())
    assert round(4 * sum(p.numel() for p in model.parameters()) / 1e6) == 215


def test_tokens_become_a_image_again() -> None:
    model = Dvae(DVAE)
    assert model.decode(torch.zeros(2, 4, 4, dtype=torch.int64)).shape == (2, 3, 32, 32)


def test_pixels_stay_off_the_ends() -> None:
    mapped = map_pixels(torch.tensor([0.0, 0.5, 1.0]).expand(1, 3, 3, 3))
    torch.testing.assert_close(mapped[0, 0, 0], torch.tensor([0.1, 0.5, 0.9]))


@pytest.mark.parametrize("model", [DalleTokenizer(DALLE), Dvae(DVAE)], ids=["dall-e", "own"])
def test_a_checkpoint_survives_the_way_there_and_back(model: Any, tmp_path: Path) -> None:
    state = export_reference("dvae", model)
    torch.save({"weights": state}, tmp_path / "pytorch_model.bin")
    again, table = read_reference("dvae", tmp_path / "pytorch_model.bin", model.config)
    assert not table.missing and not table.unexpected
    exported = export_reference("dvae", again)
    assert exported.keys() == state.keys()
    assert all(torch.equal(exported[name], state[name]) for name in state)


def test_a_pickled_module_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "encoder.pkl"
    torch.save(DalleTokenizer(DALLE), path)  # as DALL-E's file is: the object, not its weights
    with pytest.raises(ValueError, match=r"would run code from the file; save its state_dict\(\)"):
        load_reference("dvae", path, DALLE)
    with pytest.raises(ValueError, match="expected n_hid"):
        load_reference("dvae", {"a": torch.zeros(1)}, {"width": 8})
