"""Holds COCO's 80 categories in order, as VCR writes them (without spaces), and persons' names."""

WHOLE = 0  # the full image's
PERSON = "person"
COCO = """
person bicycle car motorcycle airplane bus train truck boat trafficlight firehydrant stopsign
parkingmeter bench bird cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella
handbag tie suitcase frisbee skis snowboard sportsball kite baseballbat baseballglove skateboard
surfboard tennisracket bottle wineglass cup fork knife spoon bowl banana apple sandwich orange
broccoli carrot hotdog pizza donut cake chair couch pottedplant bed diningtable toilet tv laptop
mouse remote keyboard cellphone microwave oven toaster sink refrigerator book clock vase scissors
teddybear hairdrier toothbrush
"""
NUMBERS = {name: number for number, name in enumerate(COCO.split(), 1)}
# Names that any person may have (VL-BERT's code).
UNISEX = """
Casey Riley Jessie Jackie Avery Jaime Peyton Kerry Jody Kendall Frankie Pat Quinn
"""
PERSON_NAMES = tuple(UNISEX.split())


def find_category(name: str) -> int | None:
    """Returns the number of a category, with or without spaces; None if COCO does not have it."""
    return NUMBERS.get(name.replace(" ", "").lower())
