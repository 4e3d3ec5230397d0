"""Real parts behind the gateway's ports."""
