"""``train-vl show`` prints what a run or a checkpoint is made of, without loading a model.

Reading order: ``command`` (arguments), ``folder`` (what DIR holds), ``sheet`` (the lines).
"""
