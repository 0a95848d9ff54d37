"""Measurements on trained policies."""
