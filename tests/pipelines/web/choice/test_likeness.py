import pytest

from vlmill.pipelines.web.choice.likeness import compute_overlap, name_subject, subject, text_size


def test_subjects_are_stems_in_latin_letters() -> None:
    assert subject("The views of Калязин, 1984") == {"views", "kalyaz"}
    assert subject("Müller und das Plüsch-Einhorn") == subject("muller plusch-einhorn")
    assert subject("sweet-potato") == {"sweet", "potato"}
    assert subject("三江桥") == {"三江", "江桥"}
    assert subject("") == frozenset()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://a.org/x/Mona_Lisa-2.jpg", {"mona", "lisa"}),
        ("http://a.org/x/%E4%B8%89%E6%B1%9F%E6%A1%A5.jpg", {"三江", "江桥"}),
        ("http://a.org/x/redFoxSnow-300x200.png", {"red", "fox", "snow"}),
        ("http://a.org/x/IMG_1234.jpg", set()),
        ("http://a.org/", set()),
    ],
)
def test_names_of_files(url: str, words: set[str]) -> None:
    assert name_subject(url) == words


def test_shared_by_hand() -> None:
    assert compute_overlap(frozenset("abc"), frozenset("bcde")) == 2 / 3
    assert compute_overlap(frozenset(), frozenset("a")) == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("The red fox", 11 / 6),
        ("Лиса", 4 / 6),
        ("三江桥 2012", 3 * 0.6 + 5 / 6),
        ("きつね", 3 * 0.4),
        ("여우", 2 * 0.4),
    ],
)
def test_sizes_of_texts_by_their_scripts(text: str, size: float) -> None:
    assert text_size(text) == pytest.approx(size)
