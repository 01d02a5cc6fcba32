"""The kinds of vectors, as the column of that name has them."""

IMAGE, TEXT, PAIR = "image", "text", "pair"
