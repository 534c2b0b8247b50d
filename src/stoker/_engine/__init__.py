"""Runs units of work behind one interface: in process, by threads, by forked and by spawned workers."""
