"""Every bound of the gateway in one place, each with its reason. Seconds and bytes."""

# A client's request.

# Vision requests carry images as base64; providers take 50 MB of them. The body is held whole to decode its top level.
MAX_BODY_BYTES = 64 * 1024 * 1024
# All bodies that are held at a time: four of the longest, so that many clients can't take the machine's memory.
MAX_BODIES_BYTES = 256 * 1024 * 1024
# With an engine's connection for each, 16,384 file descriptors: what any system lets one process have.
MAX_CONNECTIONS = 8192
# Connections to the port of `--metrics-listen`: some Prometheis and a person. Each asks once.
MAX_SCRAPES = 32
# From the connect to the answer's last byte; Prometheus gives up after 10 s.
SCRAPE_SECONDS = 10.0
# The whole request; browsers send cookies.
MAX_SCRAPE_BYTES = 64 * 1024
# Descriptors that are no client's and no engine's: logs, figures, the controller's connection, the event loop, files
# being read.
RESERVED_FILES = 64 + MAX_SCRAPES
# Clients beyond the most that are being told so at a time; who comes on top of them is cut off.
MAX_REFUSED = 32
# How soon a connect is tried again for which the process had no descriptor left.
FILES_AGAIN_SECONDS = 0.05
# JSON schemas and tools of one request, decoded to look for what hangs an engine: hundreds of tools have 200 kB.
MAX_SCHEMA_BYTES = 1024 * 1024
# Requests read ahead on one connection behind an unanswered one; browsers and SDKs send one at a time.
MAX_PIPELINED = 16
# Bytes kept unparsed behind an unanswered request before the connection is no longer read.
MAX_HELD_BYTES = 64 * 1024
# A TLS handshake is two trips and no more: what takes longer holds a connection for nothing.
HANDSHAKE_SECONDS = 10.0
# A request head comes in one packet; 10 s is a very bad mobile link.
HEAD_SECONDS = 10.0
# No byte of a body for this long: the client is gone or means harm.
BODY_SILENCE_SECONDS = 20.0
# The whole body: the longest one at 110 kB/s.
BODY_SECONDS = 600.0
# Longer than clients keep their own idle connections (5 to 60 s): the side that sends must be the one that closes.
KEEP_ALIVE_SECONDS = 75.0
# After an answer that came before the body's end the rest is read and dropped, or the reset would destroy the answer.
LINGER_SECONDS = 2.0
# A stream that has nothing to say says so this often: proxies and clients give up on a silent one after 30 to 60 s.
SILENCE_SECONDS = 10.0
# A client that takes no byte for so long while more than the buffers hold is due: its slot serves somebody else.
CLIENT_STALL_SECONDS = 60.0

# Requests that wait for one model to be ready: as many as one endpoint of one slot takes when it is
# (`MAX_OUTSTANDING_PER_SLOT`), so that nobody waits only to be refused.
MAX_HELD_PER_MODEL = 64

# An engine's answer.

# How long it may take is the Placement's to say (`timeouts`).
# llama-server closes a kept-alive connection after 5 s: ours go before.
ENGINE_IDLE_SECONDS = 3.0
# It also spends a thread on each, of a few more than it has slots: one idle connection per slot, and never many.
MAX_IDLE_PER_ENDPOINT = 16
# Requests at one endpoint per slot: behind 64 others a client waits minutes and is better told so.
MAX_OUTSTANDING_PER_SLOT = 64
# What a request that its client left had reserved of a shared cache is free again by then: llama-server looks each
# second whether a client is there, and takes what it learned before what comes after.
LEFT_POOL_SECONDS = 2.0
# An engine that doesn't count a prompt by then doesn't count: the bound by its bytes holds.
COUNT_SECONDS = 10.0
# The answer's bound where neither a client nor a table has one and the cache is shared: some pages of text.
OUTPUT_TOKENS = 1024
# Sent at a time where nobody said how many slots there are.
MAX_SENT = 4096 * MAX_OUTSTANDING_PER_SLOT
# An engine's refusal; only its message is used.
MAX_REFUSAL_BYTES = 64 * 1024
# One event of a stream: a chunk with logprobs of 20 alternatives is some kB.
MAX_EVENT_BYTES = 4 * 1024 * 1024
# An answer put together for a client that asked for no stream: 128k tokens with logprobs.
MAX_ANSWER_BYTES = 64 * 1024 * 1024

# An endpoint that refuses is set aside: long enough for a restart to begin, never longer than a person waits.
ASIDE_FIRST_SECONDS = 1.0
ASIDE_LONGEST_SECONDS = 30.0
# Failures in a row: three may be one client that asks for the impossible again and again, two at a time.
FAILURES_ASIDE = 5
# A slot counts as busy for so long with a prompt whose client has left, where nobody gets a byte that says otherwise.
LEFT_PROMPT_SECONDS = 60.0
# An endpoint that owes bytes for so long and gives nobody any is passed over: some thousand tokens of a prompt take as
# long on a slow machine.
SILENT_ENDPOINT_SECONDS = 5.0
# A machine that vanished (no power, no network) is noticed after this long without a byte, and so many asks in so many
# seconds: engines may well be silent for minutes, and are alive.
KEEP_ALIVE_IDLE_SECONDS, KEEP_ALIVE_PROBES, KEEP_ALIVE_PROBE_SECONDS = 15, 3, 5

# The gateway itself.

# Deadlines are looked at this often: one timer for all requests instead of several per request.
SWEEP_SECONDS = 1.0
# Requests in flight may end after SIGTERM or SIGINT, where `--drain-seconds` says nothing else; when the parent is gone
# there are 5 s in all. An hour is more than any answer takes.
DRAIN_SECONDS = 10
MAX_DRAIN_SECONDS = 3600
ORPHAN_DRAIN_SECONDS = 3.0
