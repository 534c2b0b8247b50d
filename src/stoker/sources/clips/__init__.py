"""Clips by time of audio and video files."""
