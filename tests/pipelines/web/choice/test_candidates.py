import pytest

from vlmill.pipelines.web.choice.candidates import own_title, says_nothing
from vlmill.pipelines.web.texts.lists import NO_LISTS


@pytest.mark.parametrize(
    "text",
    [
        *("image", "Featured image", "IMG_1234", "DSC00123.JPG", "317093_original-8009236"),
        *("/images/kOKKOltFz58.jpg", "2012-05-03", "42", "***", "photo by A. Name", "see caption"),
        *("続きを読む", "カバー写真", "cover photo", "фото 2", "…"),
    ],
)
def test_texts_that_say_nothing(text: str) -> None:
    assert says_nothing(text, NO_LISTS.phrases)


@pytest.mark.parametrize(
    "text",
    ["map", "Lana", "三江桥", "2015年のグラフ", "Photo of a fox", "Image processing", "Route 66"],
)
def test_short_texts_that_say_something(text: str) -> None:
    assert not says_nothing(text, NO_LISTS.phrases)


def test_the_own_part_of_a_title() -> None:
    assert own_title("Madeleines | Orangette", "") == "Madeleines"
    assert own_title("Orangette | Madeleines", "Orangette") == "Madeleines"
    assert own_title("Madeleines", "") == "Madeleines"
    assert own_title("Site - Alpha - Beta", "Site") == "Site - Alpha"
