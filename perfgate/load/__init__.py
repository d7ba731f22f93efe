"""Load for a server: what a scenario declares, the requests it comes to, and the client that sends and times them."""
