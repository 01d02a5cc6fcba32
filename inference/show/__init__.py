"""``train-vl show``: what a run or a checkpoint is made of, told without loading a model.

Reading order: ``command`` (arguments), ``folder`` (what lies in DIR), ``sheet`` (the lines).
"""
