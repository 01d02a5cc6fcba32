import pytest

from vlmill.pipelines.web.texts.personal import is_card, luhn, personal_data


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Write to jane.doe+pics@example.org for prints", "email"),
        ("jane (at) example (dot) org has the originals", "email"),
        ("Call (202) 555-0134 for tickets", "telephone"),
        ("The office, 202-555-0134, is open", "telephone"),
        ("Reach us under +49 30 901820 today", "telephone"),
        ("Reach us under +49 (0)30 90 18 20 today", "telephone"),
        ("From France: +33 1 42 68 53 00", "telephone"),
        ("Mairie, 01 42 68 53 00, Paris", "telephone"),
        ("Berlin, 030 90182000, second floor", "telephone"),
        ("London (020) 7946 0958", "telephone"),
        ("東京 03-1234-5678 まで", "telephone"),
        ("Tel.: 4711 0815", "telephone"),
        ("电话：8765 4321", "telephone"),
        ("Paid with 4111 1111 1111 1111 in the shop", "card"),
        ("Paid with 5500-0000-0000-0004", "card"),
        ("378282246310005 is written on the card", "card"),
    ],
)
def test_what_is_personal(text: str, kind: str) -> None:
    assert personal_data(text) == kind


@pytest.mark.parametrize(
    "text",
    [
        "Soldiers of the war of 1914-1918 in a trench",
        "Winners of 1998, 2002, 2006, 2010 and 2014 with the cup",
        "The seasons 2001 2002 2003 2004 in one chart",
        "ISBN 978-3-16-148410-0, the second edition",
        "ISBN-10: 0-306-40615-2 on the back",
        "ISBN 0306406152",
        "The hill at 48.858370, 2.294481 from the north",
        "The camp at +48.858370 +2.294481",
        "51°30′26″N 0°7′39″W, a view of the river",
        "Inventory no. 0123 456789, a bowl of clay",
        "A crowd of 1,250,000 people in 1,000 streets",
        "It cost $1 200 000 000 in 1998",
        "Resolution 3840 x 2160 and 7680 x 4320",
        "Open 0900-1700 on weekdays",
        "NGC 2237 and NGC 2244 at 5,200 light years",
        "Temple of 1200-1300, restored 1998-2003",
        "IP 192.168.100.200 shown in the window",
        "On 12.05.2019 at 10:30:45 the bridge was opened",
        "2019-05-12 10-30-45, the bridge",
        "The retina file icon@2x.png beside the other",
        "@somebody looks at the sea",
        "Luhn fails: 4111 1111 1111 1112",
        "Serial number 4111111111111 of the engine is worn",
        "",
    ],
)
def test_what_is_none(text: str) -> None:
    assert personal_data(text) is None


def test_luhn_by_hand() -> None:
    assert luhn("79927398713") and not luhn("79927398710")
    assert is_card("4111 1111 1111 1111") and not is_card("9111 1111 1111 1111")
    assert not is_card("4111 1111 1111 111")
