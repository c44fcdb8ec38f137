"""Atari games: how they are played, recorded and learned. Built on the library's public interface alone."""
