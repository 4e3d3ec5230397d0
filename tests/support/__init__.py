"""Real parts for the tests: scripted upstreams, gateways in processes of their own, the cases."""
