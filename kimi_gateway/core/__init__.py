"""The pure core: functions and values only; no socket, clock, file or environment."""
