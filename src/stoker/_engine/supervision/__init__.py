"""Decisions of the supervisor, without clock or process: who makes which unit, restarts, memory."""
