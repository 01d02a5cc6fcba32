"""Jobs count what came in, went on and was dropped.

Reading order: ``funnel`` names the stages, ``steps`` counts in Beam.
"""
