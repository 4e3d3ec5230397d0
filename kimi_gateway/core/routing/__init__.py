"""Where a request goes: facts about targets and the request in, ordered targets with reasons out. Pure."""
