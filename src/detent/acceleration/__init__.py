"""Faster forms of acting and updating; nothing else depends on this room."""
