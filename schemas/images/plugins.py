"""Loads Pillow's decoders when it is imported, so that processes forked afterwards have them."""

from PIL import Image

Image.init()
