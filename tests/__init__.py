"""Tests of capdag and its cartridges."""
