"""What stands behind the gateway: the wire, its dialects, the upstream client and the Kimi emulator."""
