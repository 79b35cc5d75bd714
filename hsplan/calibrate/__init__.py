"""
From the start-up lines of a server's log to what they pin.

    log → its lines of interest (scan) → readings of the last start (log) → budget windows (pins) → beside the plan
"""

from hsplan.calibrate.calibrate import calibrate

__all__ = ["calibrate"]
