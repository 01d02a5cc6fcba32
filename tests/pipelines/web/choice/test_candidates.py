import pytest

from vlmill.pipelines.web.choice.candidates import is_made_from_name, own_title, says_nothing
from vlmill.pipelines.web.texts.lists import NO_LISTS


@pytest.mark.parametrize(
    "text",
    [
        *("image", "Featured image", "IMG_1234", "DSC00123.JPG", "317093_original-8009236"),
        *("/images/kOKKOltFz58.jpg", "2012-05-03", "42", "***", "photo by A. Name", "see caption"),
        *(
            "続きを読む",
            "カバー写真",
            "cover photo",
            "фото 2",
            "…",
            "Image description",
            "Figura 1.:left",
        ),
        *(
            "Fig. 3",
            "imagen destacada",
            "Beitragsbild",
            "대표 이미지",
            "图片描述",
            "photo cc A. Name",
        ),
        "⊣ Foto de Ana Ruiz en Unsplash ⊢",
    ],
)
def test_texts_that_say_nothing(text: str) -> None:
    assert says_nothing(text, NO_LISTS.phrases)


@pytest.mark.parametrize(
    "text",
    [
        "map",
        "Lana",
        "left wing",
        "三江桥",
        "2015年のグラフ",
        "Photo of a fox",
        "Image processing",
        "Route 66",
    ],
)
def test_short_texts_that_say_something(text: str) -> None:
    assert not says_nothing(text, NO_LISTS.phrases)


@pytest.mark.parametrize(
    ("text", "url", "made"),
    [
        ("opensafari7", "/uploads/opensafari7-1024x768.jpg", True),
        ("#opensafari7", "/uploads/opensafari7.jpg", True),
        ("Graph1-s", "/images/Graph1-s.jpg", True),
        ("sunSet", "/sunSet.png", True),
        (
            "Winter at the castle ana ruiz rYnQwR unsplash",
            "/ana-ruiz-rYnQwR-unsplash-scaled.jpg",
            True,
        ),
        ("castle", "/castle.jpg", False),
        ("Spider-Man", "/Spider-Man.jpg", False),
        ("A red fox in the snow", "/red-fox.jpg", False),
        ("Mona Lisa by night", "/mona-lisa-by-night.jpg", False),
        ("北京2008", "/a.jpg", False),
    ],
)
def test_texts_that_a_program_made_from_a_file_name(text: str, url: str, made: bool) -> None:
    assert is_made_from_name(text, f"http://site.example{url}") is made


def test_the_own_part_of_a_title() -> None:
    assert own_title("Madeleines | Orangette", "") == "Madeleines"
    assert own_title("Orangette | Madeleines", "Orangette") == "Madeleines"
    assert own_title("Madeleines", "") == "Madeleines"
    assert own_title("Site - Alpha - Beta", "Site") == "Site - Alpha"
