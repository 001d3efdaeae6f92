"""Connections under ASGI: hypercorn's protocol engines with per-stream flow control and disconnects, and HTTP/3 over aioquic.

What is done here and not by hypercorn itself: a request that is not read stalls only itself; an answer given before the
body was read does not wedge or kill its connection; a client that goes away is told to the application at once, on all three
versions; an answer that breaks off is reset, not left hanging; HTTP/3 has backpressure in both directions."""
