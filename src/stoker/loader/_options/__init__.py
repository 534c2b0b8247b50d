"""The validated, frozen options of a loader, and the checks of its arguments."""
