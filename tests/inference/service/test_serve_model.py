"""``train-vl serve`` gives the numbers of ``vlmill.load``, the answers of ``train-vl search``."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.inference.load.test_load import photographs, save
from tests.inference.search.test_embed import Shop
from tests.serving import Served, form, served
from tests.train.tasks import labels
from tests.train.tasks.questions import tiny, world

import vlmill
from vlmill.client import Client, ServiceError
from vlmill.inference.load.explaining import measure_region_effects, without
from vlmill.inference.load.public import Pretrained
from vlmill.inference.search.index import open_index
from vlmill.inference.search.items import ItemIndex
from vlmill.inference.service.app import (
    answer_question,
    classify_question,
    entail_question,
    model_service,
    search_question,
)
from vlmill.inference.service.computing import make_methods, open_model
from vlmill.inference.service.questions import ModelOptions, NoAnswer, Question
from vlmill.inference.service.served_index import ServedIndex
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.service.bodies import Form, RequestImage
from vlmill.runtime.service.logs import flush_log
from vlmill.runtime.service.refusals import RequestRefused
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.weights.names import path_or_name
from vlmill.schemas.errors import InputError
from vlmill.train.cli import main
from vlmill.train.tasks.finetuning.job import finetune

__all__ = ["photographs"]  # a fixture
TEXTS = ["a dog", "two red kites"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    assert shop.embed() == 0
    index = str(shop.folder / "index")
    assert main(["search", "--vectors", str(shop.vectors), "--save-index", index]) == 0
    return shop


@pytest.fixture(scope="module")
def model(shop: Shop) -> Pretrained:
    return vlmill.load(shop.folder / "checkpoint")


@pytest.fixture(scope="module")
def images(shop: Shop) -> list[bytes]:
    reader = ImageReader(shop.folder / "images")
    return [reader[name] or b"" for name in list(reader.image_ids)[:3]]


@pytest.fixture(scope="module")
def service(shop: Shop) -> Iterator[Served]:
    words = ["-m", "vlmill.train.cli", "serve", "--port", "0"]
    words += ["--checkpoint", str(shop.folder / "checkpoint")]
    words += ["--images", str(shop.folder / "images")]
    with served([*words, "--index", str(shop.folder / "index")]) as running:
        yield running
        assert running.count("vlmill_errors_total") == 0
        assert running.stop() == 0


@pytest.mark.slow
def test_the_numbers_are_those_of_load(
    service: Served, model: Pretrained, images: list[bytes]
) -> None:
    client = Client(service.url)
    np.testing.assert_array_equal(
        np.array(client.score(images, TEXTS), dtype=np.float32), model.score(images, TEXTS)
    )
    vectors = client.embed(images, TEXTS)
    found = {name: np.array(rows, dtype=np.float32) for name, rows in vectors.items()}
    np.testing.assert_array_equal(found["pictures"], model.encode_images(images))
    np.testing.assert_array_equal(found["texts"], model.encode_texts(TEXTS))
    assert client.embed(texts=["a dog"])["pictures"] == []


@pytest.mark.slow
def test_a_search_is_that_of_the_command(
    service: Served, shop: Shop, capsys: pytest.CaptureFixture[str], images: list[bytes]
) -> None:
    client = Client(service.url)
    index = str(shop.folder / "index")
    assert main(["search", "--index", index, "--text", "a dog", "--top", "3"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    answers = client.search(text="a dog", top=3)
    assert answers == json.loads(line)["answers"]
    for row in answers:
        assert service.ask("GET", f"/v1/picture?image_id={row['image_id']}").status == 200
    assert len(client.search(image=images[0], top=2)) == 2


@pytest.mark.slow
def test_what_cannot_be_answered_is_said(service: Served, images: list[bytes]) -> None:
    client = Client(service.url)
    assert client.score([b"no picture", images[0]], ["a dog"])[0] == [None]
    assert client.embed([b"no picture"])["pictures"] == [None]
    with pytest.raises(ServiceError, match="404 no_such_method"):
        client.answer(images[0], "what?")
    with pytest.raises(ServiceError, match="422 no_text"):
        client.search(text="  ")
    with pytest.raises(ServiceError, match=r"422 .*cannot be read"):
        client.search(image=b"no picture")
    body, kind = form([("a.jpg", images[0])])
    assert service.post("/v1/score", body, kind).json()["reason"] == "bad_request"
    about = service.ask("GET", "/v1/about").json()
    assert about["methods"] == ["embed", "score", "search", "similar"] and not about["random"]
    assert len(client.similar(["image-0"], top=2)) == 2
    document = service.ask("GET", "/openapi.json").json()
    assert {"/v1/score", "/v1/embed", "/v1/search", "/v1/answer"} <= document["paths"].keys()


def test_questions_are_read_or_refused() -> None:
    image = RequestImage(name="a", content=b"x")
    question = search_question(Form(words={"text": ["a dog"], "top": ["3"]}))
    assert (question.texts, question.top) == (["a dog"], 3)
    for words, images in (
        ({"text": ["a", "b"]}, []),
        ({"text": ["a"]}, [image]),
        ({"text": ["a"], "top": ["0"]}, []),
        ({"text": ["a"], "top": ["-1"]}, []),
        ({"text": ["a"], "top": ["1e3"]}, []),
        ({"text": ["a"], "top": ["99999"]}, []),
        ({"text": ["a"], "rerank": ["0"]}, []),
    ):
        with pytest.raises(RequestRefused):
            search_question(Form(words=words, images=images))
    asked = answer_question(Form(words={"question": ["what?"]}, images=[image]))
    assert (asked.images, asked.texts) == ([b"x"], ["what?"])
    with pytest.raises(RequestRefused):
        answer_question(Form(words={"question": ["what?"]}))


def test_a_checkpoint_serves_what_it_has_heads_for(
    shop: Shop, model: Pretrained, tmp_path: Path
) -> None:
    assert make_methods(model._engine, None).keys() == {"score", "embed"}
    with pytest.raises(InputError, match="index"):
        open_model(
            ModelOptions(checkpoint=shop.folder / "checkpoint", index=tmp_path / "none"), "cpu"
        )
    opened = open_model(ModelOptions(checkpoint=shop.folder / "checkpoint"), "cpu")
    (said,) = opened.compute([Question(method="embed", texts=TEXTS)])
    assert len(said["texts"]) == 2


def test_a_model_of_pairs_ranks_the_results_again(
    shop: Shop,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the command does, and no more results than the request says."""
    fusion, index = Shop(tmp_path, "interbert"), shop.folder / "index"
    again: dict[str, Any] = {
        "reranker": fusion.folder / "checkpoint",
        "regions": str(fusion.folder / "regions"),
    }
    dual = ModelOptions(checkpoint=shop.folder / "checkpoint", index=index)
    with pytest.raises(InputError, match="--regions is missing"):
        open_model(replace(dual, reranker=again["reranker"]), "cpu")
    opened = open_model(replace(dual, **again), "cpu")
    shell, application = model_service(ServiceSettings(), index=ServedIndex(index, seconds=1_000))
    weights = list[int]()

    async def compute(request: object, questions: list[Question], *, weight: int) -> list[object]:
        weights.append(weight)
        return list(opened.compute(questions))

    monkeypatch.setattr(shell, "ask", compute)
    monkeypatch.setattr(type(shell), "about", opened.about)
    client = TestClient(application, base_url="http://localhost")
    for top, rerank in ((2, 4), (4, 2)):
        words = ["search", "--index", str(index), "--text", TEXTS[1], "--top", str(top)]
        words += ["--reranker", str(again["reranker"]), "--regions", str(again["regions"])]
        capsys.readouterr()
        assert main([*words, "--rerank", str(rerank)]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        reply = client.post("/v1/search", json={"text": TEXTS[1], "top": top, "rerank": rerank})
        rows = reply.json()["answers"]
        assert [row["image_id"] for row in rows] == [
            row["image_id"] for row in json.loads(line)["answers"]
        ]
        assert len(rows) == top and sum("match" in row for row in rows) == 2
    assert weights == [1, 4, 1, 2]
    for sent, status in (
        ({"text": TEXTS[1], "rerank": 101}, 400),
        ({"text": " ", "rerank": 2}, 422),
        ({"pictures": ["aGk="], "rerank": 2}, 400),
    ):
        assert client.post("/v1/search", json=sent).status_code == status
    monkeypatch.setattr(type(shell), "about", {**opened.about, "reranks": False})
    reply = client.post("/v1/search", json={"text": TEXTS[1], "rerank": 2})
    assert (reply.status_code, reply.json()["reason"]) == (404, "no_reranker")
    with pytest.raises(InputError, match="a dual encoder, and an --index"):
        open_model(replace(dual, index=None, **again), "cpu")


def test_an_index_of_pairs_is_served_without_search(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "interbert")
    assert shop.embed() == 0
    index = tmp_path / "index"
    assert main(["search", "--vectors", str(shop.vectors), "--save-index", str(index)]) == 0
    model = vlmill.load(tmp_path / "checkpoint")
    assert "search" not in make_methods(model._engine, index)
    assert len(ItemIndex(open_index(index))) == len(shop.rows())
    next(shop.model.parameters()).data += 1
    shop.save()
    with pytest.raises(InputError, match="is not the checkpoint that computed the vectors"):
        make_methods(vlmill.load(tmp_path / "checkpoint")._engine, index)


def test_what_loading_warns_of_is_in_the_log(
    photographs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    open_model(ModelOptions(checkpoint=save(tmp_path / "c", "imagebert", photographs)), "cpu")
    flush_log(60)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["note"]
    assert "has random weights: its regions are meaningless" in lines[0]["message"]


def test_a_checkpoint_may_lie_in_a_store_or_on_the_hub(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(path_or_name("s3://bucket/run")) == "s3://bucket/run"
    assert main(["serve", "--checkpoint", "hf://kites"]) == 2
    assert "hf://kites: expected hf://OWNER/NAME" in capsys.readouterr().err


def test_questions_of_a_batch_are_answered_each_by_itself(
    shop: Shop, model: Pretrained, images: list[bytes]
) -> None:
    options = ModelOptions(checkpoint=shop.folder / "checkpoint", index=shop.folder / "index")
    batch = [
        Question(method="embed", images=images[:1], texts=["a dog"]),
        Question(method="search", texts=["two red kites"], top=2),
        Question(method="embed", texts=["two red kites"]),
        Question(method="search", texts=[" "]),
        Question(method="search", images=images[1:2], top=3),
        Question(method="search", images=[b"no picture"]),
        Question(method="score", images=images[2:], texts=TEXTS),
    ]
    opened = open_model(options, "cpu")
    together = opened.compute(batch)
    for said, question in zip(together, batch, strict=True):
        (alone,) = opened.compute([question])
        if isinstance(alone, NoAnswer):
            assert said == alone
        elif question.method == "search":
            np.testing.assert_allclose(said, alone, atol=1e-6)  # a vector, which is searched for
        else:
            for name, rows in alone.items():
                np.testing.assert_allclose(said[name], rows, atol=1e-6)
    assert sum(isinstance(said, NoAnswer) for said in together) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["classification", pytest.param("entailment", marks=pytest.mark.nightly)]
)
def test_classes_are_those_of_the_loaded_object(tmp_path: Path, task: str) -> None:
    make, method = {
        "classification": (labels.labelled, "classify"),
        "entailment": (labels.statement, "entail"),
    }[task]
    inputs = labels.world(tmp_path, [make(number) for number in range(12)])
    finetune(labels.tiny(task, "vlmo"), inputs, tmp_path / "run")
    assert inputs.images is not None
    image = ImageReader(inputs.images)["image-3"] or b""
    opened = open_model(ModelOptions(checkpoint=tmp_path / "run"), "cpu")
    assert opened.about["methods"] == [method]
    asked = [(image, "it has number 1"), (b"no picture", "it has number 1")]
    said, unread = opened.compute(
        [Question(method=method, images=[p], texts=[t]) for p, t in asked]
    )
    found = getattr(vlmill.load(tmp_path / "run"), method)(*asked[0])
    assert said == {"labels": list(found.labels), "probabilities": found.probabilities}
    assert isinstance(unread, NoAnswer) and unread.reason == "unreadable"


def test_forms_of_classes() -> None:
    image = RequestImage(name="a.jpg", content=b"1")
    (text,) = classify_question(Form(words={}, images=[image])).texts
    assert text == ""
    assert entail_question(Form(words={"statement": ["a"]}, images=[image])).texts == ["a"]
    for read, words in ((classify_question, {"text": ["a", "b"]}), (entail_question, {})):
        with pytest.raises(RequestRefused):
            read(Form(words=words, images=[image]))


@pytest.mark.slow
def test_questions_about_images_are_answered(tmp_path: Path) -> None:
    inputs = world(tmp_path)
    finetune(tiny("vqa-vlmo-small", "steps=2"), inputs, tmp_path / "run")
    assert inputs.images is not None
    reader = ImageReader(inputs.images)
    opened = open_model(ModelOptions(checkpoint=tmp_path / "run"), "cpu")
    assert opened.about["methods"] == ["answer"]
    asked = [
        (reader["image-3"] or b"", "what is left of number 1?"),
        (b"no picture", "what is left?"),
        (reader["image-4"] or b"", " "),
        (reader["image-5"] or b"", "what is left of number 2?"),
    ]
    said = opened.compute([Question(method="answer", images=[p], texts=[t]) for p, t in asked])
    model = vlmill.load(tmp_path / "run")
    assert said[0] == {"answer": model.answer(*asked[0])}
    assert said[3] == {"answer": model.answer(*asked[3])}
    assert all(isinstance(one, NoAnswer) and one.reason == "unreadable" for one in said[1:3])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the detector of:UserWarning")
def test_what_a_score_rests_on(photographs: Path, tmp_path: Path) -> None:
    """The score is that of the full image, and a loss is the difference to one region less."""
    checkpoint = save(tmp_path / "vilbert", "vilbert", photographs)
    opened = open_model(ModelOptions(checkpoint=checkpoint), "cpu")
    assert opened.about["methods"] == ["attend", "score"]
    image = (photographs / "image-0.jpg").read_bytes()
    asked = Question(method="attend", images=[image], texts=["a dog"])
    bad = Question(method="attend", images=[b"no picture"], texts=["a dog"])
    said, refused = opened.compute([asked, bad])
    assert isinstance(refused, NoAnswer)
    model = vlmill.load(checkpoint)
    (scores,) = model.score([image], ["a dog"])
    np.testing.assert_allclose(said["score"], scores[0], atol=1e-5)
    count = said["regions"][0]["num_boxes"]
    assert count == len(said["losses"]) > 1 and np.isfinite(said["losses"]).all()
    assert len(set(said["losses"])) > 1
    other = (photographs / "image-1.jpg").read_bytes()
    batch = [
        Question(method="score", images=[image, b"no picture"], texts=["a dog", " "]),
        asked,
        Question(method="score", images=[other], texts=["two red kites"]),
    ]
    both, between, one = opened.compute(batch)  # each as if it were alone
    assert between["losses"] == said["losses"]
    assert both["scores"] == [[float(scores[0]), None], [None, None]]
    assert one["scores"] == model.score([other], ["two red kites"]).tolist()
    found = measure_region_effects(model._engine, image, "a dog")
    less = without(found.row, 1)
    assert len(less.boxes) == count - 1
    np.testing.assert_array_equal(less.boxes[1:], found.row.boxes[2:])
    np.testing.assert_array_equal(less.features[0], found.row.features[0])  # type: ignore[index]
    assert less.class_ids is not None and len(less.class_ids) == count - 1
