"""The rules of collapse, the alarm that reads them, and what to change in a run that collapses."""
